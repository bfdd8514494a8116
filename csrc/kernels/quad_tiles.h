/* quad_tiles.h: tiles of rows by panels of quads, whose sums stay in registers for all k, for a source
 * that defines multiply(). Read qgemm.h first. */
#ifndef Q7_QUAD_TILES_H
#define Q7_QUAD_TILES_H
#include "add_quads.h"
#include "qquads.h"

/* A panel: its columns from `first` on, its quads, and what its sums begin with; and the rows of a that
 * it meets, from `row` on. */
typedef struct panel {
    int64_t first;
    const int8_t *quads;
    const int32_t *shift, *b_zero; /* or NULL */
    const char *end;               /* what is behind the quads */
    int64_t row;
    const uint8_t *a;
    const int8_t *ahead; /* what a tile fetches: of the next panel, or of this, if it is alone, */
    int64_t share;       /* as many bytes a step */
} panel;

/* Bytes of a cache line; from weights that are read once to those that are fetched, of one row or two
 * and of more (docs/decisions.md 43, 119). */
enum { LINE = 64, FEW_AHEAD = 3 << 10, AHEAD = 8 << 10 };

/* Both lines of a step that has two, where a tile is alone. */
Q7_INLINE void fetch_share(const panel *of, const int8_t **ahead) {
    q7_prefetch_near(*ahead);
    if (4 * NR > LINE) q7_prefetch_near(*ahead + (of->share > LINE ? LINE : 0));
    *ahead += of->share;
}

/* [chains][m][VECTORS] */
enum { SUMS = 4 * VECTORS > MR *VECTORS ? 4 * VECTORS : MR *VECTORS };

/* m, of rows, and `vectors`, of a panel's columns, are constants wherever they are parameters.
 *
 * What sums of m rows begin with. */
Q7_INLINE void begin(const q7_quads *q, const panel *of, const int m, const int vectors,
                     q7_i32 *sum) {
    Q7_UNROLL
    for (int i = 0; i < m * vectors; i++) sum[i] = q7_i32_load(of->shift + i % vectors * Q7_W);
    if (of->b_zero) {
        const int32_t *row_sums = q->row_sums + of->row;
        Q7_UNROLL
        for (int i = 0; i < m * vectors; i++)
            sum[i] = q7_i32_add(sum[i], q7_i32_mul(q7_i32_set1(-row_sums[i / vectors]),
                                                   q7_i32_load(of->b_zero + i % vectors * Q7_W)));
    }
}

/* sum (m, vectors) of m rows. */
Q7_INLINE void multiply(const q7_quads *q, const panel *of, const int m, const int vectors,
                        q7_i32 *sum);

/* Bytes, from registers. */
Q7_INLINE void finish_bytes(const q7_qgemm_block *x, const panel *of, const int m,
                            const int vectors, const q7_i32 *sum) {
    uint8_t *c = (uint8_t *)x->c + of->row * x->c_stride + of->first;
    Q7_UNROLL
    for (int j = 0; j < vectors; j += 2) {
        const int64_t left = x->n - of->first - j * Q7_W, lanes = q7_min(left, 2 * Q7_W);
        const int next = j + 1 < vectors ? j + 1 : j;
        if (left <= 0) return;
        const int64_t at = of->first + j * Q7_W;
        const q7_qcolumns columns[2] = {q7_columns(&x->finish, at, lanes),
                                        q7_columns(&x->finish, at + Q7_W, lanes - Q7_W)};
        Q7_UNROLL
        for (int i = 0; i < m; i += 2) {
            const int k = i + 1 < m ? i + 1 : i;
            const q7_i32 four[4] = {sum[i * vectors + j], sum[i * vectors + next],
                                    sum[k * vectors + j], sum[k * vectors + next]};
            q7_finish_four(&x->finish, columns, four, c + i * x->c_stride + j * Q7_W,
                           c + k * x->c_stride + j * Q7_W, lanes, Q7_act_none);
        }
    }
}

