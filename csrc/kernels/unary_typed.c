/* unary_typed.c: unary.h in f64, integers and bool.
 *
 * Errors of f64, as kernels/math.h states them for f32 (with glibc, whose own are below 2 ulp):
 *
 *     Bound: exp log erf sin cos asin acos atan 1 ulp
 *     Bound: softplus elu softsign 1.7 ulp
 *     Bound: tanh sigmoid silu selu celu 2.5 ulp
 *     Bound: mish softcap scaled_tanh 3.5 ulp
 *     Bound: gelu gelu_tanh in [-1, inf] 4 ulp
 *     Bound: gelu gelu_tanh in [-20, -1] 900 ulp
 *     Bound: gelu gelu_tanh in [-inf, -20] 0x1p-300 absolute
 *     Bound: swish in [-40, inf] 50 ulp
 *     Bound: swish in [-inf, -40] 0x1p-130 absolute
 */
#include <math.h>

#include "exponential.h"
#include "typed.h"

static inline double clip(double x, double low, double high) {
    if (x < low) x = low;
    return x > high ? high : x;
}

static inline double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }

/* y[i] = e for every i, with V the element there. */
#define EACH(R, e) \
    for (int64_t i = 0; i < n; i++) ((R *)y)[i] = (R)(e)
#define V x[i]
static void unary_f64(int64_t op, int64_t n, const void *from, void *y, double alpha, double beta) {
    const double *x = from;
    switch (op) {
        case Q7_unary_abs: EACH(double, fabs(V)); break;
        case Q7_unary_neg: EACH(double, -V); break;
        case Q7_unary_sign: EACH(double, V > 0 ? 1 : V < 0 ? -1 : V); break;
        case Q7_unary_exp: EACH(double, q7_exp_f64(V)); break;
        case Q7_unary_log: EACH(double, log(V)); break;
        case Q7_unary_sqrt: EACH(double, sqrt(V)); break;
        case Q7_unary_reciprocal: EACH(double, 1 / V); break;
        case Q7_unary_erf: EACH(double, erf(V)); break;
        case Q7_unary_tanh: EACH(double, q7_tanh_f64(V)); break;
        case Q7_unary_sigmoid: EACH(double, 1 / (1 + q7_exp_f64(-V))); break;
        case Q7_unary_relu: EACH(double, V < 0 ? 0 : V); break;
        case Q7_unary_gelu: EACH(double, 0.5 * V * erfc(-V * 0.70710678118654752)); break;
        case Q7_unary_gelu_tanh:
            EACH(double, V / (1 + q7_exp_f64(-1.5957691216057308 * (V + 0.044715 * V * V * V))));
            break;
        case Q7_unary_silu: EACH(double, V / (1 + q7_exp_f64(-V))); break;
        case Q7_unary_softplus: EACH(double, softplus(V)); break;
        case Q7_unary_sin: EACH(double, sin(V)); break;
        case Q7_unary_cos: EACH(double, cos(V)); break;
        case Q7_unary_floor: EACH(double, floor(V)); break;
        case Q7_unary_ceil: EACH(double, ceil(V)); break;
        case Q7_unary_isnan: EACH(uint8_t, V != V); break;
        case Q7_unary_isinf: EACH(uint8_t, fabs(V) == INFINITY); break;
        case Q7_unary_clip: EACH(double, clip(V, alpha, beta)); break;
        case Q7_unary_leaky_relu: EACH(double, V < 0 ? alpha * V : V); break;
        case Q7_unary_elu: EACH(double, V < 0 ? alpha * expm1(V) : V); break;
        case Q7_unary_hard_sigmoid: EACH(double, clip(alpha * V + beta, 0, 1)); break;
        case Q7_unary_hard_swish: EACH(double, V *clip(V / 6 + 0.5, 0, 1)); break;
        case Q7_unary_affine_hard_swish:
            EACH(double, alpha *V *clip(V / 6 + 0.5, 0, 1) + beta);
            break;
        case Q7_unary_swish: EACH(double, V / (1 + q7_exp_f64(-alpha * V))); break;
        case Q7_unary_mish: EACH(double, V *q7_tanh_f64(softplus(V))); break;
        case Q7_unary_softcap: EACH(double, alpha *q7_tanh_f64(V / alpha)); break;
        case Q7_unary_squared_relu: EACH(double, V < 0 ? 0 : V * V); break;
        case Q7_unary_affine: EACH(double, alpha *V + beta); break;
        case Q7_unary_scaled_tanh: EACH(double, alpha *q7_tanh_f64(beta * V)); break;
        case Q7_unary_tan: EACH(double, tan(V)); break;
        case Q7_unary_asin: EACH(double, asin(V)); break;
        case Q7_unary_acos: EACH(double, acos(V)); break;
        case Q7_unary_atan: EACH(double, atan(V)); break;
        case Q7_unary_sinh: EACH(double, sinh(V)); break;
        case Q7_unary_cosh: EACH(double, cosh(V)); break;
        case Q7_unary_asinh: EACH(double, asinh(V)); break;
        case Q7_unary_acosh: EACH(double, acosh(V)); break;
        case Q7_unary_atanh: EACH(double, atanh(V)); break;
        case Q7_unary_selu: EACH(double, V > 0 ? beta * V : beta * (alpha * expm1(V))); break;
        case Q7_unary_celu: EACH(double, V < 0 ? alpha * expm1(V / alpha) : V); break;
        case Q7_unary_softsign: EACH(double, V / (1 + fabs(V))); break;
        case Q7_unary_thresholded_relu: EACH(double, V > alpha ? V : 0); break;
        case Q7_unary_shrink: EACH(double, V<-alpha ? V + beta : V> alpha ? V - beta : 0); break;
        default: EACH(double, nearbyint(V)); break; /* to even: the mode that nobody changes */
    }
}
#undef EACH
#undef V

#define LOOPS "unary_int.h"
#include "../kernels/each_int.h"

static void unary_bool(int64_t n, const void *from, void *to) { /* not */
    const uint8_t *x = from;
    uint8_t *y = to;
    for (int64_t i = 0; i < n; i++) y[i] = !x[i];
}

void Q7_KERNEL(unary_typed)(int64_t dtype, int64_t op, int64_t n, const void *x, void *y,
                            double alpha, double beta) {
    switch (dtype) {
        case Q7_F64: unary_f64(op, n, x, y, alpha, beta); break;
        case Q7_I64: unary_i64(op, n, x, y, alpha, beta); break;
        case Q7_I32: unary_i32(op, n, x, y, alpha, beta); break;
        case Q7_I16: unary_i16(op, n, x, y, alpha, beta); break;
        case Q7_I8: unary_i8(op, n, x, y, alpha, beta); break;
        case Q7_U64: unary_u64(op, n, x, y, alpha, beta); break;
        case Q7_U32: unary_u32(op, n, x, y, alpha, beta); break;
        case Q7_U16: unary_u16(op, n, x, y, alpha, beta); break;
        case Q7_U8: unary_u8(op, n, x, y, alpha, beta); break;
        default: unary_bool(n, x, y); break;
    }
}
