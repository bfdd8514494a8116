/* binary.c: binary.h in f32; binary_typed.c has the other dtypes. One loop body, made constant per op and
 * per pair of strides by inlining. Read binary.h first. */
#include "binary.h"

#include <float.h>
#include <math.h>

#include "typed.h"

#ifdef Q7_ISA_avx512
/* Runs beyond L1 are no faster by vectors of 64 bytes on a Xeon, and take 1.1 to 1.3 of avx2's time on a
 * Zen 4. */
void q7_binary_any_avx2(int64_t dtype, int64_t op, int64_t n, const void *a, int64_t a_stride,
                        const void *b, int64_t b_stride, void *y);
#endif

Q7_INLINE q7_f32 apply(int64_t op, q7_f32 a, q7_f32 b) {
    switch (op) {
        case Q7_binary_add: return q7_add(a, b);
        case Q7_binary_sub: return q7_sub(a, b);
        case Q7_binary_mul: return q7_mul(a, b);
        case Q7_binary_div: return q7_div(a, b);
        case Q7_binary_min: return q7_select(q7_unordered(a), a, q7_vmin(a, b));
        case Q7_binary_prelu: return q7_select(q7_lt(a, q7_set1(0.0f)), q7_mul(a, b), a);
        default: return q7_select(q7_unordered(a), a, q7_vmax(a, b));
    }
}

Q7_INLINE void arithmetic_run(int64_t op, int64_t n, const float *a, bool a_vector, const float *b,
                              bool b_vector, float *y) {
    const q7_f32 a0 = q7_set1(*a), b0 = q7_set1(*b);
    const int64_t together = n >= Q7_LONG ? 0 : n; /* in L1 0.6 to 0.9 of the time, else 1.3 */
    int64_t i = 0;
    for (; i + 4 * Q7_W <= together; i += 4 * Q7_W) {
        q7_f32 v[4];
        for (int k = 0; k < 4; k++) {
            const int64_t at = i + k * Q7_W;
            v[k] = apply(op, a_vector ? q7_load(a + at) : a0, b_vector ? q7_load(b + at) : b0);
        }
        for (int k = 0; k < 4; k++) q7_store(y + i + k * Q7_W, v[k]);
    }
    for (; i + Q7_W <= n; i += Q7_W)
        q7_store(y + i, apply(op, a_vector ? q7_load(a + i) : a0, b_vector ? q7_load(b + i) : b0));
    if (i < n)
        q7_store_tail(y + i,
                      apply(op, a_vector ? q7_load_tail(a + i, n - i) : a0,
                            b_vector ? q7_load_tail(b + i, n - i) : b0),
                      n - i);
}

Q7_INLINE void arithmetic(int64_t op, int64_t n, const float *a, int64_t a_stride, const float *b,
                          int64_t b_stride, float *y) {
#ifdef Q7_ISA_avx512
    if (n >= Q7_LONG) {
        q7_binary_any_avx2(Q7_F32, op, n, a, a_stride, b, b_stride, y);
        return;
    }
#endif
    if (a_stride && b_stride)
        arithmetic_run(op, n, a, true, b, true, y);
    else if (a_stride)
        arithmetic_run(op, n, a, true, b, false, y);
    else
        arithmetic_run(op, n, a, false, b, b_stride != 0, y);
}

Q7_INLINE uint8_t holds(int64_t op, float a, float b) {
    switch (op) {
        case Q7_binary_equal: return a == b;
        case Q7_binary_less: return a < b;
        case Q7_binary_less_equal: return a <= b;
        case Q7_binary_greater: return a > b;
        default: return a >= b;
    }
}

/* Scalar source with constant strides: compilers vectorise it with the packing to bytes. */
Q7_INLINE void compare(int64_t op, int64_t n, const float *a, int64_t a_stride, const float *b,
                       int64_t b_stride, uint8_t *restrict y) {
    if (a_stride && b_stride)
        for (int64_t i = 0; i < n; i++) y[i] = holds(op, a[i], b[i]);
    else if (a_stride)
        for (int64_t i = 0; i < n; i++) y[i] = holds(op, a[i], *b);
    else
        for (int64_t i = 0; i < n; i++) y[i] = holds(op, *a, b[i * b_stride]);
}

