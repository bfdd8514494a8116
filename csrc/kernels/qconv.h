/* qconv.h: one plane of an integer convolution over bytes: a filter over the channels of its group.
 *
 *     y[p,o] = finish(sum over c, i, j of w[c,i,j] * (x[c, p * stride_h - pad_top + i * dilation_h,
 *                                              o * stride_w - pad_left + j * dilation_w] - x_zero))
 *
 * Taps outside of x count 0. Sums are exact while C * kh * kw * 255 * 255 < 2^31, and wrap beyond.
 * finish is that of qgemm.h, with one scale and one bias.
 *
 * A channel is widened first, each element beside the one of the next tap, as phases of the stride,
 * so that neighbours in an output line read neighbours: with X the line between its pads,
 *
 *     pairs[h, phase, t] = (X[t * stride_w + phase], X[t * stride_w + phase + dilation_w])
 *
 * Lines of sums and pairs end in room for a vector. work: q7_qconv_work() int32, for the sums, X
 * and the pairs of int16. */
#ifndef Q7_QCONV_H
#define Q7_QCONV_H
#include "../abi.h"

typedef struct q7_qconv_plane {
    int64_t C, H, W, OH, OW, kh, kw;
    int64_t stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
    const uint8_t *x; /* (C, H, W) */
    bool is_signed;   /* x are int8 */
    int32_t x_zero;
    const int16_t *weight; /* (C, kh, kw) */
    float scale, bias;
    int32_t zero;
    int64_t y_dtype; /* Q7_I32, Q7_F32, Q7_U8 or Q7_I8 */
    void *y;         /* (OH, OW) */
    int32_t *work;
} q7_qconv_plane;

typedef void (*q7_qconv_kernel)(const q7_qconv_plane *plane);

/* Sums of a line; pairs of a phase of one; the elements that these come from. */
static inline int64_t q7_qconv_sums(int64_t OW) { return q7_ceil_div(OW, 16) * 16; }
static inline int64_t q7_qconv_pairs(int64_t OW, int64_t kw, int64_t stride, int64_t dilation) {
    return q7_qconv_sums(OW) + (kw - 1) * dilation / stride;
}
static inline int64_t q7_qconv_line(int64_t OW, int64_t kw, int64_t stride, int64_t dilation) {
    return q7_qconv_pairs(OW, kw, stride, dilation) * stride + dilation;
}

/* q7x2_ep/ops/quant_product.py holds the same formula. */
static inline int64_t q7_qconv_work(int64_t H, int64_t OH, int64_t OW, int64_t kw, int64_t stride,
                                    int64_t dilation) {
    return OH * q7_qconv_sums(OW) + H * stride * q7_qconv_pairs(OW, kw, stride, dilation) +
           q7_qconv_line(OW, kw, stride, dilation);
}
#endif
