/* qconv_last.c: integer convolutions of images whose channels lie side by side: the product of
 * windows (pixels, kh kw C), which are never formed as a whole, with w (kh kw C, M), of each group.
 *
 * A task is a block of rows times some of a group's panels. With `lines`, a block is so many lines of y:
 * its lines of x are copied first, with borders of x_zero, and the kernel multiplies the windows in
 * them. Else it is QGEMM_TILES tiles of the kernel, whose windows are copied, a line of taps at a time;
 * a 1x1 kernel reads x in place. rows: a thread's lines, or rows of a block * (K in multiples of 64 +
 * q7_qgemm_room(K)), and room for the sums of rows of y; q7x2_ep/ops/quant_conv.py holds the same
 * formula. Read kernels/qgemm.h first. */
#include "../kernels/qgemm.h"
#include "panels.h"
#include "qrows.h"

enum { COPIED = 2 }; /* panels that copied windows are worth */

typedef struct qconv_job {
    q7_qconv_last_args x;
    const q7_call *call;
    q7_qfinish finish;
    bool in_place;
    int64_t pixels, k, run, rows;      /* run: bytes of taps that lie side by side */
    int64_t blocks, pitch;             /* with lines: in an image; bytes of a line of x */
    int64_t room;                      /* bytes of a thread */
    int64_t channels, filters, panels; /* of a group */
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

/* n bytes, their signs flipped or not, inline. */
static inline void copy_flipped(uint8_t *restrict to, const uint8_t *restrict from, int64_t n,
                                uint8_t flip) {
    typedef uint8_t piece __attribute__((vector_size(16)));
    int64_t i = 0;
    for (piece bytes; i + 16 <= n; i += 16) {
        memcpy(&bytes, from + i, 16);
        bytes ^= flip;
        memcpy(to + i, &bytes, 16);
    }
    for (; i < n; i++) to[i] = from[i] ^ flip;
}

/* The channels of a group of the lines of x that `lines` of y from `top` on need, the columns that all
 * of them need. */
static void copy_lines(const qconv_job *job, const uint8_t *image, int64_t top, int64_t lines,
                       uint8_t flip, uint8_t *to) {
    const q7_qconv_last_args *x = &job->x;
    const int64_t bytes = job->channels, columns = job->pitch / bytes;
    const int64_t low = q7_min(columns, q7_max(0, x->pad_left));
    const int64_t high = q7_max(low, q7_min(columns, x->W + x->pad_left));
    const int64_t first = top * x->stride_h - x->pad_top;
    const int64_t end = first + (lines - 1) * x->stride_h + (x->kh - 1) * x->dilation_h + 1;
    const int border = (uint8_t)job->x_zero ^ flip;
    for (int64_t h = first; h < end; h++, to += job->pitch) {
        if (h < 0 || h >= x->H) {
            memset(to, border, (size_t)job->pitch);
            continue;
        }
        const uint8_t *from = image + (h * x->W + low - x->pad_left) * x->C;
        memset(to, border, (size_t)(low * bytes));
        if (bytes == x->C)
            copy_flipped(to + low * bytes, from, (high - low) * bytes, flip);
        else
            for (int64_t w = low; w < high; w++, from += x->C)
                copy_flipped(to + w * bytes, from, bytes, flip);
        memset(to + high * bytes, border, (size_t)((columns - high) * bytes));
    }
}

/* Block `index` of a group in lines: its rows of a, which are windows. Returns their first. */
static int64_t take_lines(const qconv_job *job, int64_t index, int64_t group, uint8_t *room,
                          q7_qwindows *windows, q7_qgemm_block *block) {
    const q7_qconv_last_args *x = &job->x;
    const uint8_t flip = (x->x_dtype == Q7_I8) == Q7_WINDOWS_SIGNED ? 0 : 128;
    const int64_t image = index / job->blocks, top = index % job->blocks * x->lines;
    const int64_t lines = q7_min(x->lines, x->OH - top);
    copy_lines(job, (const uint8_t *)x->x + image * x->H * x->W * x->C + group * job->channels, top,
               lines, flip, room);
    *windows = (q7_qwindows){.line = x->OW,
                             .line_stride = x->stride_h * job->pitch,
                             .runs = x->kh,
                             .run_stride = x->dilation_h * job->pitch};
    block->windows = windows;
    block->m = lines * x->OW;
    block->a = room;
    block->a_stride = x->stride_w * job->channels;
    block->a_signed = Q7_WINDOWS_SIGNED;
    block->a_zero = job->x_zero + (!flip ? 0 : Q7_WINDOWS_SIGNED ? -128 : 128);
    block->room = room + job->room - q7_ceil_div(x->lines * x->OW, 16) * 64;
    return (image * x->OH + top) * x->OW;
}

/* The same of tiles of rows, in place or copied. */
static int64_t take_rows(const qconv_job *job, int64_t index, int64_t group, uint8_t *room,
                         q7_qgemm_block *block) {
    const q7_qconv_last_args *x = &job->x;
    const int64_t row = index * job->rows, stride = q7_ceil_div(job->k, 64) * 64;
    block->m = q7_min(job->pixels - row, job->rows);
    if (!job->in_place) copy_windows(job, group, row, block->m, stride, room);
    block->a = job->in_place ? (const uint8_t *)x->x + row * x->C + group * job->k : room;
    block->a_stride = job->in_place ? x->C : stride;
    block->a_padded = !job->in_place;
    block->a_signed = x->x_dtype == Q7_I8;
    block->a_zero = job->x_zero;
    block->room = room + job->rows * stride;
    return row;
}

static void qconv_task(void *arg, int64_t part, q7_span panels, int64_t thread) {
    const qconv_job *job = arg;
    const q7_qconv_last_args *x = &job->x;
    const int64_t nr = job->call->nr, group = part % x->groups, index = part / x->groups;
    const int64_t column = panels.begin * nr, panel = group * job->panels + panels.begin;
    const int64_t filter = group * job->filters + column;
    q7_qwindows windows;
    q7_qgemm_block block = {
        .n = q7_min(job->filters, panels.end * nr) - column,
        .k = job->k,
        .b = (const char *)x->w + panel * x->panel_bytes,
        .b_bytes = x->panel_bytes,
        .b_zero = x->w_zero ? (const int32_t *)x->w_zero + panel * nr : NULL,
        .finish = q7_finish_from(&job->finish, filter),
        .c_stride = x->y_stride,
    };
    uint8_t *room = q7_room_of(job->call, x->rows, job->room, thread);
    const int64_t row = x->lines ? take_lines(job, index, group, room, &windows, &block)
                                 : take_rows(job, index, group, room, &block);
    block.c = (char *)x->y + (row * x->y_stride + filter) * q7_sum_bytes(x->y_dtype);
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
    int64_t blocks;
    if (x->lines) {
        const int64_t lines = (x->lines - 1) * x->stride_h + (x->kh - 1) * x->dilation_h + 1;
        job.pitch = ((x->OW - 1) * x->stride_w + x->kw) * job.channels;
        job.room = q7_ceil_div(lines * job.pitch, 64) * 64 + q7_ceil_div(x->lines * x->OW, 16) * 64;
        job.blocks = q7_ceil_div(x->OH, x->lines);
        blocks = x->N * job.blocks * x->groups;
    } else {
        if (x->dilation_w == 1 && x->groups == 1) { /* a line of taps lies side by side */
            job.run *= x->kw;
            job.x.kw = 1;
        }
        job.room = job.rows * (q7_ceil_div(job.k, 64) * 64 + q7_qgemm_room(job.k));
        blocks = q7_ceil_div(job.pixels, job.rows) * x->groups;
    }
    q7_parallel_panels(call,
                       &(q7_panels_job){.blocks = blocks,
                                        .panels = job.panels,
                                        .unit = q7_panels_at_once(call, blocks, job.panels, COPIED),
                                        .most = job.panels,
                                        .work = job.pixels * x->M * job.k,
                                        .fn = qconv_task,
                                        .arg = &job});
}
