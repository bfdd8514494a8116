/* softmax.c: cuts softmax over the middle axis of (outer, n, inner) into tasks: rows when inner is
 * 1, else blocks of columns of one outer slab; of few columns rows are made. f32 by kernel, f64 line by line. ONNX Softmax,
 * LogSoftmax. y may be x. */
#include "../kernels/softmax.h"

#include <math.h>

#include "../kernels/exponential.h"
#include "loops.h"

enum { FEW = 8, TURNED = 4096 }; /* columns that leave vectors unfilled; elements that are turned */

typedef struct softmax_job {
    const q7_softmax_args *args;
    q7_softmax_kernel kernel;
    int64_t per_task; /* rows, or columns */
    int64_t blocks;   /* tasks per slab */
} softmax_job;

static void rows_task(void *arg, int64_t task, int64_t thread) {
    const softmax_job *job = arg;
    const q7_softmax_args *args = job->args;
    (void)thread;
    const int64_t row = task * job->per_task, at = row * args->n;
    job->kernel(q7_min(args->outer - row, job->per_task), args->n, 1, (const float *)args->x + at,
                (float *)args->y + at, args->log != 0);
}

static void columns_task(void *arg, int64_t task, int64_t thread) {
    const softmax_job *job = arg;
    const q7_softmax_args *args = job->args;
    (void)thread;
    const int64_t column = task % job->blocks * job->per_task;
    const int64_t at = task / job->blocks * args->n * args->inner + column;
    job->kernel(q7_min(args->inner - column, job->per_task), args->n, args->inner,
                (const float *)args->x + at, (float *)args->y + at, args->log != 0);
}

/* A slab (n, inner) of few columns. */
static void turned_task(void *arg, int64_t task, int64_t thread) {
    const softmax_job *job = arg;
    const q7_softmax_args *args = job->args;
    const int64_t n = args->n, inner = args->inner, end = (task + 1) * job->per_task;
    float rows[TURNED];
    (void)thread;
    for (int64_t slab = task * job->per_task; slab < q7_min(end, args->outer); slab++) {
        const float *x = (const float *)args->x + slab * n * inner;
        float *y = (float *)args->y + slab * n * inner;
        for (int64_t i = 0; i < inner; i++)
            for (int64_t j = 0; j < n; j++) rows[i * n + j] = x[j * inner + i];
        job->kernel(inner, n, 1, rows, rows, args->log != 0);
        for (int64_t i = 0; i < inner; i++)
            for (int64_t j = 0; j < n; j++) y[j * inner + i] = rows[i * n + j];
    }
}

/* The lines of one outer slab. */
static void f64_lines(const q7_softmax_args *args, int64_t outer) {
    const int64_t n = args->n, inner = args->inner;
    for (int64_t i = 0; i < inner; i++) {
        const double *x = (const double *)args->x + outer * n * inner + i;
        double *y = (double *)args->y + outer * n * inner + i, max = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++) max = x[j * inner] > max ? x[j * inner] : max;
        if (args->log) {
            for (int64_t j = 0; j < n; j++) sum += q7_exp_f64(x[j * inner] - max);
            const double log_sum = log(sum);
            for (int64_t j = 0; j < n; j++) y[j * inner] = x[j * inner] - max - log_sum;
        } else if (inner == 1) { /* a loop that vectorises */
            for (int64_t j = 0; j < n; j++) y[j] = q7_exp_f64(x[j] - max);
            for (int64_t j = 0; j < n; j++) sum += y[j];
            for (int64_t j = 0; j < n; j++) y[j] /= sum;
        } else {
            for (int64_t j = 0; j < n; j++) sum += y[j * inner] = q7_exp_f64(x[j * inner] - max);
            for (int64_t j = 0; j < n; j++) y[j * inner] /= sum;
        }
    }
}

static void f64_task(void *arg, int64_t task, int64_t thread) {
    const softmax_job *job = arg;
    (void)thread;
    const int64_t end = q7_min(job->args->outer, (task + 1) * job->per_task);
    for (int64_t i = task * job->per_task; i < end; i++) f64_lines(job->args, i);
}

void q7_op_softmax(const q7_softmax_args *args, const q7_call *call) {
    if (args->outer * args->n * args->inner == 0) return;
    softmax_job job = {args, (q7_softmax_kernel)call->kernel, 0, 0};
    const int64_t most = Q7_GRAIN / 4 / args->n; /* an exp is worth several plain operations */
    if (args->dtype == Q7_F64) {
        job.per_task = q7_units_of_task(call, args->outer, most / args->inner);
        q7_parallel(call, q7_ceil_div(args->outer, job.per_task), f64_task, &job);
        return;
    }
    if (args->inner == 1) {
        job.per_task = q7_units_of_task(call, args->outer, most);
        q7_parallel(call, q7_ceil_div(args->outer, job.per_task), rows_task, &job);
        return;
    }
    if (args->inner < FEW && args->n * args->inner <= TURNED) {
        job.per_task = q7_units_of_task(call, args->outer, most / args->inner);
        q7_parallel(call, q7_ceil_div(args->outer, job.per_task), turned_task, &job);
        return;
    }
    job.per_task = q7_ceil_div(q7_max(1, most), 64) * 64; /* whole cache lines and vectors */
    job.blocks = q7_ceil_div(args->inner, job.per_task);
    q7_parallel(call, args->outer * job.blocks, columns_task, &job);
}
