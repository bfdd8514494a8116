/* binary.c: y = op(a, b) with broadcasting, by kernel. */
#include "../kernels/binary.h"

#include "loops.h"

typedef struct binary_job {
    const q7_binary_args *args;
    q7_binary_kernel kernel;
    int64_t a_stride, b_stride, elem_bytes, y_bytes;
    q7_nest a, b; /* each alone, where runs of both are short */
    int64_t count, per_task;
} binary_job;

enum { BLOCK = 512, SHORT_RUN = 32 }; /* elements that are gathered; a call costs as much as some */

static void body(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const binary_job *job = arg;
    const char *a = job->args->a, *b = job->args->b;
    job->kernel(job->args->dtype, job->args->op, n, a + offset[0] * job->elem_bytes, job->a_stride,
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
        job->kernel(args->dtype, args->op, n, gathered(job, &job->a, args->a, at, n, a), 1,
                    gathered(job, &job->b, args->b, at, n, b), 1,
                    (char *)args->y + at * job->y_bytes);
    }
}

void q7_op_binary(const q7_binary_args *args, const q7_call *call) {
    q7_nest nest = q7_nest_of(args->shape, args->ndim);
    q7_nest_add(&nest, args->a_shape);
    q7_nest_add(&nest, args->b_shape);
    q7_nest_collapse(&nest);
    const int64_t last = nest.ndim - 1, bytes = q7_dtype_bytes(args->dtype);
    binary_job job = {.args = args,
                      .kernel = (q7_binary_kernel)call->kernel,
                      .a_stride = nest.stride[0][last],
                      .b_stride = nest.stride[1][last],
                      .elem_bytes = bytes,
                      .y_bytes = q7_binary_bytes(args->op, args->dtype)};
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
