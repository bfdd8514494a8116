/* conv.c: y = act(conv(x, w) + bias) + residual in NCDHW, or act of all of that sum with
 * residual_first, as one matrix product per image and group:
 *
 *     y (M / groups, OD OH OW) = w (M / groups, K) @ columns (K, OD OH OW),
 *     K = C / groups * kd * kh * kw,  columns[(c, l, i, j), (od, oh, ow)] = x[c, d, h, w], or 0
 *     outside x, with d = od * stride_d - pad_front + l * dilation_d, h and w likewise
 *
 * columns is never formed as a whole: a task packs some panels of it, a block of k at a time, and
 * multiplies them with rows of weights, which are read in place. For a 1x1 kernel of stride 1
 * without padding, columns is x itself; few rows read it in place too. y does not overlap x. Read
 * panels.h first.
 *
 * pack: threads * min(panels of nr pixels, Q7_CONV_PANELS) * min(K, Q7_CONV_K_BLOCK) * nr * 4
 * bytes. */
#include "panels.h"

enum {
    MAX_NR = 32,    /* of the rows of kernels.def */
    MIN_ROWS = 128, /* fewer rows than this are not worth packing a panel again */
};

typedef struct conv_job {
    q7_conv_args x;
    const q7_call *call;
    bool in_place;
    int64_t rows, k, taps, pixels; /* of the product: M / groups, K, kd kh kw, OD OH OW */
    int64_t k_block;               /* summed at a time */
    int64_t row_tiles, row_blocks, panels, panel_blocks;
} conv_job;

/* A run of pixels of one line: `n` of them from `column` of a panel on, and where the corner of the
 * first window lies in x; as a copy, the offset of the first element in x. */
typedef struct run {
    int64_t column, n, d, h, w, offset;
} run;

static int64_t runs_of(const q7_conv_args *x, int64_t first, int64_t n, run *runs) {
    int64_t ow = first % x->OW, oh = first / x->OW % x->OH, od = first / x->OW / x->OH, count = 0;
    for (int64_t done = 0; done < n; ow = 0) {
        run *at = &runs[count++];
        *at = (run){.column = done,
                    .n = q7_min(n - done, x->OW - ow),
                    .d = od * x->stride_d - x->pad_front,
                    .h = oh * x->stride_h - x->pad_top,
                    .w = ow * x->stride_w - x->pad_left};
        done += at->n;
        if (++oh == x->OH) oh = 0, od++;
    }
    return count;
}

/* What one tap of the kernel reads for some runs: the parts of them that lie within x. */
static int64_t copies_of(const q7_conv_args *x, const run *runs, int64_t count, int64_t tap,
                         run *copies) {
    const int64_t j = tap % x->kw, i = tap / x->kw % x->kh, l = tap / x->kw / x->kh;
    int64_t kept = 0;
    for (int64_t r = 0; r < count; r++) {
        run at = runs[r];
        at.d += l * x->dilation_d;
        at.h += i * x->dilation_h;
        at.w += j * x->dilation_w;
        if (at.d < 0 || at.d >= x->D || at.h < 0 || at.h >= x->H || at.w >= x->W) continue;
        if (at.w + (at.n - 1) * x->stride_w >= x->W) at.n = q7_ceil_div(x->W - at.w, x->stride_w);
        const int64_t low = at.w < 0 ? q7_min(at.n, q7_ceil_div(-at.w, x->stride_w)) : 0;
        at.column += low;
        at.n -= low;
        at.offset = (at.d * x->H + at.h) * x->W + at.w + low * x->stride_w;
        if (at.n > 0) copies[kept++] = at;
    }
    return kept;
}

/* n floats in two moves of constant length, which overlap. */
#define MOVES(length)                                                             \
    if (n >= (length)) {                                                          \
        memcpy(to, from, (length) * sizeof(float));                               \
        memcpy(to + n - (length), from + n - (length), (length) * sizeof(float)); \
        return;                                                                   \
    }

/* to[p] = from[p * stride], n <= MAX_NR. */
static inline void copy_run(float *restrict to, const float *restrict from, int64_t n,
                            int64_t stride) {
    if (stride != 1) {
        for (int64_t p = 0; p < n; p++) to[p] = from[p * stride];
        return;
    }
    MOVES(16)
    MOVES(8)
    MOVES(4)
    for (int64_t p = 0; p < n; p++) to[p] = from[p];
}

/* Rows [k0, k0 + k) of columns for pixels [first, first + n), as a panel (k, nr). x0 is (C /
 * groups, D, H, W). Rows of one tap read alike, whatever their channel. */
static void pack_panel(const conv_job *job, const float *x0, int64_t k0, int64_t k, int64_t first,
                       int64_t n, float *panel) {
    const q7_conv_args *x = &job->x;
    const int64_t nr = job->call->nr, volume = x->D * x->H * x->W;
    run runs[MAX_NR], copies[MAX_NR];
    const int64_t count = runs_of(x, first, n, runs);
    for (int64_t start = 0; start < q7_min(k, job->taps); start++) {
        const int64_t kept = copies_of(x, runs, count, (k0 + start) % job->taps, copies);
        int64_t filled = 0;
        for (int64_t r = 0; r < kept; r++) filled += copies[r].n;
        const float *from = x0 + (k0 + start) / job->taps * volume;
        for (int64_t row = start; row < k; row += job->taps, from += volume) {
            float *to = panel + row * nr;
            if (filled < nr) memset(to, 0, (size_t)nr * sizeof(float));
            for (int64_t r = 0; r < kept; r++)
                copy_run(to + copies[r].column, from + copies[r].offset, copies[r].n, x->stride_w);
        }
    }
}

