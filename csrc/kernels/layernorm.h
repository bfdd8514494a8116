/* layernorm.h: y[r,:] = (s - mean(s)) * rsqrt(var(s) + eps) * weight + bias, s = x + skip +
 * skip_bias, for rows of cols floats.
 *
 * skip and skip_bias may be NULL (0); skip repeats every skip_rows rows. sum, if not NULL, receives
 * s. y and sum may each be x or skip (skip only when skip_rows covers all rows). Any alignment.
 * Statistics in two passes (mean, then the mean of squared differences), f32 in 4 Q7_W partial
 * sums: the second pass cancels nothing. NaN and infinities make their row NaN. */
#ifndef Q7_KERNELS_LAYERNORM_H
#define Q7_KERNELS_LAYERNORM_H
#include "../abi.h"

typedef struct q7_layernorm_tile {
    int64_t first_row, rows, cols, skip_rows;
    const float *x;         /* (.., cols) row 0 */
    const float *skip;      /* (skip_rows, cols) or NULL */
    const float *skip_bias; /* (cols) or NULL */
    const float *weight;    /* (cols) */
    const float *bias;      /* (cols) or NULL */
    float *y, *sum;         /* (.., cols) row 0; sum may be NULL */
    float eps;
} q7_layernorm_tile;

typedef void (*q7_layernorm_kernel)(const q7_layernorm_tile *tile);
#endif
