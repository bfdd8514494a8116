/* quantize.c: the kernel of quantize.h for every ISA.
 *
 * A division takes 16 cycles for 16 floats. The quotient comes of the reciprocal instead, and one
 * correction by its remainder, which is exact in a fused multiply-add: that is x / scale, rounded
 * (Markstein 1990), where no exponent is near its ends. Scalar has no fma, and divides. */
#include "quantize.h"

#include <math.h>

#include "../simd/simd.h"

enum { BLOCK = 4 * Q7_W };

/* int8 as bytes are 128 more, where their signs are turned. */
Q7_INLINE int32_t flip_of(bool is_signed) { return is_signed ? 128 : 0; }

/* Q7_W bytes, dequantised. A product that is not rounded before it is added would have other bits. */
Q7_INLINE q7_f32 real_of(const q7_dequantize_line *t, int64_t i) {
    const int32_t flip = flip_of(t->is_signed);
    const q7_f32 byte = q7_float(q7_load_bytes(t->x + i) ^ q7_i32_set1(flip));
    return q7_keep(q7_mul(q7_sub(byte, q7_set1((float)(t->zero + flip))), q7_set1(t->scale)));
}

/* divides and sums are constants where this is inlined. */
Q7_INLINE q7_block bytes_at(const q7_quantize_line *t, int64_t i, const bool divides,
                            const bool sums) {
    const float top = (float)((t->is_signed ? 127 : 255) - t->zero);
    const q7_f32 scale = q7_set1(t->scale), reciprocal = q7_set1(1.0f / t->scale);
    q7_f32 q[4];
    Q7_UNROLL
    for (int v = 0; v < 4; v++, i += Q7_W) {
        q7_f32 x = sums ? q7_add(real_of(t->from, i), real_of(t->from + 1, i)) : q7_load(t->x + i);
        if (divides) {
            q[v] = q7_div(x, scale);
        } else { /* -inf gives NaN and so the lowest; +inf would, too */
            x = q7_vmin(q7_set1(top * t->scale), x);
            q[v] = q7_mul(x, reciprocal);
            q[v] = q7_fma(q7_fnma(q[v], scale, x), reciprocal, q[v]);
        }
    }
    const int32_t flip = flip_of(t->is_signed);
    const q7_block bytes = q7_block_of(q, t->zero + flip, false);
    return q7_block_xor(q7_block_in_order(bytes), q7_block_set1((uint8_t)flip));
}

/* Of copies, which what is stored cannot change. */
Q7_INLINE void quantize(const q7_quantize_line *given, const bool divides, const bool sums) {
    q7_quantize_line own = *given;
    const q7_quantize_line *t = &own;
    q7_dequantize_line from[2];
    if (sums) from[0] = given->from[0], from[1] = given->from[1], own.from = from;
    int64_t i = 0;
    for (; i + BLOCK <= t->n; i += BLOCK) q7_block_store(t->y + i, bytes_at(t, i, divides, sums));
    if (i == t->n) return;
    const int64_t left = t->n - i;
    float last[BLOCK] = {0};
    uint8_t bytes[2][BLOCK];
    for (int k = 0; k < 2 && sums; k++) {
        q7_block_store(bytes[k], q7_block_load_tail(from[k].x + i, left));
        from[k].x = bytes[k];
    }
    if (!sums) memcpy(last, t->x + i, (size_t)left * sizeof *last);
    own.x = last;
    q7_block_store_tail(t->y + i, bytes_at(t, 0, divides, sums), left);
}

static void range(q7_quantize_line *t) {
    q7_f32 low = q7_set1(t->low), high = q7_set1(t->high);
    int64_t i = 0;
    for (; i + Q7_W <= t->n; i += Q7_W) {
        const q7_f32 x = q7_load(t->x + i);
        low = q7_vmin(low, x);
        high = q7_vmax(high, x);
    }
    t->low = -q7_hmax(q7_neg(low));
    t->high = q7_hmax(high);
    for (; i < t->n; i++) {
        t->low = t->x[i] < t->low ? t->x[i] : t->low;
        t->high = t->x[i] > t->high ? t->x[i] : t->high;
    }
}

/* In a loop that compilers vectorise. Clamped before it is rounded, so that adding 1.5 * 2^23 can do
 * the rounding. */
Q7_INLINE void quantize_wide(const q7_quantize_line *t) {
    const int32_t zero = t->zero, low = t->is_signed ? -32768 : 0;
    const float bottom = (float)(low - zero), top = (float)(low + 65535 - zero);
    const float magic = 12582912.0f, scale = t->scale;
    const float *restrict x = t->x;
    uint16_t *restrict y = (uint16_t *)t->y;
    for (int64_t i = 0; i < t->n; i++) {
        float q = x[i] / scale;
        q = q > bottom ? q : bottom;
        q = q < top ? q : top;
        y[i] = (uint16_t)((int32_t)((q + magic) - magic) + zero);
    }
}

