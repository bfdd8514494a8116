/* scatter_nd.c: y = x; y[indices[i,0], .., indices[i,depth-1], :] = updates[i,:] of `inner`
 * elements, or added to what is there, and so on, in the order of i: of equal indices the last
 * wins. indices int64 (n, depth). ONNX ScatterND. y may be x. Index rules as in gather.c. */
#include "scatter.h"

void q7_op_scatter_nd(const q7_scatter_nd_args *args, const q7_call *call) {
    const int64_t bytes = args->inner * q7_dtype_bytes(args->dtype);
    q7_copy_all(call, args->y, args->x, q7_product(args->dims, args->depth) * bytes);
    for (int64_t i = 0; i < args->n; i++) {
        const int64_t *indices = (const int64_t *)args->indices + i * args->depth;
        const int64_t at = q7_flat_index(call, indices, args->dims, args->depth);
        if (at < 0) continue;
        q7_scatter(args->scatter, args->dtype, args->inner, (const char *)args->updates + i * bytes,
                   (char *)args->y + at * bytes);
    }
}
