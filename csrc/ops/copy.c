/* copy.c: y[idx . y_stride] = x[idx . x_stride] for every idx in shape: the one driver behind
 * transpose, expand, slice, concat and split.
 *
 * The order of dims is free, so they are sorted by y_stride and joined where both sides allow it.
 * What is left is one of three loops: memcpy of runs that both sides hold contiguously, or short runs
 * in a row; a blocked transposition, when x runs along one dim and y along another; plain strided
 * moves.
 * x_stride may be 0 or negative. y does not overlap x. */
#include "../kernels/copy.h"

#include "../kernels/move.h"
#include "../simd/transpose.h"
#include "loops.h"

enum { X, Y };                  /* operands of the nest */
enum { STRIP = Q7_COPY_BLOCK }; /* rows of a transposition that are written together */
enum { WIDE = 4096 };           /* columns that are a unit where there are few rows */
enum { SHORT = 512 };           /* bytes of a run that takes no longer than a call of memcpy */
enum { LONG = 64 };             /* times that an element is repeated in a loop of its own */
enum { PERIOD = 1 << 13 };      /* bytes of a block that is repeated: it stays in L1 */

typedef struct copy_job {
    q7_copy_kernel kernel;
    const char *x;
    char *y;
    int64_t elem_bytes;
    int64_t run; /* bytes of a short run */
    q7_nest nest;
    bool by_columns; /* whether a unit of a transposition is all rows of some columns */
    int64_t strip;   /* of its rows: STRIP, more where they are short; or of its columns */
    int64_t strips;  /* units of a matrix */
    int64_t units, units_per_task;
} copy_job;

static void copy_runs(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const copy_job *job = arg;
    (void)position;
    const int64_t bytes = job->elem_bytes;
    memcpy(job->y + offset[Y] * bytes, job->x + offset[X] * bytes, (size_t)(n * bytes));
}

/* One loop per element width, each with memcpy of a constant size: a load and a store, unaligned.
 */
static void copy_strided(const char *x, int64_t x_step, char *y, int64_t y_step, int64_t n,
                         int64_t bytes) {
    if (x_step == 0 && y_step == bytes) {
        q7_repeat(y, x, n, bytes);
        return;
    }
    switch (bytes) {
        case 1:
            for (int64_t i = 0; i < n; i++) y[i * y_step] = x[i * x_step];
            break;
        case 2:
            for (int64_t i = 0; i < n; i++) memcpy(y + i * y_step, x + i * x_step, 2);
            break;
        case 4:
            for (int64_t i = 0; i < n; i++) memcpy(y + i * y_step, x + i * x_step, 4);
            break;
        case 8:
            for (int64_t i = 0; i < n; i++) memcpy(y + i * y_step, x + i * x_step, 8);
            break;
        default:
            for (int64_t i = 0; i < n; i++) memcpy(y + i * y_step, x + i * x_step, 16);
            break;
    }
}

static void copy_strided_run(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const copy_job *job = arg;
    (void)position;
    const int64_t bytes = job->elem_bytes, last = job->nest.ndim - 1;
    copy_strided(job->x + offset[X] * bytes, job->nest.stride[X][last] * bytes,
                 job->y + offset[Y] * bytes, job->nest.stride[Y][last] * bytes, n, bytes);
}

/* n runs of `bytes`, WIDTH to twice as many: their first and their last WIDTH. */
#define ENDS(WIDTH)                                                        \
    for (int64_t i = 0; i < n; i++, x += x_step, y += y_step) {            \
        char first[WIDTH], last[WIDTH];                                    \
        memcpy(first, x, WIDTH), memcpy(last, x + bytes - (WIDTH), WIDTH); \
        memcpy(y, first, WIDTH), memcpy(y + bytes - (WIDTH), last, WIDTH); \
    }
static void copy_short(const char *x, int64_t x_step, char *y, int64_t y_step, int64_t n,
                       int64_t bytes) {
    if (bytes > 32) {
        for (int64_t i = 0; i < n; i++, x += x_step, y += y_step) {
            for (int64_t k = 0; k < bytes - 16; k += 16) memcpy(y + k, x + k, 16);
            memcpy(y + bytes - 16, x + bytes - 16, 16);
        }
    } else if (bytes > 16) {
        ENDS(16)
    } else if (bytes > 8) {
        ENDS(8)
    } else if (bytes > 4) {
        ENDS(4)
    } else if (bytes > 2) {
        ENDS(2)
    } else {
        ENDS(1)
    }
}
#undef ENDS

