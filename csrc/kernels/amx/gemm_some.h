/* gemm_some.h: products of at most Q7_GEMM_SOME rows in AMX tiles; read gemm.c first.
 *
 * Here what costs is b, which is cut for few rows. It is cut a step ahead of the products that read it,
 * again for the second group of rows where there are two: two steps stay in L1, where parts of a whole
 * panel would go to L2 and back. A group has 32 or 48 rows; blocks of k are long, so that panels come
 * in the order of memory (docs/decisions.md 63). */
#ifndef Q7_GEMM_SOME_H
#define Q7_GEMM_SOME_H
#include "parts.h"

enum {
    TILE_ROWS = 16,
    MOST_TILES = Q7_GEMM_SOME / TILE_ROWS,
    GROUP_TILES = 3,
    LONG_STEPS = 32,  /* of a block of k */
    AHEAD = 4096 / NR /* k values from where b is cut to where it is prefetched */
};

static _Thread_local struct {
    _Alignas(64) q7_bf16 a[MOST_TILES * LONG_STEPS * Q7_PARTS * Q7_PARTS_TILE];
    _Alignas(64) q7_bf16 b[2][Q7_PARTS_SIZE];
    _Alignas(64) float sums[2][GROUP_TILES * TILE_ROWS * NR];
} some;

/* Rows that are multiplied at once. */
typedef struct group {
    int64_t row, m;
    int tiles;
    const q7_bf16 *a; /* (steps, parts, tiles): tiles of 16 rows of pairs */
    uint64_t odd;     /* rows that do not fit */
} group;

/* Where b is cut: a step of a panel, which all groups want before the next panel. */
typedef struct stepper {
    const q7_gemm_block *x;
    int64_t groups, group, panel, k;
    const float *b;      /* of the step; */
    int64_t left, ahead; /* k values from there on, and floats to what is prefetched */
    int turn;
    __m512 largest[2];
    bool fits; /* the panel before */
} stepper;

static void point_at(stepper *c) {
    const q7_gemm_block *x = c->x;
    const bool ends = c->panel * NR >= x->n;
    c->b = x->b + (ends ? 0 : c->panel * x->b_panel_stride + c->k * NR);
    c->left = ends ? 0 : x->k - c->k;
    c->ahead = AHEAD * NR;
    if (c->k + AHEAD >= x->k) c->ahead += x->b_panel_stride - x->k * NR;
}

static void next_step(stepper *c) {
    c->turn = !c->turn;
    c->k += Q7_PARTS_STEP;
    if (c->k >= c->x->k) {
        c->fits = q7_columns_fit(c->largest);
        c->largest[0] = c->largest[1] = _mm512_setzero_ps();
        c->k = 0;
        if (++c->group == c->groups) c->group = 0, c->panel++;
    }
    point_at(c);
}

/* Pairs [first, last) of the 16 of a step; both are constants where this is inlined. */
Q7_INLINE void cut_some(stepper *c, const int first, const int last) {
    const float *b = c->b + first * NR;
    q7_bf16 *to = some.b[c->turn] + first * Q7_PARTS_STEP;
    const bool whole = c->left >= Q7_PARTS_STEP;
    Q7_UNROLL
    for (int i = first; i < last; i++, b += NR, to += Q7_PARTS_STEP) {
        Q7_UNROLL
        for (int j = 0; j < 2; j++) {
            const float *low = b + 16 * j, *high = low + 16 * NR;
            q7_prefetch(low + c->ahead);
            q7_prefetch(high + c->ahead);
            q7_store_parts(whole || i < c->left ? _mm512_loadu_ps(low) : _mm512_setzero_ps(),
                           whole || i + 16 < c->left ? _mm512_loadu_ps(high) : _mm512_setzero_ps(),
                           false, to + j * Q7_PARTS_TILE, 2 * Q7_PARTS_TILE, &c->largest[j]);
        }
    }
}

/* sums += part i of a @ part j of b, for a step, while pairs [first, last) of the next are cut. Tiles
 * 0 to 5 are sums, 6 rows of a, 7 columns of b: loads are hidden, and six sums hide the latency. */
