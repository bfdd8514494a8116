/* qconv_last.c: integer convolutions of images whose channels lie side by side: the product of
 * windows (pixels, kh kw C), which are never formed as a whole, with w (kh kw C, M), of each group.
 *
 * A task is a block of rows, QGEMM_TILES tiles of the kernel, times a chunk of a group's panels; it copies its
 * windows first, a line of taps at a time, x_zero where they reach beyond x. A 1x1 kernel reads x in
 * place. rows: threads * the rows of a block * (K in multiples of 64 + q7_qgemm_room(K)) bytes. Read
 * kernels/qgemm.h first. */
#include "../kernels/qgemm.h"
#include "panels.h"
#include "qrows.h"

typedef struct qconv_job {
    q7_qconv_last_args x;
    const q7_call *call;
    q7_qfinish finish;
    bool in_place;
    int64_t pixels, k, run, rows;              /* run: bytes of taps that lie side by side */
    int64_t channels, filters, panels, chunks; /* of a group */
    int32_t x_zero;
} qconv_job;

/* n bytes, inline where there are few; up to 16 of `to` may be overwritten, and read before end. */
static inline void copy_bytes(uint8_t *restrict to, const uint8_t *restrict from, int64_t n,
                              const uint8_t *end) {
    if (n > 256) {
        memcpy(to, from, (size_t)n);
    } else if (n >= 16) {
        for (int64_t i = 0; i + 16 <= n; i += 16) memcpy(to + i, from + i, 16);
        memcpy(to + n - 16, from + n - 16, 16);
    } else if (end - from >= 16) {
        memcpy(to, from, 16);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = from[i];
    }
}

/* The window at (top, left) of an image (H, W, C); left in bytes. */
static inline void copy_window(const qconv_job *job, const uint8_t *image, int64_t top,
                               int64_t left, const uint8_t *end, uint8_t *to) {
    const q7_qconv_last_args *x = &job->x;
    const int64_t line = x->W * x->C, run = job->run, step = x->dilation_w * x->C;
    const bool whole = left >= 0 && left + (x->kw - 1) * step + run <= line;
    for (int64_t i = 0; i < x->kh; i++) {
        const int64_t h = top + i * x->dilation_h;
        const bool inside = h >= 0 && h < x->H;
        for (int64_t j = 0, at = left; j < x->kw; j++, to += run, at += step) {
            const uint8_t *from = image + h * line + at;
            if (inside && whole) {
                copy_bytes(to, from, run, end);
                continue;
            }
            const int64_t low = inside ? q7_min(run, q7_max(0, -at)) : run;
            const int64_t high = q7_max(low, q7_min(run, line - at));
            if (low) memset(to, job->x_zero, (size_t)low);
            if (low < high) copy_bytes(to + low, from + low, high - low, end);
            if (high < run) memset(to + high, job->x_zero, (size_t)(run - high));
        }
    }
}

/* n bytes, half to 2 half, of each of `count` windows side by side. */
static inline void copy_runs(uint8_t *to, int64_t stride, const uint8_t *from, int64_t step,
                             int64_t count, int64_t n, const size_t half) {
    for (int64_t r = 0; r < count; r++, to += stride, from += step) {
        memcpy(to, from, half);
        memcpy(to + n - half, from + n - half, half);
    }
}

/* Windows of a line of y, of 8 to 32 bytes in each line of x, none beyond its ends; left in bytes. */
static void copy_short(const qconv_job *job, const uint8_t *image, int64_t top, int64_t left,
                       int64_t count, int64_t stride, uint8_t *to) {
    const q7_qconv_last_args *x = &job->x;
    const int64_t run = job->run, step = x->stride_w * x->C;
    for (int64_t i = 0; i < x->kh; i++, to += run) {
        const int64_t h = top + i * x->dilation_h;
        const uint8_t *from = image + h * x->W * x->C + left;
        if (h < 0 || h >= x->H)
            for (int64_t r = 0; r < count; r++) memset(to + r * stride, job->x_zero, (size_t)run);
        else if (run < 16)
            copy_runs(to, stride, from, step, count, run, 8);
        else
            copy_runs(to, stride, from, step, count, run, 16);
    }
}

