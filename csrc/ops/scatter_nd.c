/* scatter_nd.c: y = x; y[indices[i,0], .., indices[i,depth-1], :] = updates[i,:], in the order of
 * i, so that of equal indices the last wins. indices int64 (n, depth). ONNX ScatterND, reduction
 * none. y may be x. Index rules as in gather.c. */
#include <string.h>

#include "loops.h"

typedef struct copy_job {
    const q7_scatter_nd_args *args;
    int64_t bytes;
} copy_job;

static void copy_task(void *arg, int64_t task, int64_t thread) {
    const copy_job *job = arg;
    (void)thread;
    const int64_t begin = task * 4 * Q7_GRAIN;
    const int64_t bytes = q7_min(job->bytes - begin, 4 * Q7_GRAIN);
    memcpy((char *)job->args->y + begin, (const char *)job->args->x + begin, (size_t)bytes);
}

void q7_op_scatter_nd(const q7_scatter_nd_args *args, const q7_call *call) {
    copy_job job = {args, q7_product(args->dims, args->depth) * args->inner_bytes};
    if (args->y != args->x)
        q7_parallel(call, q7_ceil_div(job.bytes, 4 * Q7_GRAIN), copy_task, &job);
    for (int64_t i = 0; i < args->n; i++) {
        const int64_t *indices = (const int64_t *)args->indices + i * args->depth;
        const int64_t at = q7_flat_index(call, indices, args->dims, args->depth);
        if (at < 0) continue;
        memcpy((char *)args->y + at * args->inner_bytes,
               (const char *)args->updates + i * args->inner_bytes, (size_t)args->inner_bytes);
    }
}
