/* gemm.c: the kernels of ../gemm.h and ../block_gemm.h in AMX tiles. Read products.h first.
 *
 * Every group of up to 32 rows of a is multiplied by all k of a panel of b in one visit; only those by the
 * first panel are of a few steps of k, and sums lie in memory between two visits. AVX-512 works beside the
 * products: it cuts what b has for the next visit, while the first panel is multiplied also what a has for
 * it, and it finishes sums of the panel before. Where there is one group alone, a step cuts the next one of b:
 * parts are in two places by turns, which stay in L1. Few rows, a that is not contiguous along k, and what
 * does not fit go to the kernels of AVX-512.
 *
 * A block whose rows have an id leaves them in parts, and what it has cut of the panel behind its own: the
 * next block of that id on this thread cuts no rows, and if it begins there, goes on with that panel.
 *
 * Fewer parts of b are fewer products: six for a float, five for a float16, three for a bfloat16, with the
 * same bits. Weights of a few bits have three as well; sums are those of one block then, and are multiplied
 * by its scales as they are added. */
#include "products.h"

enum {
    FIRST = 2,    /* steps of a visit while rows are cut, or a block; which else is a whole panel */
    LONGEST = 8,  /* steps that are summed of weights of a few bits whose block is longer */
    FINISHED = 8, /* rows at a time, or more */
};

_Thread_local struct q7_parts_room q7_parts_room;

void q7_gemm_f32_avx512(const q7_gemm_block *block);
void q7_block_gemm_f32_avx512(const q7_block_tile *tile);

/* What AVX-512 makes of one panel, and of the k that x has. */
static void multiply_without(const q7_gemm_block *x, const q7_block_tile *few, int64_t panel) {
    if (!few) {
        q7_gemm_f32_avx512(x);
        return;
    }
    const int64_t block = few->first / few->block;
    q7_block_tile t = *few;
    t.gemm = *x;
    t.q = (const uint8_t *)panel_of(x, few, panel);
    t.scale += (panel * few->blocks + block) * NR;
    if (t.zero) t.zero = (const uint8_t *)t.zero + (panel * few->blocks + block) * NR;
    q7_block_gemm_f32_avx512(&t);
}

/* All rows of a panel at once: those that do not fit each by itself, so that bits of none depend on which
 * others were cut into tiles with it. */
static void finish_odd(const q7_gemm_block *x, const float *sums, const q7_block_tile *few,
                       int64_t panel) {
    for (int64_t i = 0; i < x->m; i++) {
        q7_gemm_block row;
        q7_gemm_epilogue epilogue;
        q7_gemm_part(x, i, 1, 0, x->n, NR, &row, &epilogue);
        if (q7_parts_room.odd[i])
            multiply_without(&row, few, panel);
        else
            q7_finish_floats(&row, sums + i * NR, NR, 0, row.n);
    }
}

/* clang-format off */
typedef void multiplier(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, bool add, float *sums, beside *o);
#define MULTIPLIER(kind, two)                                                                        \
    static void multiply_##kind##_##two(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, bool add, \
                                        float *sums, beside *o) {                                    \
        if (kind == BITS)                                                                            \
            multiply_bits(a, b, steps, two, add, sums, o);                                           \
        else                                                                                         \
            multiply(a, b, steps, kind, two, add, sums, o);                                          \
    }
MULTIPLIER(FLOATS, false) MULTIPLIER(FLOATS, true)
MULTIPLIER(F16, false) MULTIPLIER(F16, true)
MULTIPLIER(BF16, false) MULTIPLIER(BF16, true)
MULTIPLIER(BITS, false) MULTIPLIER(BITS, true)
static multiplier *const multipliers[][2] = {
    [FLOATS] = {multiply_FLOATS_false, multiply_FLOATS_true},
    [F16] = {multiply_F16_false, multiply_F16_true},
    [BF16] = {multiply_BF16_false, multiply_BF16_true},
    [BITS] = {multiply_BITS_false, multiply_BITS_true}};
