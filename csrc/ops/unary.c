/* unary.c: y[i] = op(x[i]) in f32 (by kernel) and f64; abs, neg, sign, relu and clip in i64 and i32; not on
 * bool. Integers wrap: abs and neg of the lowest value are that value. y may be x where the element
 * size stays the same. */
#include "../kernels/unary.h"

#include <math.h>

#include "loops.h"

/* y[i] = e for every i, with v the element there. */
#define EACH(R, e)                    \
    for (int64_t i = 0; i < n; i++) { \
        const double v = x[i];        \
        ((R *)y)[i] = e;              \
    }                                 \
    break
static void unary_f64(int64_t op, int64_t n, const void *from, void *y, double alpha, double beta) {
    const double *x = from;
    switch (op) {
        case Q7_unary_abs: EACH(double, fabs(v));
        case Q7_unary_neg: EACH(double, -v);
        case Q7_unary_sign: EACH(double, v > 0 ? 1 : v < 0 ? -1 : v);
        case Q7_unary_exp: EACH(double, exp(v));
        case Q7_unary_log: EACH(double, log(v));
        case Q7_unary_sqrt: EACH(double, sqrt(v));
        case Q7_unary_reciprocal: EACH(double, 1 / v);
        case Q7_unary_erf: EACH(double, erf(v));
        case Q7_unary_tanh: EACH(double, tanh(v));
        case Q7_unary_sigmoid: EACH(double, 1 / (1 + exp(-v)));
        case Q7_unary_relu: EACH(double, v < 0 ? 0 : v);
        case Q7_unary_gelu: EACH(double, 0.5 * v * erfc(-v * 0.70710678118654752));
        case Q7_unary_gelu_tanh:
            EACH(double, 0.5 * v * (1 + tanh(0.79788456080286536 * (v + 0.044715 * v * v * v))));
        case Q7_unary_silu: EACH(double, v / (1 + exp(-v)));
        case Q7_unary_softplus: EACH(double, v > 0 ? v + log1p(exp(-v)) : log1p(exp(v)));
        case Q7_unary_sin: EACH(double, sin(v));
        case Q7_unary_cos: EACH(double, cos(v));
        case Q7_unary_floor: EACH(double, floor(v));
        case Q7_unary_ceil: EACH(double, ceil(v));
        case Q7_unary_round: EACH(double, nearbyint(v)); /* to even: the mode that nobody changes */
        case Q7_unary_isnan: EACH(uint8_t, v != v);
        case Q7_unary_isinf: EACH(uint8_t, fabs(v) == INFINITY);
        case Q7_unary_clip: EACH(double, v < alpha ? q7_fmin(alpha, beta) : v > beta ? beta : v);
        case Q7_unary_leaky_relu: EACH(double, v < 0 ? alpha * v : v);
        case Q7_unary_elu: EACH(double, v < 0 ? alpha * expm1(v) : v);
        default: EACH(double, hard_sigmoid(alpha * v + beta));
    }
}
#undef EACH