Q7_INLINE void finish(const q7_qgemm_block *x, const panel *of, const int m, const int vectors,
                      const q7_i32 *sum) {
    const int64_t c_bytes = x->finish.c_dtype == Q7_I32 || x->finish.c_dtype == Q7_F32 ? 4 : 1;
    if (c_bytes == 1 && x->finish.act == Q7_act_none) {
        finish_bytes(x, of, m, vectors, sum);
        return;
    }
    if (x->finish.c_dtype == Q7_I32 && x->n - of->first >= vectors * Q7_W) {
        int32_t *c = (int32_t *)x->c + of->row * x->c_stride + of->first;
        Q7_UNROLL
        for (int i = 0; i < m * vectors; i++)
            q7_i32_store(c + i / vectors * x->c_stride + i % vectors * Q7_W, sum[i]);
        return;
    }
    _Alignas(64) int32_t sums[MR * NR];
    Q7_UNROLL
    for (int i = 0; i < m * vectors; i++) q7_i32_store(sums + i * Q7_W, sum[i]);
    const q7_qsums made = {.m = m,
                           .n = q7_min(vectors * Q7_W, x->n - of->first),
                           .first = of->first,
                           .sums = sums,
                           .stride = vectors * Q7_W};
    q7_finish(&x->finish, &made, (char *)x->c + (of->row * x->c_stride + of->first) * c_bytes,
              x->c_stride);
}

typedef void rows_of(const q7_qgemm_block *x, const q7_quads *q, const panel *of);
/* clang-format off */
#define ROWS_BY(m, vectors)                                                                      \
    static void rows_##m##_by_##vectors(const q7_qgemm_block *x, const q7_quads *q, const panel *of) { \
        q7_i32 sum[SUMS];                                                                        \
        multiply(q, of, m, vectors, sum);                                                        \
        finish(x, of, m, vectors, sum);                                                          \
    }
#define ROWS(m) ROWS_BY(m, VECTORS) ROWS_BY(m, 1)
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) rows_##m##_by_VECTORS,
static rows_of *const by_rows[MR] = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
#define ROWS(m) rows_##m##_by_1,
static rows_of *const by_rows_narrow[MR] = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
#undef ROWS_BY
/* clang-format on */

/* Rows as quads times all panels. The tiles of a line have as many rows each, or one more: few rows
 * would wait for their sums. */
static inline void multiply_panels(const q7_qgemm_block *x, const q7_quads *q) {
    _Alignas(64) int32_t shift[NR];
    const int64_t tiles = q7_ceil_div(q->line, q7_tallest(q->line, q->a_stride));
    const int64_t least = q->line / tiles;
    const int64_t more = q->line % tiles, share = 4 * NR * q->line / (x->m * tiles);
    const char *b = x->b;
    for (int64_t column = 0; column < x->n; column += NR, b += x->b_bytes) {
        panel of = {.first = column,
                    .quads = (const int8_t *)b + NR * sizeof(int32_t),
                    .shift = shift,
                    .b_zero = x->b_zero ? x->b_zero + column : NULL,
                    .end = b + (1 + q7_panel_quads(x->k)) * 4 * NR,
                    .share = share};
        of.ahead = of.quads + (tiles == 1 && q->line == x->m ? AHEAD : x->b_bytes);
        rows_of *const *const rows = x->n - column > Q7_W ? by_rows : by_rows_narrow;
        q7_quads_shift(q, (const int32_t *)(const void *)b, of.b_zero, shift);
        for (const uint8_t *line = q->a; of.row < x->m; line += q->line_stride) {
            of.a = line;
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t m = least + (t < more);
                rows[m - 1](x, q, &of);
                of.row += m;
                of.a += m * q->a_stride;
                of.ahead += q->runs * q->run_quads * share;
            }
        }
    }
}
#endif
