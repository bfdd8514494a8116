/* gather_elements.c: y[idx] = x[idx with idx[axis] = indices[idx]]; y has the shape of indices.
 * ONNX GatherElements. Index rules as in gather.c. */
#include "loops.h"

typedef struct gather_elements_job {
    const q7_gather_elements_args *args;
    const q7_call *call;
    int64_t row_stride;  /* in x, of the innermost dim; 0 when that is the axis */
    int64_t axis_stride; /* in x */
} gather_elements_job;

/* One loop per type of index and width of an element. */
#define GATHER(I, T)                                                                          \
    for (int64_t i = 0; i < n; i++) {                                                         \
        const int64_t raw = ((const I *)args->indices)[position + i];                         \
        const int64_t index = q7_checked_index(job->call, raw, limit);                        \
        if (index >= 0)                                                                       \
            ((T *)args->y)[position + i] = ((const T *)args->x)[at + i * row + index * step]; \
    }
#define GATHER_ANY(I)                       \
    switch (args->elem_bytes) {             \
        case 1: GATHER(I, uint8_t) break;   \
        case 2: GATHER(I, uint16_t) break;  \
        case 4: GATHER(I, uint32_t) break;  \
        default: GATHER(I, uint64_t) break; \
    }
static void body(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const gather_elements_job *job = arg;
    const q7_gather_elements_args *args = job->args;
    const int64_t limit = args->x_shape[args->axis], at = offset[0];
    const int64_t row = job->row_stride, step = job->axis_stride;
    if (args->index_dtype == Q7_I32)
        GATHER_ANY(int32_t)
    else
        GATHER_ANY(int64_t)
}
#undef GATHER_ANY
#undef GATHER

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