static void copy_short_runs(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const copy_job *job = arg;
    (void)position;
    const int64_t bytes = job->elem_bytes, last = job->nest.ndim - 1;
    copy_short(job->x + offset[X] * bytes, job->nest.stride[X][last] * bytes,
               job->y + offset[Y] * bytes, job->nest.stride[Y][last] * bytes, n, job->run);
}

/* Four rows of y of n 4-byte elements. What is left behind blocks of four is the end of one more block. */
static void transpose_rows(const char *x, int64_t x_stride, char *y, int64_t y_stride, int64_t n) {
    if (n < 4) {
        for (int64_t q = 0; q < n; q++)
            for (int64_t p = 0; p < 4; p++)
                memcpy(y + (p * y_stride + q) * 4, x + (q * x_stride + p) * 4, 4);
        return;
    }
    for (int64_t q = 0; q < n; q += 4) {
        const int64_t at = q7_min(q, n - 4);
        q7_transpose_4x4(x + at * x_stride * 4, x_stride, y + at * 4, y_stride);
    }
}

/* rows x n elements of one or two bytes, at least 8 of each. What is left behind blocks of eight is the end of
 * one more block. */
static void transpose_eights(const char *x, int64_t x_stride, char *y, int64_t y_stride,
                             int64_t rows, int64_t n, int64_t bytes) {
    for (int64_t p = 0; p < rows; p += 8)
        for (int64_t q = 0; q < n; q += 8) {
            const int64_t i = q7_min(q, n - 8), j = q7_min(p, rows - 8);
            const char *from = x + (i * x_stride + j) * bytes;
            char *to = y + (j * y_stride + i) * bytes;
            if (bytes == 1)
                q7_transpose_8x8_u8(from, x_stride, to, y_stride);
            else
                q7_transpose_8x8_u16(from, 2 * x_stride, to, 2 * y_stride);
        }
}

/* Elements of a matrix, along either side, that lines of a block of caches hold. */
static int64_t side_of(int64_t bytes) { return bytes < 4 ? STRIP * 4 / bytes : STRIP; }

/* Three rows as one, side by side: images channels last. The fourth element that is written is of the next. */
#define ZIP_THREES(name, type, wide)                                                          \
    static void name(const type *x, int64_t x_stride, type *y, int64_t n) {                   \
        enum { BITS = 8 * sizeof(type) };                                                     \
        const type *second = x + x_stride, *third = second + x_stride;                        \
        for (int64_t p = 0; p + 1 < n; p++, y += 3) {                                         \
            const wide three = x[p] | (wide)second[p] << BITS | (wide)third[p] << (2 * BITS); \
            memcpy(y, &three, sizeof three);                                                  \
        }                                                                                     \
        y[0] = x[n - 1], y[1] = second[n - 1], y[2] = third[n - 1];                           \
    }
ZIP_THREES(zip_threes_u8, uint8_t, uint32_t)
ZIP_THREES(zip_threes_u16, uint16_t, uint64_t)
#undef ZIP_THREES

/* Between three rows, as images have their channels in planes, and elements by turns; whether it is done. */
static bool transpose_threes(const char *x, int64_t x_stride, char *y, int64_t y_stride,
                             int64_t rows, int64_t cols, int64_t bytes) {
    if (cols == 3 && y_stride == 3 && bytes <= 2) {
        if (bytes == 1)
            zip_threes_u8((const void *)x, x_stride, (void *)y, rows);
        else
            zip_threes_u16((const void *)x, x_stride, (void *)y, rows);
        return true;
    }
    if (rows != 3 || x_stride != 3 || bytes > 4 || cols * bytes < 16) return false;
    if (bytes == 1)
        q7_unzip_threes_u8(x, y, y_stride, cols);
    else if (bytes == 2)
        q7_unzip_threes_u16(x, y, 2 * y_stride, cols);
    else
        q7_unzip_threes_u32(x, y, 4 * y_stride, cols);
    return true;
}

/* y[p * y_stride + q] = x[q * x_stride + p] for p < rows, q < cols. Blocks are as wide as lines of
 * cache, so that a line of x is used up while it is in L1. */
