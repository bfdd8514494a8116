/* qconv.c: the kernel of qconv.h for every ISA. Read qconv.h first. */
#include "qconv.h"

#include "../simd/simd.h"

enum { VECTORS = 4 /* of a line, whose sums stay in registers for all taps of a channel */ };

/* The phases of a line of x, each `length` pairs; between: room for the line with its pads. */
static void widen(const q7_qconv_plane *t, const uint8_t *x, int64_t length, int32_t *between,
                  int16_t *pairs) {
    const int64_t stride = t->stride_w, next = t->dilation_w, size = length * stride + next;
    const int64_t first = q7_max(0, -t->pad_left), last = q7_min(t->W, size - t->pad_left);
    memset(between, 0, (size_t)size * sizeof *between);
    if (t->is_signed)
        for (int64_t w = first; w < last; w++) between[t->pad_left + w] = (int8_t)x[w] - t->x_zero;
    else
        for (int64_t w = first; w < last; w++) between[t->pad_left + w] = x[w] - t->x_zero;
    for (int64_t phase = 0; phase < stride; phase++, between++, pairs += 2 * length)
        for (int64_t i = 0; i < length; i++) {
            pairs[2 * i] = (int16_t)between[i * stride];
            pairs[2 * i + 1] = (int16_t)between[i * stride + next];
        }
}

/* sums[0 .. vectors * Q7_W) += the taps of one channel; `vectors` is a constant where inlined. */
Q7_INLINE void add_taps(const q7_qconv_plane *t, const int16_t *weight, int64_t h, int64_t column,
                        int64_t length, const int16_t *pairs, const int vectors, int32_t *sums) {
    q7_i32 sum[VECTORS];
    Q7_UNROLL
    for (int v = 0; v < vectors; v++) sum[v] = q7_i32_load(sums + v * Q7_W);
    for (int64_t i = 0; i < t->kh; i++, h += t->dilation_h, weight += t->kw) {
        if (h < 0 || h >= t->H) continue;
        for (int64_t j = 0; j < t->kw; j += 2) {
            const int64_t at = j * t->dilation_w, phase = at % t->stride_w;
            const int16_t taps[2] = {weight[j], j + 1 < t->kw ? weight[j + 1] : 0};
            int32_t both;
            memcpy(&both, taps, sizeof both);
            const q7_i32 w = q7_i32_set1(both);
            const int64_t first = (h * t->stride_w + phase) * length + column + at / t->stride_w;
            Q7_UNROLL
            for (int v = 0; v < vectors; v++)
                sum[v] = q7_madd_pairs(sum[v], pairs + 2 * (first + v * Q7_W), w);
        }
    }
    Q7_UNROLL
    for (int v = 0; v < vectors; v++) q7_i32_store(sums + v * Q7_W, sum[v]);
}

/* x rounded to even and clamped to [low, high], both integers: adding 1.5 * 2^23 leaves no bits
 * for a fraction. */
Q7_INLINE int32_t q7_rounded(float x, float low, float high) {
    const float magic = 12582912.0f;
    x = x > low ? x : low;
    x = x < high ? x : high;
    return (int32_t)((x + magic) - magic);
}

/* c[i] = saturate(round(x[i]) + zero) as c_dtype, Q7_U8 or Q7_I8. */
Q7_INLINE void q7_quantized(int64_t n, const float *x, int32_t zero, int64_t c_dtype, void *c) {
    const int32_t low = c_dtype == Q7_U8 ? 0 : -128, high = low + 255;
    const float from = (float)(low - zero), to = (float)(high - zero);
    for (int64_t i = 0; i < n; i++)
        ((uint8_t *)c)[i] = (uint8_t)(q7_rounded(x[i], from, to) + zero);
}

static void finish(const q7_qconv_plane *t, const int32_t *sums, int64_t first) {
    enum { BLOCK = 64 };
    const int64_t line = q7_qconv_sums(t->OW);
    float scaled[BLOCK];
    for (int64_t o = 0; o < t->OW; o += BLOCK) {
        const int64_t n = q7_min(BLOCK, t->OW - o), at = first * t->OW + o;
        const int32_t *sum = sums + first * line + o;
        if (t->y_dtype == Q7_I32) {
            memcpy((int32_t *)t->y + at, sum, (size_t)n * sizeof *sum);
            continue;
        }
        for (int64_t i = 0; i < n; i++) scaled[i] = (float)sum[i] * t->scale + t->bias;
        if (t->y_dtype == Q7_F32)
            memcpy((float *)t->y + at, scaled, (size_t)n * sizeof *scaled);
        else
            q7_quantized(n, scaled, t->zero, t->y_dtype, (uint8_t *)t->y + at);
    }
}

void Q7_KERNEL(qconv_i16)(const q7_qconv_plane *t) {
    const int64_t length = q7_qconv_pairs(t->OW, t->kw, t->stride_w, t->dilation_w);
    const int64_t line = q7_qconv_sums(t->OW), phases = length * t->stride_w;
    int32_t *sums = t->work, *between = sums + t->OH * line;
    int16_t *pairs = (int16_t *)(between + q7_qconv_line(t->OW, t->kw, t->stride_w, t->dilation_w));
    memset(sums, 0, (size_t)(t->OH * line) * sizeof *sums);
    for (int64_t c = 0; c < t->C; c++) {
        const int16_t *weight = t->weight + c * t->kh * t->kw;
        for (int64_t h = 0; h < t->H; h++)
            widen(t, t->x + (c * t->H + h) * t->W, length, between, pairs + 2 * h * phases);
        for (int64_t p = 0; p < t->OH; p++) {
            const int64_t h = p * t->stride_h - t->pad_top;
            int64_t o = 0;
            for (; o + VECTORS * Q7_W <= line; o += VECTORS * Q7_W)
                add_taps(t, weight, h, o, length, pairs, VECTORS, sums + p * line + o);
            for (; o < line; o += Q7_W)
                add_taps(t, weight, h, o, length, pairs, 1, sums + p * line + o);
        }
    }
    for (int64_t p = 0; p < t->OH; p++) finish(t, sums, p);
}
