/* trilu.c: y = x where j - i >= k (upper) or j - i <= k (lower), else 0; x (batch, rows, cols).
 * ONNX Trilu. y may be x. */
#include <string.h>

#include "loops.h"

static void trilu_task(void *arg, int64_t task, int64_t thread) {
    const q7_trilu_args *args = arg;
    (void)thread;
    const int64_t row_bytes = args->cols * args->elem_bytes;
    const int64_t k = q7_max(-args->rows, q7_min(args->k, args->cols));
    for (int64_t i = 0; i < args->rows; i++) {
        const int64_t at = (task * args->rows + i) * row_bytes;
        const char *x = (const char *)args->x + at;
        char *y = (char *)args->y + at;
        /* kept columns: [cut, cols) when upper, else [0, cut) */
        const int64_t first = args->upper ? i + k : i + k + 1;
        const int64_t cut = q7_max(0, q7_min(args->cols, first)) * args->elem_bytes;
        if (args->upper) {
            if (y != x) memcpy(y + cut, x + cut, (size_t)(row_bytes - cut));
            memset(y, 0, (size_t)cut);
        } else {
            if (y != x) memcpy(y, x, (size_t)cut);
            memset(y + cut, 0, (size_t)(row_bytes - cut));
        }
    }
}

void q7_op_trilu(const q7_trilu_args *args, const q7_call *call) {
    q7_parallel(call, args->batch, trilu_task, (void *)args);
}
