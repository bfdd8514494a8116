/* gather_nd.c: y[b,i,:] = x[b, indices[b,i,0], .., indices[b,i,depth-1], :], x (batch,
 * dims[0..depth), inner_bytes), indices int64 (batch, n, depth). ONNX GatherND. Index rules as in
 * gather.c. */
#include <string.h>

#include "loops.h"

typedef struct gather_nd_job {
    const q7_gather_nd_args *args;
    const q7_call *call;
    int64_t slices, slices_per_task, x_slices; /* x_slices: per batch */
} gather_nd_job;

static void gather_nd_task(void *arg, int64_t task, int64_t thread) {
    const gather_nd_job *job = arg;
    const q7_gather_nd_args *args = job->args;
    (void)thread;
    const int64_t begin = task * job->slices_per_task;
    const int64_t end = q7_min(job->slices, begin + job->slices_per_task);
    for (int64_t slice = begin; slice < end; slice++) {
        const int64_t *indices = (const int64_t *)args->indices + slice * args->depth;
        const int64_t from = q7_flat_index(job->call, indices, args->dims, args->depth);
        if (from < 0) continue;
        const int64_t at = slice / args->n * job->x_slices + from;
        memcpy((char *)args->y + slice * args->inner_bytes,
               (const char *)args->x + at * args->inner_bytes, (size_t)args->inner_bytes);
    }
}

void q7_op_gather_nd(const q7_gather_nd_args *args, const q7_call *call) {
    const int64_t slices = args->batch * args->n;
    const int64_t per_task = q7_max(1, 4 * Q7_GRAIN / q7_max(32, args->inner_bytes));
    gather_nd_job job = {args, call, slices, per_task, q7_product(args->dims, args->depth)};
    q7_parallel(call, q7_ceil_div(slices, per_task), gather_nd_task, &job);
}
