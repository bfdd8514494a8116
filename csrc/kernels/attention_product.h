/* attention_product.h: c (m, vectors) = [c * factor +] a (m, k) @ b (k, vectors), both of attention's
 * products: a is K in place and b the queries, transposed, or a is the exponentials, transposed, and
 * b is V in place. factor (m) scales what c held. Sums run over k in order, one accumulator per
 * element.
 *
 * Tiles are wide and low: b is read once for many rows, 10 or 11 loads for 24 multiply-adds on
 * avx512. */
#ifndef Q7_ATTENTION_PRODUCT_H
#define Q7_ATTENTION_PRODUCT_H
#include "attention_mask.h"

/* A tile of scores has up to ROWS keys by VECTORS of queries, one of values up to SUMS vectors of sums,
 * WIDE of which are side by side. */
#if defined(Q7_ISA_avx512) || defined(Q7_ISA_neon)
enum {
    ROWS = 8,
    VECTORS = 3,
    SUMS = 24,
    WIDE = 4
}; /* and 4 of b and one of a: 29 of 32 registers */
#elif defined(Q7_ISA_avx2)
enum { ROWS = 4, VECTORS = 3, SUMS = 12, WIDE = 2 };
#else
enum { ROWS = 4, VECTORS = 2, SUMS = 8, WIDE = 2 };
#endif
enum { STEPS = Q7_LINE_FLOATS }; /* of k, between prefetches */
_Static_assert(VECTORS *Q7_W <= Q7_ATTENTION_PANEL && Q7_W <= Q7_ATTENTION_LANES,
               "scratch is for narrower panels: kernels.def");

/* Rows that are wanted soon: tiles prefetch them a line at a time, so that no product waits for a line
 * that takes its turn behind them. */
typedef struct wanted {
    const float *at;
    int64_t stride, rows, columns, column; /* column: of the first row, the next to come */
} wanted;

typedef struct product {
    const float *a, *b;
    float *c;
    int64_t a_stride; /* between rows of a, or between columns, whichever are not dense */
    int64_t k;
    wanted *soon; /* two of them */
    /* Of values alone: */
    int64_t b_stride, c_stride, y_stride;
    int64_t last;        /* columns of the last vector of b */
    const float *factor; /* NULL: c holds nothing */
    float *y;            /* where c / total goes in place of c, with by = 1 / total; or NULL */
    const float *total, *by;
    float *watched; /* what y becomes */
} product;

Q7_INLINE void prefetch_line(wanted *w) {
    if (w->rows <= 0) return;
    q7_prefetch(w->at + w->column);
    w->column += Q7_LINE_FLOATS;
    if (w->column >= w->columns) w->column = 0, w->at += w->stride, w->rows--;
}

/* sum (rows, vectors) += one column of a by one row of b. Four rows of a share an address: any stride,
 * with few registers. */
Q7_INLINE void add_product(q7_f32 *sum, const char *const *origin, int64_t row_bytes,
                           const float *b, int64_t last, const int rows, const int vectors,
                           const bool k_dense) {
    q7_f32 v[WIDE > VECTORS ? WIDE : VECTORS];
    Q7_UNROLL
    for (int j = 0; j < vectors; j++)
        v[j] = k_dense || j + 1 < vectors ? q7_load(b + j * Q7_W)
               : Q7_W == 16               ? q7_load_tail(b + j * Q7_W, last) /* as fast */
                                          : q7_load_part(b + j * Q7_W, last);
    Q7_UNROLL
    for (int i = 0; i < rows; i++) {
        const char *a = k_dense ? origin[i / 4] + i % 4 * row_bytes : origin[0] + 4 * i;
        const q7_f32 x = q7_set1(*(const float *)(const void *)a);
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[i * vectors + j] = q7_fma(x, v[j], sum[i * vectors + j]);
    }
}

/* sum (rows, vectors) = rows of a from `row` by b. rows, vectors and whether k is dense in a are
 * constants where this is inlined. */
Q7_INLINE void sum_products(const product *p, int64_t row, q7_f32 *sum, const int rows,
                            const int vectors, const bool k_dense) {
    const int64_t a_bytes = p->a_stride * 4, row_bytes = k_dense ? a_bytes : 4,
                  k_bytes = k_dense ? 4 : a_bytes,
                  b_stride = k_dense ? vectors * Q7_W : p->b_stride;
    const int64_t last = p->last;
    const float *b = p->b;
    const char *origin[4];
    Q7_UNROLL
    for (int i = 0; i < 4; i++) origin[i] = (const char *)p->a + (row + 4 * i) * row_bytes;
    Q7_UNROLL
    for (int i = 0; i < rows * vectors; i++) sum[i] = q7_set1(0.0f);
    for (int64_t left = p->k, some; left > 0; left -= some) {
        some = k_dense ? q7_min(left, STEPS) : left;
        for (int64_t i = 0; i < some && k_dense; i += 4) {
            prefetch_line(p->soon);
            prefetch_line(p->soon + 1);
        }
        Q7_UNROLL
        for (int i = 0; i < rows && k_dense; i++) /* of the next tile */
            q7_prefetch(origin[i / 4] + (i % 4 + rows) * row_bytes);
        for (int64_t k = some; k > 0; k--, b += b_stride) {
            add_product(sum, origin, row_bytes, b, last, rows, vectors, k_dense);
            Q7_UNROLL
            for (int i = 0; i < 4; i++) origin[i] += k_bytes;
        }
    }
}

