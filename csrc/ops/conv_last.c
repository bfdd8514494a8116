/* conv_last.c: y = act(conv(x, w) + bias) * scale + shift + residual, or act(conv(x, w) + bias + residual)
 * * scale + shift with residual_first, channels last: one matrix product per group,
 *
 *     y (pixels, M / groups) = windows (pixels, K) @ w (K, M / groups),
 *     pixels = N OD OH OW, K = kd kh kw C / groups
 *
 * A task copies some rows of windows, a block of k at a time, in runs of floats that lie side by side in
 * x: the channels of a tap, or of a line of taps where x is dense there. A 1x1 kernel reads x in place.
 *
 * w is packed by pack_b, K in the order (tap, channel), a matrix per group. x is (N, D, H, W, C) of any
 * strides but 1 for C; pixels of y and residual are y_stride and residual_stride apart. y does not
 * overlap x. Read panels.h first.
 *
 * windows: threads * min(pixels, Q7_GEMM_ROWS) * min(K, Q7_CONV_K_BLOCK) * 4 bytes. */
#include "panels.h"

enum {
    COPIED = 8, /* panels that copied windows are worth */
    OWN = 96,   /* pixels of a thread that are worth more than weights that nobody else reads */
};

typedef struct conv_job {
    q7_conv_last_args x;
    const q7_call *call;
    bool in_place;
    int64_t pixels, channels, filters, k; /* of the product; channels and filters of a group */
    int64_t run;                          /* floats side by side, of a tap */
    int64_t k_block, row_tiles, row_blocks, panels;
} conv_job;

/* Where a window begins: in which image, and where in it; `at` counts floats of a line. */
typedef struct corner {
    const float *image;
    int64_t d, h, at;
} corner;

static void corners_of(const q7_conv_last_args *x, const float *from, int64_t row, int64_t m,
                       corner *corners) {
    int64_t ow = row % x->OW, oh = row / x->OW % x->OH, od = row / x->OW / x->OH % x->OD;
    int64_t n = row / x->OW / x->OH / x->OD;
    for (int64_t i = 0; i < m; i++) {
        corners[i] = (corner){.image = from + n * x->x_n_stride,
                              .d = od * x->stride_d - x->pad_front,
                              .h = oh * x->stride_h - x->pad_top,
                              .at = (ow * x->stride_w - x->pad_left) * x->x_w_stride};
        if (++ow == x->OW) ow = 0, oh++;
        if (oh == x->OH) oh = 0, od++;
        if (od == x->OD) od = 0, n++;
    }
}

/* n floats, inline where there are few. */
static inline void copy_floats(float *restrict to, const float *restrict from, int64_t n) {
    if (n >= 64) {
        memcpy(to, from, (size_t)n * sizeof(float));
        return;
    }
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) memcpy(to + i, from + i, 4 * sizeof(float));
    for (; i < n; i++) to[i] = from[i];
}

static inline void zero_floats(float *to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = 0.0f;
}

/* A run of taps: how far from a window's corner it begins; `at` counts floats of a line. */
typedef struct tap {
    int64_t d, h, at;
} tap;

static inline tap tap_of(const q7_conv_last_args *x, int64_t index) {
    return (tap){.d = index / x->kw / x->kh * x->dilation_d,
                 .h = index / x->kw % x->kh * x->dilation_h,
                 .at = index % x->kw * x->dilation_w * x->x_w_stride};
}

/* Whether the line that a run of taps meets is one of the image. */
static inline bool has_line(const q7_conv_last_args *x, const corner *c, tap run) {
    const int64_t d = c->d + run.d, h = c->h + run.h;
    return d >= 0 && d < x->D && h >= 0 && h < x->H;
}

/* The rows at m corners of whose columns [k0, k0 + k) some lie in the image: padding of a kernel that
 * reaches far, or of a small image, is not multiplied. */
