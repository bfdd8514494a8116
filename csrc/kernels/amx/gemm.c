/* gemm.c: the kernel of ../gemm.h in AMX tiles. Read parts.h first.
 *
 * Rows of a are cut into parts once for all columns. b is cut for every group of two or three tiles
 * of rows again, a step ahead of the products that read it, which AVX-512 and AMX do side by side:
 * two steps stay in L1, where parts of a whole panel would go to L2 and back. Few rows, a that is not
 * contiguous along k, and what does not fit go to the kernel of AVX-512. */
#include "../gemm_finish.h"
#include "parts.h"

enum {
    TILE_ROWS = 16,
    MOST_TILES = 3, /* of a group */
    STEP = Q7_PARTS_STEP,
    STEPS = 14,      /* of a block of k, */
    LONG_STEPS = 64, /* and where there is a single group, whose b comes in the order of memory then */
    ROOM_TILES = Q7_GEMM_ROWS / TILE_ROWS * STEPS * Q7_PARTS,
    AHEAD = 4096 / NR /* k values from where b is cut to where it is prefetched */
};
_Static_assert(Q7_GEMM_SINGLE == MOST_TILES * TILE_ROWS, "rows of a single group");
_Static_assert(ROOM_TILES >= MOST_TILES * LONG_STEPS * Q7_PARTS, "a long group fits");

void q7_gemm_f32_avx512(const q7_gemm_block *block);

/* Of a thread, whatever it multiplies: 0.6 MB that stay in its L2. */
static _Thread_local struct {
    _Alignas(64) q7_bf16 a[ROOM_TILES * Q7_PARTS_TILE];
    _Alignas(64) q7_bf16 b[2][Q7_PARTS_SIZE];
    _Alignas(64) float sums[MOST_TILES * TILE_ROWS * NR];
    _Alignas(64) float unused[256];
} room;

/* Rows that are multiplied at once. */
typedef struct group {
    int64_t row, m;
    int tiles;
    const q7_bf16 *a; /* (steps, parts, tiles): tiles of 16 rows of pairs */
    bool fits;
} group;

/* The rows of a group; false if one does not fit. */
static bool cut_rows(const q7_gemm_block *x, const group *g, q7_bf16 *parts) {
    const int64_t whole = x->k / STEP * STEP, size = Q7_PARTS * g->tiles * Q7_PARTS_TILE;
    bool fits = true;
    for (int64_t i = 0; i < g->m; i++) {
        const float *a = x->a + (g->row + i) * x->a_row_stride;
        __m512 largest = _mm512_setzero_ps();
        q7_bf16 *to = parts + i * STEP;
        for (int64_t k = 0; k < whole; k += STEP, to += size) {
            q7_prefetch(a + k + x->k); /* for the next block of k */
            q7_prefetch(a + k + x->k + 16);
            q7_store_parts(_mm512_loadu_ps(a + k), _mm512_loadu_ps(a + k + 16), to,
                           g->tiles * Q7_PARTS_TILE, &largest);
        }
        if (whole < x->k)
            q7_store_parts(q7_load_left(a + whole, x->k - whole),
                           q7_load_left(a + whole + 16, x->k - whole - 16), to,
                           g->tiles * Q7_PARTS_TILE, &largest);
        fits &= q7_parts_fit(_mm512_set1_ps(_mm512_reduce_max_ps(largest))) != 0;
    }
    return fits;
}

/* Where b is cut: a step of a panel, which all groups want before the next panel. */
typedef struct cutter {
    const q7_gemm_block *x;
    int64_t groups, group, panel, k;
    const float *b;      /* of the step; */
    int64_t left, ahead; /* k values from there on, and floats to what is prefetched */
    int turn;
    __m512 largest[2];
    bool fits; /* the panel before */
} cutter;

