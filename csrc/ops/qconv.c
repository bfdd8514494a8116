/* qconv.c: integer convolutions in groups, depthwise ones above all: there an output has few taps,
 * and windows as rows (im2col.c) would cost more than they save. A task is the plane of a filter.
 * work: threads * q7_qconv_work() * 4 bytes. Read kernels/qconv.h first. */
#include "../kernels/qconv.h"

#include "loops.h"

typedef struct qconv_job {
    const q7_qconv_args *x;
    q7_qconv_kernel kernel;
    int32_t x_zero, zero;
    int64_t work; /* of a thread */
} qconv_job;

static int32_t first_byte(const void *p, int64_t dtype) {
    if (!p) return 0;
    return dtype == Q7_I8 ? *(const int8_t *)p : *(const uint8_t *)p;
}

static void qconv_task(void *arg, int64_t task, int64_t thread) {
    const qconv_job *job = arg;
    const q7_qconv_args *x = job->x;
    const int64_t n = task / x->M, m = task % x->M, C = x->C / x->groups;
    const int64_t group = m / (x->M / x->groups), y_bytes = q7_dtype_bytes(x->y_dtype);
    const float *scale = x->scale, *bias = x->bias;
    const q7_qconv_plane plane = {
        .C = C,
        .H = x->H,
        .W = x->W,
        .OH = x->OH,
        .OW = x->OW,
        .kh = x->kh,
        .kw = x->kw,
        .stride_h = x->stride_h,
        .stride_w = x->stride_w,
        .pad_top = x->pad_top,
        .pad_left = x->pad_left,
        .dilation_h = x->dilation_h,
        .dilation_w = x->dilation_w,
        .x = (const uint8_t *)x->x + (n * x->C + group * C) * x->H * x->W,
        .is_signed = x->x_dtype == Q7_I8,
        .x_zero = job->x_zero,
        .weight = (const int16_t *)x->w + m * C * x->kh * x->kw,
        .scale = scale ? scale[x->scales > 1 ? m : 0] : 1.0f,
        .bias = bias ? bias[m] : 0.0f,
        .zero = job->zero,
        .y_dtype = x->y_dtype,
        .y = (char *)x->y + task * x->OH * x->OW * y_bytes,
        .work = (int32_t *)x->work + thread * job->work,
    };
    job->kernel(&plane);
}

void q7_op_qconv(const q7_qconv_args *x, const q7_call *call) {
    qconv_job job = {.x = x,
                     .kernel = (q7_qconv_kernel)call->kernel,
                     .x_zero = first_byte(x->x_zero, x->x_dtype),
                     .zero = first_byte(x->zero, x->y_dtype),
                     .work = q7_qconv_work(x->H, x->OH, x->OW, x->kw, x->stride_w, x->dilation_w)};
    q7_parallel(call, x->OH * x->OW > 0 ? x->N * x->M : 0, qconv_task, &job);
}