/* Whether columns is x. */
static bool is_pointwise(const q7_conv_args *x) {
    return x->kd * x->kh * x->kw == 1 && x->stride_d == 1 && x->stride_h == 1 && x->stride_w == 1 &&
           x->OD == x->D && x->OH == x->H && x->OW == x->W && x->pad_front == 0 &&
           x->pad_top == 0 && x->pad_left == 0;
}

/* The product for some panels of columns and the rows [row, end) of one group, whose w, y and
 * epilogue these are. */
static void conv_panels(const conv_job *job, const float *x0, const float *w, float *y,
                        const q7_gemm_epilogue *of_group, int64_t column, int64_t n, int64_t row,
                        int64_t end, float *pack) {
    const int64_t nr = job->call->nr;
    q7_gemm_epilogue epilogue = *of_group;
    const bool has_epilogue = epilogue.row_bias || epilogue.residual || epilogue.act;
    if (epilogue.row_bias) epilogue.row_bias += row;
    if (epilogue.residual) epilogue.residual += row * job->pixels + column;
    q7_gemm_block t = {.m = end - row,
                       .n = n,
                       .k_block = job->k_block,
                       .a_row_stride = job->k,
                       .a_k_stride = 1,
                       .b_stride = job->in_place ? job->pixels : nr,
                       .b_packed = !job->in_place,
                       .b_is_column = job->pixels == 1,
                       .c = y + row * job->pixels + column,
                       .c_stride = job->pixels};
    for (int64_t k0 = 0; k0 == 0 || k0 < job->k; k0 += job->k_block) {
        t.k = q7_min(job->k - k0, job->k_block);
        t.b = job->in_place ? x0 + k0 * job->pixels + column : pack;
        t.b_panel_stride = t.k * nr;
        t.a = w + row * job->k + k0;
        for (int64_t p = 0; p < n && !job->in_place; p += nr)
            pack_panel(job, x0, k0, t.k, column + p, q7_min(nr, n - p), pack + p * t.k);
        t.accumulate = k0 > 0;
        t.epilogue = k0 + t.k >= job->k && has_epilogue ? &epilogue : NULL;
        ((q7_gemm_kernel)job->call->kernel)(&t);
    }
}

static int64_t first_row(const conv_job *job, int64_t block) {
    return q7_part(job->rows, job->row_tiles, q7_part(job->row_tiles, job->row_blocks, block));
}

static void conv_task(void *arg, int64_t task, int64_t thread) {
    const conv_job *job = arg;
    const q7_conv_args *x = &job->x;
    const int64_t nr = job->call->nr, block = task % job->row_blocks,
                  panels = task / job->row_blocks % job->panel_blocks;
    const int64_t image = task / job->row_blocks / job->panel_blocks,
                  group = image % x->groups; /* image: (N, groups) */
    const q7_span span = q7_span_of(job->panels, job->panel_blocks, panels);
    const int64_t column = span.begin * nr, end = span.end * nr;
    const int64_t out = image * job->rows * job->pixels;
    const q7_gemm_epilogue epilogue = {
        .alpha = 1.0f,
        .row_bias = x->bias ? (const float *)x->bias + group * job->rows : NULL,
        .residual = x->residual ? (const float *)x->residual + out : NULL,
        .residual_stride = job->pixels,
        .residual_first = x->residual_first != 0,
        .act = x->act,
        .act_alpha = (float)x->act_alpha,
        .act_beta = (float)x->act_beta};
    const int64_t per_thread =
        q7_min(job->panels, Q7_CONV_PANELS) * q7_min(job->k, Q7_CONV_K_BLOCK) * nr;
    conv_panels(job, (const float *)x->x + image * (x->C / x->groups) * x->D * x->H * x->W,
                (const float *)x->w + group * job->rows * job->k, (float *)x->y + out, &epilogue,
                column, q7_min(end, job->pixels) - column, first_row(job, block),
                first_row(job, block + 1), q7_room_of(job->call, x->pack, per_thread * 4, thread));
}

void q7_op_conv(const q7_conv_args *x, const q7_call *call) {
    conv_job job = {.x = *x, .call = call, .rows = x->M / x->groups, .taps = x->kd * x->kh * x->kw};
    job.k = x->C / x->groups * job.taps;
    job.pixels = x->OD * x->OH * x->OW;
    const int64_t images = x->N * x->groups;
    if (images * job.rows * job.pixels == 0) return;
    if (is_pointwise(x)) { /* one long line */
        job.x.D = job.x.H = job.x.OD = job.x.OH = 1;
        job.x.W = job.x.OW = job.pixels;
    }
    job.k_block = q7_conv_k_block(job.k, 1, job.taps == 1);
    job.row_tiles = q7_ceil_div(job.rows, call->mr);
    job.panels = q7_ceil_div(job.pixels, call->nr);
    job.in_place = job.row_tiles <= Q7_FEW_TILES && is_pointwise(x);
    const int64_t wanted = q7_tasks_of(call, images * job.rows * job.pixels * job.k);
    job.panel_blocks = q7_max(q7_ceil_div(job.panels, job.in_place ? 1 : Q7_CONV_PANELS),
                              q7_min(job.panels, q7_ceil_div(wanted, 2 * images)));
    job.row_blocks = q7_min(q7_ceil_div(wanted, images * job.panel_blocks), job.rows / MIN_ROWS);
    job.row_blocks = q7_max(1, q7_min(job.row_blocks, job.row_tiles));
    q7_parallel(call, images * job.panel_blocks * job.row_blocks, conv_task, &job);
}
