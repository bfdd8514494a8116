/* conv_direct.h: a line of pixels of a convolution for one panel of filters, read where they lie.
 *
 *     y[p, f] = act(bias[f] + sum over k of x[p * x_stride + offset[k]] * w[k, f]) * scale[f] + shift[f]
 *               + residual[p, f],
 *
 * and act of all of the sum with residual_first, for m windows, x_stride floats apart, and n <= nr
 * filters. k runs over the channels and taps of a window; offset, which is the same for all windows,
 * tells where x has them, so that x may have its channels first or last, and gaps of any size. w is a
 * panel as packed for gemm.h, (k, nr). Sums run over k in order, k_block values at a time,
 * in f32, one accumulator per element.
 *
 * With together = 2 a step of k is two values side by side in x, and n <= nr / 2: a panel has two
 * weights of each filter side by side,
 *
 *     w[k, 2 f + i]  meets  x[p * x_stride + offset[k] + i],
 *
 * which are summed apart, and added to one another in the end. So few filters fill vectors, and a
 * broadcast serves two values.
 *
 * Nothing outside (m, n) is touched; any alignment. y overlaps neither x nor w. What is wanted next is
 * prefetched meanwhile, and with `fetches` so are rows of y and of the residual. */
#ifndef Q7_CONV_DIRECT_H
#define Q7_CONV_DIRECT_H
#include "../abi.h"

typedef struct q7_conv_line {
    int64_t m, n, k, k_block, together; /* together: 1 or 2 */
    const float *x;
    int64_t x_stride;
    const int64_t *offset; /* (k,) floats */
    int64_t run;           /* of so many steps of k each is right behind the one before in x */
    const float *w;        /* (k, nr) */
    const float *next;     /* what is wanted next */
    int64_t next_floats;
    float *y; /* (m, n) */
    int64_t y_stride;
    const float *bias;     /* (n,), or NULL */
    const float *residual; /* (m, n), or NULL */
    int64_t residual_stride;
    const float *scale, *shift; /* (n,), or both NULL */
    bool residual_first, fetches;
    int64_t act; /* Q7_act_* */
    float act_alpha, act_beta;
} q7_conv_line;

typedef void (*q7_conv_direct_kernel)(const q7_conv_line *line);
#endif
