/* qconv.c: integer convolutions in groups, depthwise ones above all: there an output has few taps,
 * and windows as rows (im2col.c) would cost more than they save. A task is the plane of a filter.
 * Read kernels/qconv.h first. */
#include "../kernels/qconv.h"

#include "loops.h"

typedef struct qconv_job {
    const q7_qconv_args *x;
    q7_qconv_kernel kernel;
    int32_t x_zero, zero;
} qconv_job;

static int32_t first_byte(const void *p, int64_t dtype) {
    if (!p) return 0;
    return dtype == Q7_I8 ? *(const int8_t *)p : *(const uint8_t *)p;
}

static void qconv_task(void *arg, int64_t task, int64_t thread) {
    const qconv_job *job = arg;
    const q7_qconv_args *x = job->x;
    (void)thread;
    const int64_t n = task / x->M, m = task % x->M, C = x->C / x->groups;
    const int64_t group = m / (x->M / x->groups), y_bytes = q7_dtype_bytes(x->y_dtype);
    const float *scale = x->scale, *bias = x->bias;
    q7_qconv_line line = {
        .C = C,
        .H = x->H,
        .W = x->W,
        .OW = x->OW,
        .kh = x->kh,
        .kw = x->kw,
        .stride_w = x->stride_w,
        .dilation_h = x->dilation_h,
        .dilation_w = x->dilation_w,
        .w = -x->pad_left,
        .x = (const uint8_t *)x->x + (n * x->C + group * C) * x->H * x->W,
        .is_signed = x->x_dtype == Q7_I8,
        .x_zero = job->x_zero,
        .weight = (const int16_t *)x->w + m * C * x->kh * x->kw,
        .scale = scale ? scale[x->scales > 1 ? m : 0] : 1.0f,
        .bias = bias ? bias[m] : 0.0f,
        .zero = job->zero,
        .y_dtype = x->y_dtype,
    };
    for (int64_t oh = 0; oh < x->OH; oh++) {
        line.h = oh * x->stride_h - x->pad_top;
        line.y = (char *)x->y + (task * x->OH + oh) * x->OW * y_bytes;
        job->kernel(&line);
    }
}

void q7_op_qconv(const q7_qconv_args *x, const q7_call *call) {
    qconv_job job = {x, (q7_qconv_kernel)call->kernel, first_byte(x->x_zero, x->x_dtype),
                     first_byte(x->zero, x->y_dtype)};
    q7_parallel(call, x->N * x->M, qconv_task, &job);
}