/* clang-format on */

/* What the next block of the same rows, whose panels are those behind x, need not do again: all of a, and what
 * was cut of the first panel. */
static void keep(const q7_gemm_block *x, const q7_block_tile *few, const columns *b) {
    q7_parts_room.a_id = x->a_id;
    q7_parts_room.ahead = x->n_after ? panel_of(x, few, q7_ceil_div(x->n, NR)) : NULL;
    q7_parts_room.turn = b->turn;
    memcpy(q7_parts_room.largest_ahead, b->largest, sizeof b->largest);
}

static void go_on(columns *b) {
    b->turn = q7_parts_room.turn;
    memcpy(b->largest, q7_parts_room.largest_ahead, sizeof b->largest);
}

/* Up to Q7_GEMM_TILE_ROWS rows, and k in one block; few: of BITS, whose rows of that k begin at `first`. */
Q7_INLINE void multiply_rows(const q7_gemm_block *x, int64_t each, const q7_block_tile *few,
                             const enum kind kind) {
    const int64_t groups = q7_ceil_div(x->m, each), panels = q7_ceil_div(x->n, NR);
    const int64_t steps = q7_ceil_div(x->k, Q7_PARTS_STEP);
    const int64_t of_block = few ? q7_min(few->block / Q7_PARTS_STEP, LONGEST) : 1;
    const int64_t first = q7_ceil_div(FIRST, of_block) * of_block;
    const bool in_tiles = groups == 1 && steps > 1 && !few;
    const bool known = x->a_id && x->a_id == q7_parts_room.a_id;
    const bool goes_on = known && q7_parts_room.ahead == panel_of(x, few, 0);
    const int64_t usual = in_tiles ? 1 : steps, places = few && each <= TILE ? PLACES / 2 : PLACES;
    const int64_t finished = q7_max(FINISHED, q7_ceil_div(x->m, groups * steps));
    made last = {.rows = finished, .steps = q7_max(1, groups * steps * finished / x->m)};
    beside o = {.x = x,
                .few = few,
                .usual = usual,
                .b = {.all = groups < (few ? 2 : GROUPS),
                      .largest = {_mm512_setzero_ps(), _mm512_setzero_ps()}},
                .a = known ? (rows){0} : rows_at(x, 0, each, 0, first),
                .last = &last,
                .of_block = of_block,
                .units = q7_ceil_div(few ? TILE * few->bits / 8 : TILE, places * groups),
                .row_count = each / (first * places - 1) + 1};
    if (goes_on)
        go_on(&o.b);
    else
        point_at(&o.b, x, few, 0, 0, first);
    cut_units(&o.b, o.b.units, kind);
    cut_rows(&o.a, x, x->m);
    for (int64_t p = 0; p < panels; p++) {
        const bool begins = !p && !goes_on;
        const int64_t visit = begins ? first : in_tiles ? steps : usual;
        float *sums = q7_parts_room.sums[p % 2];
        for (int64_t step = 0; step < steps; step += visit) {
            const q7_bf16 *b = q7_parts_room.b[o.b.turn];
            o.b.by_turns = !begins && in_tiles;
            if (step + visit < steps)
                point_at(&o.b, x, few, p, step + visit, visit);
            else if (o.b.by_turns)
                point_at(&o.b, x, few, p, 1, steps - 1);
            else
                begin_panel(&o);
            for (int64_t g = 0; g < groups; g++) {
                const int64_t row = g * each, now = q7_min(visit, steps - step);
                const bool more = g + 1 < groups;
                if (!p && !known)
                    o.a = rows_at(x, more ? g + 1 : 0, each, more ? step : step + visit, visit);
                if (few) {
                    o.scales = p * few->blocks;
                    o.step = few->first / Q7_PARTS_STEP + step;
                    o.rows = q7_min(each, x->m - row);
                }
                const bool two =
                    few ? each > TILE : x->m - row > TILE; /* as tiles are configured */
                BARRIER();
                multipliers[kind][two](q7_parts_room.a[g] + step * Q7_PARTS_SIZE, b, now, step > 0,
                                       sums + row * NR, &o);
                cut_rows(&o.a, x, x->m);
            }
            cut_units(&o.b, o.b.units, kind);
        }
        if (!p && !known) find_odd(x->m);
        finish_rows(&last, x->m);
        q7_gemm_block part;
        q7_gemm_epilogue epilogue;
        q7_gemm_part(x, 0, x->m, p * NR, q7_min(NR, x->n - p * NR), NR, &part, &epilogue);
        if (!o.fit)
            multiply_without(&part, few, p);
        else if (q7_parts_room.any_odd)
            finish_odd(&part, sums, few, p);
        else {
            q7_gemm_part(&part, 0, x->m, 0, part.n, NR, &last.part, &last.epilogue);
            last.sums = sums;
            last.left = x->m;
        }
    }
    finish_rows(&last, x->m);
    keep(x, few, &o.b);
}