Q7_INLINE void multiply_parts(const q7_bf16 *a, int i, const q7_bf16 *b, int j, const int tiles,
                              stepper *next, const int first, const int last) {
    a += i * tiles * Q7_PARTS_TILE;
    b += 2 * j * Q7_PARTS_TILE;
    _tile_loadd(6, a, 64);
    _tile_loadd(7, b, 64);
    _tile_dpbf16ps(0, 6, 7);
    cut_some(next, first, first + 1);
    _tile_loadd(7, b + Q7_PARTS_TILE, 64);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(6, a + Q7_PARTS_TILE, 64);
    _tile_dpbf16ps(3, 6, 7);
    cut_some(next, first + 1, first + 2);
    _tile_loadd(7, b, 64);
    _tile_dpbf16ps(2, 6, 7);
    if (tiles == 3) {
        _tile_loadd(6, a + 2 * Q7_PARTS_TILE, 64);
        _tile_dpbf16ps(4, 6, 7);
    }
    cut_some(next, first + 2, last);
    if (tiles == 3) {
        _tile_loadd(7, b + Q7_PARTS_TILE, 64);
        _tile_dpbf16ps(5, 6, 7);
    }
}

/* sums (16 tiles, NR) of a group, whose first step of b is cut. */
Q7_INLINE void sum_group(const q7_bf16 *a, int64_t steps, const int tiles, stepper *next,
                         made *last, float *sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t i = 0; i < steps; i++, a += tiles * Q7_PARTS * Q7_PARTS_TILE) {
        const q7_bf16 *b = some.b[next->turn];
        next_step(next);
        multiply_parts(a, 2, b, 0, tiles, next, 0, 3);
        multiply_parts(a, 1, b, 0, tiles, next, 3, 6);
        multiply_parts(a, 1, b, 1, tiles, next, 6, 9);
        multiply_parts(a, 0, b, 1, tiles, next, 9, 12);
        finish_rows(last);
        multiply_parts(a, 0, b, 2, tiles, next, 12, 14);
        multiply_parts(a, 0, b, 0, tiles, next, 14, 16);
        q7_keep_stores_fast(room.unused);
    }
    _tile_stored(0, sums, 4 * NR);
    _tile_stored(1, sums + 16, 4 * NR);
    _tile_stored(2, sums + TILE_ROWS * NR, 4 * NR);
    _tile_stored(3, sums + TILE_ROWS * NR + 16, 4 * NR);
    if (tiles == 3) _tile_stored(4, sums + 2 * TILE_ROWS * NR, 4 * NR);
    if (tiles == 3) _tile_stored(5, sums + 2 * TILE_ROWS * NR + 16, 4 * NR);
    BARRIER();
}
static void sum_two(const q7_bf16 *a, int64_t steps, stepper *next, made *last, float *sums) {
    sum_group(a, steps, 2, next, last, sums);
}
static void sum_three(const q7_bf16 *a, int64_t steps, stepper *next, made *last, float *sums) {
    sum_group(a, steps, 3, next, last, sums);
}

/* A block of at most LONG_STEPS steps of k. */
static void multiply_some(const q7_gemm_block *x) {
    const int64_t tiles = q7_ceil_div(x->m, TILE_ROWS), steps = q7_ceil_div(x->k, Q7_PARTS_STEP);
    group groups[2];
    stepper next = {.x = x};
    q7_bf16 *parts = some.a;
    for (int64_t row = 0; row < x->m; row += groups[next.groups++].m) {
        group *g = &groups[next.groups];
        g->tiles = tiles == 3 ? 3 : 2;
        g->row = row;
        g->m = q7_min(g->tiles * TILE_ROWS, x->m - row);
        g->a = parts;
        g->odd = cut_rows(x, row, g->m, parts, g->tiles);
        parts += g->tiles * steps * Q7_PARTS * Q7_PARTS_TILE;
    }
    point_at(&next);
    cut_some(&next, 0, 16);
    made last = {.rows = q7_ceil_div(groups[0].m, steps)};
    int turn = 0;
    for (int64_t column = 0; column < x->n; column += NR)
        for (const group *g = groups; g < groups + next.groups; g++) {
            q7_gemm_epilogue epilogue;
            const q7_gemm_block part =
                q7_gemm_part(x, g->row, g->m, column, q7_min(NR, x->n - column), NR, &epilogue);
            float *sums = some.sums[turn];
            turn = !turn;
            BARRIER();
            (g->tiles == 3 ? sum_three : sum_two)(g->a, steps, &next, &last, sums);
            last.part.m = 0;
            if (!next.fits) {
                q7_gemm_f32_avx512(&part);
                continue;
            }
            if (g->odd) {
                finish_odd(&part, sums, g->odd);
                continue;
            }
            last.part = part;
            last.epilogue = epilogue;
            if (part.epilogue) last.part.epilogue = &last.epilogue;
            last.sums = sums;
        }
    last.rows = q7_max(1, last.part.m);
    finish_rows(&last);
}
#endif
