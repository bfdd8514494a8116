/* pad.c: y[idx] = x[idx - before], where the border is filled with one number, or from x itself: with
 * its edge, its mirror image (without the edge), or from its other end. x has strides of any sign, y is
 * dense; no dim of x is 0 unless y is empty, or has a border of one number. ONNX Pad. */
#include "../kernels/move.h"
#include "loops.h"

typedef struct pad_dim {
    int64_t n, step, before, size; /* elements of x, bytes from one to the next; elements of y */
} pad_dim;

/* The innermost dims that have no border are one element, of many bytes. */
typedef struct pad_job {
    const q7_pad_args *args;
    int64_t ndim, bytes; /* of an element */
    pad_dim dim[Q7_MAX_NDIM];
    int64_t rows, rows_per_task;
} pad_job;

/* Which of n elements stands at i, which may be outside of 0..n. */
static inline int64_t source_of(int64_t i, int64_t n, int64_t border) {
    if (i >= 0 && i < n) return i;
    if (border == Q7_border_zeros) return 0;
    if (border == Q7_border_edge) return i < 0 ? 0 : n - 1;
    if (border == Q7_border_wrap) {
        if (i < -n || i >= 2 * n) i %= n;
        return i < 0 ? i + n : i < n ? i : i - n;
    }
    const int64_t period = 2 * (n - 1);
    int64_t at = i < 0 ? -i : i; /* both have the same mirror image */
    if (at > period) at = n == 1 ? 0 : at % period;
    return at < n ? at : period - at;
}

/* Bytes from the first element of a dim to that which stands at i of y. */
static inline int64_t bytes_to(const pad_job *job, int64_t d, int64_t i) {
    const pad_dim *dim = &job->dim[d];
    return source_of(i - dim->before, dim->n, job->args->border) * dim->step;
}

/* Whether what stands at i of a dim of y is of the border that is one number. */
static inline bool is_number(const pad_job *job, int64_t d, int64_t i) {
    const int64_t at = i - job->dim[d].before;
    return job->args->border == Q7_border_zeros && (at < 0 || at >= job->dim[d].n);
}

/* Some elements of the border, from i of the innermost dim on. */
static inline void pad_border(const pad_job *job, const char *x, char *y, int64_t i, int64_t count,
                              const int64_t bytes) {
    const int64_t size = job->args->elem_bytes;
    if (job->args->border == Q7_border_zeros)
        q7_repeat(y + i * bytes, &job->args->bits, count * (bytes / size), size);
    else
        for (const int64_t end = i + count; i < end; i++)
            memcpy(y + i * bytes, x + bytes_to(job, job->ndim - 1, i), (size_t)bytes);
}

/* The innermost dim; `bytes` is a constant where it is small. */
static inline void pad_row(const pad_job *job, const char *x, char *y, const int64_t bytes) {
    const pad_dim dim = job->dim[job->ndim - 1];
    const int64_t end = dim.before + dim.n; /* of what is copied as it is */
    pad_border(job, x, y, 0, dim.before, bytes);
    if (dim.step == bytes && dim.n > 0)
        memcpy(y + dim.before * bytes, x, (size_t)(dim.n * bytes));
    else
        for (int64_t i = 0; i < dim.n; i++)
            memcpy(y + (dim.before + i) * bytes, x + i * dim.step, (size_t)bytes);
    pad_border(job, x, y, end, dim.size - end, bytes);
}

static void pad_task(void *arg, int64_t task, int64_t thread) {
    const pad_job *job = arg;
    (void)thread;
    const int64_t begin = task * job->rows_per_task;
    const int64_t end = q7_min(job->rows, begin + job->rows_per_task);
    const int64_t outer = job->ndim - 1, row = job->dim[outer].size * job->bytes;
    int64_t index[Q7_MAX_NDIM], from = 0, left = begin;
    int64_t numbers = 0; /* dims whose index is_number */
    for (int64_t d = outer - 1; d >= 0; d--) {
        index[d] = left % job->dim[d].size;
        left /= job->dim[d].size;
        from += bytes_to(job, d, index[d]);
        numbers += is_number(job, d, index[d]);
    }
    char *y = (char *)job->args->y + begin * row;
    for (int64_t r = begin; r < end; r++, y += row) {
        const char *x = (const char *)job->args->x + from;
        if (numbers > 0)
            pad_border(job, x, y, 0, job->dim[outer].size, job->bytes);
        else
            switch (job->bytes) {
                case 1: pad_row(job, x, y, 1); break;
                case 2: pad_row(job, x, y, 2); break;
                case 4: pad_row(job, x, y, 4); break;
                case 8: pad_row(job, x, y, 8); break;
                default: pad_row(job, x, y, job->bytes);
            }
        for (int64_t d = outer - 1; d >= 0; d--) { /* to the next row */
            from -= bytes_to(job, d, index[d]);
            numbers -= is_number(job, d, index[d]);
            index[d] = index[d] + 1 < job->dim[d].size ? index[d] + 1 : 0;
            from += bytes_to(job, d, index[d]);
            numbers += is_number(job, d, index[d]);
            if (index[d] > 0) break;
        }
    }
}

void q7_op_pad(const q7_pad_args *args, const q7_call *call) {
    pad_job job = {.args = args, .ndim = args->ndim, .bytes = args->elem_bytes};
    for (int64_t d = 0; d < args->ndim; d++)
        job.dim[d] = (pad_dim){args->x_shape[d], args->x_stride[d] * args->elem_bytes,
                               q7_min(args->before[d], args->shape[d]), args->shape[d]};
    for (const pad_dim *dim; job.ndim > 1; job.ndim--) {
        dim = &job.dim[job.ndim - 1];
        if (dim->n != dim->size || dim->step != job.bytes) break;
        job.bytes *= dim->n;
    }
    const int64_t elements = q7_product(args->shape, args->ndim);
    const int64_t cols = job.dim[job.ndim - 1].size * job.bytes / args->elem_bytes;
    if (elements == 0) return;
    job.rows = elements / cols;
    job.rows_per_task = q7_max(1, Q7_GRAIN / cols);
    q7_parallel(call, q7_ceil_div(job.rows, job.rows_per_task), pad_task, &job);
}