/* |x| to the power of quarters / 4, by roots and products, within 2 ulp; NaN for x < 0, as the
 * exponent is no integer. (-inf is allowed any of these.) */
Q7_INLINE q7_f32 by_roots(q7_f32 x, int64_t quarters, bool is_inverse) {
    const q7_f32 zero = q7_set1(0.0f), lowest = q7_set1(-FLT_MAX);
    x = q7_select(q7_lt(x, lowest), q7_neg(x), q7_add(x, zero)); /* -0 is 0 */
    const q7_f32 half = q7_sqrt(x);
    q7_f32 y = quarters & 2 ? half : q7_set1(1.0f);
    if (quarters & 1) y = q7_mul(y, q7_sqrt(half));
    if (quarters & 4) y = q7_mul(y, x);
    return is_inverse ? q7_div(q7_set1(1.0f), y) : y;
}

/* x^exponent of a whole exponent, in float64, whose roundings float32 does not see. */
static void by_products(int64_t n, const float *a, int64_t a_stride, int64_t exponent, float *y) {
    enum { TOGETHER = 64 };
    double x[TOGETHER], product[TOGETHER];
    for (int64_t first = 0; first < n; first += TOGETHER) {
        const int64_t count = q7_min(n - first, TOGETHER);
        for (int64_t i = 0; i < count; i++) x[i] = a[(first + i) * a_stride], product[i] = 1;
        for (int64_t bits = exponent < 0 ? -exponent : exponent; bits > 0; bits >>= 1) {
            if (bits & 1)
                for (int64_t i = 0; i < count; i++) product[i] *= x[i];
            for (int64_t i = 0; i < count; i++) x[i] *= x[i];
        }
        for (int64_t i = 0; i < count; i++)
            y[first + i] = (float)(exponent < 0 ? 1 / product[i] : product[i]);
    }
}

/* The exponents of real models are one constant: 2, 3, another whole number, or quarters between -1 and
 * 2 (local response normalisation has 3/4: 5.5 ns an element by C's pow, which takes the others). */
static void power(int64_t n, const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                  float *y) {
    if (!b_stride && (*b == 2.0f || *b == 3.0f)) {
        const bool cube = *b == 3.0f;
        for (int64_t i = 0; i < n; i++) {
            const float x = a[i * a_stride];
            y[i] = x * x * (cube ? x : 1.0f);
        }
    } else if (!b_stride && *b > -1 && *b < 2 && *b != floorf(*b) && 4 * *b == floorf(4 * *b)) {
        const int64_t quarters = (int64_t)fabsf(4 * *b);
        const q7_f32 a0 = q7_set1(*a);
        int64_t i = 0;
        for (; i + Q7_W <= n; i += Q7_W)
            q7_store(y + i, by_roots(a_stride ? q7_load(a + i) : a0, quarters, *b < 0));
        if (i < n)
            q7_store_tail(y + i,
                          by_roots(a_stride ? q7_load_tail(a + i, n - i) : a0, quarters, *b < 0),
                          n - i);
    } else if (!b_stride && fabsf(*b) <= 64 && *b == floorf(*b)) {
        by_products(n, a, a_stride, (int64_t)*b, y);
    } else {
        for (int64_t i = 0; i < n; i++) y[i] = powf(a[i * a_stride], b[i * b_stride]);
    }
}

/* mod and fmod as doubles: their rests are floats, and a sum of two floats rounds no differently by way of
 * them. */
static void rests(int64_t op, int64_t n, const float *a, int64_t a_stride, const float *b,
                  int64_t b_stride, float *y) {
    enum { TOGETHER = 64 };
    double x[TOGETHER], by[TOGETHER], rest[TOGETHER];
    for (int64_t first = 0; first < n; first += TOGETHER) {
        const int64_t count = q7_min(n - first, TOGETHER);
        for (int64_t i = 0; i < count; i++) x[i] = a[(first + i) * a_stride];
        for (int64_t i = 0; i < count; i++) by[i] = b[(first + i) * b_stride];
        Q7_KERNEL(binary_typed)(Q7_F64, op, count, x, 1, by, 1, rest);
        for (int64_t i = 0; i < count; i++) y[first + i] = (float)rest[i];
    }
}

