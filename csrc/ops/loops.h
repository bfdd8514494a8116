/* loops.h: broadcast loop nests, and how elementwise drivers cut them into tasks.
 *
 * A nest is a shape and, per operand, strides over it (0 repeats the same data). The output is
 * dense and in row-major order, so that a position in it names an element of the nest. No element
 * depends on where tasks are cut. */
#ifndef Q7_OPS_LOOPS_H
#define Q7_OPS_LOOPS_H
#include <string.h>

#include "../abi.h"

#define Q7_GRAIN \
    32768 /* elements a task handles, at most: some 10 us of work, against 1 us to hand it out */
#define Q7_NEST_OPERANDS Q7_CHAIN_INPUTS

/* How many of `count` units a task has, of which `most` are the work of Q7_GRAIN elements: each
 * thread has as many as the others, unless those are too few to hand out. */
static inline int64_t q7_units_of_task(const q7_call *call, int64_t count, int64_t most) {
    enum { LEAST = 8 }; /* tasks that are Q7_GRAIN together */
    most = q7_max(most, 1);
    const int64_t rounds = q7_ceil_div(count, most * call->threads);
    const int64_t even = q7_ceil_div(count, q7_max(rounds, 1) * call->threads);
    return q7_max(even, q7_ceil_div(most, LEAST));
}

/* Of elements, in whole lines of a cache. */
static inline int64_t q7_elements_of_task(const q7_call *call, int64_t count) {
    enum { LINE = 64 };
    return q7_ceil_div(q7_units_of_task(call, count, Q7_GRAIN), LINE) * LINE;
}

typedef struct q7_nest {
    int64_t ndim;
    int64_t shape[Q7_MAX_NDIM];
    int64_t operands;
    int64_t stride[Q7_NEST_OPERANDS][Q7_MAX_NDIM]; /* elements */
} q7_nest;

/* A place in a nest: an index per dim, and each operand's offset there. */
typedef struct q7_cursor {
    int64_t index[Q7_MAX_NDIM];
    int64_t offset[Q7_NEST_OPERANDS];
} q7_cursor;

/* Handles n elements along the innermost dim: operand k starts at offset[k] and advances by its
 * innermost stride, the output starts at `position`. */
typedef void (*q7_nest_body)(void *arg, int64_t n, const int64_t *offset, int64_t position);

static inline int64_t q7_product(const int64_t *shape, int64_t ndim) {
    int64_t count = 1;
    for (int64_t i = 0; i < ndim; i++) count *= shape[i];
    return count;
}

/* Where the i-th of the parts of such a shape begins, in row-major order. */
static inline int64_t q7_offset_of(int64_t i, const int64_t *shape, int64_t ndim,
                                   const int64_t *stride) {
    int64_t offset = 0;
    for (int64_t d = ndim - 1; d >= 0; i /= shape[d], d--) offset += i % shape[d] * stride[d];
    return offset;
}

static inline q7_nest q7_nest_of(const int64_t *shape, int64_t ndim) {
    q7_nest nest = {.ndim = ndim};
    for (int64_t i = 0; i < ndim; i++) nest.shape[i] = shape[i];
    return nest;
}

/* Adds a dense operand of that shape (padded to ndim); its dims of 1 repeat. */
static inline void q7_nest_add(q7_nest *nest, const int64_t *shape) {
    int64_t *stride = nest->stride[nest->operands++], step = 1;
    for (int64_t i = nest->ndim - 1; i >= 0; i--) {
        stride[i] = shape[i] == 1 ? 0 : step;
        step *= shape[i];
    }
}

/* Adds an operand of these strides. */
static inline void q7_nest_walk(q7_nest *nest, const int64_t *stride) {
    memcpy(nest->stride[nest->operands++], stride, (size_t)nest->ndim * sizeof *stride);
}

