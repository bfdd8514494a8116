/* conv_direct.c: the kernel of conv_direct.h for every ISA, in even tiles of up to those of tile.h. Filters
 * that fill one vector only are tiles of half the width. Read conv_direct.h first. */
#include "conv_direct.h"

#include <math.h>

#include "math.h"
#include "tile.h"

enum { TURN = 4 }; /* products of a loop's turn */

/* What is left of a line: its next window and pixel, and what to prefetch, `soon` floats for each tile. */
typedef struct place {
    const float *x, *residual;
    float *y;
    const float *next;
    int64_t soon;
} place;

/* y = act(y) * scale + shift + residual, or act(y + residual) .., of m pixels, where it was not done in
 * registers. */
Q7_INLINE void finish_as(const q7_conv_line *t, place at, int64_t m, const int64_t act) {
    const q7_f32 alpha = q7_set1(t->act_alpha), beta = q7_set1(t->act_beta);
    const int64_t y_stride = t->y_stride, residual_stride = t->residual_stride;
    const bool before = t->residual && t->residual_first, behind = t->residual && !before;
    const bool scaled = t->scale;
    for (int64_t j = 0; j < t->n; j += Q7_W) {
        const int64_t lanes = t->n - j;
        const float *residual = t->residual ? at.residual + j : NULL;
        const q7_f32 scale = scaled ? q7_load_part(t->scale + j, lanes) : alpha;
        const q7_f32 shift = scaled ? q7_load_part(t->shift + j, lanes) : alpha;
        float *y = at.y + j;
        for (int64_t i = 0; i < m; i++, y += y_stride) {
            q7_f32 v = q7_load_part(y, lanes);
            if (before) v = q7_add(v, q7_load_part(residual, lanes));
            v = q7_act(act, v, alpha, beta);
            if (scaled) v = q7_fma(scale, v, shift);
            if (behind) v = q7_add(v, q7_load_part(residual, lanes));
            q7_store_part(y, v, lanes);
            if (residual) residual += residual_stride;
        }
    }
}

