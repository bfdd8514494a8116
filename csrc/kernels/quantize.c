/* quantize.c: the kernel of quantize.h for every ISA.
 *
 * A division takes 16 cycles for 16 floats. The quotient comes of the reciprocal instead, and one
 * correction by its remainder, which is exact in a fused multiply-add: that is x / scale, rounded
 * (Markstein 1990), where no exponent is near its ends. Scalar has no fma, and divides. */
#include "quantize.h"

#include <math.h>

#include "../simd/simd.h"

Q7_INLINE q7_f32 bytes_of(q7_f32 q, q7_f32 bottom, q7_f32 top, q7_f32 zero) {
    return q7_add(q7_round_even(q7_vmin(q7_vmax(q, bottom), top)), zero);
}

/* divides is a constant where this is inlined. */
Q7_INLINE void quantize(const q7_quantize_line *t, const bool divides) {
    const float lowest = t->is_signed ? -128.0f : 0.0f, offset = (float)t->zero;
    const q7_f32 bottom = q7_set1(lowest - offset), top = q7_set1(lowest + 255.0f - offset);
    const q7_f32 zero = q7_set1(offset), scale = q7_set1(t->scale);
    const q7_f32 reciprocal = q7_set1(1.0f / t->scale), large = q7_set1(1024.0f);
    for (int64_t i = 0; i < t->n; i += Q7_W) {
        const int64_t lanes = q7_min(t->n - i, Q7_W);
        const q7_f32 x = q7_load_part(t->x + i, lanes);
        q7_f32 q;
        if (divides) {
            q = q7_div(x, scale);
        } else {
            q = q7_mul(x, reciprocal);
            const q7_f32 exact = q7_fma(q7_fnma(q, scale, x), reciprocal, q);
            q = q7_select(q7_lt(q7_abs(q), large), exact, q); /* not inf - inf */
        }
        q7_store_bytes(t->y + i, bytes_of(q, bottom, top, zero), lanes);
    }
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
    if (!t->y)
        range(t);
#ifndef Q7_ISA_scalar
    else if (t->scale > 0x1p-100f && t->scale < 0x1p100f)
        quantize(t, false);
#endif
    else
        quantize(t, true);
}
