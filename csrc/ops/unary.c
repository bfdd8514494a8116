/* unary.c: y[i] = op(x[i]), by kernel. y may be x where the element size stays the same. */
#include "../kernels/unary.h"

#include "loops.h"

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
    job->kernel(args->dtype, args->op, q7_min(args->n - begin, job->per_task),
                (const char *)args->x + begin * job->x_bytes,
                (char *)args->y + begin * job->y_bytes, args->alpha, args->beta);
}

void q7_op_unary(const q7_unary_args *args, const q7_call *call) {
    const int64_t bytes = q7_dtype_bytes(args->dtype);
    const bool is_bool = args->op == Q7_unary_isnan || args->op == Q7_unary_isinf;
    unary_job job = {args, (q7_unary_kernel)call->kernel, bytes, is_bool ? 1 : bytes,
                     q7_elements_of_task(call, args->n)};
    q7_parallel(call, q7_ceil_div(args->n, job.per_task), unary_task, &job);
}