static void finish(const q7_conv_line *t, place at, int64_t m) {
    switch (t->act) { /* a loop for each */
#define ACT(act)                           \
    case Q7_act_##act:                     \
        finish_as(t, at, m, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
}

/* Of vector j of filters, the lanes that exist. */
Q7_INLINE int64_t lanes_of(const q7_conv_line *t, int j, const int whole) {
    return j < whole ? Q7_W : q7_max(0, t->n - j * Q7_W);
}

/* What becomes of sums, up to y; whether they fill their vectors is a constant, too. Each of its parts
 * is a loop over registers, so that what they ask is asked once. */
Q7_INLINE void put(const q7_conv_line *t, place to, q7_f32 *sum, const q7_f32 *bias, const int m,
                   const int vectors, const int whole) {
#define ADD_RESIDUAL               \
    Q7_EACH_VECTOR(residual, step, \
                   *x = q7_add(*x, q7_load_part(row + j * Q7_W, lanes_of(t, j, whole))))
    Q7_EACH_VECTOR(to.y, 0, *x = q7_add(*x, bias[j]));
    const bool now = q7_clamps(t->act); /* else finish() does the rest */
    const float *residual = now && t->residual ? to.residual : NULL;
    const int64_t step = t->residual_stride;
    if (residual && t->residual_first) ADD_RESIDUAL;
    if (now && t->act != Q7_act_none) {
        const bool clip = t->act == Q7_act_clip;
        const q7_f32 low = q7_set1(clip ? t->act_alpha : 0.0f), high = q7_set1(t->act_beta);
        Q7_EACH_VECTOR(to.y, 0, *x = q7_vmax(low, *x));
        if (clip) Q7_EACH_VECTOR(to.y, 0, *x = q7_vmin(high, *x));
    }
    if (now && t->scale)
        Q7_EACH_VECTOR(to.y, 0,
                       *x = q7_fma(q7_load_part(t->scale + j * Q7_W, lanes_of(t, j, whole)), *x,
                                   q7_load_part(t->shift + j * Q7_W, lanes_of(t, j, whole))));
    if (residual && !t->residual_first) ADD_RESIDUAL;
#undef ADD_RESIDUAL
    const int64_t y_stride = t->y_stride;
    Q7_EACH_VECTOR(to.y, y_stride, q7_store_part(row + j * Q7_W, *x, lanes_of(t, j, whole)));
}

/* Windows of any stride, with few address registers: window i is at origin[i / 5] + i % 5 * row_bytes. */
Q7_INLINE void find_origins(const char *x, int64_t row_bytes, const char **origin) {
    Q7_UNROLL
    for (int i = 0; i < 3; i++) origin[i] = x + 5 * i * row_bytes;
}

Q7_INLINE const float *window(const char *const *origin, int64_t row_bytes, const int i) {
    return (const float *)(const void *)(origin[i / 5] + i % 5 * row_bytes);
}

/* Adds the products of one step of k of the windows from x on, in bytes, to sum [m][vectors]. m and vectors
 * are constants where this is inlined, here and below. */
Q7_INLINE void multiply_step(const char *x, int64_t row_bytes, const float *panel, q7_f32 *sum,
                             const int m, const int vectors, const int together) {
    q7_f32 w[VECTORS];
    const char *origin[3];
    find_origins(x, row_bytes, origin);
    Q7_UNROLL
    for (int j = 0; j < vectors; j++) w[j] = q7_load(panel + j * Q7_W);
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        const float *from = window(origin, row_bytes, i);
        const q7_f32 v = together == 2 ? q7_repeat_pair(from) : q7_set1(*from);
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[i * vectors + j] = q7_fma(v, w[j], sum[i * vectors + j]);
    }
}

/* Adds those of k steps from k0 on. Steps side by side need no offsets, which are a sixth of all that is
 * issued: where a core has another program to run as well, that is what limits it. */
Q7_INLINE void multiply_products(const q7_conv_line *t, const float *x, int64_t row_bytes,
                                 int64_t k0, int64_t k, q7_f32 *sum, const int m, const int vectors,
                                 const int together, const bool side_by_side) {
    const float *panel = t->w + k0 * NR;
    const int64_t *offset = t->offset + k0, *end = offset + k;
    if (!side_by_side) {
        Q7_UNROLL_BY_4
        for (; offset < end; offset++, panel += NR)
            multiply_step((const char *)(x + *offset), row_bytes, panel, sum, m, vectors, together);
        return;
    }
    for (int64_t n = t->run - k0 % t->run; offset < end; offset += n, n = t->run) {
        const char *at = (const char *)(x + *offset);
        n = q7_min(n, end - offset);
        Q7_UNROLL_BY_4
        for (int64_t left = n; left > 0; left--, panel += NR, at += 4 * together)
            multiply_step(at, row_bytes, panel, sum, m, vectors, together);
    }
}

/* sum [m][vectors] as sums of neighbouring lanes, [m][(vectors + 1) / 2]. */
Q7_INLINE void add_pairs(q7_f32 *sum, const int m, const int vectors) {
    const int left = (vectors + 1) / 2;
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        Q7_UNROLL
        for (int j = 0; j < left; j++) {
            const q7_f32 low = sum[i * vectors + 2 * j];
            const q7_f32 high = sum[i * vectors + q7_min(2 * j + 1, vectors - 1)];
            sum[i * left + j] =
                q7_evens(q7_add(low, q7_swap_pairs(low)), q7_add(high, q7_swap_pairs(high)));
        }
    }
}

/* Fetches a row of y, which a tile writes, and of the residual, `vectors` wide, and goes on to the next. */
Q7_INLINE void fetch(const q7_conv_line *t, place *row, const int vectors) {
    const int64_t last = t->n - 1; /* where rows are not aligned */
    Q7_UNROLL
    for (int j = 0; j < vectors * Q7_W; j += Q7_LINE_FLOATS) q7_prefetch_write(row->y + j);
    q7_prefetch_write(row->y + last);
    row->y += t->y_stride;
    if (!t->residual) return;
    Q7_UNROLL
    for (int j = 0; j < vectors * Q7_W; j += Q7_LINE_FLOATS) q7_prefetch(row->residual + j);
    q7_prefetch(row->residual + last);
    row->residual += t->residual_stride;
}

/* What becomes of sums where tiles end row by row, each with its last products: a core that takes two cycles
 * to store 64 bytes holds few such stores, and all of a tile behind one another keep the next one's products
 * waiting (docs/decisions.md 205). Smaller vectors gain nothing. */
typedef enum ending { NOT_BY_ROWS, NO_ACT, RELU, CLIP, ADD, ADD_RELU } ending;

