/* resize_nearest.c: two axes of Resize, mode nearest: y[o,i,j,:] = x[o,row(i),column(j),:],
 * x (outer, H, W, run), y (outer, OH, OW, run). The run_bytes of a pixel are x_stride bytes from those
 * of the next in x, y_stride in y. row(i) and column(j) are the places of i and j in x
 * (coordinate.h), rounded to an integer and held in 0..H and 0..W. They are computed in float, the dtype
 * of the scales: their rounding decides between neighbours, and so it is done everywhere. A place
 * outside of x gives the low elem_bytes of `extrapolation` for tf_crop_and_resize. A scale is 0 for the
 * quotient of the sizes; an axis of scale 1 of which no part is cropped stays as it is, in every mode.
 * table: int64 of OH rows and of OW columns. */
#include <math.h>
#include <string.h>

#include "../simd/transpose.h"
#include "loops.h"

#define T float
#define NAME source_of
#include "coordinate.h"

typedef struct nearest_axis {
    int64_t n, m;
    double scale, start, end;
} nearest_axis;

typedef struct nearest_job {
    const q7_resize_nearest_args *args;
    const int64_t *row, *column;
    bool is_dense;   /* pixels lie side by side, in x and in y */
    bool is_whole;   /* rows stay as they are */
    bool is_doubled; /* each element twice */
    int64_t pixels, pixels_per_task;
} nearest_job;

/* -1 for a place outside of x. */
static int64_t nearest(const q7_resize_nearest_args *args, const nearest_axis *axis, int64_t j) {
    if (axis->n == axis->m && axis->scale == 1 && axis->start == 0 && axis->end == 1) return j;
    const float scale = axis->scale > 0 ? (float)axis->scale : (float)axis->m / (float)axis->n;
    const float x = source_of(args->coordinate, j, axis->n, axis->m, scale, (float)axis->start,
                              (float)axis->end);
    const double last = (double)(axis->n - 1);
    if (args->coordinate == Q7_coordinate_tf_crop_and_resize && !(x >= 0 && x <= last)) return -1;
    const double tie = 1e-6; /* as ops/resize.py says */
    double at = x;
    switch (args->rounding) {
        case Q7_rounding_round_prefer_floor: at = ceil(at - 0.5 - tie); break;
        case Q7_rounding_round_prefer_ceil: at = floor(at + 0.5 + tie); break;
        case Q7_rounding_floor: at = floor(at); break;
        default: at = ceil(at); break;
    }
    return at > 0 ? (int64_t)(at < last ? at : last) : 0;
}

/* Whether place j is j / times for all of them. */
static bool repeats(const int64_t *at, int64_t n, int64_t m, int64_t times) {
    for (int64_t j = 0; j < m; j++)
        if (at[j] != j / times) return false;
    return m == n * times;
}

static void extrapolate(const q7_resize_nearest_args *args, char *y, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += args->elem_bytes)
        memcpy(y + i, &args->extrapolation, (size_t)args->elem_bytes); /* little endian */
}

/* y[j] = x[at[j]] for elements of a constant size. */
static void gather(const char *x, char *y, const int64_t *at, int64_t n, int64_t bytes) {
    switch (bytes) {
        case 1:
            for (int64_t j = 0; j < n; j++) y[j] = x[at[j]];
            break;
        case 2:
            for (int64_t j = 0; j < n; j++) memcpy(y + 2 * j, x + 2 * at[j], 2);
            break;
        case 4:
            for (int64_t j = 0; j < n; j++) memcpy(y + 4 * j, x + 4 * at[j], 4);
            break;
        default:
            for (int64_t j = 0; j < n; j++) memcpy(y + 8 * j, x + 8 * at[j], 8);
            break;
    }
}

/* y[2 j] = y[2 j + 1] = x[j], and the same in another row, if there is one, in loops that compilers
 * vectorise. A copy of the row would read what has only just been written, in other pieces. */
#define TWICE(type, wide)                                                       \
    for (int64_t j = 0; j < n; j++) {                                           \
        type one;                                                               \
        memcpy(&one, x + j * (int64_t)sizeof one, sizeof one);                  \
        const wide pair = (wide)((wide)one << 8 * sizeof one | one);            \
        memcpy(y + j * (int64_t)sizeof pair, &pair, sizeof pair);               \
        if (both) memcpy(other + j * (int64_t)sizeof pair, &pair, sizeof pair); \
    }                                                                           \
    break
