/* conv_planes.h: a line of a convolution of planes, for up to Q7_PLANE_FILTERS filters:
 *
 *     y[f, p] = act(bias[f] + sum over k of w[f, k] * x[offset[k] + p]) + residual[f, p],  p < n,
 *
 * and act of all of the sum with residual_first. Vectors are of pixels, so that few channels and few
 * filters fill them. k runs over the channels and taps of a window in the order of w; sums run over k in
 * order, k_block values at a time, in f32.
 *
 * Of x Q7_PLANE_SLACK floats behind the last pixel are read as well; of y, bias and residual nothing
 * outside (filters, n) is touched. Any alignment. y overlaps neither x nor residual. */
#ifndef Q7_CONV_PLANES_H
#define Q7_CONV_PLANES_H
#include "../abi.h"

enum { Q7_PLANE_FILTERS = 4 };

typedef struct q7_plane_line {
    int64_t n, filters, k, k_block;
    const float *x;
    const int64_t *offset; /* (k,) floats */
    const float *w;        /* (filters, k) */
    const float *bias;     /* (filters,), or NULL */
    float *y;
    const float *residual; /* or NULL */
    int64_t plane;         /* floats from a filter of y, and of the residual, to the next */
    bool residual_first;
    int64_t act; /* Q7_act_* */
    float act_alpha, act_beta;
} q7_plane_line;

typedef void (*q7_conv_planes_kernel)(const q7_plane_line *line);
#endif
