/* products.h: products of parts in tiles, and what AVX-512 does beside them: it cuts columns of b, and rows
 * of a, for what comes next, and finishes sums of the panel before. Read columns.h first. */
#ifndef Q7_PRODUCTS_H
#define Q7_PRODUCTS_H
#include "columns.h"

enum { PLACES = 4 }; /* where AVX-512 works, in a step: behind loads, which it would delay */

/* Sums of a group and of some blocks of weights, to add to those of the panel. */
typedef struct unscaled {
    const float *from, *scale; /* (blocks, Q7_PARTS_ROWS, NR), (blocks, NR) */
    float *to;
    int64_t blocks, rows; /* that are left */
    bool first;           /* of the panel */
} unscaled;

/* Sums of a panel, to finish some rows at a time: the head of what knows how. */
typedef struct finishing finishing;
struct finishing {
    void (*finish)(finishing *x, int64_t rows); /* that follow, or what is left */
    int64_t rows, steps, waited;                /* at a time; from one time to the next */
};

/* What is done beside products. */
typedef struct beside {
    const q7_gemm_block *x;
    const q7_block_tile *few;
    columns b;
    int64_t panel, usual; /* of b; steps of a visit */
    bool fit;             /* columns of the panel before */
    rows a;
    finishing *last;
    unscaled blocks;
    int64_t of_block;                /* steps of a block that are summed */
    int64_t units, row_count, added; /* at each place */
} beside;

Q7_INLINE void add_scaled(unscaled *x, int64_t count) {
    const int64_t rows = q7_min(count, x->rows);
    for (int64_t i = 0; i < rows; i++, x->from += NR, x->to += NR) {
        q7_f32 sum[VECTORS];
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++)
            sum[j] = x->first ? q7_set1(0.0f) : q7_load(x->to + j * Q7_W);
        for (int64_t b = 0; b < x->blocks; b++) {
            Q7_UNROLL
            for (int j = 0; j < VECTORS; j++)
                sum[j] = q7_fma(q7_load(x->from + b * Q7_PARTS_ROWS * NR + j * Q7_W),
                                q7_load(x->scale + b * NR + j * Q7_W), sum[j]);
        }
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++) q7_store(x->to + j * Q7_W, sum[j]);
    }
    x->rows -= rows;
}

/* `kind` is a constant where these are inlined, as is `two`. */
Q7_INLINE void work(beside *o, columns *b, int place, const enum kind kind) {
    cut_units(b, o->units, kind);
    cut_rows(&o->a, o->x, o->row_count);
    if (kind == BITS) add_scaled(&o->blocks, o->added);
    if (place != 2 || ++o->last->waited < o->last->steps) return;
    o->last->waited = 0;
    o->last->finish(o->last, o->last->rows);
}

/* The first steps of the next panel, when this one is cut. */
static void begin_panel(beside *o) {
    o->fit = q7_columns_fit(o->b.largest);
    o->b.largest[0] = o->b.largest[1] = _mm512_setzero_ps();
    point_at(&o->b, o->x, o->few, ++o->panel, 0, o->usual);
}

/* sums (up to 32, NR), or (up to 16, NR) unless `two`, = or += a @ b; of BITS as many sums as there are blocks. */
Q7_INLINE void multiply(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, const enum kind kind,
                        const bool two, bool add, float *sums, beside *o) {
    const int parts = parts_of(kind);
    const bool by_turns = o->b.by_turns;
    int64_t of_block = o->of_block;
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
        if (kind != BITS || --of_block) continue;
        of_block = o->of_block;
        q7_store_sums(sums, NR, two);
        q7_zero_sums(two);
        sums += Q7_PARTS_ROWS * NR;
    }
    q7_store_sums(sums, NR, two);
    o->b = next;
}
#endif
