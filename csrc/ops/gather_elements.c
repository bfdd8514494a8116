/* gather_elements.c: y[idx] = x[idx with idx[axis] = indices[idx]]; y has the shape of indices.
 * ONNX GatherElements. Index rules as in gather.c. */
#include <string.h>

#include "loops.h"

typedef struct gather_elements_job {
    const q7_gather_elements_args *args;
    const q7_call *call;
    int64_t row_stride;  /* in x, of the innermost dim; 0 when that is the axis */
    int64_t axis_stride; /* in x */
} gather_elements_job;

static void body(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const gather_elements_job *job = arg;
    const q7_gather_elements_args *args = job->args;
    const int64_t limit = args->x_shape[args->axis], bytes = args->elem_bytes;
    const char *x = (const char *)args->x + offset[0] * bytes;
    char *y = (char *)args->y + position * bytes;
    for (int64_t i = 0; i < n; i++) {
        const int64_t raw = q7_read_index(args->indices, args->index_dtype, position + i);
        const int64_t index = q7_checked_index(job->call, raw, limit);
        if (index < 0) continue;
        const char *from = x + (i * job->row_stride + index * job->axis_stride) * bytes;
        switch (bytes) {
            case 1: y[i] = *from; break;
            case 2: memcpy(y + 2 * i, from, 2); break;
            case 4: memcpy(y + 4 * i, from, 4); break;
            default: memcpy(y + 8 * i, from, 8); break;
        }
    }
}

void q7_op_gather_elements(const q7_gather_elements_args *args, const q7_call *call) {
    q7_nest nest = q7_nest_of(args->shape, args->ndim);
    q7_nest_add(&nest, args->x_shape);
    /* The strides of x itself: a dim of 1 must match in indices too, but for the axis. */
    gather_elements_job job = {
        args, call, 0, q7_product(args->x_shape + args->axis + 1, args->ndim - args->axis - 1)};
    nest.stride[0][args->axis] = 0;
    q7_nest_collapse(&nest);
    job.row_stride = nest.stride[0][nest.ndim - 1];
    q7_nest_run(&nest, call, body, &job);
}
