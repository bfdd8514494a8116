/* conv.c: y = act(conv(x, w) + bias) + residual in NCDHW, or act of all of that sum with
 * residual_first, as one matrix product per image and group:
 *
 *     y (M / groups, OD OH OW) = w (M / groups, K) @ columns (K, OD OH OW),
 *     K = C / groups * kd * kh * kw,  columns[(c, l, i, j), (od, oh, ow)] = x[c, d, h, w], or 0
 *     outside x, with d = od * stride_d - pad_front + l * dilation_d, h and w likewise
 *
 * columns is never formed as a whole: a task packs nr of them, a block of k at a time. For a 1x1
 * kernel of stride 1 without padding, columns is x itself; few rows read it in place, as all do the
 * weights. y does not overlap x. Read panels.h first.
 *
 * pack: threads * min(K, Q7_CONV_K_BLOCK) * nr * 4 bytes. */
#include "panels.h"

enum {
    BLOCK_ROWS = 1024, /* rows that share one packing of a panel */
    MIN_ROWS = 64,     /* fewer rows than this are not worth packing a panel again */
    K_BLOCKS = 4,      /* short sums are cut as well: a single one of 36 has 1.3 times the error */
    MIN_K_BLOCK = 16
};

typedef struct conv_job {
    const q7_conv_args *x;
    const q7_call *call;
    int64_t rows, k, pixels; /* of the product: M / groups, K, OD OH OW */
    int64_t k_block;         /* summed at a time */
    int64_t row_tiles, row_blocks, panels;
} conv_job;

/* One row of columns: pixels [first, first + n) for the offset (l, i, j) of the kernel; volume is
 * (D, H, W). */
static void pack_row(const q7_conv_args *x, const float *volume, int64_t l, int64_t i, int64_t j,
                     int64_t first, int64_t n, float *row) {
    int64_t ow = first % x->OW, oh = first / x->OW % x->OH, od = first / x->OW / x->OH;
    for (int64_t done = 0, run; done < n; done += run, ow = 0) {
        run = q7_min(n - done, x->OW - ow);
        const int64_t d = od * x->stride_d - x->pad_front + l * x->dilation_d;
        const int64_t h = oh * x->stride_h - x->pad_top + i * x->dilation_h;
        const int64_t w =
            ow * x->stride_w - x->pad_left + j * x->dilation_w; /* of the run's first pixel */
        int64_t low = 0, high = 0; /* the pixels of the run that lie within [0, W) */
        if (d >= 0 && d < x->D && h >= 0 && h < x->H && w < x->W) {
            const int64_t end = w + (run - 1) * x->stride_w; /* divide at the borders only */
            low = w >= 0 ? 0 : q7_min(run, q7_ceil_div(-w, x->stride_w));
            high = end < x->W ? run : q7_max(low, q7_ceil_div(x->W - w, x->stride_w));
        }
        float *out = row + done;
        const int64_t at = (d * x->H + h) * x->W + w;
        for (int64_t p = 0; p < low; p++) out[p] = 0.0f;
        if (x->stride_w == 1 && low < high)
            memcpy(out + low, volume + at + low, (size_t)(high - low) * sizeof(float));
        else
            for (int64_t p = low; p < high; p++) out[p] = volume[at + p * x->stride_w];
        for (int64_t p = high; p < run; p++) out[p] = 0.0f;
        if (++oh == x->OH) oh = 0, od++;
    }
}

/* Rows [k0, k0 + k) of columns for pixels [first, first + n), as a panel (k, nr). x0 is (C /
 * groups, D, H, W). */
static void pack_panel(const conv_job *job, const float *x0, int64_t k0, int64_t k, int64_t first,
                       int64_t n, float *panel) {
    const q7_conv_args *x = job->x;
    const int64_t nr = job->call->nr, volume = x->D * x->H * x->W;
    int64_t j = k0 % x->kw, i = k0 / x->kw % x->kh, l = k0 / x->kw / x->kh % x->kd;
    int64_t c = k0 / x->kw / x->kh / x->kd;
    for (int64_t row = 0; row < k; row++, panel += nr) {
        pack_row(x, x0 + c * volume, l, i, j, first, n, panel);
        for (int64_t p = n; p < nr; p++) panel[p] = 0.0f;
        if (++j < x->kw) continue;
        j = 0;
        if (++i < x->kh) continue;
        i = 0;
        if (++l == x->kd) l = 0, c++;
    }
}

