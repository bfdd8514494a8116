/* slice_scatter.c: y = x with a slice of it replaced, of any strides. y may be x. */
#include "scatter.h"

void q7_op_slice_scatter(const q7_slice_scatter_args *args, const q7_call *call) {
    q7_copy_args copy = {.x = args->updates,
                         .y = args->y,
                         .elem_bytes = args->elem_bytes,
                         .ndim = args->ndim,
                         .y_offset = args->y_offset};
    for (int64_t i = 0; i < args->ndim; i++) {
        copy.shape[i] = args->shape[i];
        copy.x_stride[i] = args->x_stride[i];
        copy.y_stride[i] = args->y_stride[i];
    }
    q7_copy_all(call, args->y, args->x, args->bytes);
    q7_op_copy(&copy, call);
}
