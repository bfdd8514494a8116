/* products.h: products of parts in tiles, and what AVX-512 does beside them: it cuts columns of b, and rows
 * of a, for what comes next, and finishes sums of the panel before. Read columns.h first. */
#ifndef Q7_PRODUCTS_H
#define Q7_PRODUCTS_H
#include "../gemm_finish.h"
#include "columns.h"

enum { PLACES = 4 }; /* where AVX-512 works, in a step: behind loads, which it would delay */

/* Sums of a block of weights, to add to those of the panel. */
typedef struct unscaled {
    const float *from, *scale; /* (TILE, NR), (NR) */
    float *to;
    int64_t rows; /* that are left */
    bool first;   /* of the panel */
} unscaled;

/* Sums of a panel, some rows at a time. `part` moves on in place: a copy of it would be read in other sizes
 * than it was written in, which waits for all products before it. */
typedef struct made {
    int64_t rows, steps, waited; /* at a time; from one time to the next */
    q7_gemm_block part;          /* from the rows on that are next */
    q7_gemm_epilogue epilogue;
    const float *sums; /* (left, NR) */
    int64_t left;      /* rows */
} made;

/* The rows that follow; the same rows are fetched where the next panel will be written, and of what is
 * added to it. */
static void finish_rows(made *x, int64_t count) {
    q7_gemm_block *now = &x->part;
    q7_gemm_epilogue *epilogue = &x->epilogue;
    const int64_t rows = now->m = q7_min(count, x->left);
    if (!rows) return;
    q7_finish_floats(now, x->sums, NR, 0, now->n);
    const bool gated = now->epilogue && epilogue->gated;
    const float *next = gated ? epilogue->gated + NR / 2 : now->c + NR;
    const int64_t stride = gated ? epilogue->gated_stride : now->c_stride;
    for (int64_t i = 0; i < rows; i++, next += stride) {
        q7_prefetch_write(next);
        if (!gated) q7_prefetch_write(next + 16);
    }
    const float *added = now->epilogue && epilogue->residual ? epilogue->residual + NR : NULL;
    for (int64_t i = 0; i < rows && added; i++, added += epilogue->residual_stride) {
        q7_prefetch(added);
        q7_prefetch(added + 16);
    }
    now->c += rows * now->c_stride;
    if (now->epilogue) q7_gemm_skip_rows(epilogue, rows);
    x->sums += rows * NR;
    x->left -= rows;
}

/* What is done beside products. */
typedef struct beside {
    const q7_gemm_block *x;
    const q7_block_tile *few;
    columns b;
    int64_t panel, usual; /* of b; steps of a visit */
    bool fit;             /* columns of the panel before */
    rows a;
    made *last;
    int64_t of_block, scales; /* of BITS: steps that are summed; where those of the panel begin */
    int64_t step, rows;       /* which step a visit begins with; of the group */
    int64_t units, row_count; /* at each place */
} beside;

Q7_INLINE void add_scaled(unscaled *x, int64_t count) {
    const int64_t rows = q7_min(count, x->rows);
    for (int64_t i = 0; i < rows; i++, x->from += NR, x->to += NR) {
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++) {
            const q7_f32 scale = q7_load(x->scale + j * Q7_W), from = q7_load(x->from + j * Q7_W);
            const q7_f32 to = x->first ? q7_set1(0.0f) : q7_load(x->to + j * Q7_W);
            q7_store(x->to + j * Q7_W, q7_fma(from, scale, to));
        }
    }
    x->rows -= rows;
}

/* `kind` is a constant where these are inlined, as is `two`. */
Q7_INLINE void work(beside *o, columns *b, int place, const enum kind kind) {
    cut_units(b, o->units, kind);
    cut_rows(&o->a, o->x, o->row_count);
    if (place != 2 || ++o->last->waited < o->last->steps) return;
    o->last->waited = 0;
    finish_rows(o->last, o->last->rows);
}

/* The first steps of the next panel, when this one is cut. */
static void begin_panel(beside *o) {
    o->fit = q7_columns_fit(o->b.largest);
    o->b.largest[0] = o->b.largest[1] = _mm512_setzero_ps();
    point_at(&o->b, o->x, o->few, ++o->panel, 0, o->usual);
}

