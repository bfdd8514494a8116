/* unary.c: y[i] = op(x[i]) in f32 (by kernel) and f64; abs, neg, sign, relu, clip, shrink and
 * bitwise_not in every integer dtype; not on bool. Integers wrap: abs and neg of the lowest value
 * are that value; the bounds of clip are cut to integers. y may be x where the element size stays
 * the same.
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

#include "elementwise.h"
#include "exponential.h"
#include "loops.h"

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
#include "each_int.h"

static void unary_bool(int64_t op, int64_t n, const void *from, void *y, double alpha,
                       double beta) {
    (void)op, (void)alpha, (void)beta; /* not */
    for (int64_t i = 0; i < n; i++) ((uint8_t *)y)[i] = !((const uint8_t *)from)[i];
}

typedef struct unary_job {
    const q7_unary_args *args;
    q7_unary_kernel kernel;
    int64_t x_bytes, y_bytes, per_task;
} unary_job;

static void unary_task(void *arg, int64_t task, int64_t thread) {
    const unary_job *job = arg;
    const q7_unary_args *args = job->args;
    (void)thread;
    const int64_t begin = task * job->per_task;
    job->kernel(args->op, q7_min(args->n - begin, job->per_task),
                (const char *)args->x + begin * job->x_bytes,
                (char *)args->y + begin * job->y_bytes, args->alpha, args->beta);
}

q7_unary_kernel q7_unary_loop(int64_t dtype, q7_unary_kernel f32) {
    switch (dtype) {
        case Q7_F32: return f32;
        case Q7_F64: return unary_f64;
        case Q7_I64: return unary_i64;
        case Q7_I32: return unary_i32;
        case Q7_I16: return unary_i16;
        case Q7_I8: return unary_i8;
        case Q7_U64: return unary_u64;
        case Q7_U32: return unary_u32;
        case Q7_U16: return unary_u16;
        case Q7_U8: return unary_u8;
        default: return unary_bool;
    }
}

void q7_op_unary(const q7_unary_args *args, const q7_call *call) {
    const int64_t bytes = q7_dtype_bytes(args->dtype);
    const bool is_bool = args->op == Q7_unary_isnan || args->op == Q7_unary_isinf;
    unary_job job = {args, q7_unary_loop(args->dtype, (q7_unary_kernel)call->kernel), bytes,
                     is_bool ? 1 : bytes, q7_elements_of_task(call, args->n)};
    q7_parallel(call, q7_ceil_div(args->n, job.per_task), unary_task, &job);
}
