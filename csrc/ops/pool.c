/* pool.c: y[n,o] = op over the window of x[n] at o, as in kernels/pool.h: f32, and i8 and u8 (max) by
 * element, by kernel; f64 (any op), other i8 and u8, and max with indices tap by tap.
 *
 * indices: flat positions in x (N, D, H, W) of the first largest element, dims of a volume in
 * reverse order with column_major. A task is some lines of y, which does not overlap x.
 *
 * work, for f32 without indices: (OW + threads * max(q7_pool_line, Q7_POOL_BAND)) * 4 bytes, else none. */
#include "../kernels/pool.h"

#include <math.h>

#include "loops.h"

typedef struct pool_job {
    const q7_pool_args *args;
    q7_pool_kernel kernel;
    int64_t lines, per_task, work_floats;
} pool_job;

/* How many taps the mean of the window that starts at (d, h, w) is divided by. */
static int64_t count_of(const q7_pool_args *x, int64_t d, int64_t h, int64_t w) {
    const bool pads = x->count_pads != 0;
    return q7_pool_count(d, x->kd, x->dilation_d, x->D, x->pad_front, x->pad_back, pads) *
           q7_pool_count(h, x->kh, x->dilation_h, x->H, x->pad_top, x->pad_bottom, pads) *
           q7_pool_count(w, x->kw, x->dilation_w, x->W, x->pad_left, x->pad_right, pads);
}

#define T float
#define NAME pool_f32
#define LOWEST (-INFINITY)
#define UNORDERED(v) isnan(v)
#include "pool_typed.h"
#define T double
#define NAME pool_f64
#define LOWEST (-INFINITY)
#define UNORDERED(v) isnan(v)
#include "pool_typed.h"
#define T int8_t
#define NAME pool_i8
#define LOWEST INT8_MIN
#define UNORDERED(v) false
#include "pool_typed.h"
#define T uint8_t
#define NAME pool_u8
#define LOWEST 0
#define UNORDERED(v) false
#include "pool_typed.h"

static void lines_task(void *arg, int64_t task, int64_t thread) {
    const pool_job *job = arg;
    const q7_pool_args *x = job->args;
    float *counts = x->work; /* of floats */
    float *work = counts ? counts + x->OW + thread * job->work_floats : NULL;
    const int64_t begin = task * job->per_task;
    job->kernel(x, begin, q7_min(job->lines, begin + job->per_task), counts, work);
}

static void elements_task(void *arg, int64_t task, int64_t thread) {
    const pool_job *job = arg;
    const q7_pool_args *x = job->args;
    (void)thread;
    const int64_t end = q7_min(job->lines, (task + 1) * job->per_task);
    for (int64_t line = task * job->per_task; line < end; line++)
        for (int64_t ow = 0; ow < x->OW; ow++) switch (x->dtype) {
                case Q7_F32: pool_f32(x, line, ow); break;
                case Q7_F64: pool_f64(x, line, ow); break;
                case Q7_I8: pool_i8(x, line, ow); break;
                default: pool_u8(x, line, ow); break;
            }
}

void q7_op_pool(const q7_pool_args *x, const q7_call *call) {
    pool_job job = {.args = x, .kernel = (q7_pool_kernel)call->kernel};
    job.lines = x->N * x->OD * x->OH;
    if (job.lines * x->OW == 0) return;
    const bool is_byte = x->dtype == Q7_I8 || x->dtype == Q7_U8;
    const bool by_line = !x->indices && (is_byte ? q7_pool_by_element(x) : x->dtype == Q7_F32);
    const int64_t taps = by_line ? x->kd * x->kh + x->kw : 8 * x->kd * x->kh * x->kw;
    job.per_task = q7_units_of_task(call, job.lines, Q7_GRAIN / q7_max(1, x->W * taps));
    job.work_floats = q7_max(q7_pool_line(x), Q7_POOL_BAND);
    if (by_line && x->op == Q7_pool_mean && !q7_pool_by_element(x))
        for (int64_t ow = 0; ow < x->OW; ow++)
            ((float *)x->work)[ow] =
                (float)q7_pool_count(ow * x->stride_w - x->pad_left, x->kw, x->dilation_w, x->W,
                                     x->pad_left, x->pad_right, x->count_pads != 0);
    q7_parallel(call, q7_ceil_div(job.lines, job.per_task), by_line ? lines_task : elements_task,
                &job);
}