static q7_span rows_inside(const conv_job *job, const corner *corners, int64_t m, int64_t k0,
                           int64_t k) {
    const q7_conv_last_args *x = &job->x;
    const int64_t line = x->W * x->x_w_stride;
    q7_span rows = {m, 0};
    for (int64_t i = k0 / job->run; i <= (k0 + k - 1) / job->run; i++) {
        const tap run = tap_of(x, i);
        for (int64_t r = 0; r < m; r++) {
            const int64_t at = corners[r].at + run.at;
            if (!has_line(x, &corners[r], run) || at + job->run <= 0 || at >= line) continue;
            rows.begin = q7_min(rows.begin, r);
            rows.end = q7_max(rows.end, r + 1);
        }
    }
    return rows;
}

/* Columns [k0, k0 + k) of the windows at m corners, as rows (m, k). */
static void copy_windows(const conv_job *job, const corner *corners, int64_t m, int64_t k0,
                         int64_t k, float *rows) {
    const q7_conv_last_args *x = &job->x;
    const int64_t line = x->W * x->x_w_stride;
    for (int64_t done = 0, n; done < k; done += n) {
        const int64_t first = (k0 + done) % job->run;
        const tap run = tap_of(x, (k0 + done) / job->run);
        n = q7_min(k - done, job->run - first);
        for (int64_t r = 0; r < m; r++) {
            const corner *c = &corners[r];
            const int64_t d = c->d + run.d, h = c->h + run.h;
            const int64_t at = c->at + run.at + first; /* what lies within [0, line) is copied */
            const bool inside = has_line(x, c, run);
            const int64_t low = inside ? q7_min(n, q7_max(0, -at)) : n;
            const int64_t high = q7_max(low, q7_min(n, line - at));
            float *to = rows + r * k + done;
            zero_floats(to, low);
            if (low < high)
                copy_floats(to + low, c->image + d * x->x_d_stride + h * x->x_h_stride + at + low,
                            high - low);
            zero_floats(to + high, n - high);
        }
    }
}

/* The product of rows [row, row + m) and some panels of a group, for k in [k0, k0 + k), of which all but
 * the first `some` are zeros. a: those rows. */
static void multiply(const conv_job *job, int64_t group, int64_t k0, int64_t k, int64_t some,
                     q7_span panels, int64_t row, int64_t m, const float *a, int64_t a_stride) {
    const q7_conv_last_args *x = &job->x;
    if (m == 0) return;
    const int64_t nr = job->call->nr, column = panels.begin * nr;
    const int64_t out = group * job->filters + column;
    const float *bias = x->bias, *residual = x->residual, *scale = x->scale;
    const q7_gemm_epilogue epilogue = {
        .alpha = 1.0f,
        .bias = bias ? bias + out : NULL,
        .residual = residual ? residual + row * x->residual_stride + out : NULL,
        .residual_stride = x->residual_stride,
        .residual_first = x->residual_first != 0,
        .scale = scale ? scale + out : NULL,
        .shift = scale ? (const float *)x->shift + out : NULL,
        .act = x->act,
        .act_alpha = (float)x->act_alpha,
        .act_beta = (float)x->act_beta};
    const bool plain = !bias && !residual && !scale && x->act == Q7_act_none;
    const int64_t panel_stride = job->k * nr;
    const q7_gemm_block part = {
        .m = m,
        .n = q7_min(panels.end * nr, job->filters) - column,
        .k = some,
        .k_block = job->k_block,
        .a = a,
        .a_row_stride = a_stride,
        .a_k_stride = 1,
        .n_after = q7_max(0, job->filters - panels.end * nr),
        .b = (const float *)x->w + (group * job->panels + panels.begin) * panel_stride + k0 * nr,
        .b_stride = nr,
        .b_packed = true,
        .b_is_column = job->filters == 1,
        .b_panel_stride = panel_stride,
        .c = (float *)x->y + row * x->y_stride + out,
        .c_stride = x->y_stride,
        .accumulate = k0 > 0,
        .epilogue = k0 + k < job->k || plain ? NULL : &epilogue};
    ((q7_gemm_kernel)job->call->kernel)(&part);
}

