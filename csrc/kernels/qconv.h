/* qconv.h: one line of an integer convolution over bytes, for the channels of one group:
 *
 *     y[o] = finish(sum over c, i, j of w[c,i,j] * (x[c, h + i * dilation_h,
 *                                                    w + o * stride_w + j * dilation_w] - x_zero))
 *
 * Taps outside of x count 0. Sums are exact while C * kh * kw * 255 * 255 < 2^31, and wrap beyond.
 * finish is that of qgemm.h, with one scale and one bias. */
#ifndef Q7_QCONV_H
#define Q7_QCONV_H
#include <stdbool.h>
#include <stdint.h>

typedef struct q7_qconv_line {
    int64_t C, H, W, OW, kh, kw, stride_w, dilation_h, dilation_w;
    int64_t h, w;     /* of the first tap of the first window: may lie outside */
    const uint8_t *x; /* (C, H, W) */
    bool is_signed;   /* x are int8 */
    int32_t x_zero;
    const int16_t *weight; /* (C, kh, kw) */
    float scale, bias;
    int32_t zero;
    int64_t y_dtype; /* Q7_I32, Q7_F32, Q7_U8 or Q7_I8 */
    void *y;         /* (OW,) */
} q7_qconv_line;

typedef void (*q7_qconv_kernel)(const q7_qconv_line *line);
#endif