static void transpose_strip(q7_copy_kernel kernel, const char *x, int64_t x_stride, char *y,
                            int64_t y_stride, int64_t rows, int64_t cols, int64_t bytes) {
    if (transpose_threes(x, x_stride, y, y_stride, rows, cols, bytes)) return;
    if (bytes == 4 && cols == 2 && y_stride == 2) {
        q7_zip(x, x + x_stride * 4, y, rows);
        return;
    }
    if (bytes == 4 && rows == 2 && x_stride == 2) {
        q7_unzip(x, y, y + y_stride * 4, cols);
        return;
    }
    const int64_t blocks = bytes == 4 && rows == STRIP ? cols / STRIP : 0;
    if (blocks) kernel((const void *)x, x_stride, (void *)y, y_stride, blocks);
    const int64_t side = side_of(bytes);
    for (int64_t q = blocks * STRIP; q < cols; q += side) {
        const int64_t n = q7_min(side, cols - q);
        const char *from = x + q * x_stride * bytes;
        char *to = y + q * bytes;
        if (bytes < 4 && rows >= 8 && n >= 8) {
            transpose_eights(from, x_stride, to, y_stride, rows, n, bytes);
            continue;
        }
        const bool by_fours = bytes == 4 && rows >= 4;
        for (int64_t p = 0; p < rows && by_fours; p += 4) {
            const int64_t at = q7_min(p, rows - 4);
            transpose_rows(from + at * 4, x_stride, to + at * y_stride * 4, y_stride, n);
        }
        /* the longer of both in one loop, or an element again and again */
        const bool by_rows = !by_fours && (n >= rows || x_stride == 0);
        for (int64_t p = 0; p < rows && by_rows; p++)
            copy_strided(from + p * bytes, x_stride * bytes, to + p * y_stride * bytes, bytes, n,
                         bytes);
        for (int64_t i = 0; i < n && !by_fours && !by_rows; i++)
            copy_strided(from + i * x_stride * bytes, bytes, to + i * bytes, y_stride * bytes, rows,
                         bytes);
    }
}

/* The matrix of a transposition is in the last two dims of the nest: p (x runs along it), q (y
 * does). */
static void transpose_task(void *arg, int64_t task, int64_t thread) {
    const copy_job *job = arg;
    q7_nest matrices = job->nest; /* which are its rows */
    const q7_nest *nest = &job->nest;
    (void)thread;
    const int64_t bytes = job->elem_bytes, row = nest->ndim - 2, col = nest->ndim - 1;
    const int64_t begin = task * job->units_per_task;
    const int64_t end = q7_min(job->units, begin + job->units_per_task);
    matrices.ndim--;
    q7_cursor at = q7_nest_seek(&matrices, begin / job->strips);
    int64_t strip = begin % job->strips;
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t first = strip * job->strip;
        const int64_t p = job->by_columns ? 0 : first, q = job->by_columns ? first : 0;
        const int64_t rows = nest->shape[row] - p, cols = nest->shape[col] - q;
        transpose_strip(job->kernel, job->x + (at.offset[X] + p + q * nest->stride[X][col]) * bytes,
                        nest->stride[X][col],
                        job->y + (at.offset[Y] + p * nest->stride[Y][row] + q) * bytes,
                        nest->stride[Y][row], job->by_columns ? rows : q7_min(job->strip, rows),
                        job->by_columns ? q7_min(job->strip, cols) : cols, bytes);
        if (++strip < job->strips) continue;
        strip = 0;
        q7_nest_next_row(&matrices, &at);
    }
}

static void swap_dims(q7_nest *nest, int64_t i, int64_t j) {
    int64_t *const fields[] = {nest->shape, nest->stride[X], nest->stride[Y]};
    for (int k = 0; k < 3; k++) {
        const int64_t kept = fields[k][i];
        fields[k][i] = fields[k][j];
        fields[k][j] = kept;
    }
}

/* Sorts dims by y_stride, the largest first, so that y is written in order. */
static void sort_dims(q7_nest *nest) {
    for (int64_t i = 1; i < nest->ndim; i++)
        for (int64_t j = i; j > 0; j--) {
            const int64_t outer = nest->stride[Y][j - 1], inner = nest->stride[Y][j];
            if ((outer < 0 ? -outer : outer) >= (inner < 0 ? -inner : inner)) break;
            swap_dims(nest, j - 1, j);
        }
}

/* Runs that both sides hold become elements, where those may be so wide. */
static void widen(copy_job *job) {
    q7_nest *nest = &job->nest;
    const int64_t last = nest->ndim - 1, n = nest->shape[last], bytes = n * job->elem_bytes;
    if (last == 0 || n < 2 || bytes > 16 || (bytes & (bytes - 1)) || nest->stride[X][last] != 1 ||
        nest->stride[Y][last] != 1)
        return;
    for (int64_t i = 0; i < last; i++)
        if (nest->stride[X][i] % n || nest->stride[Y][i] % n) return;
    for (int64_t i = 0; i < last; i++) {
        nest->stride[X][i] /= n;
        nest->stride[Y][i] /= n;
    }
    nest->ndim = last;
    job->elem_bytes = bytes;
}