static void conv_task(void *arg, int64_t index, q7_span panels, int64_t thread) {
    const conv_job *job = arg;
    const q7_conv_last_args *x = &job->x;
    const int64_t group = index % x->groups, block = index / x->groups;
    const q7_span rows = q7_span_of(job->pixels, job->row_blocks, block);
    const int64_t row = rows.begin, m = rows.end - row;
    const int64_t per_thread = q7_min(job->pixels, Q7_GEMM_ROWS) * q7_min(job->k, Q7_CONV_K_BLOCK);
    const float *from = (const float *)x->x + group * job->channels;
    float *windows = q7_room_of(job->call, x->windows, per_thread * 4, thread);
    corner corners[Q7_GEMM_ROWS];
    if (job->in_place) {
        const float *a = from + row * x->x_w_stride;
        multiply(job, group, 0, job->k, job->k, panels, row, m, a, x->x_w_stride);
        return;
    }
    corners_of(x, from, row, m, corners);
    for (int64_t k0 = 0; k0 == 0 || k0 < job->k; k0 += job->k_block) {
        const int64_t k = q7_min(job->k - k0, job->k_block);
        const bool ends = k0 == 0 || k0 + k == job->k; /* sums begin, or what follows them is due */
        q7_span in = rows_inside(job, corners, m, k0, k);
        if (in.end < in.begin) in.end = in.begin;
        copy_windows(job, corners + in.begin, in.end - in.begin, k0, k, windows);
        if (ends) multiply(job, group, k0, k, 0, panels, row, in.begin, windows, k);
        multiply(job, group, k0, k, k, panels, row + in.begin, in.end - in.begin, windows, k);
        if (ends) multiply(job, group, k0, k, 0, panels, row + in.end, m - in.end, windows, k);
    }
}

/* Whether the rows of windows are pixels of x, one stride apart. */
static bool is_pointwise(const q7_conv_last_args *x) {
    const bool one = x->kd * x->kh * x->kw == 1 && x->OD == x->D && x->OH == x->H && x->OW == x->W;
    const bool steps = x->stride_d == 1 && x->stride_h == 1 && x->stride_w == 1 &&
                       x->pad_front == 0 && x->pad_top == 0 && x->pad_left == 0;
    return one && steps && (x->H == 1 || x->x_h_stride == x->W * x->x_w_stride) &&
           (x->D == 1 || x->x_d_stride == x->H * x->W * x->x_w_stride) &&
           (x->N == 1 || x->x_n_stride == x->D * x->H * x->W * x->x_w_stride);
}

void q7_op_conv_last(const q7_conv_last_args *x, const q7_call *call) {
    conv_job job = {.x = *x, .call = call, .channels = x->C / x->groups};
    job.filters = x->M / x->groups;
    job.pixels = x->N * x->OD * x->OH * x->OW;
    job.k = x->kd * x->kh * x->kw * job.channels;
    if (job.pixels * job.filters == 0) return;
    job.in_place = is_pointwise(x);
    job.run = job.channels;
    const bool single = job.k == job.channels;
    if (x->x_w_stride == job.channels &&
        x->dilation_w == 1) { /* a line of taps lies side by side */
        job.run *= x->kw;
        job.x.kw = 1;
    }
    job.k_block = q7_conv_k_block(job.k, 1, single);
    job.row_tiles = q7_ceil_div(job.pixels, call->mr);
    job.row_blocks = q7_ceil_div(job.row_tiles, q7_tiles_of_task(call));
    job.panels = q7_ceil_div(job.filters, call->nr);
    const int64_t work = job.pixels * job.filters * job.k * x->groups;
    const int64_t tasks = q7_tasks_of(call, work);
    if (tasks > 1) {
        /* Few panels are no even share for each; many pixels are where their writers left them. */
        if (job.pixels > job.filters || job.pixels >= OWN * call->threads ||
            job.panels * x->groups < tasks)
            job.row_blocks =
                q7_min(q7_ceil_div(job.row_blocks, call->threads) * call->threads, job.row_tiles);
    }
    const int64_t blocks = job.row_blocks * x->groups;
    const int64_t copied = q7_panels_at_once(call, blocks, job.panels, COPIED);
    q7_parallel_panels(call, &(q7_panels_job){.blocks = blocks,
                                              .panels = job.panels,
                                              .unit = job.in_place ? 1 : copied,
                                              .most = job.in_place ? Q7_GEMM_PANELS : job.panels,
                                              .work = work,
                                              .fn = conv_task,
                                              .arg = &job});
}
