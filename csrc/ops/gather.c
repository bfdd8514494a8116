/* gather.c: y[o,i,:] = x[o,indices[i],:], x (outer, axis_dim, inner_bytes). ONNX Gather.
 * A negative index counts from the end; an index out of range is a data fault and leaves its slice
 * of y as it was. x may have any alignment. */
#include <string.h>

#include "loops.h"

typedef struct gather_job {
    const q7_gather_args *args;
    const q7_call *call;
    int64_t slices, slices_per_task;
} gather_job;

static void gather_task(void *arg, int64_t task, int64_t thread) {
    const gather_job *job = arg;
    const q7_gather_args *args = job->args;
    (void)thread;
    const int64_t begin = task * job->slices_per_task;
    const int64_t end = q7_min(job->slices, begin + job->slices_per_task);
    const int64_t bytes = args->inner_bytes;
    int64_t o = begin / args->n, i = begin % args->n;
    for (int64_t slice = begin; slice < end; slice++) {
        const int64_t raw = q7_read_index(args->indices, args->index_dtype, i);
        const int64_t index = q7_checked_index(job->call, raw, args->axis_dim);
        if (index >= 0) {
            const char *x = (const char *)args->x + (o * args->axis_dim + index) * bytes;
            char *y = (char *)args->y + slice * bytes;
            if (bytes == 8)
                memcpy(y, x, 8); /* a constant size is one load and one store */
            else if (bytes == 4)
                memcpy(y, x, 4);
            else
                memcpy(y, x, (size_t)bytes);
        }
        if (++i == args->n) i = 0, o++;
    }
}

void q7_op_gather(const q7_gather_args *args, const q7_call *call) {
    const int64_t slices = args->outer * args->n;
    const int64_t per_task = q7_max(1, 4 * Q7_GRAIN / q7_max(16, args->inner_bytes));
    gather_job job = {args, call, slices, per_task};
    q7_parallel(call, q7_ceil_div(slices, per_task), gather_task, &job);
}