void Q7_KERNEL(binary_any)(int64_t dtype, int64_t op, int64_t n, const void *pa, int64_t a_stride,
                           const void *pb, int64_t b_stride, void *y) {
    if (dtype != Q7_F32) {
        Q7_KERNEL(binary_typed)(dtype, op, n, pa, a_stride, pb, b_stride, y);
        return;
    }
    const float *a = pa, *b = pb;
    switch (op) {
        case Q7_binary_add: arithmetic(Q7_binary_add, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_sub: arithmetic(Q7_binary_sub, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_mul: arithmetic(Q7_binary_mul, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_div: arithmetic(Q7_binary_div, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_min: arithmetic(Q7_binary_min, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_max: arithmetic(Q7_binary_max, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_pow: power(n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_prelu: arithmetic(Q7_binary_prelu, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_mod:
        case Q7_binary_fmod: rests(op, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_equal: compare(Q7_binary_equal, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_less: compare(Q7_binary_less, n, a, a_stride, b, b_stride, y); break;
        case Q7_binary_less_equal:
            compare(Q7_binary_less_equal, n, a, a_stride, b, b_stride, y);
            break;
        case Q7_binary_greater: compare(Q7_binary_greater, n, a, a_stride, b, b_stride, y); break;
        default: compare(Q7_binary_greater_equal, n, a, a_stride, b, b_stride, y); break;
    }
}

#ifndef Q7_ISA_avx512 /* which has avx2's: what they write is not in L1 */
typedef struct pair_line {
    int64_t n;
    const float *a, *b, *c;
    float low, *y;
} pair_line;

Q7_INLINE void pair_run(const pair_line *t, int64_t first, int64_t second, const bool b_vector,
                        const bool c_vector) {
    const q7_f32 b0 = q7_set1(*t->b), c0 = q7_set1(*t->c), low = q7_set1(t->low);
    const int64_t n = t->n;
    int64_t i = 0;
    for (; i + Q7_W <= n; i += Q7_W) {
        const q7_f32 v =
            q7_keep(apply(first, q7_load(t->a + i), b_vector ? q7_load(t->b + i) : b0));
        q7_store(t->y + i, q7_vmax(low, apply(second, v, c_vector ? q7_load(t->c + i) : c0)));
    }
    if (i == n) return;
    const q7_f32 b = b_vector ? q7_load_tail(t->b + i, n - i) : b0;
    const q7_f32 c = c_vector ? q7_load_tail(t->c + i, n - i) : c0;
    const q7_f32 v = q7_keep(apply(first, q7_load_tail(t->a + i, n - i), b));
    q7_store_tail(t->y + i, q7_vmax(low, apply(second, v, c)), n - i);
}

Q7_INLINE void pair(const pair_line *t, int64_t first, int64_t second, bool b_vector,
                    bool c_vector) {
    if (b_vector && c_vector)
        pair_run(t, first, second, true, true);
    else if (b_vector)
        pair_run(t, first, second, true, false);
    else if (c_vector)
        pair_run(t, first, second, false, true);
    else
        pair_run(t, first, second, false, false);
}

void Q7_KERNEL(binary_pair)(int64_t first, int64_t second, int64_t n, const float *a,
                            const float *b, int64_t b_stride, const float *c, int64_t c_stride,
                            float low, float *y) {
    const pair_line t = {n, a, b, c, low, y};
#define PAIR(one, two) pair(&t, Q7_binary_##one, Q7_binary_##two, b_stride != 0, c_stride != 0)
#define FIRST(one)                                  \
    switch (second) {                               \
        case Q7_binary_add: PAIR(one, add); return; \
        case Q7_binary_sub: PAIR(one, sub); return; \
        default: PAIR(one, mul); return;            \
    }
    switch (first) {
        case Q7_binary_add: FIRST(add)
        case Q7_binary_sub: FIRST(sub)
        default: FIRST(mul)
    }
#undef FIRST
#undef PAIR
}
#endif
