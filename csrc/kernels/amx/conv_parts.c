/* conv_parts.c: the kernel of ../conv_parts.h. Read that and parts.h first.
 *
 * A product is of up to 64 rows and 16 filters. Its k values go in steps of 32 channels of a tap, taps
 * inside, so that L1 holds what the taps of 32 channels read again. Sums of 9 steps are added to those
 * before them by AVX-512, since all of k in one sum has twice the error of onnxruntime. w is cut once
 * for all rows, beside the products: 9 steps ahead of them, or one where all rows are one product. */
#include "../conv_parts.h"

#include "../gemm_finish.h"
#include "parts.h"

void q7_gemm_f32_avx512(const q7_gemm_block *block);

enum {
    COLUMNS = 16, /* filters of a product, half a panel */
    TILE = 16,    /* rows of a tile, */
    GROUP = 4,    /* and tiles of a product */
    BLOCK = 9,    /* steps of a sum */
    W_STEP = Q7_PARTS * Q7_PARTS_TILE,
    MOST_TAPS = 64,
};

typedef struct job {
    const q7_conv_parts_args *x;
    const q7_conv_parts_block *block;
    int64_t taps, steps, pitch, span;
    int64_t products, at_once; /* of all rows; steps that w is cut ahead */
    int64_t rows;              /* of parts, all images of the block */
    int64_t channels_stride;   /* bfloat16 of the parts of 32 channels */
    int64_t at[MOST_TAPS];     /* where a tap begins, from the first row of a window */
    q7_bf16 *a, *b[2];
    float *sums;
    bool *fits; /* lines of pixels */
} job;

/* The lines of y in a block that are of one image. */
typedef struct image {
    int64_t n, oh, lines;
    int64_t line;        /* the first of its pixels */
    int64_t tile, tiles; /* of its sums */
} image;

static bool next_image(const job *j, image *i) {
    const int64_t OH = j->x->OH;
    const bool begins = i->lines == 0;
    const int64_t first = begins ? j->block->first : i->n * OH + i->oh + i->lines;
    if (first >= j->block->end) return false;
    i->line += begins ? 0 : i->lines + j->span;
    i->tile += i->tiles;
    i->n = first / OH;
    i->oh = first % OH;
    i->lines = q7_min(j->block->end - first, OH - i->oh);
    i->tiles = q7_ceil_div((i->lines - 1) * j->pitch + j->x->OW, TILE);
    return true;
}

/* A pixel, or zeros, as a row; false if it does not fit. */
static bool cut_pixel(const job *j, const float *from, q7_bf16 *to) {
    const int64_t C = j->x->C, part = j->rows * Q7_PARTS_STEP;
    if (from) return q7_cut_row(from, C, 0, to, j->channels_stride, part);
    for (int64_t c = 0; c < C; c += Q7_PARTS_STEP, to += j->channels_stride)
        for (int i = 0; i < Q7_PARTS; i++)
            _mm512_store_si512(to + i * part, _mm512_setzero_si512());
    return true;
}

static void cut_image(const job *j, const image *i) {
    const q7_conv_parts_args *x = j->x;
    q7_bf16 *to = j->a + i->line * j->pitch * Q7_PARTS_STEP;
    for (int64_t v = 0; v < i->lines + j->span; v++) {
        const int64_t h = i->oh + v - x->pad_top;
        const float *line = (const float *)x->x + i->n * x->x_n_stride + h * x->x_h_stride;
        bool fits = true;
        for (int64_t u = 0; u < j->pitch; u++, to += Q7_PARTS_STEP) {
            const int64_t w = u - x->pad_left;
            const bool inside = h >= 0 && h < x->H && w >= 0 && w < x->W;
            fits &= cut_pixel(j, inside ? line + w * x->x_w_stride : NULL, to);
        }
        j->fits[i->line + v] = fits;
    }
}

/* What is done beside products: w is cut, in steps up to `end` of some filters, and sums of a block of
 * steps are added to those before. */
typedef struct beside {
    const job *j;
    int64_t filters, step, end, pair; /* filters: the how many-th 16 */
    const float *w;
    int64_t left, ahead; /* channels from there on, and floats to what is prefetched */
    q7_bf16 *to;
    __m512 largest;
    float *sums;
    int64_t rows; /* of made[turn] that wait */
    bool first;   /* there are none before */
    int turn;
    _Alignas(64) float made[2][GROUP * TILE * COLUMNS];
} beside;

