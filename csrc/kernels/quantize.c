/* quantize.c: the kernel of quantize.h for every ISA.
 *
 * A division takes 16 cycles for 16 floats. The quotient comes of the reciprocal instead, and one
 * correction by its remainder, which is exact in a fused multiply-add: that is x / scale, rounded
 * (Markstein 1990), where no exponent is near its ends. Scalar has no fma, and divides. */
#include "quantize.h"

#include <math.h>

#include "../simd/simd.h"

/* divides is a constant where this is inlined. */
Q7_INLINE q7_block bytes_of(const q7_quantize_line *t, const float *from, const bool divides) {
    const float top = (float)((t->is_signed ? 127 : 255) - t->zero);
    const q7_f32 scale = q7_set1(t->scale), reciprocal = q7_set1(1.0f / t->scale);
    q7_f32 q[4];
    Q7_UNROLL
    for (int v = 0; v < 4; v++) {
        q7_f32 x = q7_load(from + v * Q7_W);
        if (divides) {
            q[v] = q7_div(x, scale);
        } else { /* -inf gives NaN and so the lowest; +inf would, too */
            x = q7_vmin(q7_set1(top * t->scale), x);
            q[v] = q7_mul(x, reciprocal);
            q[v] = q7_fma(q7_fnma(q[v], scale, x), reciprocal, q[v]);
        }
    }
    return q7_block_in_order(q7_block_of(q, t->zero, t->is_signed));
}

Q7_INLINE void quantize(const q7_quantize_line *t, const bool divides) {
    enum { BLOCK = 4 * Q7_W };
    int64_t i = 0;
    for (; i + BLOCK <= t->n; i += BLOCK) q7_block_store(t->y + i, bytes_of(t, t->x + i, divides));
    if (i == t->n) return;
    float last[BLOCK] = {0};
    memcpy(last, t->x + i, (size_t)(t->n - i) * sizeof *last);
    q7_block_store_tail(t->y + i, bytes_of(t, last, divides), t->n - i);
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

void Q7_KERNEL(quantize_f32)(q7_quantize_line *t) {
    if (!t->y) range(t);
#ifndef Q7_ISA_scalar
    else if (t->scale > 0x1p-100f && t->scale < 0x1p100f)
        quantize(t, false);
#endif
    else
        quantize(t, true);
}

/* Loops that compilers vectorise. */
void Q7_KERNEL(dequantize_u8)(const q7_dequantize_line *t) {
    const int32_t zero = t->zero;
    const float scale = t->scale;
    float *y = t->y;
    if (t->is_signed) {
        const int8_t *x = (const int8_t *)t->x;
        for (int64_t i = 0; i < t->n; i++) y[i] = (float)(x[i] - zero) * scale;
    } else {
        for (int64_t i = 0; i < t->n; i++) y[i] = (float)(t->x[i] - zero) * scale;
    }
}