Q7_INLINE int32_t integer_at(const void *p, int64_t i, const bool is_signed, const bool is_wide) {
    if (is_wide) return is_signed ? ((const int16_t *)p)[i] : ((const uint16_t *)p)[i];
    return is_signed ? ((const int8_t *)p)[i] : ((const uint8_t *)p)[i];
}

/* With constants, so that compilers make vectors of `loop`. */
#define EACH_KIND(loop, t)                                                  \
    switch ((t)->is_wide * 4 + (t)->is_signed * 2 + ((t)->zeros != NULL)) { \
        case 0: loop(t, false, false, false); break;                        \
        case 1: loop(t, false, false, true); break;                         \
        case 2: loop(t, false, true, false); break;                         \
        case 3: loop(t, false, true, true); break;                          \
        case 4: loop(t, true, false, false); break;                         \
        case 5: loop(t, true, false, true); break;                          \
        case 6: loop(t, true, true, false); break;                          \
        default: loop(t, true, true, true);                                 \
    }

/* A scale for each element. */
Q7_INLINE void quantize_each(const q7_quantize_line *t, const bool is_wide, const bool is_signed,
                             const bool has_zeros) {
    const int32_t range = is_wide ? 65535 : 255, low = is_signed ? -(range / 2 + 1) : 0;
    const float magic = 12582912.0f, *restrict x = t->x, *restrict scales = t->scales;
    const void *restrict zeros = t->zeros;
    uint8_t *restrict y = t->y;
    for (int64_t i = 0; i < t->n; i++) {
        const int32_t zero = has_zeros ? integer_at(zeros, i, is_signed, is_wide) : 0;
        const float bottom = (float)(low - zero), top = (float)(low + range - zero);
        float q = x[i] / scales[i];
        q = q > bottom ? q : bottom;
        q = q < top ? q : top;
        const int32_t integer = (int32_t)((q + magic) - magic) + zero;
        if (is_wide)
            ((uint16_t *)y)[i] = (uint16_t)integer;
        else
            y[i] = (uint8_t)integer;
    }
}

void Q7_KERNEL(quantize_f32)(q7_quantize_line *t) {
#ifdef Q7_ISA_scalar
    const bool divides = true;
#else
    const bool divides = !(t->scale > 0x1p-100f && t->scale < 0x1p100f);
#endif
    if (!t->y)
        range(t);
    else if (t->scales)
        EACH_KIND(quantize_each, t)
    else if (t->is_wide)
        quantize_wide(t);
    else if (t->from)
        divides ? quantize(t, true, true) : quantize(t, false, true);
    else
        divides ? quantize(t, true, false) : quantize(t, false, false);
}

/* In a loop that compilers vectorise. x and y are of different sizes, and never in one place. */
Q7_INLINE void dequantize(const q7_dequantize_line *t, const uint8_t *restrict x, int64_t n,
                          float *restrict y) {
    const int32_t zero = t->zero;
    const float scale = t->scale;
    if (t->is_signed)
        for (int64_t i = 0; i < n; i++) y[i] = (float)((int8_t)x[i] - zero) * scale;
    else
        for (int64_t i = 0; i < n; i++) y[i] = (float)(x[i] - zero) * scale;
}

Q7_INLINE void dequantize_wide(const q7_dequantize_line *t, const uint16_t *restrict x,
                               float *restrict y) {
    const int32_t zero = t->zero;
    const float scale = t->scale;
    if (t->is_signed)
        for (int64_t i = 0; i < t->n; i++) y[i] = (float)((int16_t)x[i] - zero) * scale;
    else
        for (int64_t i = 0; i < t->n; i++) y[i] = (float)(x[i] - zero) * scale;
}

/* A scale for each element. */
Q7_INLINE void dequantize_each(const q7_dequantize_line *t, const bool is_wide,
                               const bool is_signed, const bool has_zeros) {
    const float *restrict scales = t->scales;
    const void *restrict x = t->x, *restrict zeros = t->zeros;
    float *restrict y = t->y;
    for (int64_t i = 0; i < t->n; i++) {
        const int32_t zero = has_zeros ? integer_at(zeros, i, is_signed, is_wide) : 0;
        y[i] = (float)(integer_at(x, i, is_signed, is_wide) - zero) * scales[i];
    }
}

void Q7_KERNEL(dequantize_u8)(const q7_dequantize_line *t) {
    if (t->scales) {
        EACH_KIND(dequantize_each, t)
        return;
    }
    if (t->is_wide) {
        dequantize_wide(t, (const uint16_t *)t->x, t->y);
        return;
    }
    int64_t i = 0;
    for (; i + BLOCK <= t->n; i += BLOCK) {
        Q7_UNROLL
        for (int v = 0; v < BLOCK && Q7_VECTORS_ARE_LINES; v += Q7_W)
            q7_prefetch_write(t->y + i + v + Q7_AHEAD);
        dequantize(t, t->x + i, BLOCK, t->y + i);
    }
    dequantize(t, t->x + i, t->n - i, t->y + i);
}
