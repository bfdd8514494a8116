/* conv_direct.h: some pixels of a convolution for one panel of filters, read where they lie.
 *
 *     y[p, f] = act(bias[f] + sum over k of x[p * x_stride + offset[k]] * w[k, f]) + residual[p, f],
 *
 * and act of all of the sum with residual_first, for m <= mr windows, x_stride floats apart, and n <= nr
 * filters. k runs over the channels and taps of a window; offset, which is the same for all windows,
 * tells where x has them, so that x may have its channels first or last, and gaps of any size. w is a
 * panel as packed for gemm.h, (k, nr). Sums run over k in order, in f32, one accumulator per element.
 * With `first` false the sum is added to y; bias, residual and act are applied only where `last` is
 * true. Nothing outside (m, n) is touched; any alignment. y overlaps neither x nor w. */
#ifndef Q7_CONV_DIRECT_H
#define Q7_CONV_DIRECT_H
#include "../abi.h"

typedef struct q7_conv_tile {
    int64_t m, n, k;
    const float *x;
    int64_t x_stride;
    const int64_t *offset; /* (k,) floats */
    const float *w;        /* (k, nr) */
    int64_t ahead;         /* floats from there to what is wanted next, as far apart */
    float *y;              /* (m, n) */
    int64_t y_stride;
    bool first, last;
    const float *bias;     /* (n,), or NULL */
    const float *residual; /* (m, n), or NULL */
    int64_t residual_stride;
    bool residual_first;
    int64_t act; /* Q7_act_* */
    float act_alpha, act_beta;
} q7_conv_tile;

typedef void (*q7_conv_direct_kernel)(const q7_conv_tile *tile);
#endif