static void point_at(cutter *c) {
    const q7_gemm_block *x = c->x;
    const bool ends = c->panel * NR >= x->n;
    c->b = x->b + (ends ? 0 : c->panel * x->b_panel_stride + c->k * NR);
    c->left = ends ? 0 : x->k - c->k;
    c->ahead = AHEAD * NR;
    if (c->k + AHEAD >= x->k) c->ahead += x->b_panel_stride - x->k * NR;
}

static void next_step(cutter *c) {
    c->turn = !c->turn;
    c->k += STEP;
    if (c->k >= c->x->k) {
        c->fits = (q7_parts_fit(c->largest[0]) & q7_parts_fit(c->largest[1])) == 0xffff;
        c->largest[0] = c->largest[1] = _mm512_setzero_ps();
        c->k = 0;
        if (++c->group == c->groups) c->group = 0, c->panel++;
    }
    point_at(c);
}

/* Pairs [first, last) of the 16 of a step; both are constants where this is inlined. */
Q7_INLINE void cut_pairs(cutter *c, const int first, const int last) {
    const float *b = c->b + first * NR;
    q7_bf16 *to = room.b[c->turn] + first * STEP;
    const bool whole = c->left >= STEP;
    Q7_UNROLL
    for (int i = first; i < last; i++, b += NR, to += STEP) {
        Q7_UNROLL
        for (int j = 0; j < 2; j++) {
            const float *low = b + 16 * j, *high = low + 16 * NR;
            q7_prefetch(low + c->ahead);
            q7_prefetch(high + c->ahead);
            q7_store_parts(whole || i < c->left ? _mm512_loadu_ps(low) : _mm512_setzero_ps(),
                           whole || i + 16 < c->left ? _mm512_loadu_ps(high) : _mm512_setzero_ps(),
                           to + j * Q7_PARTS_TILE, 2 * Q7_PARTS_TILE, &c->largest[j]);
        }
    }
}

/* sums += part i of a @ part j of b, for a step, while pairs [first, last) of the next are cut. Tiles
 * 0 to 5 are sums, 6 rows of a, 7 columns of b: loads are hidden, and six sums hide the latency. */
Q7_INLINE void multiply_parts(const q7_bf16 *a, int i, const q7_bf16 *b, int j, const int tiles,
                              cutter *next, const int first, const int last) {
    a += i * tiles * Q7_PARTS_TILE;
    b += 2 * j * Q7_PARTS_TILE;
    _tile_loadd(6, a, 64);
    _tile_loadd(7, b, 64);
    _tile_dpbf16ps(0, 6, 7);
    cut_pairs(next, first, first + 1);
    _tile_loadd(7, b + Q7_PARTS_TILE, 64);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(6, a + Q7_PARTS_TILE, 64);
    _tile_dpbf16ps(3, 6, 7);
    cut_pairs(next, first + 1, first + 2);
    _tile_loadd(7, b, 64);
    _tile_dpbf16ps(2, 6, 7);
    if (tiles == 3) {
        _tile_loadd(6, a + 2 * Q7_PARTS_TILE, 64);
        _tile_dpbf16ps(4, 6, 7);
    }
    cut_pairs(next, first + 2, last);
    if (tiles == 3) {
        _tile_loadd(7, b + Q7_PARTS_TILE, 64);
        _tile_dpbf16ps(5, 6, 7);
    }
}

