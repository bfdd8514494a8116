/* unary.c: f32 loops of unary.h. One loop body, made constant per op by inlining. Read unary.h
 * first. */
#include "unary.h"

#include <math.h>

#include "math.h"

/* log(1 + u) for u in [0, 1]: the rounding error of w = 1 + u cancels in log(w) * u / (w - 1). */
Q7_INLINE q7_f32 log1p_unit(q7_f32 u) {
    const q7_f32 one = q7_set1(1.0f), w = q7_add(one, u), d = q7_sub(w, one);
    return q7_select(q7_eq(d, q7_set1(0.0f)), u, q7_mul(q7_log(w), q7_div(u, d)));
}

Q7_INLINE q7_f32 clip(q7_f32 x, q7_f32 low, q7_f32 high) { return q7_vmin(high, q7_vmax(low, x)); }

Q7_INLINE q7_f32 apply(int64_t op, q7_f32 x, q7_f32 alpha, q7_f32 beta) {
    const q7_f32 zero = q7_set1(0.0f), one = q7_set1(1.0f);
    switch (op) {
        case Q7_unary_abs: return q7_abs(x);
        case Q7_unary_neg: return q7_neg(x);
        case Q7_unary_sign:
            return q7_select(q7_lt(zero, x), one, q7_select(q7_lt(x, zero), q7_set1(-1.0f), x));
        case Q7_unary_exp: return q7_exp(x);
        case Q7_unary_log: return q7_log(x);
        case Q7_unary_sqrt: return q7_sqrt(x);
        case Q7_unary_reciprocal: return q7_div(one, x);
        case Q7_unary_erf: return q7_erf(x);
        case Q7_unary_tanh: return q7_tanh(x);
        case Q7_unary_sigmoid: return q7_sigmoid(x);
        case Q7_unary_relu: return q7_vmax(zero, x);
        case Q7_unary_gelu: return q7_gelu(x);
        case Q7_unary_gelu_tanh: return q7_gelu_tanh(x);
        case Q7_unary_silu: return q7_silu(x);
        case Q7_unary_softplus:
            return q7_add(q7_vmax(zero, x), log1p_unit(q7_exp(q7_neg(q7_abs(x)))));
        case Q7_unary_sin: return q7_sin(x);
        case Q7_unary_cos: return q7_cos(x);
        case Q7_unary_floor: return q7_floor(x);
        case Q7_unary_ceil: return q7_neg(q7_floor(q7_neg(x)));
        case Q7_unary_round: return q7_round_even(x);
        case Q7_unary_clip: return clip(x, alpha, beta);
        case Q7_unary_leaky_relu: return q7_select(q7_lt(x, zero), q7_mul(alpha, x), x);
        case Q7_unary_elu:
            return q7_select(q7_lt(x, zero), q7_mul(alpha, q7_sub(q7_exp(x), one)), x);
        default: return clip(q7_fma(alpha, x, beta), zero, one); /* hard_sigmoid */
    }
}

Q7_INLINE void run(int64_t op, int64_t n, const float *x, float *y, double alpha, double beta) {
    const q7_f32 a = q7_set1((float)alpha), b = q7_set1((float)beta);
    int64_t i = 0;
    for (; i + Q7_W <= n; i += Q7_W) q7_store(y + i, apply(op, q7_load(x + i), a, b));
    if (i < n) q7_store_tail(y + i, apply(op, q7_load_tail(x + i, n - i), a, b), n - i);
}

void Q7_KERNEL(unary_f32)(int64_t op, int64_t n, const void *from, void *y, double alpha,
                          double beta) {
    const float *x = from;
    if (op == Q7_unary_isnan || op == Q7_unary_isinf) {
        uint8_t *restrict is = y; /* compilers vectorise these, with the packing to bytes */
        if (op == Q7_unary_isnan)
            for (int64_t i = 0; i < n; i++) is[i] = x[i] != x[i];
        else
            for (int64_t i = 0; i < n; i++) is[i] = fabsf(x[i]) == INFINITY;
        return;
    }
    switch (op) {
#define UNARY(name)                                 \
    case Q7_unary_##name:                           \
        run(Q7_unary_##name, n, x, y, alpha, beta); \
        break;
#include "../ops.def"
#undef UNARY
        default: break;
    }
}
