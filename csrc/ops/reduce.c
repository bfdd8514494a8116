/* reduce.c: y[o,i] = op over j of x[o,j,i]: f32 by kernel, f64, integers and bool in plain loops.
 * ONNX Reduce*. Tasks split only what is kept (outer, or columns of inner), so that sums do not
 * depend on threads. Integers are summed in 64 bits, and wrap; their mean is cut towards zero, and
 * l2 is not for them. n == 0 gives 0, 1 for prod, and for max and min the lowest and highest value
 * (floats: infinities, and NaN for mean). */
#include "../kernels/reduce.h"

#include <math.h>

#include "loops.h"

typedef struct reduce_job {
    const q7_reduce_args *args;
    q7_reduce_kernel kernel;
    int64_t per_task; /* rows, or columns */
    int64_t blocks;   /* tasks per slab */
} reduce_job;

static void rows_task(void *arg, int64_t task, int64_t thread) {
    const reduce_job *job = arg;
    const q7_reduce_args *args = job->args;
    (void)thread;
    const int64_t row = task * job->per_task;
    job->kernel(args->op, q7_min(args->outer - row, job->per_task), args->n, 1,
                (const float *)args->x + row * args->n, (float *)args->y + row);
}

static void columns_task(void *arg, int64_t task, int64_t thread) {
    const reduce_job *job = arg;
    const q7_reduce_args *args = job->args;
    (void)thread;
    const int64_t slab = task / job->blocks, column = task % job->blocks * job->per_task;
    job->kernel(args->op, q7_min(args->inner - column, job->per_task), args->n, args->inner,
                (const float *)args->x + slab * args->n * args->inner + column,
                (float *)args->y + slab * args->inner + column);
}

enum { COLUMNS = 16, LANES = 8, EACH = 4 };

#define T double
#define W double
#define DTYPE f64
#define LOWEST (-INFINITY)
#define HIGHEST INFINITY
#define ADD(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))
#define MEAN(sum, n) ((sum) / (double)(n))
#define ROOT sqrt
#define IS_NEGATIVE(v) ((v) < 0)
#define UNORDERED(v) isnan(v)
#include "reduce_typed.h"
#undef W
#undef ADD
#undef TIMES
#undef MEAN
#undef ROOT
#undef IS_NEGATIVE
#undef UNORDERED

#define ADD(a, b) (W)((uint64_t)(a) + (uint64_t)(b))
#define TIMES(a, b) (W)((uint64_t)(a) * (uint64_t)(b))
#define MEAN(sum, n) ((n) == 0 ? 0 : (sum) / (W)(n))
#define ROOT(sum) (sum) /* l2 is for floats */
#define UNORDERED(v) 0
#define W uint64_t
#define IS_NEGATIVE(v) 0
#define T uint8_t
#define DTYPE boolean
#define LOWEST 0
#define HIGHEST 1
#include "reduce_typed.h"
#undef W
#undef IS_NEGATIVE
#define LOOPS "../ops/reduce_typed.h" /* from each_int.h */
#include "../kernels/each_int.h"

static void plain(const q7_reduce_args *args, int64_t outer) {
    switch (args->dtype) {
        case Q7_F64: reduce_f64(args, outer); break;
        case Q7_I64: reduce_i64(args, outer); break;
        case Q7_I32: reduce_i32(args, outer); break;
        case Q7_I16: reduce_i16(args, outer); break;
        case Q7_I8: reduce_i8(args, outer); break;
        case Q7_U64: reduce_u64(args, outer); break;
        case Q7_U32: reduce_u32(args, outer); break;
        case Q7_U16: reduce_u16(args, outer); break;
        case Q7_U8: reduce_u8(args, outer); break;
        default: reduce_boolean(args, outer); break;
    }
}

static void plain_task(void *arg, int64_t task, int64_t thread) {
    const reduce_job *job = arg;
    (void)thread;
    const int64_t end = q7_min(job->args->outer, (task + 1) * job->per_task);
    for (int64_t i = task * job->per_task; i < end; i++) plain(job->args, i);
}

void q7_op_reduce(const q7_reduce_args *args, const q7_call *call) {
    reduce_job job = {args, (q7_reduce_kernel)call->kernel, 0, 0};
    const int64_t most = Q7_GRAIN / q7_max(1, args->n);
    if (args->dtype != Q7_F32) {
        if (args->outer * args->inner == 0) return;
        job.per_task = q7_units_of_task(call, args->outer, most / args->inner);
        q7_parallel(call, q7_ceil_div(args->outer, job.per_task), plain_task, &job);
        return;
    }
    if (args->inner == 1) {
        job.per_task = q7_units_of_task(call, args->outer, most);
        q7_parallel(call, q7_ceil_div(args->outer, job.per_task), rows_task, &job);
        return;
    }
    /* Long pieces of rows, as caches fetch on: a few for each thread, of whole lines and vectors. */
    const int64_t grains = q7_ceil_div(args->outer * args->n * args->inner, Q7_GRAIN);
    const int64_t tasks = call->threads > 1 ? q7_min(grains, EACH * call->threads) : 1;
    const int64_t columns =
        q7_ceil_div(args->inner, q7_ceil_div(q7_max(1, tasks), q7_max(1, args->outer)));
    job.per_task = q7_max(1, q7_ceil_div(columns, 64)) * 64;
    job.blocks = q7_ceil_div(args->inner, job.per_task);
    q7_parallel(call, args->outer * job.blocks, columns_task, &job);
}