static ending ending_of(const q7_conv_line *t) {
    const bool whole = t->n == Q7_W || t->n == NR;
    if (Q7_W < Q7_LINE_FLOATS || !whole || t->together == 2 || t->k > t->k_block)
        return NOT_BY_ROWS;
    if (!q7_clamps(t->act)) return NO_ACT; /* finish() does the rest */
    if (t->scale) return NOT_BY_ROWS;
    if (t->act == Q7_act_none) return t->residual ? ADD : NO_ACT;
    if (!t->residual) return t->act == Q7_act_relu ? RELU : CLIP;
    return t->act == Q7_act_relu && t->residual_first ? ADD_RELU : NOT_BY_ROWS;
}

/* The last step of k and what becomes of sums; the bias is in memory, as sums need the registers. */
Q7_INLINE void end_as(const q7_conv_line *t, place to, int64_t row_bytes, const q7_f32 *sum,
                      const int m, const int vectors, const ending how) {
    static const float zeros[NR];
    const q7_f32 high = q7_set1(t->act_beta), low = q7_set1(how == CLIP ? t->act_alpha : 0.0f);
    const int64_t y_stride = t->y_stride, residual_stride = t->residual_stride;
    const bool adds = how == ADD || how == ADD_RELU, clamps = how != NO_ACT && how != ADD;
    const float *bias = t->bias ? t->bias : zeros, *panel = t->w + (t->k - 1) * NR;
    const char *origin[3];
    find_origins((const char *)(to.x + t->offset[t->k - 1]), row_bytes, origin);
    q7_f32 w[VECTORS];
    Q7_UNROLL
    for (int j = 0; j < vectors; j++) w[j] = q7_load(panel + j * Q7_W);
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        const q7_f32 v = q7_set1(*window(origin, row_bytes, i));
        Q7_UNROLL
        for (int j = 0; j < vectors; j++) {
            q7_f32 y = q7_add(q7_load(bias + j * Q7_W), q7_fma(v, w[j], sum[i * vectors + j]));
            if (adds) y = q7_add(y, q7_load(to.residual + j * Q7_W));
            if (clamps) y = q7_vmax(low, y);
            if (how == CLIP) y = q7_vmin(high, y);
            q7_store(to.y + j * Q7_W, y);
        }
        to.y += y_stride;
        if (adds) to.residual += residual_stride;
        __asm__ volatile("" : "+r"(to.y)::"memory"); /* not for the optimiser to undo */
    }
}

Q7_INLINE void end(const q7_conv_line *t, place to, int64_t row_bytes, const q7_f32 *sum,
                   const int m, const int vectors, ending how) {
    switch (how) { /* a loop for each */
        case RELU: end_as(t, to, row_bytes, sum, m, vectors, RELU); break;
        case CLIP: end_as(t, to, row_bytes, sum, m, vectors, CLIP); break;
        case ADD: end_as(t, to, row_bytes, sum, m, vectors, ADD); break;
        case ADD_RELU: end_as(t, to, row_bytes, sum, m, vectors, ADD_RELU); break;
        default: end_as(t, to, row_bytes, sum, m, vectors, NO_ACT);
    }
}