static const float *weights_of(const job *j, int64_t filters, int64_t step) {
    const int64_t C = j->x->C, k = step % j->taps * C + step / j->taps * Q7_PARTS_STEP;
    const int64_t panel = filters / 2, half = filters % 2;
    return (const float *)j->x->w + (panel * j->taps * C + k) * NR + half * COLUMNS;
}

static void point_at(beside *c, q7_bf16 *to, int64_t filters, int64_t step) {
    const job *j = c->j;
    const bool ends = step + BLOCK >= j->steps;
    c->to = to;
    c->filters = filters;
    c->step = step;
    c->pair = 0;
    c->w = weights_of(j, filters, step);
    c->left = j->x->C - step / j->taps * Q7_PARTS_STEP;
    c->ahead = weights_of(j, filters + ends, step + BLOCK - ends * j->steps) - c->w;
}

/* Up to `count` of the 16 pairs of a step. */
Q7_INLINE void cut_pairs(beside *c, int64_t count) {
    if (c->step >= c->end) return;
    const int64_t end = q7_min(c->pair + count, TILE), left = c->left, ahead = c->ahead;
    const float *w = c->w;
    __m512 largest = c->largest;
    for (int64_t i = c->pair; i < end; i++) {
        const float *low = w + i * NR, *high = low + TILE * NR;
        q7_prefetch(low + ahead);
        q7_prefetch(high + ahead);
        q7_store_parts(i < left ? _mm512_loadu_ps(low) : _mm512_setzero_ps(),
                       i + TILE < left ? _mm512_loadu_ps(high) : _mm512_setzero_ps(), false,
                       c->to + i * Q7_PARTS_STEP, Q7_PARTS_TILE, &largest);
    }
    c->largest = largest;
    c->pair = end;
    if (end == TILE && c->step + 1 < c->end)
        point_at(c, c->to + W_STEP, c->filters, c->step + 1);
    else if (end == TILE)
        c->step++;
}

static void cut_rest(beside *c) {
    while (c->step < c->end) cut_pairs(c, TILE);
    BARRIER();
}

Q7_INLINE void add_made(beside *c) {
    const float *made = c->made[c->turn];
    for (int64_t i = 0; i < c->rows; i++) {
        const __m512 x = _mm512_load_ps(made + i * COLUMNS);
        float *to = c->sums + i * COLUMNS;
        _mm512_store_ps(to, c->first ? x : _mm512_add_ps(x, _mm512_load_ps(to)));
    }
    c->rows = 0;
}

/* Tiles 0 to 3 are sums, 4 rows of x, 5 to 7 the parts of w. */
Q7_INLINE void add_part(const q7_bf16 *a, const int tiles, const int part) {
#define ADD(i)                                     \
    if (tiles > i) {                               \
        _tile_loadd(4, a + i * Q7_PARTS_TILE, 64); \
        if (part == 0) _tile_dpbf16ps(i, 4, 5);    \
        if (part == 1) _tile_dpbf16ps(i, 4, 6);    \
        if (part == 2) _tile_dpbf16ps(i, 4, 7);    \
    }
    ADD(0)
    ADD(1)
    ADD(2)
    ADD(3)
#undef ADD
}

Q7_INLINE void zero_tiles(const int tiles) {
    _tile_zero(0);
    if (tiles > 1) _tile_zero(1);
    if (tiles > 2) _tile_zero(2);
    if (tiles > 3) _tile_zero(3);
}

Q7_INLINE void store_tiles(float *to, const int tiles) {
    _tile_stored(0, to, 64);
    if (tiles > 1) _tile_stored(1, to + 256, 64);
    if (tiles > 2) _tile_stored(2, to + 512, 64);
    if (tiles > 3) _tile_stored(3, to + 768, 64);
    BARRIER();
}

/* Products of the windows from a on and n steps, while count pairs are cut in six places of each. Their
 * sums are kept in tiles, or made at the end of a block. */
