/* resize_nearest.c: one axis of Resize, mode nearest: y[o,j,:] = x[o,at(j),:], x (outer, n, inner),
 * y (outer, m, inner). The bytes of inner are `runs` of run_bytes side by side, which are x_stride
 * bytes apart in x and y_stride in y. at(j) is the place of j in x (coordinate.h), rounded to
 * an integer and held in 0..n. It is computed in float, the dtype of the scales: their rounding
 * decides between neighbours, and so it is done everywhere. A place outside of x gives the low
 * elem_bytes of `extrapolation` for tf_crop_and_resize. scale: 0 for m / n. table: m int64. */
#include <math.h>
#include <string.h>

#include "loops.h"

#define T float
#define NAME source_of
#include "coordinate.h"

typedef struct nearest_job {
    const q7_resize_nearest_args *args;
    int64_t rows, rows_per_task;
} nearest_job;

static int64_t nearest(const q7_resize_nearest_args *args, int64_t j) {
    const float scale = args->scale > 0 ? (float)args->scale : (float)args->m / (float)args->n;
    const float x = source_of(args->coordinate, j, args->n, args->m, scale, (float)args->roi_start,
                              (float)args->roi_end);
    const double last = (double)(args->n - 1);
    if (args->coordinate == Q7_coordinate_tf_crop_and_resize && !(x >= 0 && x <= last)) return -1;
    double at = x;
    switch (args->rounding) {
        case Q7_rounding_round_prefer_floor: at = ceil(at - 0.5); break;
        case Q7_rounding_round_prefer_ceil: at = floor(at + 0.5); break;
        case Q7_rounding_floor: at = floor(at); break;
        default: at = ceil(at); break;
    }
    return at > 0 ? (int64_t)(at < last ? at : last) : 0;
}

/* y[j] = x[at[j]] for elements of a constant size, unless one is outside. */
static void nearest_line(const char *x, char *y, const int64_t *at, int64_t n, int64_t bytes) {
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

static void nearest_task(void *arg, int64_t task, int64_t thread) {
    const nearest_job *job = arg;
    const q7_resize_nearest_args *args = job->args;
    (void)thread;
    const int64_t *at = args->table, m = args->m, bytes = args->run_bytes;
    const int64_t x_row = args->runs * args->x_stride, y_row = args->runs * args->y_stride;
    const int64_t elem_bytes = args->elem_bytes, begin = task * job->rows_per_task;
    const int64_t end = q7_min(job->rows, begin + job->rows_per_task);
    int64_t o = begin / m, j = begin % m;
    const bool is_crop = args->coordinate == Q7_coordinate_tf_crop_and_resize;
    const bool by_line = bytes == elem_bytes && x_row == bytes && y_row == bytes && !is_crop;
    for (int64_t row = begin, n; by_line && row < end; row += n, o++, j = 0) {
        n = q7_min(m - j, end - row);
        nearest_line((const char *)args->x + o * args->n * bytes, (char *)args->y + row * bytes,
                     at + j, n, bytes);
    }
    for (int64_t row = begin; !by_line && row < end; row++) {
        const char *x = (const char *)args->x + (o * args->n + at[j]) * x_row;
        char *y = (char *)args->y + row * y_row;
        for (int64_t r = 0; r < args->runs; r++, x += args->x_stride, y += args->y_stride) {
            if (at[j] >= 0)
                memcpy(y, x, (size_t)bytes);
            else
                for (int64_t i = 0; i < bytes; i += elem_bytes)
                    memcpy(y + i, &args->extrapolation, (size_t)elem_bytes); /* little endian */
        }
        if (++j == m) j = 0, o++;
    }
}

void q7_op_resize_nearest(const q7_resize_nearest_args *args, const q7_call *call) {
    const int64_t rows = args->outer * args->m;
    const int64_t inner_bytes = args->runs * args->run_bytes;
    if (rows * inner_bytes == 0) return;
    int64_t *at = args->table;
    for (int64_t j = 0; j < args->m; j++) at[j] = nearest(args, j);
    nearest_job job = {args, rows, q7_max(1, 4 * Q7_GRAIN / q7_max(16, inner_bytes))};
    q7_parallel(call, q7_ceil_div(rows, job.rows_per_task), nearest_task, &job);
}