/* sums (up to 32, NR), or (up to 16, NR) unless `two`, = or += a @ b. */
Q7_INLINE void multiply(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, const enum kind kind,
                        const bool two, bool add, float *sums, beside *o) {
    const int parts = parts_of(kind);
    const bool by_turns = o->b.by_turns;
    columns next = o->b;
    q7_load_rows(a, 2, two);
    q7_load_columns(b, 0);
    if (add)
        q7_load_sums(sums, NR, two);
    else
        q7_zero_sums(two);
    for (;;) {
        if (by_turns && steps == 1) {
            o->b = next;
            begin_panel(o);
            next = o->b;
        }
        q7_add_products(two);
        q7_load_rows(a, 1, two);
        work(o, &next, 0, kind);
        q7_add_products(two);
        if (parts > 1) {
            q7_load_columns(b, 1);
            q7_add_products(two);
        }
        q7_load_rows(a, 0, two);
        work(o, &next, 1, kind);
        q7_add_products(two);
        if (parts > 2) q7_load_columns(b, 2);
        work(o, &next, 2, kind);
        if (parts > 2) q7_add_products(two);
        if (parts > 1) q7_load_columns(b, 0);
        work(o, &next, 3, kind);
        if (parts > 1) q7_add_products(two);
        if (!--steps) break;
        a += Q7_PARTS_SIZE;
        b = !by_turns                 ? b + 2 * parts * Q7_PARTS_TILE
            : b == q7_parts_room.b[0] ? q7_parts_room.b[1]
                                      : q7_parts_room.b[0];
        q7_load_rows(a, 2, two);
        q7_load_columns(b, 0);
    }
    q7_store_sums(sums, NR, two);
    o->b = next;
}

Q7_INLINE void store_unscaled(const int pair) {
    q7_store_pair(q7_parts_room.unscaled[pair], NR, pair);
    BARRIER();
}

/* The product of 16 rows by the steps of a block, less its scale, and what is in hand: sums of the block
 * before are stored, which waits for its products alone, and those of the one before that are added. */
typedef struct in_hand {
    unscaled stored, added;
} in_hand;

Q7_INLINE void multiply_block(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, const bool has_b,
                              const int pair, int place, unscaled sums, in_hand *hand,
                              columns *next, beside *o) {
    const int64_t count = TILE / 2 / steps + 1;
    q7_zero_pair(pair);
    for (int64_t i = 0; i < steps; i++, a += Q7_PARTS_SIZE, b += 2 * Q7_PARTS_TILE) {
        if (!has_b || i > 0) q7_load_columns(b, 0);
        q7_load_rows_of(a + 4 * Q7_PARTS_TILE, pair);
        q7_add_products_of(pair);
        if (i == 0 && hand->stored.rows) store_unscaled(!pair);
        q7_load_rows_of(a + 2 * Q7_PARTS_TILE, pair);
        work(o, next, place, BITS);
        q7_add_products_of(pair);
        add_scaled(&hand->added, count);
        q7_load_rows_of(a, pair);
        work(o, next, place + 1, BITS);
        q7_add_products_of(pair);
        add_scaled(&hand->added, count);
    }
    hand->added = hand->stored;
    hand->stored = sums;
    hand->stored.from = q7_parts_room.unscaled[pair];
}

/* As multiply(), of BITS: sums of 16 rows and a block go through memory, where they are multiplied by its
 * scales and added. */
Q7_INLINE void multiply_bits(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, const bool two,
                             bool add, float *sums, beside *o) {
    const int64_t of_scale = o->few->block / Q7_PARTS_STEP;
    const float *scale = o->few->scale + o->scales * NR;
    columns next = o->b;
    in_hand hand = {.stored.rows = 0};
    int pair = 0;
    for (int64_t i = 0; i < steps; i += o->of_block) {
        const int64_t now = q7_min(o->of_block, steps - i);
        const unscaled block = {.scale = scale + (o->step + i) / of_scale * NR,
                                .to = sums,
                                .rows = q7_min(TILE, o->rows),
                                .first = !add && i == 0};
        const q7_bf16 *low = a + i * Q7_PARTS_SIZE, *at = b + i * 2 * Q7_PARTS_TILE;
        if (two) {
            unscaled other = block;
            other.to += TILE * NR;
            other.rows = q7_max(0, o->rows - TILE);
            multiply_block(low, at, now, false, 0, 0, block, &hand, &next, o);
            multiply_block(low + Q7_PARTS_TILE, at, now, now == 1, 1, 2, other, &hand, &next, o);
            continue;
        }
        if (pair)
            multiply_block(low, at, now, false, 1, 2, block, &hand, &next, o);
        else
            multiply_block(low, at, now, false, 0, 2, block, &hand, &next, o);
        pair = !pair;
    }
    if (two || !pair)
        store_unscaled(1);
    else
        store_unscaled(0);
    add_scaled(&hand.added, TILE);
    add_scaled(&hand.stored, TILE);
    o->b = next;
}
#endif
