/* tensor_scatter.c: y = x (batch, outer, max, inner_bytes), with updates (batch, outer, n,
 * inner_bytes) at first[b] of each batch on: a cache of keys or values is written. first is int64,
 * 0 where it is NULL; circular: positions are modulo max, else it is a data fault where they do not
 * fit. ONNX TensorScatter. y may be x. */
#include "scatter.h"

void q7_op_tensor_scatter(const q7_tensor_scatter_args *args, const q7_call *call) {
    const int64_t max = args->max, n = args->n, bytes = args->inner_bytes;
    q7_copy_all(call, args->y, args->x, args->batch * args->outer * max * bytes);
    if (max == 0) return;
    for (int64_t row = 0; row < args->batch * args->outer; row++) {
        const int64_t given = args->first ? ((const int64_t *)args->first)[row / args->outer] : 0;
        int64_t first = given;
        if (args->circular) {
            first = (given % max + max) % max;
        } else if (given < 0 || given > max - n) {
            q7_fault(call, "write index out of range", given, max - n + 1);
            continue;
        }
        const int64_t head = q7_min(n, max - first); /* the rest goes to the front */
        const char *updates = (const char *)args->updates + row * n * bytes;
        char *y = (char *)args->y + row * max * bytes;
        memcpy(y + first * bytes, updates, (size_t)(head * bytes));
        memcpy(y, updates + head * bytes, (size_t)((n - head) * bytes));
    }
}