Q7_INLINE void multiply(const job *j, const q7_bf16 *a, int64_t step, int64_t n, const q7_bf16 *b,
                        const int tiles, beside *next, int64_t count, float *sums) {
    _Alignas(64) float unused[256];
    const int64_t part = j->rows * Q7_PARTS_STEP;
    int64_t tap = step % j->taps;
    const q7_bf16 *channels = a + step / j->taps * j->channels_stride;
    if (step % BLOCK == 0) zero_tiles(tiles);
    for (int64_t i = 0; i < n; i++, b += W_STEP) {
        const q7_bf16 *at = channels + j->at[tap];
        if (++tap == j->taps) tap = 0, channels += j->channels_stride;
        _tile_loadd(5, b, 64);
        add_part(at + 2 * part, tiles, 0);
        cut_pairs(next, count);
        add_part(at + part, tiles, 0);
        cut_pairs(next, count);
        _tile_loadd(6, b + Q7_PARTS_TILE, 64);
        add_part(at + part, tiles, 1);
        cut_pairs(next, count);
        add_part(at, tiles, 1);
        cut_pairs(next, count);
        _tile_loadd(7, b + 2 * Q7_PARTS_TILE, 64);
        add_part(at, tiles, 2);
        cut_pairs(next, count);
        add_part(at, tiles, 0);
        cut_pairs(next, count);
        q7_keep_stores_fast(unused);
    }
    if ((step + n) % BLOCK && step + n < j->steps) return;
    add_made(next);
    next->turn = !next->turn;
    next->sums = sums;
    next->rows = tiles * TILE;
    next->first = step < BLOCK;
    store_tiles(next->made[next->turn], tiles);
}

typedef void multiplier(const job *j, const q7_bf16 *a, int64_t step, int64_t n, const q7_bf16 *b,
                        beside *next, int64_t count, float *sums);
#define MULTIPLIER(tiles)                                                                      \
    static void multiply_##tiles(const job *j, const q7_bf16 *a, int64_t step, int64_t n,      \
                                 const q7_bf16 *b, beside *next, int64_t count, float *sums) { \
        multiply(j, a, step, n, b, tiles, next, count, sums);                                  \
    }
MULTIPLIER(1)
MULTIPLIER(2)
MULTIPLIER(3)
MULTIPLIER(4)

/* All products of n steps. */
static void multiply_steps(const job *j, int64_t step, int64_t n, const q7_bf16 *b, beside *next) {
    static multiplier *const by_tiles[] = {multiply_1, multiply_2, multiply_3, multiply_4};
    const int64_t count = q7_ceil_div(TILE, 6 * j->products);
    for (image i = {0}; next_image(j, &i);) {
        const int64_t groups = q7_ceil_div(i.tiles, GROUP);
        for (int64_t g = 0; g < groups; g++) {
            const int64_t tile = i.tiles * g / groups, tiles = i.tiles * (g + 1) / groups - tile;
            by_tiles[tiles - 1](j, j->a + (i.line * j->pitch + tile * TILE) * Q7_PARTS_STEP, step,
                                n, b, next, count, j->sums + (i.tile + tile) * TILE * COLUMNS);
        }
    }
    cut_rest(next);
}

/* Sums of n pixels of a line, by AVX-512: a tap at a time, of the windows that have it inside. */
static void sum_plain(const job *j, int64_t filters, int64_t n, int64_t oh, int64_t ow,
                      int64_t count, float *sums) {
    const q7_conv_parts_args *x = j->x;
    memset(sums, 0, (size_t)(count * COLUMNS) * sizeof(float));
    for (int64_t tap = 0; tap < j->taps; tap++) {
        const int64_t h = oh - x->pad_top + tap / x->kw * x->dilation_h;
        const int64_t w = ow - x->pad_left + tap % x->kw * x->dilation_w;
        const int64_t low = q7_max(0, -w), high = q7_min(count, x->W - w);
        if (h < 0 || h >= x->H || low >= high) continue;
        const float *from =
            (const float *)x->x + n * x->x_n_stride + h * x->x_h_stride + (w + low) * x->x_w_stride;
        const q7_gemm_block part = {.m = high - low,
                                    .n = COLUMNS,
                                    .k = x->C,
                                    .k_block = Q7_CONV_K_BLOCK,
                                    .a = from,
                                    .a_row_stride = x->x_w_stride,
                                    .a_k_stride = 1,
                                    .b = weights_of(j, filters, tap),
                                    .b_stride = NR,
                                    .c = sums + low * COLUMNS,
                                    .c_stride = COLUMNS,
                                    .accumulate = true};
        q7_gemm_f32_avx512(&part);
    }
}

