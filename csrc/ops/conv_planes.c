/* conv_planes.c: conv of images of few channels and few filters to a group, whose vectors are of
 * pixels, by kernels/conv_planes.h. x is (N, C, H, W) of any strides, w (M, C / groups, kh, kw), y and
 * residual (N, M, OH, OW), dense.
 *
 * A task is some lines of y of one group, or a part of each where lines are long. It copies the lines
 * under them, with zeros around, and where windows are stride_w apart as so many lines, of every
 * stride_w-th pixel each, so that what a tap reads lies side by side. Read panels.h first.
 *
 * offsets: K int64, K = C / groups * kh * kw. lines: threads * Q7_PLANE_ROOM floats, or what one line
 * of y needs: C / groups * lines under it * stride_w * their length. */
#include "../kernels/conv_planes.h"

#include "panels.h"

enum { LEAST = 128 }; /* pixels of a part that is made for one more thread */

typedef struct planes_job {
    q7_conv_planes_args x;
    const q7_call *call;
    int64_t channels, filters, k, k_block; /* of a group */
    int64_t parts, bands;                  /* of a line of y; of its lines */
    int64_t height, width; /* of what is copied, width: of every stride_w-th pixel */
} planes_job;

/* A line of pixels of x that are `step` floats apart, of which it has some: zeros around them. */
static void copy_line(const float *from, int64_t step, q7_span has, int64_t width, float *to) {
    const int64_t n = has.end - has.begin;
    memset(to, 0, (size_t)has.begin * sizeof(float));
    to += has.begin;
    if (step == 1)
        memcpy(to, from, (size_t)n * sizeof(float));
    else if (step == 2) /* in vectors */
        for (int64_t i = 0; i < n; i++) to[i] = from[2 * i];
    else
        for (int64_t i = 0; i < n; i++) to[i] = from[i * step];
    memset(to + n, 0, (size_t)(width - has.end) * sizeof(float));
}

/* n lines of each channel, from line `first` and pixel `left` on. */
static void copy_lines(const planes_job *job, const float *group, int64_t first, int64_t n,
                       int64_t left, float *to) {
    const q7_conv_planes_args *x = &job->x;
    const int64_t stride = x->stride_w, width = job->width, line = stride * width;
    for (int64_t phase = 0; phase < stride; phase++, to += width) {
        const int64_t at = left + phase;
        q7_span has = {q7_min(width, q7_max(0, q7_ceil_div(-at, stride))), 0};
        has.end = q7_max(has.begin, q7_min(width, q7_ceil_div(x->W - at, stride)));
        const float *from = group + (at + has.begin * stride) * x->x_w_stride;
        for (int64_t c = 0; c < job->channels; c++)
            for (int64_t h = 0; h < n; h++) {
                float *copy = to + (c * job->height + h) * line;
                if (first + h >= 0 && first + h < x->H)
                    copy_line(from + c * x->x_c_stride + (first + h) * x->x_h_stride,
                              stride * x->x_w_stride, has, width, copy);
                else
                    memset(copy, 0, (size_t)width * sizeof(float));
            }
    }
}

static void planes_task(void *arg, int64_t task, int64_t thread) {
    const planes_job *job = arg;
    const q7_conv_planes_args *x = &job->x;
    const int64_t part = task % job->parts, band = task / job->parts % job->bands;
    const int64_t image = task / job->parts / job->bands; /* (N, groups) */
    const int64_t group = image % x->groups;
    const q7_span rows = q7_span_of(x->OH, job->bands, band);
    const q7_span columns = q7_span_of(x->OW, job->parts, part);
    const int64_t line = x->stride_w * job->width, pixels = x->OH * x->OW;
    const int64_t bytes = (job->channels * job->height * line + Q7_PLANE_SLACK) * 4;
    float *copy = q7_room_of(job->call, x->lines, bytes, thread);
    const float *from = (const float *)x->x + image / x->groups * x->x_n_stride +
                        group * job->channels * x->x_c_stride;
    const int64_t under =
        (rows.end - rows.begin - 1) * x->stride_h + (x->kh - 1) * x->dilation_h + 1;
    copy_lines(job, from, rows.begin * x->stride_h - x->pad_top, under,
               columns.begin * x->stride_w - x->pad_left, copy);
    for (int64_t f = 0; f < job->filters; f += Q7_PLANE_FILTERS) {
        const int64_t filter = group * job->filters + f;
        const int64_t out = (image * job->filters + f) * pixels + columns.begin;
        q7_plane_line t = {.n = columns.end - columns.begin,
                           .filters = q7_min(Q7_PLANE_FILTERS, job->filters - f),
                           .k = job->k,
                           .k_block = job->k_block,
                           .offset = x->offsets,
                           .w = (const float *)x->w + filter * job->k,
                           .bias = x->bias ? (const float *)x->bias + filter : NULL,
                           .plane = pixels,
                           .residual_first = x->residual_first != 0,
                           .act = x->act,
                           .act_alpha = (float)x->act_alpha,
                           .act_beta = (float)x->act_beta};
        for (int64_t row = rows.begin; row < rows.end; row++) {
            t.x = copy + (row - rows.begin) * x->stride_h * line;
            t.y = (float *)x->y + out + row * x->OW;
            t.residual = x->residual ? (const float *)x->residual + out + row * x->OW : NULL;
            ((q7_conv_planes_kernel)job->call->kernel)(&t);
        }
    }
}

static void fill_offsets(const planes_job *job) {
    const q7_conv_planes_args *x = &job->x;
    int64_t *offset = x->offsets;
    for (int64_t c = 0; c < job->channels; c++)
        for (int64_t i = 0; i < x->kh; i++)
            for (int64_t j = 0; j < x->kw; j++) {
                const int64_t line = c * job->height + i * x->dilation_h, at = j * x->dilation_w;
                *offset++ = (line * x->stride_w + at % x->stride_w) * job->width + at / x->stride_w;
            }
}

void q7_op_conv_planes(const q7_conv_planes_args *x, const q7_call *call) {
    planes_job job = {
        .x = *x, .call = call, .channels = x->C / x->groups, .filters = x->M / x->groups};
    const int64_t images = x->N * x->groups, reach = (x->kh - 1) * x->dilation_h;
    if (images * job.filters * x->OH * x->OW == 0) return;
    job.k = job.channels * x->kh * x->kw;
    job.k_block = q7_conv_k_block(job.k, 1, x->kh * x->kw == 1);
    const int64_t wanted = q7_tasks_of(call, images * job.filters * x->OH * x->OW * job.k);
    job.parts = q7_max(q7_ceil_div(x->OW, Q7_PLANE_COLUMNS),
                       q7_min(q7_ceil_div(x->OW, LEAST), q7_ceil_div(wanted, images * x->OH)));
    job.width =
        q7_ceil_div(x->OW, job.parts) + q7_ceil_div((x->kw - 1) * x->dilation_w, x->stride_w);
    const int64_t room = Q7_PLANE_ROOM / (job.channels * x->stride_w * job.width);
    const int64_t most = q7_max(1, (room - reach - 1) / x->stride_h + 1); /* rows of a band */
    job.bands =
        q7_max(q7_ceil_div(x->OH, most), q7_min(x->OH, q7_ceil_div(wanted, images * job.parts)));
    job.height = (q7_ceil_div(x->OH, job.bands) - 1) * x->stride_h + reach + 1;
    fill_offsets(&job);
    q7_parallel(call, images * job.parts * job.bands, planes_task, &job);
}
