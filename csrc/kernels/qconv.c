/* qconv.c: the kernel of qconv.h. Plain loops over a line, which compilers vectorise for each ISA.
 * Read qconv.h first. */
#include "qconv.h"

#include "../abi.h"
#include "qfinish.h"

enum { BLOCK = 256 }; /* outputs whose sums stay in L1 */

/* sums[o] += weight * (x[o * stride] - zero) for n outputs; stride is a constant where it is short.
 */
#define ADD(T, step)                \
    for (int64_t o = 0; o < n; o++) \
    sums[o] += (uint32_t)(weight * (((const T *)x)[o * (step)] - zero))
Q7_INLINE void add_tap(int64_t n, const uint8_t *restrict x, bool is_signed, int64_t stride,
                       int32_t weight, int32_t zero, uint32_t *restrict sums) {
    if (is_signed && stride == 1)
        ADD(int8_t, 1);
    else if (stride == 1)
        ADD(uint8_t, 1);
    else if (is_signed && stride == 2)
        ADD(int8_t, 2);
    else if (stride == 2)
        ADD(uint8_t, 2);
    else if (is_signed)
        ADD(int8_t, stride);
    else
        ADD(uint8_t, stride);
}
#undef ADD

/* The sums of outputs [first, first + n). */
static void sum(const q7_qconv_line *t, int64_t first, int64_t n, uint32_t *sums) {
    const int16_t *weight = t->weight;
    memset(sums, 0, (size_t)n * sizeof *sums);
    for (int64_t c = 0; c < t->C; c++)
        for (int64_t i = 0; i < t->kh; i++) {
            const int64_t h = t->h + i * t->dilation_h;
            for (int64_t j = 0; j < t->kw; j++, weight++) {
                const int64_t w = t->w + first * t->stride_w + j * t->dilation_w;
                /* the outputs whose tap lies inside: 0 <= w + o * stride_w < W */
                const int64_t low = w < 0 ? q7_min(n, q7_ceil_div(-w, t->stride_w)) : 0;
                const int64_t high = w < t->W ? q7_min(n, q7_ceil_div(t->W - w, t->stride_w)) : 0;
                if (h < 0 || h >= t->H || low >= high) continue;
                const uint8_t *x = t->x + (c * t->H + h) * t->W + w + low * t->stride_w;
                add_tap(high - low, x, t->is_signed, t->stride_w, *weight, t->x_zero, sums + low);
            }
        }
}

static void finish(const q7_qconv_line *t, int64_t first, int64_t n, const uint32_t *sums) {
    float scaled[BLOCK];
    if (t->y_dtype == Q7_I32) {
        memcpy((int32_t *)t->y + first, sums, (size_t)n * sizeof *sums);
        return;
    }
    for (int64_t o = 0; o < n; o++) scaled[o] = (float)(int32_t)sums[o] * t->scale + t->bias;
    if (t->y_dtype == Q7_F32)
        memcpy((float *)t->y + first, scaled, (size_t)n * sizeof *scaled);
    else
        q7_quantized(n, scaled, t->zero, t->y_dtype, (uint8_t *)t->y + first);
}

void Q7_KERNEL(qconv_i16)(const q7_qconv_line *t) {
    uint32_t sums[BLOCK];
    for (int64_t first = 0; first < t->OW; first += BLOCK) {
        const int64_t n = q7_min(BLOCK, t->OW - first);
        sum(t, first, n, sums);
        finish(t, first, n, sums);
    }
}
