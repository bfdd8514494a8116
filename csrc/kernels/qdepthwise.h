/* qdepthwise.h: one line of an integer convolution whose groups have one channel each, channels last.
 *
 *     y[o,c] = finish(sum over i, j of w[c,i,j] * (x[o * stride + (i, j) * dilation - pad, c] - x_zero))
 *
 * finish is that of qgemm.h; taps outside of x count 0. Sums are exact, or wrap.
 *
 * Four taps of a line (the dtype u8 in kernels.def), or two as int16 (i16), that lie side by side
 * multiply and add in one instruction for each channel, once their bytes are zipped. `outs` pixels of y
 * share what is zipped: a run of `groups` such groups is as wide as a line of the kernel, and where
 * it is wider, the kernel shifted by a stride fits too, with its weights in other places of the run.
 * (3x3 of stride 1: one zip of four bytes serves two pixels.)
 *
 * w: for each block of nr channels
 *     sums (nr,) int32    of the channel's weights: what x_zero counts too much
 *     scale, bias (nr,) float
 *     weights (kh, groups, parts, outs, nr, 4 bytes), 0 where the kernel is not; weights less their
 *     zero are sums of `parts` int8, in u8
 * in the order of channels that zipping makes, see simd.h. */
#ifndef Q7_QDEPTHWISE_H
#define Q7_QDEPTHWISE_H
#include "../abi.h"

typedef struct q7_qdepthwise_line {
    int64_t n, oh;
    int32_t x_zero, zero;
    const uint8_t *outside; /* (C,) x_zero: a pixel outside of x */
    const uint8_t **taps;   /* room for the pixels of a run: q7_qdepthwise_taps() */
} q7_qdepthwise_line;

typedef void (*q7_qdepthwise_kernel)(const q7_qdepthwise_args *args,
                                     const q7_qdepthwise_line *line);

/* At most; q7x2_ep/ops/quant_product.py holds the same formula. */
static inline int64_t q7_qdepthwise_taps(int64_t kh, int64_t kw) { return kh * (kw + 3); }

/* The same formula too. size: taps of a group. */
static inline int64_t q7_qdepthwise_outs(const q7_qdepthwise_args *x, int64_t size) {
    const int64_t run = q7_ceil_div(x->kw, size) * size;
    return x->dilation_w == 1 && run - x->kw >= x->stride_w ? 2 : 1;
}
#endif
