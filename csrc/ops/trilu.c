/* trilu.c: y = x where j - i >= k (upper) or j - i <= k (lower), else 0; x (batch, rows, cols).
 * ONNX Trilu. y may be x. */
#include <string.h>

#include "loops.h"

/* Rows of `bytes` that are kept, or not, as a whole. */
static void put(char *y, const char *x, int64_t bytes, bool kept) {
    if (!kept)
        memset(y, 0, (size_t)bytes);
    else if (y != x)
        memcpy(y, x, (size_t)bytes);
}

static void trilu_task(void *arg, int64_t task, int64_t thread) {
    const q7_trilu_args *args = arg;
    (void)thread;
    const int64_t row_bytes = args->cols * args->elem_bytes;
    const bool upper = args->upper;
    const int64_t k = q7_max(-args->rows, q7_min(args->k, args->cols)) + !upper;
    const char *x = (const char *)args->x + task * args->rows * row_bytes;
    char *y = (char *)args->y + task * args->rows * row_bytes;
    /* Row i is cut in front of column i + k: rows before `first` at its begin, from `end` on at its end. */
    const int64_t first = q7_max(0, q7_min(args->rows, -k));
    const int64_t end = q7_max(first, q7_min(args->rows, args->cols - k));
    put(y, x, first * row_bytes, upper);
    for (int64_t i = first; i < end; i++) {
        const int64_t at = i * row_bytes, cut = (i + k) * args->elem_bytes;
        put(y + at, x + at, cut, !upper);
        put(y + at + cut, x + at + cut, row_bytes - cut, upper);
    }
    put(y + end * row_bytes, x + end * row_bytes, (args->rows - end) * row_bytes, !upper);
}

void q7_op_trilu(const q7_trilu_args *args, const q7_call *call) {
    q7_parallel(call, args->batch, trilu_task, (void *)args);
}