/* The windows of m pixels of a group from `first` on. */
static void copy_windows(const qconv_job *job, int64_t group, int64_t first, int64_t m,
                         int64_t stride, uint8_t *rows) {
    const q7_qconv_last_args *x = &job->x;
    const int64_t size = x->H * x->W * x->C, step = x->stride_w * x->C, pad = x->pad_left * x->C;
    const uint8_t *end = (const uint8_t *)x->x + x->N * size;
    const int64_t last = x->W * x->C - job->run + pad; /* start of a window in a line, + pad */
    const bool is_short = x->kw == 1 && job->run >= 8 && job->run <= 32 && last >= 0;
    const int64_t inside = is_short ? q7_min(x->OW, last / step + 1) : 0;
    int64_t ow = first % x->OW, oh = first / x->OW % x->OH;
    const uint8_t *image =
        (const uint8_t *)x->x + first / x->OW / x->OH * size + group * job->channels;
    for (int64_t r = 0, n; r < m; r += n, rows += n * stride) {
        const int64_t top = oh * x->stride_h - x->pad_top, left = ow * step - pad;
        n = left < 0 ? 0 : q7_min(inside - ow, m - r);
        if (n > 0) {
            copy_short(job, image, top, left, n, stride, rows);
        } else {
            copy_window(job, image, top, left, end, rows);
            n = 1;
        }
        ow += n;
        if (ow < x->OW) continue;
        ow = 0;
        if (++oh < x->OH) continue;
        oh = 0;
        image += size;
    }
}

static void qconv_task(void *arg, int64_t task, int64_t thread) {
    const qconv_job *job = arg;
    const q7_qconv_last_args *x = &job->x;
    const q7_span panels = q7_span_of(job->panels, job->chunks, task % job->chunks);
    const int64_t nr = job->call->nr, group = task / job->chunks % x->groups;
    const int64_t row = task / job->chunks / x->groups * job->rows;
    const int64_t column = panels.begin * nr, panel = group * job->panels + panels.begin;
    const int64_t filter = group * job->filters + column, stride = q7_ceil_div(job->k, 64) * 64;
    const int64_t m = q7_min(job->pixels - row, job->rows);
    uint8_t *windows = (uint8_t *)x->rows + thread * job->rows * (stride + q7_qgemm_room(job->k));
    if (!job->in_place) copy_windows(job, group, row, m, stride, windows);
    const q7_qgemm_block block = {
        .m = m,
        .n = q7_min(job->filters, panels.end * nr) - column,
        .k = job->k,
        .a = job->in_place ? (const uint8_t *)x->x + row * x->C + group * job->k : windows,
        .a_stride = job->in_place ? x->C : stride,
        .a_padded = !job->in_place,
        .a_signed = x->x_dtype == Q7_I8,
        .a_zero = job->x_zero,
        .b = (const char *)x->w + panel * x->panel_bytes,
        .b_bytes = x->panel_bytes,
        .b_zero = x->w_zero ? (const int32_t *)x->w_zero + panel * nr : NULL,
        .finish = q7_finish_from(&job->finish, filter),
        .c = (char *)x->y + (row * x->y_stride + filter) * q7_sum_bytes(x->y_dtype),
        .c_stride = x->y_stride,
        .room = windows + job->rows * stride,
    };
    ((q7_qgemm_kernel)job->call->kernel)(&block);
}

void q7_op_qconv_last(const q7_qconv_last_args *x, const q7_call *call) {
    qconv_job job = {.x = *x,
                     .call = call,
                     .finish = {.c_dtype = x->y_dtype,
                                .scale = x->scale,
                                .scale_step = x->scales > 1,
                                .a_scale = 1.0f,
                                .bias = x->bias,
                                .zero = q7_first_byte(x->zero, x->y_dtype),
                                .act = Q7_act_none},
                     .pixels = x->N * x->OH * x->OW,
                     .k = x->kh * x->kw * (x->C / x->groups),
                     .run = x->C / x->groups,
                     .channels = x->C / x->groups,
                     .filters = x->M / x->groups,
                     .rows = call->mr * Q7_QGEMM_TILES,
                     .panels = q7_ceil_div(x->M / x->groups, call->nr),
                     .x_zero = q7_first_byte(x->x_zero, x->x_dtype)};
    if (job.pixels * x->M == 0) return;
    job.in_place = x->kh * x->kw == 1 && x->stride_h == 1 && x->stride_w == 1 && x->OH == x->H &&
                   x->OW == x->W && x->pad_top == 0 && x->pad_left == 0;
    if (x->dilation_w == 1 && x->groups == 1) { /* a line of taps lies side by side */
        job.run *= x->kw;
        job.x.kw = 1;
    }
    const int64_t blocks = q7_ceil_div(job.pixels, job.rows) * x->groups;
    const int64_t tasks = q7_tasks_of(call, job.pixels * x->M * job.k);
    job.chunks = q7_chunks_of(call, job.panels, blocks, tasks);
    q7_parallel(call, blocks * job.chunks, qconv_task, &job);
}
