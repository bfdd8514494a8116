/* attention_product.h: c (m, width) = [c * factor +] a (m, k) @ b (k, width), both of attention's
 * products. b and c are dense, of 1 .. VECTORS whole vectors a row; factor (width) scales what c
 * held. a is the rows of K, or the columns of V, in place. Sums run over k in order, one accumulator
 * per element.
 *
 * Tiles are wide and low: b is read once for ROWS rows, 11 loads for 24 multiply-adds on avx512. */
#ifndef Q7_ATTENTION_PRODUCT_H
#define Q7_ATTENTION_PRODUCT_H
#include "../abi.h"
#include "../simd/simd.h"

#if defined(Q7_ISA_avx512) || defined(Q7_ISA_neon)
enum { ROWS = 8, VECTORS = 3 }; /* 24 sums, 3 of b and one of a: 28 of 32 registers */
#elif defined(Q7_ISA_avx2)
enum { ROWS = 4, VECTORS = 3 };
#else
enum { ROWS = 4, VECTORS = 2 };
#endif
enum { LINE = 16 }; /* floats of a cache line */
enum {
    STEPS = 8
}; /* of k at a time: 1 takes 1.05 of the time, by branches that are not foreseen */

/* Rows that are wanted soon: tiles prefetch them a line at a time, so that no product waits for a line
 * that takes its turn behind them. */
typedef struct wanted {
    const float *at;
    int64_t stride, rows, columns, column; /* column: of the first row, the next to come */
} wanted;

typedef struct product {
    const float *a;
    int64_t stride; /* between rows of a, or between columns, whichever are not dense */
    const float *b;
    float *c;
    int64_t m, k;
    const float *factor; /* NULL: c is not read */
    wanted *soon;        /* three of them */
} product;

Q7_INLINE void prefetch_line(wanted *w) {
    if (w->rows <= 0) return;
    q7_prefetch(w->at + w->column);
    w->column += LINE;
    if (w->column >= w->columns) w->column = 0, w->at += w->stride, w->rows--;
}

/* sum (rows, vectors) += one column of a by one row of b. Rows of a are at origin[i / 4] + i % 4 *
 * row_bytes: any stride, with few address registers. */
Q7_INLINE void add_product(q7_f32 *sum, const char *const *origin, int64_t row_bytes,
                           const float *b, const int rows, const int vectors) {
    q7_f32 v[VECTORS];
    Q7_UNROLL
    for (int j = 0; j < vectors; j++) v[j] = q7_load(b + j * Q7_W);
    Q7_UNROLL
    for (int i = 0; i < rows; i++) {
        const q7_f32 x = q7_set1(*(const float *)(const void *)(origin[i / 4] + i % 4 * row_bytes));
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[i * vectors + j] = q7_fma(x, v[j], sum[i * vectors + j]);
    }
}

/* rows, vectors and whether k is dense in a are constants where this is inlined. */
Q7_INLINE void multiply_rows(const product *p, const float *a, float *c, const int rows,
                             const int vectors, const bool k_dense) {
    const int width = vectors * Q7_W;
    q7_f32 sum[ROWS * VECTORS]; /* [rows][vectors] */
    const int64_t stride = p->stride * 4, row_bytes = k_dense ? stride : 4,
                  k_bytes = k_dense ? 4 : stride;
    const char *origin[2] = {(const char *)a, (const char *)a + 4 * row_bytes};
    const float *b = p->b;
    int64_t k = p->k;
    Q7_UNROLL
    for (int i = 0; i < rows * vectors; i++) sum[i] = q7_set1(0.0f);
    for (; k >= STEPS; k -= STEPS) {
        Q7_UNROLL
        for (int i = 0; i < 3; i++) prefetch_line(p->soon + i);
        Q7_UNROLL
        for (int i = 0; i < rows && k_dense; i++) /* of the next tile */
            q7_prefetch(origin[i / 4] + (i % 4 + rows) * row_bytes);
        Q7_UNROLL
        for (int u = 0; u < STEPS; u++, b += width) {
            add_product(sum, origin, row_bytes, b, rows, vectors);
            origin[0] += k_bytes;
            origin[1] += k_bytes;
            __asm__ volatile(""); /* in this order: gcc would spill */
        }
    }
    for (; k > 0; k--, b += width) {
        add_product(sum, origin, row_bytes, b, rows, vectors);
        origin[0] += k_bytes;
        origin[1] += k_bytes;
    }
    if (p->factor) {
        Q7_UNROLL
        for (int i = 0; i < rows * vectors; i++)
            sum[i] = q7_fma(q7_load(c + i * Q7_W), q7_load(p->factor + i % vectors * Q7_W), sum[i]);
    }
    Q7_UNROLL
    for (int i = 0; i < rows * vectors; i++) q7_store(c + i * Q7_W, sum[i]);
}

/* clang-format off */
#if defined(Q7_ISA_avx512) || defined(Q7_ISA_neon)
#define EVERY_TILE TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) TILES(7) TILES(8)
#else
#define EVERY_TILE TILES(1) TILES(2) TILES(3) TILES(4)
#endif
#define TILES(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3)
#define TILE(rows, vectors)                                                                       \
    static void scores_##rows##x##vectors(const product *p, const float *a, float *c) {           \
        multiply_rows(p, a, c, rows, vectors <= VECTORS ? vectors : VECTORS, true);               \
    }                                                                                             \
    static void values_##rows##x##vectors(const product *p, const float *a, float *c) {           \
        multiply_rows(p, a, c, rows, vectors <= VECTORS ? vectors : VECTORS, false);              \
    }
EVERY_TILE
#undef TILES
#undef TILE
typedef void tile_function(const product *p, const float *a, float *c);
#define TILES(rows) {scores_##rows##x1, scores_##rows##x2, scores_##rows##x3},
static tile_function *const scores_tiles[ROWS][3] = {EVERY_TILE};
#undef TILES
#define TILES(rows) {values_##rows##x1, values_##rows##x2, values_##rows##x3},
static tile_function *const values_tiles[ROWS][3] = {EVERY_TILE};
#undef TILES
/* clang-format on */

static inline void multiply_panel(const product *p, int64_t vectors, bool k_dense) {
    const int64_t even = q7_ceil_div(p->m, q7_ceil_div(p->m, ROWS)); /* 9 are 5 + 4, not 8 + 1 */
    const int64_t at = q7_max(1, q7_min(vectors, VECTORS)) - 1;      /* gcc warns of others */
    for (int64_t i = 0, rows; i < p->m; i += rows) {
        rows = q7_min(even, p->m - i);
        (k_dense ? scores_tiles : values_tiles)[(uint64_t)(rows - 1) % ROWS][at](
            p, p->a + i * (k_dense ? p->stride : 1), p->c + i * vectors * Q7_W);
    }
}
#endif
