/* resize.c: one axis of Resize, linear or cubic: y[o,j,:] = sum over t of weight[j,t] *
 * x[o,first[j]+t,:], x (outer, n, inner), y (outer, m, inner), float or double. The elements of
 * inner are `runs` of `run` side by side, which are x_stride apart in x and y_stride in y: the
 * pixels of images, of which either may lie among the channels of others.
 *
 * The weights are samples of a filter around the place of j in x (coordinate.h): the triangle, or
 * Keys' cubic with parameter cubic_a. With antialias the filter is as wide as a step of the output,
 * and its samples are scaled to a sum of 1. What the filter finds outside of x is the edge, or, if
 * exclude_outside, nothing, and the rest is scaled to a sum of 1. Coordinates and weights are
 * computed in double. A place outside of x gives `extrapolation` for tf_crop_and_resize.
 *
 * scale: 0 for m / n. taps: no fewer than samples of the filter are not zero. table: m int64 of
 * first, -1 for outside, then (m, taps) weights. */
#include <math.h>

#include "loops.h"

#define T double
#define NAME source_of
#include "coordinate.h"

typedef struct resize_job {
    const q7_resize_args *args;
    const int64_t *first; /* (m) */
    const void *weight;   /* (m, taps) */
    int64_t taps;         /* that lie in x */
    int64_t rows, rows_per_task;
} resize_job;

/* The filter at distance x from its centre. */
static double filter(int64_t interpolation, double a, double x) {
    x = fabs(x);
    if (interpolation == Q7_interpolation_linear) return x < 1 ? 1 - x : 0;
    if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? ((x - 5) * x + 8) * x * a - 4 * a : 0;
}

#define T float
#define NAME(x) x##_f32
#include "resize_typed.h"
#define T double
#define NAME(x) x##_f64
#include "resize_typed.h"

static void resize_task(void *arg, int64_t task, int64_t thread) {
    const resize_job *job = arg;
    (void)thread;
    const int64_t begin = task * job->rows_per_task;
    const int64_t end = q7_min(job->rows, begin + job->rows_per_task);
    if (job->args->dtype == Q7_F32)
        rows_f32(job, begin, end);
    else
        rows_f64(job, begin, end);
}

void q7_op_resize(const q7_resize_args *args, const q7_call *call) {
    const int64_t rows = args->outer * args->m;
    const int64_t inner = args->runs * args->run;
    if (rows * inner == 0) return;
    int64_t *first = args->table;
    resize_job job = {args,
                      first,
                      first + args->m,
                      q7_min(args->taps, args->n),
                      rows,
                      q7_max(1, Q7_GRAIN / (4 * inner))};
    for (int64_t j = 0; j < args->m; j++) {
        if (args->dtype == Q7_F32)
            first[j] = weigh_f32(args, j, (float *)(first + args->m) + j * args->taps);
        else
            first[j] = weigh_f64(args, j, (double *)(first + args->m) + j * args->taps);
    }
    q7_parallel(call, q7_ceil_div(rows, job.rows_per_task), resize_task, &job);
}