/* Some tiles of m windows each. `by_rows`: k is one block, and they end so. */
Q7_INLINE void multiply(const q7_conv_line *t, place *at, int64_t tiles, const int m,
                        const int vectors, const int together, const bool fetches, const bool run,
                        const bool by_rows) {
    const int left = (vectors + together - 1) / together; /* of sums, in the end */
    int64_t row_bytes = t->x_stride * 4;
    __asm__("" : "+r"(row_bytes)); /* no version for a stride of 1 */
    const int64_t part = q7_max(TURN, t->k / (m + 1) / TURN * TURN);
    const ending how = ending_of(t);
    q7_f32 bias[VECTORS];
    Q7_UNROLL
    for (int j = 0; j < left && !by_rows; j++)
        bias[j] = t->bias ? q7_load_part(t->bias + j * Q7_W, t->n - j * Q7_W) : q7_set1(0.0f);
    place unfinished = *at;
    for (int64_t waiting = m; tiles > 0; tiles--, waiting += m) {
        q7_f32 sum[MR * VECTORS];
        float before[MR * NR];
        for (const float *end = at->next + at->soon; at->next < end; at->next += Q7_LINE_FLOATS)
            q7_prefetch(at->next);
        Q7_UNROLL
        for (int i = 0; i < m * vectors; i++) sum[i] = q7_set1(0.0f);
        place row = *at; /* fetched one by one: all would keep every miss buffer for long */
        for (int64_t k0 = 0, k;; k0 += k) { /* sums of blocks, one after the other */
            k = by_rows ? t->k - 1 : q7_min(t->k - k0, t->k_block);
            int64_t done = 0;
            for (; fetches && done + part < k; done += part) {
                fetch(t, &row, left);
                multiply_products(t, at->x, row_bytes, k0 + done, part, sum, m, vectors, together,
                                  run);
            }
            multiply_products(t, at->x, row_bytes, k0 + done, k - done, sum, m, vectors, together,
                              run);
            if (by_rows) break;
            if (k0 > 0) {
                Q7_UNROLL
                for (int i = 0; i < m * vectors; i++)
                    sum[i] = q7_add(q7_load(before + i * Q7_W), sum[i]);
            }
            if (k0 + k >= t->k) break;
            Q7_UNROLL
            for (int i = 0; i < m * vectors; i++) {
                q7_store(before + i * Q7_W, sum[i]);
                sum[i] = q7_set1(0.0f);
            }
        }
        if (together == 2) add_pairs(sum, m, vectors);
        if (by_rows)
            end(t, *at, row_bytes, sum, m, vectors, how);
        else if (t->n == left * Q7_W)
            put(t, *at, sum, bias, m, left, left);
        else
            put(t, *at, sum, bias, m, left, together == 1 && vectors > 1);
        at->x += m * t->x_stride;
        at->y += m * t->y_stride;
        if (t->residual) at->residual += m * t->residual_stride;
        if (waiting >= UNFINISHED || tiles == 1) {
            if (!q7_clamps(t->act)) finish(t, unfinished, waiting);
            unfinished = *at, waiting = 0;
        }
    }
}

/* One function per number of windows, of vectors and of values together, whether it fetches, and whether
 * tall tiles end by rows and short ones go through steps of k that are side by side, which takes tall tiles
 * 1.02 to 1.12 of the time (docs/decisions.md 130). */
/* clang-format off */
#define LINE_ARGS const q7_conv_line *t, place *at, int64_t tiles
#if SHORT_TILES
#define KINDS(f, m) f(single, m, 1, false, false) f(pair, m, 2, true, false) f(side, m, 1, true, false)
#elif defined(Q7_ISA_avx512)
#define KINDS(f, m) f(single, m, 1, false, false) f(pair, m, 2, false, false) f(rows, m, 1, false, true)
#else
#define KINDS(f, m) f(single, m, 1, false, false) f(pair, m, 2, false, false)
#endif
#define WIDTHS(name, m, together, run, by_rows)                                                               \
    static void narrow_##name##_##m(LINE_ARGS) { multiply(t, at, tiles, m, 1, together, false, run, by_rows); }     \
    static void wide_##name##_##m(LINE_ARGS) { multiply(t, at, tiles, m, VECTORS, together, false, run, by_rows); } \
    static void far_##name##_##m(LINE_ARGS) { multiply(t, at, tiles, m, VECTORS, together, true, run, by_rows); }
#define ROWS(m) KINDS(WIDTHS, m)
Q7_EVERY_ROW(ROWS)
#undef ROWS
#undef WIDTHS
#define WIDTHS(name, m, together, run, by_rows) {narrow_##name##_##m, wide_##name##_##m, far_##name##_##m},
#define ROWS(m) {KINDS(WIDTHS, m)},
static void (*const functions[MR][3][3])(LINE_ARGS) = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
#undef WIDTHS
#undef KINDS
#undef LINE_ARGS
/* clang-format on */

void Q7_KERNEL(conv_direct_f32)(const q7_conv_line *t) {
    const int64_t tiles = q7_ceil_div(t->m, MR), m = t->m / tiles, taller = t->m % tiles;
    place at = {t->x, t->residual, t->y, t->next, q7_ceil_div(t->next_floats, tiles * 16) * 16};
    const bool third = SHORT_TILES ? t->run > 1 : ending_of(t) != NOT_BY_ROWS;
    const int kind = t->together == 2 ? 1 : third ? 2 : 0;
    const int which = t->n * t->together <= Q7_W ? 0 : t->fetches ? 2 : 1;
    if (taller) functions[m][kind][which](t, &at, taller);
    functions[m - 1][kind][which](t, &at, tiles - taller);
}
