/* qtaps.h: the kernel of qdepthwise.h, over groups of SIZE taps that zip() makes and dot() adds, of
 * bytes that are signed if IS_SIGNED. Read qdepthwise.h first. */
#ifndef Q7_QTAPS_H
#define Q7_QTAPS_H
#include "../simd/simd.h"
#include "qdepthwise.h"

enum { BLOCK = 4 * Q7_W, VECTORS = 4 /* of a block's sums */, MOST = 2 /* pixels of a run */ };

/* A block of channels of a run. */
typedef struct qtaps_run {
    const q7_qdepthwise_args *x;
    const q7_qdepthwise_line *line;
    const char *panel;
    int64_t groups;       /* of all lines of the kernel */
    int64_t first, count; /* channels */
    int64_t pixels;       /* of y that are wanted */
    int64_t y;            /* elements before the first */
} qtaps_run;

/* The sums of a pixel as they are, or scaled, back in the order of channels. Inlined: arrays of vectors
 * whose address is taken are stored with every sum. */
Q7_INLINE void store_wide(const qtaps_run *r, const q7_i32 sum[VECTORS], const q7_f32 real[VECTORS],
                          int64_t at) {
    int32_t bits[BLOCK];
    const bool is_float = r->x->y_dtype == Q7_F32;
    Q7_UNROLL
    for (int v = 0; v < VECTORS; v++)
        if (is_float)
            q7_store((float *)(void *)(bits + v * Q7_W), real[v]);
        else
            q7_i32_store(bits + v * Q7_W, sum[v]);
    int32_t *y = (int32_t *)r->x->y + at;
    for (int64_t c = 0; c < r->count; c++) y[c] = bits[c / 4 % 4 * Q7_W + c / 16 * 4 + c % 4];
}

Q7_INLINE void finish(const qtaps_run *r, const q7_i32 sum[VECTORS], int64_t at) {
    const q7_qdepthwise_args *x = r->x;
    const float *scale = (const float *)(const void *)r->panel + BLOCK, *bias = scale + BLOCK;
    q7_f32 real[VECTORS];
    Q7_UNROLL
    for (int v = 0; v < VECTORS; v++)
        real[v] = q7_fma(q7_float(sum[v]), q7_load(scale + v * Q7_W), q7_load(bias + v * Q7_W));
    if (x->y_dtype == Q7_F32 || x->y_dtype == Q7_I32) {
        store_wide(r, sum, real, at);
        return;
    }
    const q7_block bytes = q7_block_of(real, r->line->zero, x->y_dtype == Q7_I8);
    if (r->count == BLOCK)
        q7_block_store((uint8_t *)x->y + at, bytes);
    else
        q7_block_store_tail((uint8_t *)x->y + at, bytes, r->count);
}

/* Pixels of y that share a run, of all channels. outs and flip are constants where this is inlined. */
Q7_INLINE void add_run(const qtaps_run *r, const int outs, const uint8_t flip) {
    const q7_qdepthwise_args *x = r->x;
    const int32_t zero = r->line->x_zero + (flip ? x->x_dtype == Q7_I8 ? 128 : -128 : 0);
    const int32_t *sums = (const int32_t *)(const void *)r->panel;
    const char *weight = r->panel + 3 * BLOCK * sizeof(int32_t);
    const uint8_t *const *tap = r->line->taps;
    q7_i32 sum[MOST * VECTORS], group[VECTORS];
    Q7_UNROLL
    for (int v = 0; v < outs * VECTORS; v++)
        sum[v] = q7_i32_mul(q7_i32_set1(-zero), q7_i32_load(sums + v % VECTORS * Q7_W));
    for (int64_t g = 0; g < r->groups; g++, tap += SIZE) {
        q7_block bytes[SIZE];
        Q7_UNROLL
        for (int t = 0; t < SIZE; t++) {
            const uint8_t *at = tap[t] + r->first;
            bytes[t] = r->count == BLOCK ? q7_block_load(at) : q7_block_load_tail(at, r->count);
            if (flip) bytes[t] = q7_block_xor(bytes[t], q7_block_set1(flip));
        }
        zip(bytes, group);
        int64_t parts = x->parts;
        do {
            Q7_UNROLL
            for (int v = 0; v < outs * VECTORS; v++, weight += 4 * Q7_W)
                sum[v] = dot(sum[v], weight, group[v % VECTORS]);
        } while (--parts);
    }
    Q7_UNROLL
    for (int o = 0; o < outs; o++)
        if (o < r->pixels) finish(r, sum + o * VECTORS, r->y + o * x->y_stride);
}

/* Where x has the pixels of the run at (top, left), or else what is outside. */
static void find_taps(const q7_qdepthwise_args *x, const q7_qdepthwise_line *line, int64_t top,
                      int64_t left, int64_t width) {
    const uint8_t **tap = line->taps;
    const uint8_t *image = (const uint8_t *)x->x + line->n * x->H * x->W * x->C;
    const bool inside = left >= 0 && left + (width - 1) * x->dilation_w < x->W;
    for (int64_t i = 0; i < x->kh; i++, tap += width) {
        const int64_t h = top + i * x->dilation_h;
        const bool has_line = h >= 0 && h < x->H;
        if (inside) {
            const uint8_t *first = has_line ? image + (h * x->W + left) * x->C : line->outside;
            const int64_t step = has_line ? x->dilation_w * x->C : 0;
            for (int64_t j = 0; j < width; j++, first += step) {
                __asm__("" : "+r"(first)); /* four are too few for vectors */
                tap[j] = first;
            }
            continue;
        }
        for (int64_t j = 0; j < width; j++) {
            int64_t w = left + j * x->dilation_w;
            __asm__("" : "+r"(w));
            const bool has = has_line && w >= 0 && w < x->W;
            tap[j] = has ? image + (h * x->W + w) * x->C : line->outside;
        }
    }
}

Q7_INLINE void add_line(const q7_qdepthwise_args *x, const q7_qdepthwise_line *line, const int outs,
                        const uint8_t flip) {
    const int64_t groups = q7_ceil_div(x->kw, SIZE);
    for (int64_t ow = 0; ow < x->OW; ow += outs) {
        find_taps(x, line, line->oh * x->stride_h - x->pad_top, ow * x->stride_w - x->pad_left,
                  groups * SIZE);
        qtaps_run r = {.x = x,
                       .line = line,
                       .panel = x->w,
                       .groups = x->kh * groups,
                       .pixels = x->OW - ow,
                       .y = ((line->n * x->OH + line->oh) * x->OW + ow) * x->y_stride};
        for (; r.first < x->C; r.first += BLOCK, r.y += BLOCK, r.panel += x->panel_bytes) {
            r.count = q7_min(BLOCK, x->C - r.first);
            add_run(&r, outs, flip);
        }
    }
}

static void line_of(const q7_qdepthwise_args *x, const q7_qdepthwise_line *line) {
    const bool flips = (x->x_dtype == Q7_I8) != IS_SIGNED, one = q7_qdepthwise_outs(x, SIZE) == 1;
    if (flips)
        one ? add_line(x, line, 1, 128) : add_line(x, line, 2, 128);
    else
        one ? add_line(x, line, 1, 0) : add_line(x, line, 2, 0);
}
#endif
