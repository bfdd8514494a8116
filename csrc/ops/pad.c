/* pad.c: y[idx] = x[idx - before], where the border is filled from x itself: with its edge, its
 * mirror image (without the edge), or from its other end. x has strides of any sign, y is dense; no
 * dim of x is 0 unless y is empty. ONNX Pad but for mode constant, which is a fill and a copy. */
#include "../kernels/move.h"
#include "loops.h"

typedef struct pad_job {
    const q7_pad_args *args;
    int64_t rows, cols, rows_per_task;
} pad_job;

/* Which of n elements stands at i, which may be outside of 0..n. */
static int64_t source_of(int64_t i, int64_t n, int64_t border) {
    if (i >= 0 && i < n) return i;
    if (border == Q7_border_edge) return i < 0 ? 0 : n - 1;
    if (border == Q7_border_wrap) return (i % n + n) % n;
    if (n == 1) return 0;
    const int64_t period = 2 * (n - 1), at = (i % period + period) % period;
    return at < n ? at : period - at;
}

static void pad_row(const q7_pad_args *args, const char *x, char *y, int64_t cols) {
    const int64_t last = args->ndim - 1, n = args->x_shape[last], before = args->before[last];
    const int64_t bytes = args->elem_bytes, step = args->x_stride[last] * bytes;
    const int64_t end = q7_min(cols, before + n); /* of what is copied as it is */
    for (int64_t i = 0; i < q7_min(before, cols); i++)
        q7_move(y + i * bytes, x + source_of(i - before, n, args->border) * step, bytes);
    if (step == bytes && end > before)
        memcpy(y + before * bytes, x, (size_t)((end - before) * bytes));
    else
        for (int64_t i = before; i < end; i++)
            q7_move(y + i * bytes, x + (i - before) * step, bytes);
    for (int64_t i = end; i < cols; i++)
        q7_move(y + i * bytes, x + source_of(i - before, n, args->border) * step, bytes);
}

static void pad_task(void *arg, int64_t task, int64_t thread) {
    const pad_job *job = arg;
    const q7_pad_args *args = job->args;
    (void)thread;
    const int64_t begin = task * job->rows_per_task;
    const int64_t end = q7_min(job->rows, begin + job->rows_per_task);
    for (int64_t row = begin; row < end; row++) {
        int64_t from = 0, left = row;
        for (int64_t d = args->ndim - 2; d >= 0; d--) {
            const int64_t i = left % args->shape[d] - args->before[d];
            left /= args->shape[d];
            from += source_of(i, args->x_shape[d], args->border) * args->x_stride[d];
        }
        pad_row(args, (const char *)args->x + from * args->elem_bytes,
                (char *)args->y + row * job->cols * args->elem_bytes, job->cols);
    }
}

void q7_op_pad(const q7_pad_args *args, const q7_call *call) {
    const int64_t cols = args->shape[args->ndim - 1];
    pad_job job = {args, cols ? q7_product(args->shape, args->ndim - 1) : 0, cols,
                   q7_max(1, Q7_GRAIN / q7_max(1, cols))};
    q7_parallel(call, q7_ceil_div(job.rows, job.rows_per_task), pad_task, &job);
}