/* A line of y from its sums, or where it does not fit without them. */
static void finish_line(const job *j, const image *i, int64_t line, int64_t filters, bool fits) {
    enum { SOME = 16 };
    const q7_conv_parts_args *x = j->x;
    const int64_t m = filters * COLUMNS, row = (i->n * x->OH + i->oh + line) * x->OW;
    float *sums = j->sums + (i->tile * TILE + line * j->pitch) * COLUMNS;
    for (int64_t v = 0; v <= j->span; v++) fits &= j->fits[i->line + line + v];
    for (int64_t ow = 0, n; ow < x->OW; ow += n, sums += n * COLUMNS) {
        _Alignas(64) float plain[SOME * COLUMNS];
        n = fits ? x->OW : q7_min(SOME, x->OW - ow);
        if (!fits) sum_plain(j, filters, i->n, i->oh + line, ow, n, plain);
        const q7_gemm_epilogue epilogue = {
            .alpha = 1.0f,
            .bias = x->bias ? (const float *)x->bias + m : NULL,
            .residual = x->residual
                            ? (const float *)x->residual + (row + ow) * x->residual_stride + m
                            : NULL,
            .residual_stride = x->residual_stride,
            .residual_first = x->residual_first != 0,
            .act = x->act,
            .act_alpha = (float)x->act_alpha,
            .act_beta = (float)x->act_beta};
        const q7_gemm_block part = {.m = n,
                                    .c = (float *)x->y + (row + ow) * x->y_stride + m,
                                    .c_stride = x->y_stride,
                                    .epilogue = &epilogue};
        q7_finish_floats(&part, fits ? sums : plain, COLUMNS, 0, q7_min(COLUMNS, x->M - m));
    }
}

/* What a block needs, and where in its room. */
static job job_of(const q7_conv_parts_args *x, const q7_conv_parts_block *block) {
    job j = {.x = x,
             .block = block,
             .taps = x->kh * x->kw,
             .pitch = q7_conv_parts_pitch(x),
             .span = q7_conv_parts_span(x)};
    const int64_t channels = q7_ceil_div(x->C, Q7_PARTS_STEP);
    j.steps = j.taps * channels;
    image i = {0};
    int64_t lines = 0;
    while (next_image(&j, &i)) {
        lines = i.line + i.lines + j.span;
        j.products += q7_ceil_div(i.tiles, GROUP);
    }
    j.at_once = j.products == 1 ? 1 : BLOCK;
    j.rows = (lines * j.pitch + TILE) | 1; /* odd: not the same sets of L1 */
    j.channels_stride = Q7_PARTS * j.rows * Q7_PARTS_STEP;
    for (int64_t tap = 0; tap < j.taps; tap++)
        j.at[tap] =
            (tap / x->kw * x->dilation_h * j.pitch + tap % x->kw * x->dilation_w) * Q7_PARTS_STEP;
    j.b[0] = block->room;
    j.b[1] = j.b[0] + BLOCK * W_STEP;
    j.a = j.b[1] + BLOCK * W_STEP;
    j.sums = (float *)(void *)(j.a + channels * j.channels_stride);
    j.fits = (bool *)(j.sums + (i.tile + i.tiles) * TILE * COLUMNS);
    return j;
}

/* Steps of w from (filters, step) on are cut next, if there are any. */
static void cut_next(beside *c, int64_t end, q7_bf16 *to, int64_t filters, int64_t step) {
    c->step = c->end = 0;
    if (filters == end) return;
    c->end = q7_min(step + c->j->at_once, c->j->steps);
    point_at(c, to, filters, step);
}

void Q7_KERNEL(conv_parts_f32)(const q7_conv_parts_args *x, const q7_conv_parts_block *block) {
    const job j = job_of(x, block);
    const int64_t end = q7_min(2 * block->panel, q7_ceil_div(x->M, COLUMNS));
    beside next = {.j = &j, .largest = _mm512_setzero_ps()};
    int turn = 0;
    q7_tiles_configure(TILE);
    for (image i = {0}; next_image(&j, &i);) cut_image(&j, &i);
    cut_next(&next, end, j.b[0], 2 * block->first_panel, 0);
    cut_rest(&next);
    for (int64_t filters = 2 * block->first_panel; filters < end; filters++) {
        bool fits = true;
        for (int64_t step = 0, n; step < j.steps; step += n) {
            n = q7_min(j.at_once, j.steps - step);
            turn = !turn;
            if (step + n < j.steps) {
                cut_next(&next, end, j.b[turn], filters, step + n);
            } else {
                fits = q7_parts_fit(next.largest) == 0xffff;
                next.largest = _mm512_setzero_ps();
                cut_next(&next, end, j.b[turn], filters + 1, 0);
            }
            multiply_steps(&j, step, n, j.b[!turn], &next);
        }
        add_made(&next);
        for (image i = {0}; next_image(&j, &i);)
            for (int64_t line = 0; line < i.lines; line++) finish_line(&j, &i, line, filters, fits);
    }
    _tile_release();
}
