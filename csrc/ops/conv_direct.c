/* conv_direct.c: conv_last of images whose windows are few floats, read where they lie, by
 * kernels/conv_direct.h. x is (N, C, H, W) of any strides; w, y and residual are those of conv_last.c.
 *
 * A task is some lines of y of one group, or a part of each where lines are long, or few. Where windows
 * stick out of x it copies the lines under them, with zeros around, as lines of pixels where channels
 * lie side by side in x, else plane by plane. A line of y is finished for one panel of filters after
 * the other. Where windows are pixels, y is one long line, cut evenly. Read panels.h first.
 *
 * offsets: threads * K int64, K = C / groups * kh * kw, of which the first K / together are used, so that
 * bands can be made by each thread. lines: threads * C / groups * kh' * W' * 4 bytes for the lines kh'
 * under those of a task, and their length W', under up to Q7_CONV_PIXELS pixels. */
#include "../kernels/conv_direct.h"

#include "panels.h"

enum { FAR = 1 << 18 }; /* floats of a y that L2 does not hold: in bands it is less */

typedef struct conv_job {
    q7_conv_direct_args x;
    const q7_call *call;
    bool pointwise, in_place, fetches;
    int64_t channels, filters, k, k_block, panels; /* of a group, k in steps of x.together */
    int64_t run;                                   /* steps side by side in what is read */
    int64_t lines, bands;                          /* of y, N images one after the other */
    int64_t parts;                                 /* of a line */
    int64_t tasks;                                 /* that all is worth */
    int64_t height, width;                         /* of what is copied */
    int64_t c_stride, h_stride, w_stride;          /* of what is read */
} conv_job;

/* Elements under `count` windows in a row. */
static int64_t reach(int64_t count, int64_t stride, int64_t kernel, int64_t dilation) {
    return (count - 1) * stride + (kernel - 1) * dilation + 1;
}

/* One line of pixels or of a plane, `step` floats for each, between zeros: those of x from `left` on. */
static void copy_line(const q7_conv_direct_args *x, const float *from, bool inside, int64_t left,
                      int64_t width, int64_t step, float *to) {
    const int64_t low = inside ? q7_min(width, q7_max(0, left)) : width;
    const int64_t high = q7_max(low, q7_min(width, x->W + left));
    memset(to, 0, (size_t)(low * step) * sizeof(float));
    from += (low - left) * x->x_w_stride;
    if (low < high && x->x_w_stride == step)
        memcpy(to + low * step, from, (size_t)((high - low) * step) * sizeof(float));
    else
        for (int64_t w = low; w < high; w++, from += x->x_w_stride)
            memcpy(to + w * step, from, (size_t)step * sizeof(float));
    memset(to + high * step, 0, (size_t)((width - high) * step) * sizeof(float));
}

/* Lines [first, first + n) of an image, which may lie outside of it, as may columns: -left is the first. */
static void copy_lines(const conv_job *job, const float *image, int64_t first, int64_t n,
                       int64_t left, float *to) {
    const q7_conv_direct_args *x = &job->x;
    const int64_t step = job->w_stride, planes = step == 1 ? job->channels : 1;
    for (int64_t c = 0; c < planes; c++)
        for (int64_t h = 0; h < n; h++) {
            const bool inside = first + h >= 0 && first + h < x->H;
            const float *from =
                inside ? image + c * x->x_c_stride + (first + h) * x->x_h_stride : image;
            copy_line(x, from, inside, left, job->width, step,
                      to + c * job->c_stride + h * job->h_stride);
        }
}

/* n pixels of each of `lines` lines; pixel: the first; from: its window; soon: where x, in planes, has what
 * is copied for the lines that follow, or NULL: it is fetched meanwhile, a plane for each line. */
