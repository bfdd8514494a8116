/* tensor_scatter.c: y = x (batch, outer, max, inner_bytes), then zeros up to its own length, with
 * updates (batch, outer, n, inner_bytes) at first[b] of each batch on: a cache of keys or values is
 * written. first is int64, 0 where it is NULL; circular: positions are modulo length, else it is a
 * data fault where they do not fit. ONNX TensorScatter. y may be x, if it is as long: then only
 * updates are written. */
#include <string.h>

#include "loops.h"

typedef struct scatter_job {
    const q7_tensor_scatter_args *args;
    int64_t bytes; /* of y that a task writes */
} scatter_job;

/* Bytes of a row of y from `begin` to `end`, those that are in the part [low, high) of the row:
 * they are those of `source`, which begins at low, or zeros. */
static void write_part(char *y, int64_t begin, int64_t end, int64_t low, int64_t high,
                       const char *source) {
    const int64_t from = q7_max(begin, low), bytes = q7_min(end, high) - from;
    if (bytes <= 0) return;
    if (source)
        memcpy(y + from, source + (from - low), (size_t)bytes);
    else
        memset(y + from, 0, (size_t)bytes);
}

static void write_row(const q7_tensor_scatter_args *args, int64_t row, int64_t begin, int64_t end) {
    const int64_t bytes = args->inner_bytes, max = args->max * bytes, n = args->n * bytes;
    const int64_t length = args->length * bytes;
    int64_t first = args->first ? ((const int64_t *)args->first)[row / args->outer] : 0;
    if (args->circular) first = (first % args->length + args->length) % args->length;
    first *= bytes;
    const int64_t last = q7_min(first + n, length), front = n - (last - first); /* wraps around */
    const char *x = (const char *)args->x + row * max;
    const char *updates = (const char *)args->updates + row * n;
    char *y = (char *)args->y + row * length;
    write_part(y, begin, end, 0, front, updates + (last - first));
    write_part(y, begin, end, first, last, updates);
    if (args->y == args->x) return;
    write_part(y, begin, end, front, q7_min(first, max), x + front);
    write_part(y, begin, end, max, first, NULL);
    write_part(y, begin, end, last, max, x + last);
    write_part(y, begin, end, q7_max(last, max), length, NULL);
}

static void scatter_task(void *arg, int64_t task, int64_t thread) {
    const scatter_job *job = arg;
    const q7_tensor_scatter_args *args = job->args;
    const int64_t row_bytes = args->length * args->inner_bytes;
    const int64_t last = q7_min(args->batch * args->outer * row_bytes, (task + 1) * job->bytes);
    (void)thread;
    for (int64_t at = task * job->bytes; at < last;) {
        const int64_t row = at / row_bytes, end = q7_min(last, (row + 1) * row_bytes);
        write_row(args, row, at - row * row_bytes, end - row * row_bytes);
        at = end;
    }
}

void q7_op_tensor_scatter(const q7_tensor_scatter_args *args, const q7_call *call) {
    const int64_t row_bytes = args->length * args->inner_bytes, most = args->length - args->n;
    for (int64_t b = 0; args->first && !args->circular && b < args->batch; b++) {
        const int64_t first = ((const int64_t *)args->first)[b];
        if (first < 0 || first > most) {
            q7_fault(call, "write index out of range", first, 0, most + 1);
            return;
        }
    }
    if (row_bytes == 0) return;
    scatter_job job = {args, 4 * Q7_GRAIN};
    if (args->y == args->x) { /* tasks of as many bytes of updates */
        const int64_t n = q7_max(args->n * args->inner_bytes, 1);
        job.bytes = q7_max(4 * Q7_GRAIN / n, 1) * row_bytes;
    }
    const int64_t tasks = q7_ceil_div(args->batch * args->outer * row_bytes, job.bytes);
    q7_parallel(call, tasks, scatter_task, &job);
}