Q7_INLINE void scores_tile(const product *p, int64_t row, const int rows, const int vectors) {
    q7_f32 sum[SUMS]; /* [rows][vectors] */
    float *c = p->c + row * vectors * Q7_W;
    sum_products(p, row, sum, rows, vectors, true);
    Q7_UNROLL
    for (int i = 0; i < rows * vectors; i++) q7_store(c + i * Q7_W, sum[i]);
}

Q7_INLINE void values_tile(const product *p, int64_t row, const int rows, const int vectors) {
    q7_f32 sum[SUMS]; /* [rows][vectors] */
    const int64_t c_stride = p->c_stride, y_stride = p->y_stride, last = p->last;
    const float *factor = p->factor + row, *total = p->total + row, *by = p->by + row;
    float *c = p->c + row * c_stride, *y = p->y + row * y_stride;
    sum_products(p, row, sum, rows, vectors, false);
    if (p->factor) {
        Q7_UNROLL
        for (int i = 0; i < rows * vectors; i++)
            sum[i] = q7_fma(q7_load(c + i / vectors * c_stride + i % vectors * Q7_W),
                            q7_set1(factor[i / vectors]), sum[i]);
    }
    if (!p->y) {
        Q7_UNROLL
        for (int i = 0; i < rows * vectors; i++)
            q7_store(c + i / vectors * c_stride + i % vectors * Q7_W, sum[i]);
        return;
    }
    q7_f32 zeros = q7_set1(0.0f);
    Q7_UNROLL
    for (int i = 0; i < rows * vectors; i++) {
        float *to = y + i / vectors * y_stride + i % vectors * Q7_W;
        const q7_f32 x = quotient(sum[i], q7_set1(total[i / vectors]), q7_set1(by[i / vectors]));
        zeros = q7_fma(x, q7_set1(0.0f), zeros);
        if (i % vectors + 1 < vectors)
            q7_store(to, x);
        else
            q7_store_part(to, x, last);
    }
    q7_store(p->watched, q7_add(zeros, q7_load(p->watched)));
}

/* clang-format off */
#define TO_4(f, vectors) f(1, vectors) f(2, vectors) f(3, vectors) f(4, vectors)
#define TO_6(f, vectors) TO_4(f, vectors) f(5, vectors) f(6, vectors)
#define TO_8(f, vectors) TO_6(f, vectors) f(7, vectors) f(8, vectors)
#define TO_12(f, vectors) TO_8(f, vectors) f(9, vectors) f(10, vectors) f(11, vectors) f(12, vectors)
#if defined(Q7_ISA_avx512) || defined(Q7_ISA_neon)
#define SCORES(f) TO_8(f, 1) TO_8(f, 2) TO_8(f, 3)
#define VALUES(f) TO_12(f, 1) TO_12(f, 2) TO_8(f, 3) TO_6(f, 4)
#elif defined(Q7_ISA_avx2)
#define SCORES(f) TO_4(f, 1) TO_4(f, 2) TO_4(f, 3)
#define VALUES(f) TO_12(f, 1) TO_6(f, 2)
#else
#define SCORES(f) TO_4(f, 1) TO_4(f, 2)
#define VALUES(f) TO_8(f, 1) TO_4(f, 2)
#endif
enum { MOST_ROWS = 12 };
typedef void tile_function(const product *p, int64_t row);
#define TILE(rows, vectors)                                                \
    static void scores_##rows##x##vectors(const product *p, int64_t row) { \
        scores_tile(p, row, rows, vectors);                                \
    }
SCORES(TILE)
#undef TILE
#define TILE(rows, vectors)                                                \
    static void values_##rows##x##vectors(const product *p, int64_t row) { \
        values_tile(p, row, rows, vectors);                                \
    }
VALUES(TILE)
#undef TILE
#define TILE(rows, vectors) [vectors][rows] = scores_##rows##x##vectors,
static tile_function *const scores_tiles[VECTORS + 1][ROWS + 1] = {SCORES(TILE)};
#undef TILE
#define TILE(rows, vectors) [vectors][rows] = values_##rows##x##vectors,
static tile_function *const values_tiles[WIDE + 1][MOST_ROWS + 1] = {VALUES(TILE)};
#undef TILE
/* clang-format on */

/* Rows of the next tile of m that are left: even, so that 9 are 5 + 4, not 8 + 1. */
static inline int64_t rows_of_tile(int64_t m, int64_t most) {
    return q7_ceil_div(m, q7_ceil_div(m, q7_min(most, MOST_ROWS)));
}
#endif