/* room.sums (16 tiles, NR) of a group, whose first step of b is cut. */
Q7_INLINE void multiply(const q7_bf16 *a, int64_t steps, const int tiles, cutter *next) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t i = 0; i < steps; i++, a += tiles * Q7_PARTS * Q7_PARTS_TILE) {
        const q7_bf16 *b = room.b[next->turn];
        next_step(next);
        multiply_parts(a, 2, b, 0, tiles, next, 0, 3);
        multiply_parts(a, 1, b, 0, tiles, next, 3, 6);
        multiply_parts(a, 1, b, 1, tiles, next, 6, 9);
        multiply_parts(a, 0, b, 1, tiles, next, 9, 12);
        multiply_parts(a, 0, b, 2, tiles, next, 12, 14);
        multiply_parts(a, 0, b, 0, tiles, next, 14, 16);
        q7_keep_stores_fast(room.unused);
    }
    _tile_stored(0, room.sums, 4 * NR);
    _tile_stored(1, room.sums + 16, 4 * NR);
    _tile_stored(2, room.sums + TILE_ROWS * NR, 4 * NR);
    _tile_stored(3, room.sums + TILE_ROWS * NR + 16, 4 * NR);
    if (tiles == 3) _tile_stored(4, room.sums + 2 * TILE_ROWS * NR, 4 * NR);
    if (tiles == 3) _tile_stored(5, room.sums + 2 * TILE_ROWS * NR + 16, 4 * NR);
    BARRIER();
}
static void multiply_two(const q7_bf16 *a, int64_t steps, cutter *next) {
    multiply(a, steps, 2, next);
}
static void multiply_three(const q7_bf16 *a, int64_t steps, cutter *next) {
    multiply(a, steps, 3, next);
}

/* Up to Q7_GEMM_ROWS rows, and k in one block. */
static void multiply_rows(const q7_gemm_block *x) {
    const int64_t tiles = q7_ceil_div(x->m, TILE_ROWS), steps = q7_ceil_div(x->k, STEP);
    group groups[Q7_GEMM_ROWS / TILE_ROWS / 2];
    cutter next = {.x = x};
    q7_bf16 *parts = room.a;
    for (int64_t tile = 0; tile < tiles; tile += groups[next.groups++].tiles) {
        const int64_t left = tiles - tile, row = tile * TILE_ROWS;
        group *g = &groups[next.groups];
        g->tiles = left == 2 || left == 4 ? 2 : 3;
        g->row = row;
        g->m = q7_min(g->tiles * TILE_ROWS, x->m - row);
        g->a = parts;
        g->fits = cut_rows(x, g, parts);
        parts += g->tiles * steps * Q7_PARTS * Q7_PARTS_TILE;
    }
    point_at(&next);
    cut_pairs(&next, 0, 16);
    for (int64_t column = 0; column < x->n; column += NR)
        for (const group *g = groups; g < groups + next.groups; g++) {
            BARRIER();
            (g->tiles == 2 ? multiply_two : multiply_three)(g->a, steps, &next);
            q7_gemm_epilogue epilogue;
            const q7_gemm_block part =
                q7_gemm_part(x, g->row, g->m, column, q7_min(NR, x->n - column), NR, &epilogue);
            if (g->fits && next.fits)
                q7_finish_floats(&part, room.sums, NR, 0, part.n);
            else
                q7_gemm_f32_avx512(&part);
        }
}

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *x) {
    if (x->m <= Q7_GEMM_FEW || !x->b_packed || x->a_k_stride != 1 || x->k < STEP) {
        q7_gemm_f32_avx512(x);
        return;
    }
    const int64_t steps = q7_ceil_div(x->k, STEP), most = x->m <= Q7_GEMM_SINGLE ? LONG_STEPS : STEPS;
    const int64_t k_block = q7_ceil_div(steps, q7_ceil_div(steps, most)) * STEP;
    q7_tiles_configure(TILE_ROWS);
    for (int64_t row = 0, m; row < x->m; row += m) {
        m = q7_min(Q7_GEMM_ROWS, x->m - row);
        q7_gemm_epilogue epilogue;
        const q7_gemm_block rows = q7_gemm_part(x, row, m, 0, x->n, NR, &epilogue);
        for (int64_t k0 = 0; k0 < x->k; k0 += k_block) {
            q7_gemm_block part = rows;
            part.k = q7_min(x->k - k0, k_block);
            part.a += k0;
            part.b += k0 * NR;
            part.accumulate = x->accumulate || k0 > 0;
            if (k0 + part.k < x->k) part.epilogue = NULL;
            multiply_rows(&part);
        }
    }
    _tile_release();
}
