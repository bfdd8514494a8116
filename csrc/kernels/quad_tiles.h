/* quad_tiles.h: tiles of rows by panels of quads, whose sums stay in registers for all k, for a source
 * that defines multiply(). Read qgemm.h first. */
#ifndef Q7_QUAD_TILES_H
#define Q7_QUAD_TILES_H
#include "add_quads.h"
#include "qquads.h"

/* A panel: its columns from `first` on, its quads, and what its sums begin with. */
typedef struct panel {
    int64_t first;
    const int8_t *quads;
    const int32_t *shift, *b_zero; /* or NULL */
    int64_t bytes, share;          /* of the panel, and that a step of a tile fetches of the next */
    const char *end;               /* what is behind the quads */
} panel;

/* [chains][m][VECTORS] */
enum { SUMS = 4 * VECTORS > MR *VECTORS ? 4 * VECTORS : MR *VECTORS };

/* What sums of m rows from `row` on begin with; m is a constant where this is inlined. */
Q7_INLINE void begin(const q7_quads *q, const panel *of, int64_t row, const int m, q7_i32 *sum) {
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) sum[i] = q7_i32_load(of->shift + i % VECTORS * Q7_W);
    if (of->b_zero) {
        Q7_UNROLL
        for (int i = 0; i < m * VECTORS; i++)
            sum[i] = q7_i32_add(sum[i], q7_i32_mul(q7_i32_set1(-q->row_sums[row + i / VECTORS]),
                                                   q7_i32_load(of->b_zero + i % VECTORS * Q7_W)));
    }
}

/* sum (m, NR) of m rows from `row` on; m is a constant where this is inlined. */
Q7_INLINE void multiply(const q7_quads *q, const panel *of, int64_t row, const int m, q7_i32 *sum);

/* Bytes, from registers. */
Q7_INLINE void finish_bytes(const q7_qgemm_block *x, const panel *of, int64_t row, const int m,
                            const q7_i32 *sum) {
    uint8_t *c = (uint8_t *)x->c + row * x->c_stride + of->first;
    Q7_UNROLL
    for (int j = 0; j < VECTORS; j += 2) {
        const int64_t left = x->n - of->first - j * Q7_W, lanes = q7_min(left, 2 * Q7_W);
        const int next = j + 1 < VECTORS ? j + 1 : j;
        if (left <= 0) return;
        const int64_t at = of->first + j * Q7_W;
        const q7_qcolumns columns[2] = {q7_columns(&x->finish, at, lanes),
                                        q7_columns(&x->finish, at + Q7_W, lanes - Q7_W)};
        Q7_UNROLL
        for (int i = 0; i < m; i += 2) {
            const int k = i + 1 < m ? i + 1 : i;
            const q7_i32 four[4] = {sum[i * VECTORS + j], sum[i * VECTORS + next],
                                    sum[k * VECTORS + j], sum[k * VECTORS + next]};
            q7_finish_four(&x->finish, columns, four, c + i * x->c_stride + j * Q7_W,
                           c + k * x->c_stride + j * Q7_W, lanes, Q7_act_none);
        }
    }
}

Q7_INLINE void finish(const q7_qgemm_block *x, const panel *of, int64_t row, const int m,
                      const q7_i32 *sum) {
    const int64_t c_bytes = x->finish.c_dtype == Q7_I32 || x->finish.c_dtype == Q7_F32 ? 4 : 1;
    if (c_bytes == 1 && x->finish.act == Q7_act_none) {
        finish_bytes(x, of, row, m, sum);
        return;
    }
    _Alignas(64) int32_t sums[MR * NR];
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) q7_i32_store(sums + i * Q7_W, sum[i]);
    const q7_qsums made = {
        .m = m, .n = q7_min(NR, x->n - of->first), .first = of->first, .sums = sums, .stride = NR};
    q7_finish(&x->finish, &made, (char *)x->c + (row * x->c_stride + of->first) * c_bytes,
              x->c_stride);
}

typedef void rows_of(const q7_qgemm_block *x, const q7_quads *q, const panel *of, int64_t row);
/* clang-format off */
#define ROWS(m)                                                                                        \
    static void rows_##m(const q7_qgemm_block *x, const q7_quads *q, const panel *of, int64_t row) { \
        q7_i32 sum[SUMS];                                                                              \
        multiply(q, of, row, m, sum);                                                                  \
        finish(x, of, row, m, sum);                                                                    \
    }
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) rows_##m,
static rows_of *const by_rows[MR] = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
/* clang-format on */

/* Rows as quads times all panels. */
static inline void multiply_panels(const q7_qgemm_block *x, const q7_quads *q) {
    _Alignas(64) int32_t shift[NR];
    const char *b = x->b;
    for (int64_t column = 0; column < x->n; column += NR, b += x->b_bytes) {
        const panel of = {.first = column,
                          .quads = (const int8_t *)b + NR * sizeof(int32_t),
                          .shift = shift,
                          .b_zero = x->b_zero ? x->b_zero + column : NULL,
                          .bytes = x->b_bytes,
                          .share = 4 * NR / q7_ceil_div(x->m, MR),
                          .end = b + (1 + q7_panel_quads(x->k)) * 4 * NR};
        q7_quads_shift(q, (const int32_t *)(const void *)b, of.b_zero, shift);
        for (int64_t row = 0, m; row < x->m; row += m) {
            m = q7_min(MR, x->m - row);
            by_rows[m - 1](x, q, &of, row);
        }
    }
}
#endif
