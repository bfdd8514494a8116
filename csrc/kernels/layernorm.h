/* layernorm.h: with s = x + skip + skip_bias, for rows of cols floats,
 *   layernorm  y[r,:] = (s - mean(s)) * rsqrt(var(s) + eps) * weight + bias
 *   rmsnorm    y[r,:] = s * rsqrt(mean(s^2) + eps) * weight
 *
 * The rows of sum and skip are dense, those of y y_stride floats apart. Those of x come in groups of inner_rows:
 *
 *   row r of x starts at (r / inner_rows) * x_outer_stride + (r % inner_rows) * x_row_stride
 *
 * so that x may be a head of a merged projection: inner rows are heads, outer ones positions.
 * An element of weight and bias is for `run` columns side by side, and they repeat every weight_rows rows:
 * those of channels of an image by planes, or of groups of them.
 *
 * skip and skip_bias may be NULL (0); skip repeats every skip_rows rows. sum, if not NULL, receives
 * s. y, if its rows are dense, and sum may each be x, if its rows are, or skip (only when skip_rows
 * covers all rows).
 * Any alignment. Sums are f32 in 4 Q7_W partial sums; a variance is the mean of squared differences
 * from a mean found before: it cancels nothing. NaN and infinities make their row NaN, except that
 * rmsnorm gives 0 for the finite elements of a row with infinities. */
#ifndef Q7_KERNELS_LAYERNORM_H
#define Q7_KERNELS_LAYERNORM_H
#include "../abi.h"

typedef struct q7_layernorm_tile {
    int64_t first_row, rows, cols, skip_rows;
    int64_t inner_rows, x_outer_stride, x_row_stride, y_stride;
    const float *x;         /* row 0 */
    const float *skip;      /* (skip_rows, cols) or NULL */
    const float *skip_bias; /* (cols) or NULL (0) */
    int64_t weight_rows, run;
    const float *weight; /* (weight_rows, cols / run) or NULL (1) */
    const float *bias;   /* likewise, or NULL (0) */
    float *y, *sum;      /* (.., cols) row 0; sum may be NULL */
    float eps;
} q7_layernorm_tile;

typedef void (*q7_layernorm_kernel)(const q7_layernorm_tile *tile);
#endif
