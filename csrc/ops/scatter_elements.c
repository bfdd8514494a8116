/* scatter_elements.c: y = x; y[idx with idx[axis] = indices[idx]] = updates[idx], or added to what
 * is there, and so on, along the axis in order: of equal indices the last wins. indices and updates
 * have one shape, no larger than x but along the axis. ONNX ScatterElements. y may be x. Index
 * rules as in gather.c.
 *
 * Tasks are runs of the dims before the axis, which never write to one place. */
#include "scatter.h"

typedef struct scatter_job {
    const q7_scatter_elements_args *args;
    const q7_call *call;
    q7_nest nest;        /* over indices; its operand: y without the axis */
    int64_t axis_stride; /* in y */
    int64_t slab_rows, rows, rows_per_task;
} scatter_job;

static void scatter_task(void *arg, int64_t task, int64_t thread) {
    const scatter_job *job = arg;
    const q7_scatter_elements_args *args = job->args;
    (void)thread;
    const int64_t last = job->nest.ndim - 1, cols = job->nest.shape[last];
    const int64_t limit = args->x_shape[args->axis], step = job->nest.stride[0][last];
    const int64_t bytes = q7_dtype_bytes(args->dtype);
    const bool moves_words = args->scatter == Q7_scatter_none && bytes == 4; /* most often */
    const int64_t begin = task * job->rows_per_task;
    const int64_t end = q7_min(job->rows, begin + job->rows_per_task);
    q7_cursor at = q7_nest_seek(&job->nest, begin);
    for (int64_t row = begin; row < end; row++) {
        for (int64_t i = 0, position = row * cols; i < cols; i++, position++) {
            const int64_t raw = q7_read_index(args->indices, args->index_dtype, position);
            const int64_t index = q7_checked_index(job->call, raw, limit);
            if (index < 0) continue;
            const int64_t to = at.offset[0] + i * step + index * job->axis_stride;
            if (moves_words)
                ((uint32_t *)args->y)[to] = ((const uint32_t *)args->updates)[position];
            else
                q7_scatter(args->scatter, args->dtype, 1,
                           (const char *)args->updates + position * bytes,
                           (char *)args->y + to * bytes);
        }
        q7_nest_next_row(&job->nest, &at);
    }
}

void q7_op_scatter_elements(const q7_scatter_elements_args *args, const q7_call *call) {
    const int64_t ndim = args->ndim, last = ndim - 1;
    q7_copy_all(call, args->y, args->x,
                q7_product(args->x_shape, ndim) * q7_dtype_bytes(args->dtype));
    scatter_job job = {.args = args, .call = call, .nest = q7_nest_of(args->shape, ndim)};
    q7_nest_add(&job.nest, args->x_shape);
    job.axis_stride = q7_product(args->x_shape + args->axis + 1, last - args->axis);
    job.nest.stride[0][args->axis] = 0;
    job.rows = q7_product(args->shape, ndim) == 0 ? 0 : q7_product(args->shape, last);
    job.slab_rows =
        args->axis == last ? 1 : q7_product(args->shape + args->axis, last - args->axis);
    const int64_t slab = q7_max(1, job.slab_rows * args->shape[last]);
    job.rows_per_task = job.slab_rows * q7_max(1, Q7_GRAIN / (4 * slab));
    q7_parallel(call, job.rows ? q7_ceil_div(job.rows, job.rows_per_task) : 0, scatter_task, &job);
}