static void copy_nest(copy_job *job, const q7_call *call) {
    q7_nest *nest = &job->nest;
    const int64_t last = nest->ndim - 1;
    if (nest->shape[last] == 1 || (nest->stride[X][last] == 1 && nest->stride[Y][last] == 1)) {
        job->run = nest->shape[last] * job->elem_bytes;
        const bool is_short = last > 0 && job->run > 1 && job->run <= SHORT;
        if (!is_short) {
            q7_nest_run(nest, call, copy_runs, job);
            return;
        }
        nest->ndim = last;
        q7_nest_run_units(nest, call, nest->shape[last], copy_short_runs, job);
        return;
    }
    const bool fills = nest->stride[X][last] == 0 && nest->shape[last] >= LONG;
    const bool turns = nest->stride[Y][last] == 1 && !fills;
    for (int64_t p = 0; p < last && turns; p++) {
        if (nest->stride[X][p] != 1) continue;
        swap_dims(nest, p, last - 1);
        const int64_t rows = nest->shape[last - 1], cols = nest->shape[last];
        const int64_t side = side_of(job->elem_bytes);
        job->by_columns = rows < side && cols > WIDE;
        job->strip = job->by_columns ? WIDE : side * q7_max(1, STRIP / q7_max(1, cols));
        job->strips = q7_ceil_div(job->by_columns ? cols : rows, job->strip);
        job->units = job->strips * q7_product(nest->shape, last - 1) * (cols > 0);
        const int64_t across =
            job->by_columns ? rows : cols; /* a strip has so many elements each */
        job->units_per_task =
            q7_units_of_task(call, job->units, Q7_GRAIN / (job->strip * q7_max(1, across)));
        q7_parallel(call, q7_ceil_div(job->units, job->units_per_task), transpose_task, job);
        return;
    }
    q7_nest_run(nest, call, copy_strided_run, job);
}

typedef struct tiling {
    char *y;
    int64_t unit; /* bytes, of which the first are in place */
    int64_t bytes;
} tiling;

static void tile_task(void *arg, int64_t task, int64_t thread) {
    const tiling *t = arg;
    (void)thread;
    const int64_t at = (task + 1) * t->unit;
    memcpy(t->y + at, t->y, (size_t)q7_min(t->unit, t->bytes - at));
}

/* Whether y is a dense block again and again, of short runs and no more than PERIOD: that is made
 * once, and then copied. */
static bool is_tiled(const copy_job *job) {
    const q7_nest *nest = &job->nest;
    int64_t dense = 1;
    for (int64_t i = nest->ndim - 1; i >= 0; i--) {
        if (nest->stride[Y][i] != dense) return false;
        dense *= nest->shape[i];
    }
    return dense > 0 && nest->ndim > 2 && nest->stride[X][0] == 0 && nest->shape[0] > 1 &&
           nest->stride[Y][0] * job->elem_bytes <= PERIOD;
}

static void tile(copy_job *job, const q7_call *call) {
    q7_nest *nest = &job->nest;
    const int64_t period = nest->stride[Y][0] * job->elem_bytes, times = nest->shape[0];
    tiling t = {job->y, period, period * times};
    nest->shape[0] = 1;
    q7_nest_collapse(nest);
    copy_nest(job, call);
    for (; t.unit <= PERIOD && 2 * t.unit <= t.bytes; t.unit *= 2)
        memcpy(t.y + t.unit, t.y, (size_t)t.unit);
    q7_parallel(call, q7_ceil_div(t.bytes, t.unit) - 1, tile_task, &t);
}

void q7_op_copy(const q7_copy_args *args, const q7_call *call) {
    const int64_t bytes = args->elem_bytes;
    copy_job job = {.kernel = (q7_copy_kernel)call->kernel,
                    .x = (const char *)args->x + args->x_offset * bytes,
                    .y = (char *)args->y + args->y_offset * bytes,
                    .elem_bytes = bytes,
                    .nest = q7_nest_of(args->shape, args->ndim)};
    q7_nest *nest = &job.nest;
    nest->operands = 2;
    for (int64_t i = 0; i < args->ndim; i++) {
        nest->stride[X][i] = args->x_stride[i];
        nest->stride[Y][i] = args->y_stride[i];
    }
    sort_dims(nest);
    q7_nest_collapse(nest);
    widen(&job);
    if (is_tiled(&job)) {
        tile(&job, call);
    } else {
        copy_nest(&job, call);
    }
}
