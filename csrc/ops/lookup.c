/* lookup.c: y = table[x], of bytes; int8 is looked up by its bits. */
#include "../kernels/lookup.h"

#include "loops.h"

enum { BYTES_OF_TASK = 1 << 15 };

typedef struct lookup_job {
    const q7_lookup_args *args;
    q7_lookup_kernel kernel;
} lookup_job;

static void lookup_task(void *arg, int64_t task, int64_t thread) {
    const lookup_job *job = arg;
    const int64_t begin = task * BYTES_OF_TASK;
    (void)thread;
    job->kernel(q7_min(job->args->n - begin, BYTES_OF_TASK), (const uint8_t *)job->args->x + begin,
                job->args->table, (uint8_t *)job->args->y + begin);
}

void q7_op_lookup(const q7_lookup_args *args, const q7_call *call) {
    lookup_job job = {args, (q7_lookup_kernel)call->kernel};
    q7_parallel(call, q7_ceil_div(args->n, BYTES_OF_TASK), lookup_task, &job);
}
