/* depthwise.h: some lines of one plane of a convolution whose groups have one channel each.
 *
 *     y[o, p] = act(bias + sum over t = (i, j) of w[t] * x[h, v]) + residual[o, p], lines o in
 *     [first, first + lines), with h = o * stride_h - pad_top + i * dilation_h, v likewise
 *
 * and act of all of the sum with residual_first. `filter` counts the planes of y, (N, C, repeat).
 * The lines of x under those of y are copied to `line` first, with zeros around them and the
 * columns sorted by remainder, so that what a tap reads is contiguous for any stride:
 *
 *     line h:  x[h, 0 - pad], x[h, s - pad], x[h, 2 s - pad] ..    `part` floats
 *              x[h, 1 - pad], x[h, s + 1 - pad] ..                 and so on, s of these
 *
 * taps[t] is where tap t starts there. The taps of a line of the kernel are summed in order, then
 * the lines, from the bias on. Up to Q7_DEPTHWISE_SLACK floats beyond the end of what counts are read. */
#ifndef Q7_DEPTHWISE_H
#define Q7_DEPTHWISE_H
#include "../abi.h"

enum { Q7_DEPTHWISE_SLACK = 16 }; /* a vector, whatever the ISA */

typedef struct q7_depthwise_tile {
    int64_t filter, first, lines;
    int64_t part;        /* floats */
    const int64_t *taps; /* (kh, kw) */
    float *line;         /* ((lines - 1) * stride_h + (kh - 1) * dilation_h + 1, stride_w, part) */
} q7_depthwise_tile;

typedef void (*q7_depthwise_kernel)(const q7_depthwise_args *args, const q7_depthwise_tile *tile);
#endif