static inline __attribute__((always_inline)) void twice(const char *restrict x, char *restrict y,
                                                        char *restrict other, int64_t n,
                                                        int64_t bytes, const bool both) {
    switch (bytes) {
        case 1: TWICE(uint8_t, uint16_t);
        case 2: TWICE(uint16_t, uint32_t);
        case 4: TWICE(uint32_t, uint64_t);
        default:
            for (int64_t j = 0; j < 2 * n; j++) {
                memcpy(y + 8 * j, x + j / 2 * 8, 8);
                if (both) memcpy(other + 8 * j, x + j / 2 * 8, 8);
            }
            break;
    }
}
#undef TWICE

/* Pixels begin..end of a row of y, of which y is the first, out of a row of x. */
static void nearest_row(const nearest_job *job, const char *x, char *y, int64_t begin,
                        int64_t end) {
    const q7_resize_nearest_args *args = job->args;
    const int64_t bytes = args->run_bytes, n = end - begin, *at = job->column;
    const bool is_crop = args->coordinate == Q7_coordinate_tf_crop_and_resize;
    y += begin * args->y_stride;
    if (job->is_whole) {
        memcpy(y, x + begin * bytes, (size_t)(n * bytes));
    } else if (job->is_doubled && begin % 2 == 0 && n % 2 == 0) {
        twice(x + begin / 2 * bytes, y, NULL, n / 2, bytes, false);
    } else if (job->is_dense && bytes == args->elem_bytes && !is_crop) {
        gather(x, y, at + begin, n, bytes);
    } else {
        for (int64_t j = begin; j < end; j++, y += args->y_stride) {
            if (at[j] >= 0)
                memcpy(y, x + at[j] * args->x_stride, (size_t)bytes);
            else
                extrapolate(args, y, bytes);
        }
    }
}

static void nearest_task(void *arg, int64_t task, int64_t thread) {
    const nearest_job *job = arg;
    const q7_resize_nearest_args *args = job->args;
    (void)thread;
    const int64_t x_row = args->W * args->x_stride, y_row = args->OW * args->y_stride;
    const int64_t begin = task * job->pixels_per_task;
    const int64_t end = q7_min(job->pixels, begin + job->pixels_per_task);
    for (int64_t pixel = begin, n; pixel < end; pixel += n) {
        const int64_t j = pixel % args->OW, i = pixel / args->OW % args->OH;
        const int64_t o = pixel / args->OW / args->OH, from = job->row[i];
        char *y = (char *)args->y + (o * args->OH + i) * y_row;
        n = q7_min(args->OW - j, end - pixel);
        const char *x = (const char *)args->x + (o * args->H + q7_max(from, 0)) * x_row;
        if (job->is_doubled && from >= 0 && i + 1 < args->OH && from == job->row[i + 1] && j == 0 &&
            end - pixel >= 2 * args->OW) { /* two rows of y at once */
            twice(x, y, y + y_row, args->W, args->run_bytes, true);
            n = 2 * args->OW;
            continue;
        }
        const bool is_again = i > 0 && from == job->row[i - 1] && pixel - begin >= args->OW;
        if (is_again && job->is_dense)
            memcpy(y + j * args->y_stride, y + j * args->y_stride - y_row,
                   (size_t)(n * args->y_stride));
        else if (from >= 0)
            nearest_row(job, x, y, j, j + n);
        else
            for (int64_t k = j; k < j + n; k++)
                extrapolate(args, y + k * args->y_stride, args->run_bytes);
    }
}

void q7_op_resize_nearest(const q7_resize_nearest_args *args, const q7_call *call) {
    const int64_t bytes = args->run_bytes, pixels = args->outer * args->OH * args->OW;
    if (pixels * bytes == 0) return;
    const nearest_axis rows = {args->H, args->OH, args->h_scale, args->h_start, args->h_end};
    const nearest_axis columns = {args->W, args->OW, args->w_scale, args->w_start, args->w_end};
    int64_t *row = args->table, *column = row + args->OH;
    for (int64_t i = 0; i < args->OH; i++) row[i] = nearest(args, &rows, i);
    for (int64_t j = 0; j < args->OW; j++) column[j] = nearest(args, &columns, j);
    const bool is_dense = args->x_stride == bytes && args->y_stride == bytes;
    nearest_job job = {
        .args = args,
        .row = row,
        .column = column,
        .is_dense = is_dense,
        .is_whole = is_dense && repeats(column, args->W, args->OW, 1),
        .is_doubled =
            is_dense && bytes == args->elem_bytes && repeats(column, args->W, args->OW, 2),
        .pixels = pixels,
        .pixels_per_task = q7_max(1, 4 * Q7_GRAIN / q7_max(16, bytes)),
    };
    q7_parallel(call, q7_ceil_div(pixels, job.pixels_per_task), nearest_task, &job);
}
