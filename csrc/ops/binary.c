/* binary.c: y = op(a, b) with broadcasting, in f32 (by kernel), f64, every integer dtype and bool.
 *
 * Integers wrap; integers.h says what their quotients, powers and shifts are. mod takes the sign of
 * the divisor, fmod that of the dividend. prelu is a < 0 ? a * b : a. and, or, xor are bitwise,
 * which is logical on bools. */
#include <math.h>

#include "elementwise.h"
#include "integers.h"
#include "loops.h"

typedef struct binary_job {
    const q7_binary_args *args;
    q7_binary_kernel kernel;
    int64_t a_stride, b_stride, elem_bytes, y_bytes;
    q7_nest a, b; /* each alone, where runs of both are short */
    int64_t count, per_task;
} binary_job;

enum { BLOCK = 512, SHORT_RUN = 32 }; /* elements that are gathered; a call costs as much as some */

/* NaN if either side is. */
static inline double float_min(double x, double y) { return x < y || x != x ? x : y; }
static inline double float_max(double x, double y) { return x > y || x != x ? x : y; }

/* The rest of the floored division; a rest of 0 has the sign of y too. */
static inline double floored_mod(double x, double y) {
    const double r = fmod(x, y);
    return r == 0 ? copysign(0, y) : (r < 0) != (y < 0) ? r + y : r;
}

#define LOOPS "binary_int.h"
#include "each_int.h"

/* y[i] = e for every i, with X and Z the operands there. */
#define EACH(R, e) \
    for (int64_t i = 0; i < n; i++) ((R *)y)[i] = (e)
#define X a[i * a_stride]
#define Z b[i * b_stride]
static inline __attribute__((always_inline)) void run_f64(int64_t op, int64_t n, const void *pa,
                                                          int64_t a_stride, const void *pb,
                                                          int64_t b_stride, void *y) {
    const double *a = pa, *b = pb;
    switch (op) {
        case Q7_binary_add: EACH(double, X + Z); break;
        case Q7_binary_sub: EACH(double, X - Z); break;
        /* clang-format off */ /* it takes X for a type */
        case Q7_binary_mul: EACH(double, X * Z); break;
        /* clang-format on */
        case Q7_binary_div: EACH(double, X / Z); break;
        case Q7_binary_pow: {
            const double whole = b_stride == 0 && n > 0 ? *b : 0; /* squares and cubes are most */
            /* clang-format off */
            if (whole == 2) EACH(double, X * X);
            else if (whole == 3) EACH(double, X * X * X);
            else EACH(double, pow(X, Z));
            /* clang-format on */
            break;
        }
        case Q7_binary_mod: EACH(double, floored_mod(X, Z)); break;
        case Q7_binary_fmod: EACH(double, fmod(X, Z)); break;
        case Q7_binary_prelu: EACH(double, X < 0 ? X * Z : X); break;
        case Q7_binary_min: EACH(double, float_min(X, Z)); break;
        case Q7_binary_max: EACH(double, float_max(X, Z)); break;
        case Q7_binary_equal: EACH(uint8_t, X == Z); break;
        case Q7_binary_less: EACH(uint8_t, X < Z); break;
        case Q7_binary_less_equal: EACH(uint8_t, X <= Z); break;
        case Q7_binary_greater: EACH(uint8_t, X > Z); break;
        default: EACH(uint8_t, X >= Z); break; /* greater_equal: no bits of floats */
    }
}
#undef EACH
#undef X
#undef Z

/* Constant strides in each loop, so that it vectorises. */
static void binary_f64(int64_t op, int64_t n, const void *a, int64_t a_stride, const void *b,
                       int64_t b_stride, void *y) {
    if (a_stride && b_stride)
        run_f64(op, n, a, 1, b, 1, y);
    else if (a_stride)
        run_f64(op, n, a, 1, b, 0, y);
    else if (b_stride)
        run_f64(op, n, a, 0, b, 1, y);
    else
        run_f64(op, n, a, 0, b, 0, y);
}

static void body(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const binary_job *job = arg;
    const char *a = job->args->a, *b = job->args->b;
    job->kernel(job->args->op, n, a + offset[0] * job->elem_bytes, job->a_stride,
                b + offset[1] * job->elem_bytes, job->b_stride,
                (char *)job->args->y + position * job->y_bytes);
}

static q7_nest alone(const q7_binary_args *args, const int64_t *shape) {
    q7_nest nest = q7_nest_of(args->shape, args->ndim);
    q7_nest_add(&nest, shape);
    q7_nest_collapse(&nest);
    return nest;
}

/* n elements of an operand from position `at` on: where they lie, or gathered in `room`. */
static const void *gathered(const binary_job *job, const q7_nest *nest, const void *x, int64_t at,
                            int64_t n, void *room) {
    if (nest->ndim == 1 && nest->stride[0][0] == 1) return (const char *)x + at * job->elem_bytes;
    q7_nest_load(nest, x, job->elem_bytes, at, n, room);
    return room;
}

/* Where runs are short: positions, of which blocks of a and b are gathered. */
static void gathered_task(void *arg, int64_t task, int64_t thread) {
    const binary_job *job = arg;
    const q7_binary_args *args = job->args;
    (void)thread;
    double a[BLOCK], b[BLOCK]; /* of any dtype */
    const int64_t end = q7_min(job->count, (task + 1) * job->per_task);
    for (int64_t at = task * job->per_task; at < end; at += BLOCK) {
        const int64_t n = q7_min(BLOCK, end - at);
        job->kernel(args->op, n, gathered(job, &job->a, args->a, at, n, a), 1,
                    gathered(job, &job->b, args->b, at, n, b), 1,
                    (char *)args->y + at * job->y_bytes);
    }
}

q7_binary_kernel q7_binary_loop(int64_t dtype, q7_binary_kernel f32) {
    switch (dtype) {
        case Q7_F32: return f32;
        case Q7_F64: return binary_f64;
        case Q7_I64: return binary_i64;
        case Q7_I32: return binary_i32;
        case Q7_I16: return binary_i16;
        case Q7_I8: return binary_i8;
        case Q7_U64: return binary_u64;
        case Q7_U32: return binary_u32;
        case Q7_U16: return binary_u16;
        default: return binary_u8; /* Q7_U8, Q7_BOOL */
    }
}

void q7_op_binary(const q7_binary_args *args, const q7_call *call) {
    q7_nest nest = q7_nest_of(args->shape, args->ndim);
    q7_nest_add(&nest, args->a_shape);
    q7_nest_add(&nest, args->b_shape);
    q7_nest_collapse(&nest);
    const int64_t last = nest.ndim - 1, bytes = q7_dtype_bytes(args->dtype);
    const bool is_bool = args->op >= Q7_binary_equal && args->op <= Q7_binary_greater_equal;
    binary_job job = {.args = args,
                      .kernel = q7_binary_loop(args->dtype, (q7_binary_kernel)call->kernel),
                      .a_stride = nest.stride[0][last],
                      .b_stride = nest.stride[1][last],
                      .elem_bytes = bytes,
                      .y_bytes = is_bool ? 1 : bytes};
    if (nest.ndim > 1 && nest.shape[last] < SHORT_RUN) {
        job.a = alone(args, args->a_shape);
        job.b = alone(args, args->b_shape);
        job.count = q7_product(args->shape, args->ndim);
        job.per_task = q7_elements_of_task(call, job.count);
        q7_parallel(call, q7_ceil_div(job.count, job.per_task), gathered_task, &job);
        return;
    }
    q7_nest_run(&nest, call, body, &job);
}