/* Drops dims of 1 and joins neighbours that every operand walks as one; leaves at least one dim. */
static inline void q7_nest_collapse(q7_nest *nest) {
    int64_t kept = 0;
    for (int64_t i = 0; i < nest->ndim; i++) {
        const int64_t size = nest->shape[i];
        if (size == 1) continue;
        bool join = kept > 0;
        for (int64_t k = 0; k < nest->operands; k++)
            join = join && nest->stride[k][kept - 1] == nest->stride[k][i] * size;
        const int64_t to = join ? kept - 1 : kept++;
        nest->shape[to] = join ? nest->shape[to] * size : size;
        for (int64_t k = 0; k < nest->operands; k++) nest->stride[k][to] = nest->stride[k][i];
    }
    if (kept == 0) {
        nest->shape[kept++] = 1;
        for (int64_t k = 0; k < nest->operands; k++) nest->stride[k][0] = 0;
    }
    nest->ndim = kept;
}

/* The start of a row: `row` counts the innermost runs. */
static inline q7_cursor q7_nest_seek(const q7_nest *nest, int64_t row) {
    q7_cursor at = {{0}, {0}};
    for (int64_t i = nest->ndim - 2; i >= 0; i--) {
        at.index[i] = row % nest->shape[i];
        row /= nest->shape[i];
        for (int64_t k = 0; k < nest->operands; k++)
            at.offset[k] += at.index[i] * nest->stride[k][i];
    }
    return at;
}

static inline void q7_nest_next_row(const q7_nest *nest, q7_cursor *at) {
    for (int64_t i = nest->ndim - 2; i >= 0; i--) {
        for (int64_t k = 0; k < nest->operands; k++) at->offset[k] += nest->stride[k][i];
        if (++at->index[i] < nest->shape[i]) return;
        for (int64_t k = 0; k < nest->operands; k++)
            at->offset[k] -= nest->shape[i] * nest->stride[k][i];
        at->index[i] = 0;
    }
}

/* Rows of n elements that are `stride` apart, all side by side; rows are row_stride apart, and may be
 * short: what depends on strides and bytes is decided once for all. */
#define LOAD(T)                                                                     \
    for (int64_t r = 0; r < rows; r++, to += n * bytes, from += row_bytes)          \
        if (stride == 0) {                                                          \
            const T x = *(const T *)(const void *)from;                             \
            for (int64_t i = 0; i < n; i++) ((T *)(void *)to)[i] = x;               \
        } else                                                                      \
            for (int64_t i = 0; i < n; i++)                                         \
                ((T *)(void *)to)[i] = ((const T *)(const void *)from)[i * stride]; \
    break
static inline void q7_load_rows(char *to, const char *from, int64_t rows, int64_t row_stride,
                                int64_t n, int64_t stride, int64_t bytes) {
    const int64_t row_bytes = row_stride * bytes;
    if (stride == 1) {
        for (int64_t r = 0; r < rows; r++, to += n * bytes, from += row_bytes)
            memcpy(to, from, (size_t)(n * bytes));
        return;
    }
    switch (bytes) {
        case 1: LOAD(uint8_t);
        case 2: LOAD(uint16_t);
        case 4: LOAD(uint32_t);
        default: LOAD(uint64_t);
    }
}
#undef LOAD

/* n elements that are `stride` apart, side by side. */
static inline void q7_load_run(void *to, const void *from, int64_t n, int64_t stride,
                               int64_t bytes) {
    q7_load_rows(to, from, 1, 0, n, stride, bytes);
}

/* n elements of a nest of one operand from `position` on, side by side. What repeats over the rows
 * of the last two dims is copied from the first, more each time: rows may be short. */