static void multiply_kind(const q7_gemm_block *x, int64_t each, const q7_block_tile *few) {
    if (few)
        multiply_rows(x, each, few, BITS);
    else if (x->b_dtype == Q7_BF16)
        multiply_rows(x, each, NULL, BF16);
    else if (x->b_dtype == Q7_F16)
        multiply_rows(x, each, NULL, F16);
    else
        multiply_rows(x, each, NULL, FLOATS);
}

/* Blocks of rows and of k, one after the other. Groups have as many rows each, a tile and a part of the
 * second: products take no longer than their rows want. */
static void multiply_blocks(const q7_gemm_block *x, const q7_block_tile *few) {
    const int64_t groups = q7_ceil_div(x->m, Q7_PARTS_ROWS), blocks = q7_ceil_div(groups, GROUPS);
    const int64_t each = q7_ceil_div(x->m, groups);
    q7_tiles_configure(q7_min(TILE, each), each > TILE ? each - TILE : each);
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t row = i * groups / blocks * each;
        const int64_t m = q7_min((i + 1) * groups / blocks * each, x->m) - row;
        q7_gemm_block rows;
        q7_gemm_epilogue epilogue;
        q7_gemm_part(x, row, m, 0, x->n, NR, &rows, &epilogue);
        for (int64_t k0 = 0; k0 < x->k; k0 += Q7_GEMM_TILE_K) {
            q7_block_tile rest;
            q7_gemm_block part = rows;
            part.k = q7_min(x->k - k0, Q7_GEMM_TILE_K);
            part.a += k0;
            part.b += k0 * x->b_stride;
            part.accumulate = x->accumulate || k0 > 0;
            if (k0 + part.k < x->k) part.epilogue = NULL;
            if (part.k < x->k) part.a_id = 0;
            if (!part.a_id) part.n_after = 0;
            if (few) rest = *few, rest.first = k0;
            multiply_kind(&part, each, few ? &rest : NULL);
        }
    }
    _tile_release();
}

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *x) {
    const bool fits = x->b_packed && x->a_k_stride == 1 && x->k >= Q7_PARTS_STEP;
    if (!fits || q7_gemm_by_column(x) || !q7_gemm_in_tiles(x->m))
        q7_gemm_f32_avx512(x);
    else
        multiply_blocks(x, NULL);
}

void Q7_KERNEL(block_gemm_f32)(const q7_block_tile *tile) {
    if (tile->gemm.m <= Q7_BLOCK_UNTILED) {
        q7_block_gemm_f32_avx512(tile);
        return;
    }
    q7_gemm_block x = tile->gemm;
    x.b = x.a; /* somewhere: b is what the tile has */
    x.b_packed = true;
    x.b_stride = x.b_panel_stride = 0;
    multiply_blocks(&x, tile);
}
