/* hardmax.c: y[o,j,i] = 1 where x[o,:,i] is largest, 0 elsewhere; of equals the first, and NaN beats
 * every number. f32 and f64. ONNX Hardmax. */
#include <string.h>

#include "loops.h"

#define T float
#define NAME floats
#define UNORDERED(v) ((v) != (v))
#include "arg_best.h"

typedef struct hardmax_job {
    const q7_hardmax_args *args;
    int64_t together; /* of outer, that a task has */
} hardmax_job;

/* y and x (n, inner) of floats. */
static void floats(const float *x, int64_t n, int64_t inner, float *y) {
    int64_t at[Q7_BEST_COLUMNS];
    memset(y, 0, (size_t)(n * inner) * sizeof *y);
    for (int64_t first = 0; first < inner; first += Q7_BEST_COLUMNS) {
        const int64_t count = q7_min(inner - first, Q7_BEST_COLUMNS);
        floats_best_of(x + first, n, inner, count, true, false, at);
        for (int64_t i = 0; i < count; i++) {
            const float *column = x + first + i;
            int64_t best = at[i];
            if (best < 0) /* there is a NaN */
                for (best = 0; column[best * inner] == column[best * inner];) best++;
            y[best * inner + first + i] = 1;
        }
    }
}

static void doubles(const double *x, int64_t n, int64_t inner, double *y) {
    for (int64_t i = 0; i < inner; i++) {
        int64_t best = 0;
        for (int64_t j = 1; j < n; j++) {
            const double v = x[j * inner + i], top = x[best * inner + i];
            if (v > top || (v != v && top == top)) best = j;
        }
        for (int64_t j = 0; j < n; j++) y[j * inner + i] = j == best;
    }
}

static void hardmax_task(void *arg, int64_t task, int64_t thread) {
    const hardmax_job *job = arg;
    const q7_hardmax_args *args = job->args;
    const int64_t plane = args->n * args->inner, first = task * job->together;
    const int64_t end = q7_min(first + job->together, args->outer);
    (void)thread;
    for (int64_t o = first; o < end; o++)
        if (args->dtype == Q7_F32)
            floats((const float *)args->x + o * plane, args->n, args->inner,
                   (float *)args->y + o * plane);
        else
            doubles((const double *)args->x + o * plane, args->n, args->inner,
                    (double *)args->y + o * plane);
}

void q7_op_hardmax(const q7_hardmax_args *args, const q7_call *call) {
    const int64_t plane = args->n * args->inner;
    if (plane == 0) return;
    const hardmax_job job = {args, q7_max(1, Q7_GRAIN / plane)};
    q7_parallel(call, q7_ceil_div(args->outer, job.together), hardmax_task, (void *)&job);
}