static inline void q7_nest_load(const q7_nest *nest, const char *x, int64_t bytes, int64_t position,
                                int64_t n, char *to) {
    const int64_t last = nest->ndim - 1, cols = nest->shape[last], stride = nest->stride[0][last];
    const int64_t row_stride = last > 0 ? nest->stride[0][last - 1] : 0;
    int64_t col = position % cols;
    q7_cursor at = q7_nest_seek(nest, position / cols);
    for (int64_t done = 0; done < n; col = 0) {
        int64_t ready = q7_min(cols - col, n - done), rows = 1;
        const char *from = x + (at.offset[0] + col * stride) * bytes;
        if (last > 0 && col == 0) rows = nest->shape[last - 1] - at.index[last - 1];
        if (row_stride != 0 && ready == cols) {
            rows = q7_min(rows, (n - done) / cols);
            q7_load_rows(to + done * bytes, from, rows, row_stride, cols, stride, bytes);
            ready = rows * cols;
        } else {
            q7_load_run(to + done * bytes, from, ready, stride, bytes);
            const int64_t wanted = row_stride == 0 && rows > 1 ? q7_min(rows * cols, n - done) : 0;
            for (int64_t more; ready < wanted; ready += more) {
                more = q7_min(ready, wanted - ready);
                memcpy(to + (done + ready) * bytes, to + done * bytes, (size_t)(more * bytes));
            }
        }
        done += ready;
        if (rows > 1) {
            at.index[last - 1] += rows - 1;
            at.offset[0] += (rows - 1) * row_stride;
        }
        q7_nest_next_row(nest, &at);
    }
}

typedef struct q7_nest_job {
    const q7_nest *nest;
    q7_nest_body body;
    void *arg;
    int64_t count, per_task; /* elements of the nest */
} q7_nest_job;

static inline void q7_nest_task(void *arg, int64_t task, int64_t thread) {
    const q7_nest_job *job = arg;
    const q7_nest *nest = job->nest;
    (void)thread;
    const int64_t cols = nest->shape[nest->ndim - 1];
    int64_t position = task * job->per_task;
    const int64_t end = q7_min(job->count, position + job->per_task);
    q7_cursor at = q7_nest_seek(nest, position / cols);
    int64_t col = position % cols;
    while (position < end) {
        const int64_t n = q7_min(cols - col, end - position);
        int64_t offset[Q7_NEST_OPERANDS];
        for (int64_t k = 0; k < nest->operands; k++)
            offset[k] = at.offset[k] + col * nest->stride[k][nest->ndim - 1];
        job->body(job->arg, n, offset, position);
        position += n;
        col = 0;
        q7_nest_next_row(nest, &at);
    }
}

/* Runs body over all of the nest, whose elements are the work of `each`; collapse it first. */
static inline void q7_nest_run_units(const q7_nest *nest, const q7_call *call, int64_t each,
                                     q7_nest_body body, void *arg) {
    const int64_t count = q7_product(nest->shape, nest->ndim);
    q7_nest_job job = {nest, body, arg, count,
                       q7_ceil_div(q7_elements_of_task(call, count * each), each)};
    q7_parallel(call, q7_ceil_div(count, job.per_task), q7_nest_task, &job);
}

static inline void q7_nest_run(const q7_nest *nest, const q7_call *call, q7_nest_body body,
                               void *arg) {
    q7_nest_run_units(nest, call, 1, body, arg);
}

/* Index `raw` into an axis of `limit`, negative from the end; -1 and a fault when it is out of
 * range. */
static inline int64_t q7_checked_index(const q7_call *call, int64_t raw, int64_t limit) {
    const int64_t index = raw < 0 ? raw + limit : raw;
    if (index >= 0 && index < limit) return index;
    q7_fault(call, "index out of range", raw, -limit, limit);
    return -1;
}

static inline int64_t q7_read_index(const void *indices, int64_t dtype, int64_t i) {
    return dtype == Q7_I32 ? ((const int32_t *)indices)[i] : ((const int64_t *)indices)[i];
}

/* The position of an index tuple in dims[0..depth), -1 after a fault. */
static inline int64_t q7_flat_index(const q7_call *call, const int64_t *indices,
                                    const int64_t *dims, int64_t depth) {
    int64_t at = 0;
    for (int64_t i = 0; i < depth; i++) {
        const int64_t index = q7_checked_index(call, indices[i], dims[i]);
        if (index < 0) return -1;
        at = at * dims[i] + index;
    }
    return at;
}
#endif
