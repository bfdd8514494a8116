/* cast.c: y[i] = (to)x[i], by kernel. */
#include "../kernels/cast.h"

#include "loops.h"

typedef struct cast_job {
    const q7_cast_args *args;
    q7_cast_kernel kernel;
} cast_job;

static void cast_task(void *arg, int64_t task, int64_t thread) {
    const cast_job *job = arg;
    const q7_cast_args *args = job->args;
    (void)thread;
    const int64_t begin = task * Q7_GRAIN;
    job->kernel(args->from, args->to, q7_min(args->n - begin, Q7_GRAIN),
                (const char *)args->x + begin * q7_dtype_bytes(args->from),
                (char *)args->y + begin * q7_dtype_bytes(args->to));
}

void q7_op_cast(const q7_cast_args *args, const q7_call *call) {
    cast_job job = {args, (q7_cast_kernel)call->kernel};
    q7_parallel(call, q7_ceil_div(args->n, Q7_GRAIN), cast_task, &job);
}