static void conv_band(const conv_job *job, int64_t group, int64_t pixel, int64_t lines, int64_t n,
                      const float *from, const float *soon) {
    const q7_conv_direct_args *x = &job->x;
    const float *weights = (const float *)x->w + pixel / (x->OH * x->OW) * x->w_n_stride;
    const int64_t nr = job->call->nr / x->together; /* filters of a panel */
    const int64_t panel_floats = job->k * job->call->nr;
    for (int64_t panel = 0; panel < job->panels; panel++) {
        const int64_t filter = group * job->filters + panel * nr;
        const float *w = weights + (group * job->panels + panel) * panel_floats;
        q7_conv_line t = {.m = n,
                          .n = q7_min(nr, job->filters - panel * nr),
                          .k = job->k,
                          .k_block = job->k_block,
                          .together = x->together,
                          .x = from,
                          .x_stride = x->stride_w * job->w_stride,
                          .offset = x->offsets,
                          .run = job->run,
                          .w = w,
                          .y = (float *)x->y + pixel * x->y_stride + filter,
                          .y_stride = x->y_stride,
                          .bias = x->bias ? (const float *)x->bias + filter : NULL,
                          .scale = x->scale ? (const float *)x->scale + filter : NULL,
                          .shift = x->shift ? (const float *)x->shift + filter : NULL,
                          .residual_stride = x->residual_stride,
                          .residual_first = x->residual_first != 0,
                          .fetches = job->fetches,
                          .act = x->act,
                          .act_alpha = (float)x->act_alpha,
                          .act_beta = (float)x->act_beta};
        if (x->residual)
            t.residual = (const float *)x->residual + pixel * x->residual_stride + filter;
        for (int64_t line = 0; line < lines; line++) {
            const q7_span next = q7_span_of(panel_floats, lines, line); /* of the next panel */
            t.next = w + panel_floats + next.begin;
            t.next_floats = next.end - next.begin;
            if (soon && panel + 1 == job->panels) {
                t.next = soon + line * x->x_c_stride;
                t.next_floats = line < job->channels ? lines * x->stride_h * x->x_h_stride : 0;
            }
            ((q7_conv_direct_kernel)job->call->kernel)(&t);
            t.x += x->stride_h * job->h_stride;
            t.y += x->OW * x->y_stride;
            if (t.residual) t.residual += x->OW * x->residual_stride;
        }
    }
}

static void conv_task(void *arg, int64_t task, int64_t thread) {
    const conv_job *job = arg;
    const q7_conv_direct_args *x = &job->x;
    const int64_t part = task % job->parts, band = task / job->parts % job->bands;
    const int64_t group = task / job->parts / job->bands;
    const q7_span lines = q7_span_of(job->lines, job->bands, band);
    const q7_span columns = q7_span_of(x->OW, job->parts, part);
    const int64_t left = x->pad_left - columns.begin * x->stride_w;
    const int64_t first = lines.begin, end = lines.end;
    const float *from = (const float *)x->x + group * job->channels * x->x_c_stride;
    if (job->pointwise) {
        const int64_t each =
            x->w_n_stride ? x->OH * x->OW : job->lines; /* pixels of same weights */
        for (int64_t pixel = first, n; pixel < end; pixel += n) {
            n = q7_min(end - pixel, each - pixel % each);
            conv_band(job, group, pixel, 1, n, from + pixel * x->x_w_stride, NULL);
        }
        return;
    }
    const int64_t bytes = job->channels * job->height * job->width * 4;
    float *copy = q7_room_of(job->call, x->lines, bytes, thread);
    for (int64_t line = first, n; line < end; line += n) { /* those of one image */
        const int64_t oh = line % x->OH, h = oh * x->stride_h - x->pad_top;
        const float *image = from + line / x->OH * x->x_n_stride;
        n = q7_min(end - line, x->OH - oh);
        const int64_t pixel = line * x->OW + columns.begin, width = columns.end - columns.begin;
        if (job->in_place) {
            const float *window = image + h * x->x_h_stride - left * x->x_w_stride;
            conv_band(job, group, pixel, n, width, window, NULL);
            continue;
        }
        const int64_t under = reach(n, x->stride_h, x->kh, x->dilation_h);
        const bool fetches = job->w_stride == 1 && job->parts == 1 && x->H > 1; /* planes */
        copy_lines(job, image, h, under, left, copy);
        conv_band(job, group, pixel, n, width, copy,
                  fetches ? image + (h + under) * x->x_h_stride : NULL);
    }
}

static void fill_offsets(const conv_job *job) {
    const q7_conv_direct_args *x = &job->x;
    int64_t *offset = x->offsets;
    for (int64_t i = 0; i < x->kh; i++)
        for (int64_t j = 0; j < x->kw; j++)
            for (int64_t c = 0; c < job->channels; c += x->together)
                *offset++ = i * x->dilation_h * job->h_stride + j * x->dilation_w * job->w_stride +
                            c * job->c_stride;
}

