/* unary.c: unary.h in f32; unary_typed.c has the other dtypes. One loop body, made constant per op by
 * inlining. Read unary.h first. */
#include "unary.h"

#include <math.h>

#include "math.h"
#include "typed.h"

/* Functions that are rare enough for the C library. */
Q7_INLINE q7_f32 lane_by_lane(float (*f)(float), q7_f32 x) {
    float lanes[Q7_W];
    q7_store(lanes, x);
    for (int i = 0; i < Q7_W; i++) lanes[i] = f(lanes[i]);
    return q7_load(lanes);
}

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
        case Q7_unary_sin: return q7_sin(x);
        case Q7_unary_cos: return q7_cos(x);
        case Q7_unary_floor: return q7_floor(x);
        case Q7_unary_ceil: return q7_neg(q7_floor(q7_neg(x)));
        case Q7_unary_tan: return lane_by_lane(tanf, x);
        case Q7_unary_asin: return q7_asin(x);
        case Q7_unary_acos: return q7_acos(x);
        case Q7_unary_atan: return q7_atan(x);
        case Q7_unary_sinh: return lane_by_lane(sinhf, x);
        case Q7_unary_cosh: return lane_by_lane(coshf, x);
        case Q7_unary_asinh: return lane_by_lane(asinhf, x);
        case Q7_unary_acosh: return lane_by_lane(acoshf, x);
        case Q7_unary_atanh: return lane_by_lane(atanhf, x);
        case Q7_unary_selu: return q7_mul(beta, q7_act(Q7_act_elu, x, alpha, beta));
        case Q7_unary_celu:
            return q7_select(q7_lt(x, zero), q7_mul(alpha, q7_expm1(q7_div(x, alpha))), x);
        case Q7_unary_shrink:
            return q7_select(q7_lt(x, q7_neg(alpha)), q7_add(x, beta),
                             q7_select(q7_lt(alpha, x), q7_sub(x, beta), zero));
#define ACTIVATION(name) \
    case Q7_unary_##name: return q7_act(Q7_act_##name, x, alpha, beta);
            Q7_ACTIVATIONS(ACTIVATION)
#undef ACTIVATION
        default: return q7_round_even(x);
    }
}

Q7_INLINE void run(int64_t op, int64_t n, const float *x, float *y, double alpha, double beta) {
    const q7_f32 a = q7_set1((float)alpha), b = q7_set1((float)beta);
    const bool prefetches = Q7_VECTORS_ARE_LINES && n >= Q7_LONG;
    int64_t i = 0;
    for (; i + Q7_W <= n; i += Q7_W) {
        if (prefetches) q7_prefetch_write(y + i + Q7_AHEAD);
        q7_store(y + i, apply(op, q7_load(x + i), a, b));
    }
    if (i < n) q7_store_tail(y + i, apply(op, q7_load_tail(x + i, n - i), a, b), n - i);
}

void Q7_KERNEL(unary_any)(int64_t dtype, int64_t op, int64_t n, const void *from, void *y,
                          double alpha, double beta) {
    if (dtype != Q7_F32) {
        Q7_KERNEL(unary_typed)(dtype, op, n, from, y, alpha, beta);
        return;
    }
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
