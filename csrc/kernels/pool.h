/* pool.h: lines (OW,) of a pooled volume in f32, or the maxima of bytes by element.
 *
 *     y[n, o] = op over the taps t of x[n, p], p = o * stride - pad + t * dilation in each of the
 *     three dims, those outside of x left out
 *     max: a NaN gives NaN; nothing: -inf.  lp: (sum |x|^p)^(1/p).
 *     mean: divided by the taps within x, or with count_pads within x and its pads.
 *
 * x (N, D, H, W); `line` counts the lines (N, OD, OH) of y, of which [line, end) are made. Planes
 * and lines of the window join first, in order, then columns, in order: sums are short. work holds
 * q7_pool_line floats for each of q7_pool_band lines. counts[ow]: how many columns count for mean;
 * neither is touched for q7_pool_by_element. */
#ifndef Q7_POOL_H
#define Q7_POOL_H
#include "windows.h"

typedef void (*q7_pool_kernel)(const q7_pool_args *args, int64_t line, int64_t end,
                               const float *counts, float *work);

/* How many taps mean divides by, in one dim of size n. */
static inline int64_t q7_pool_count(int64_t start, int64_t k, int64_t dilation, int64_t n,
                                    int64_t pad_before, int64_t pad_after, bool count_pads) {
    const q7_taps taps = count_pads ? q7_taps_within(start, k, dilation, -pad_before, n + pad_after)
                                    : q7_taps_within(start, k, dilation, 0, n);
    return taps.end - taps.first;
}

/* Whether a line of y is lines of x joined, as in images whose channels are last. Powers of lp
 * other than 2 are not worth code here. */
static inline bool q7_pool_by_element(const q7_pool_args *args) {
    return args->kw == 1 && args->stride_w == 1 && !args->pad_left && args->OW == args->W &&
           (args->op != Q7_pool_lp || args->p == 2);
}

/* The floats of a line of x with its pads, and of all windows over it. */
static inline int64_t q7_pool_line(const q7_pool_args *args) {
    const int64_t windows = (args->OW - 1) * args->stride_w + (args->kw - 1) * args->dilation_w + 1;
    return q7_max(windows, args->pad_left + args->W);
}

enum { Q7_POOL_LINES = 16 };

/* How many lines of y are made at a time, up to Q7_POOL_LINES: one, or what Q7_POOL_BAND floats hold. */
static inline int64_t q7_pool_band(int64_t line_floats) {
    return q7_max(1, q7_min(Q7_POOL_LINES, Q7_POOL_BAND / line_floats));
}
#endif