/* Whether columns is x. */
static bool is_pointwise(const q7_conv_args *x) {
    return x->kd * x->kh * x->kw == 1 && x->stride_d == 1 && x->stride_h == 1 && x->stride_w == 1 &&
           x->OD == x->D && x->OH == x->H && x->OW == x->W && x->pad_front == 0 &&
           x->pad_top == 0 && x->pad_left == 0;
}

static void conv_task(void *arg, int64_t task, int64_t thread) {
    const conv_job *job = arg;
    const q7_conv_args *x = job->x;
    const int64_t nr = job->call->nr, block = task % job->row_blocks,
                  column = task / job->row_blocks % job->panels * nr;
    const int64_t image = task / job->row_blocks / job->panels,
                  group = image % x->groups; /* image: (N, groups) */
    const float *x0 = (const float *)x->x + image * (x->C / x->groups) * x->D * x->H * x->W;
    const float *w = (const float *)x->w + group * job->rows * job->k;
    const float *bias = x->bias ? (const float *)x->bias + group * job->rows : NULL;
    const int64_t out = image * job->rows * job->pixels;
    float *y = (float *)x->y + out;
    const float *residual = x->residual ? (const float *)x->residual + out : NULL;
    float *panel = (float *)x->pack + thread * q7_min(job->k, Q7_CONV_K_BLOCK) * nr;
    const int64_t first_tile = q7_part(job->row_tiles, job->row_blocks, block);
    const int64_t last_tile = q7_part(job->row_tiles, job->row_blocks, block + 1);
    const bool in_place = job->row_tiles <= Q7_FEW_TILES && is_pointwise(x);
    q7_gemm_epilogue epilogue = {.alpha = 1.0f,
                                 .residual_stride = job->pixels,
                                 .residual_first = x->residual_first != 0,
                                 .act = x->act,
                                 .act_alpha = (float)x->act_alpha,
                                 .act_beta = (float)x->act_beta};
    q7_gemm_tile t = {.n = q7_min(nr, job->pixels - column),
                      .a_row_stride = job->k,
                      .a_k_stride = 1,
                      .c_stride = job->pixels};
    t.b_packed = !in_place;
    t.b_stride = in_place ? job->pixels : nr;

    for (int64_t k0 = 0; k0 == 0 || k0 < job->k; k0 += job->k_block) {
        t.k = q7_min(job->k - k0, job->k_block);
        t.b = in_place ? x0 + k0 * job->pixels + column : panel;
        t.prefetch = t.b;
        if (!in_place) pack_panel(job, x0, k0, t.k, column, t.n, panel);
        t.accumulate = k0 > 0;
        if (k0 + t.k >= job->k && (bias || residual || x->act)) t.epilogue = &epilogue;
        for (int64_t tile = first_tile; tile < last_tile; tile++) {
            const int64_t row = q7_part(job->rows, job->row_tiles, tile);
            t.m = q7_part(job->rows, job->row_tiles, tile + 1) - row;
            t.a = w + row * job->k + k0;
            t.c = y + row * job->pixels + column;
            epilogue.row_bias = bias ? bias + row : NULL;
            epilogue.residual = residual ? residual + row * job->pixels + column : NULL;
            ((q7_gemm_kernel)job->call->kernel)(&t);
        }
    }
}

void q7_op_conv(const q7_conv_args *x, const q7_call *call) {
    conv_job job = {.x = x,
                    .call = call,
                    .rows = x->M / x->groups,
                    .k = x->C / x->groups * x->kd * x->kh * x->kw};
    job.k_block = q7_min(q7_max(q7_ceil_div(job.k, K_BLOCKS), MIN_K_BLOCK), Q7_CONV_K_BLOCK);
    job.pixels = x->OD * x->OH * x->OW;
    const int64_t images = x->N * x->groups;
    if (images * job.rows * job.pixels == 0) return;
    job.panels = q7_ceil_div(job.pixels, call->nr);
    job.row_tiles = q7_ceil_div(job.rows, call->mr);
    const int64_t wanted = q7_ceil_div(call->threads * Q7_TASKS_PER_THREAD, images * job.panels);
    job.row_blocks = q7_max(q7_ceil_div(job.rows, BLOCK_ROWS), q7_min(wanted, job.rows / MIN_ROWS));
    job.row_blocks = q7_min(job.row_blocks, job.row_tiles);
    q7_parallel(call, images * job.panels * job.row_blocks, conv_task, &job);
}
