/* depthwise.h: a part of a convolution whose groups have one channel each, channels last.
 *
 *     y[o, c] = act(bias[c] + sum over t of w[t, c] * x[p(o, t), c]) * scale[c] + shift[c] + residual[o, c],
 *
 * and act of all of the sum with residual_first, for the pixels o = (n, od, [oh, oh_end), [ow, ow_end))
 * and channels [first, end); p(o, t) is where tap t = (l, i, j) of the kernel meets x (N, D, H, W, C),
 * nothing outside of it. Taps are summed in order. Channels of x, w and y lie side by side; any
 * alignment.
 *
 * Or groups have `width` channels and as many filters, a divisor of Q7_W that first and end are
 * multiples of: each tap is then a sum over the channels k of c's group, of w[t, k, c] times theirs. */
#ifndef Q7_DEPTHWISE_H
#define Q7_DEPTHWISE_H
#include "../abi.h"

typedef struct q7_depthwise_part {
    int64_t n, od;
    int64_t oh, oh_end, ow, ow_end;
    int64_t first, end; /* channels */
} q7_depthwise_part;

typedef void (*q7_depthwise_kernel)(const q7_depthwise_args *args, const q7_depthwise_part *part);
#endif