/* Whether y is one long line of windows that are pixels, one stride apart. */
static bool is_pointwise(const q7_conv_direct_args *x) {
    return x->kh * x->kw == 1 && x->stride_h == 1 && x->stride_w == 1 && x->pad_top == 0 &&
           x->pad_left == 0 && x->OH == x->H && x->OW == x->W &&
           (x->H == 1 || x->x_h_stride == x->W * x->x_w_stride) &&
           (x->N == 1 || x->x_n_stride == x->H * x->W * x->x_w_stride);
}

/* How many parts the lines are cut into: of up to per_band lines, as many for each thread. */
static int64_t bands_of(const conv_job *job, int64_t per_band) {
    const q7_conv_direct_args *x = &job->x;
    const int64_t threads = job->call->threads, pixels = x->N * x->OH * x->OW;
    const int64_t least = q7_ceil_div(job->lines, per_band);
    if (job->tasks == 1) return least;
    const int64_t tiles = q7_min(job->lines, q7_ceil_div(pixels, job->call->mr));
    const int64_t wanted = q7_ceil_div(job->tasks, x->groups);
    const int64_t bands = q7_max(least, q7_min(wanted, tiles));
    return q7_min(q7_ceil_div(bands, threads) * threads, job->lines);
}

/* How many parts a line is cut into: of up to Q7_CONV_PIXELS pixels, and enough for all threads where
 * there are few lines, as in signals, which have one. */
static int64_t parts_of(const conv_job *job) {
    const q7_conv_direct_args *x = &job->x;
    if (job->pointwise) return 1;
    const int64_t wanted = q7_ceil_div(job->tasks, x->groups * job->bands);
    const int64_t most = q7_max(1, x->OW / job->call->mr);
    return q7_max(q7_ceil_div(x->OW, Q7_CONV_PIXELS), q7_min(wanted, most));
}

void q7_op_conv_direct(const q7_conv_direct_args *x, const q7_call *call) {
    conv_job job = {
        .x = *x, .call = call, .channels = x->C / x->groups, .filters = x->M / x->groups};
    job.lines = x->N * x->OH;
    if (job.lines * x->OW * job.filters == 0) return;
    job.k = x->kh * x->kw * job.channels / x->together;
    job.k_block = q7_conv_k_block(job.k, x->together, x->kh * x->kw == 1);
    job.panels = q7_ceil_div(job.filters * x->together, call->nr);
    job.tasks = q7_tasks_of(call, job.lines * x->OW * x->M * job.k * x->together);
    job.fetches = job.lines * x->OW * x->M >= FAR;
    job.pointwise = is_pointwise(x);
    if (job.pointwise) job.lines *= x->OW;
    const int64_t per_band = job.pointwise ? Q7_CONV_PIXELS : q7_max(1, Q7_CONV_PIXELS / x->OW);
    job.bands = bands_of(&job, per_band);
    job.parts = parts_of(&job);
    const int64_t columns = q7_ceil_div(x->OW, job.parts),
                  all = reach(x->OW, x->stride_w, x->kw, x->dilation_w);
    job.height = reach(per_band, x->stride_h, x->kh, x->dilation_h);
    job.width = reach(columns, x->stride_w, x->kw, x->dilation_w);
    const int64_t bottom = reach(x->OH, x->stride_h, x->kh, x->dilation_h) - x->pad_top;
    job.in_place =
        x->pad_top <= 0 && x->pad_left <= 0 && bottom <= x->H && all - x->pad_left <= x->W;
    const bool last = x->x_c_stride == 1;
    job.w_stride = job.in_place ? x->x_w_stride : last ? job.channels : 1;
    job.h_stride = job.in_place ? x->x_h_stride : job.width * job.w_stride;
    job.c_stride = job.in_place ? x->x_c_stride : last ? 1 : job.height * job.width;
    const bool line = job.w_stride == job.channels && x->dilation_w == 1; /* of taps */
    job.run = job.c_stride != 1 ? 1 : (line ? x->kw : 1) * job.channels / x->together;
    fill_offsets(&job);
    q7_parallel(call, x->groups * job.bands * job.parts, conv_task, &job);
}
