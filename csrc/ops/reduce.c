/* reduce.c: y[o,i] = op over j of x[o,j,i]. ONNX Reduce*. Tasks split only what is kept (outer, or
 * columns of inner), so that sums do not depend on threads. n == 0 gives 0, 1 for prod, and for max
 * and min the lowest and highest value (floats: infinities, and NaN for mean). */
#include "../kernels/reduce.h"

#include "loops.h"

typedef struct reduce_job {
    const q7_reduce_args *args;
    q7_reduce_kernel kernel;
    int64_t bytes;    /* of an element */
    int64_t per_task; /* rows, or columns */
    int64_t blocks;   /* tasks per slab */
} reduce_job;

static void rows_task(void *arg, int64_t task, int64_t thread) {
    const reduce_job *job = arg;
    const q7_reduce_args *args = job->args;
    (void)thread;
    const int64_t row = task * job->per_task;
    job->kernel(args->dtype, args->op, q7_min(args->outer - row, job->per_task), args->n, 1,
                (const char *)args->x + row * args->n * job->bytes,
                (char *)args->y + row * job->bytes);
}

static void columns_task(void *arg, int64_t task, int64_t thread) {
    const reduce_job *job = arg;
    const q7_reduce_args *args = job->args;
    (void)thread;
    const int64_t slab = task / job->blocks, column = task % job->blocks * job->per_task;
    job->kernel(args->dtype, args->op, q7_min(args->inner - column, job->per_task), args->n,
                args->inner,
                (const char *)args->x + (slab * args->n * args->inner + column) * job->bytes,
                (char *)args->y + (slab * args->inner + column) * job->bytes);
}

enum { EACH = 4 };

void q7_op_reduce(const q7_reduce_args *args, const q7_call *call) {
    reduce_job job = {.args = args, .kernel = (q7_reduce_kernel)call->kernel};
    job.bytes = q7_dtype_bytes(args->dtype);
    const int64_t most = Q7_GRAIN / q7_max(1, args->n);
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
