/* qgemm.c: the kernel of ../qgemm.h in quads, for ISAs that multiply and add four bytes at a time.
 *
 * Sums of a tile stay in registers for all k. Few rows have several sums each, which are added at
 * the end: one chain of dependent additions would wait 4 of 5 cycles. */
#include "../qquads.h"
#include "add_quads.h"

enum { AHEAD = 3072 }; /* bytes, of weights that are read once; docs/decisions.md 43 */

/* sums (m, NR) of m rows from a on; m is a constant where this is inlined. */
Q7_INLINE void multiply(const q7_quads *q, const uint8_t *a, const int8_t *b, const int m,
                        int32_t *sums) {
    const int chains = m == 1 ? 4 : m <= 3 ? 2 : 1;
    q7_i32 sum[4 * VECTORS > MR * VECTORS ? 4 * VECTORS : MR * VECTORS]; /* [chains][m][VECTORS] */
    Q7_UNROLL
    for (int i = 0; i < chains * m * VECTORS; i++) sum[i] = q7_i32_set1(0);
    int64_t stride = q->a_stride;
    __asm__("" : "+r"(stride)); /* in a register */
    const char *origin[3];
    Q7_UNROLL
    for (int i = 0; i < 3; i++) origin[i] = (const char *)a + 5 * i * stride;
    int64_t p = 0;
    for (; p + chains <= q->quads; p += chains) {
        Q7_UNROLL
        for (int s = 0; s < chains; s++) {
            if (m <= 3) q7_prefetch(b + AHEAD), q7_prefetch(b + AHEAD + 64);
            q7_add_quads(sum + s * m * VECTORS, origin, stride, 4 * s, b, m);
            b += 4 * NR;
        }
        Q7_UNROLL
        for (int i = 0; i < 3; i++) origin[i] += 4 * chains;
    }
    for (; p < q->quads; p++, b += 4 * NR) {
        q7_add_quads(sum, origin, stride, 0, b, m);
        Q7_UNROLL
        for (int i = 0; i < 3; i++) origin[i] += 4;
    }
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) {
        Q7_UNROLL
        for (int s = 1; s < chains; s++) sum[i] = q7_i32_add(sum[i], sum[s * m * VECTORS + i]);
        q7_i32_store(sums + i * Q7_W, sum[i]);
    }
}

typedef void rows_of(const q7_quads *q, const uint8_t *a, const int8_t *b, int32_t *sums);
/* clang-format off */
#define ROWS(m)                                                                              \
    static void rows_##m(const q7_quads *q, const uint8_t *a, const int8_t *b, int32_t *sums) { \
        multiply(q, a, b, m, sums);                                                          \
    }
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) rows_##m,
static rows_of *const by_rows[MR] = {Q7_EVERY_ROW(ROWS)};
#undef ROWS
/* clang-format on */

void Q7_KERNEL(qgemm_u8)(const q7_qgemm_block *x) {
    _Alignas(64) int32_t sums[MR * NR], shift[NR];
    const q7_quads q = q7_quads_of(x, 4, 1, (x->a_signed ? 128 : 0) ^ Q7_QUAD_FLIP);
    const char *b = x->b;
    for (int64_t column = 0; column < x->n; column += NR) {
        q7_quads_shift(&q, (const int32_t *)(const void *)b, x->b_zero ? x->b_zero + column : NULL,
                       shift);
        const int8_t *quads = (const int8_t *)b + NR * sizeof(int32_t);
        for (int64_t row = 0, m; row < x->m; row += m) {
            m = q7_min(MR, x->m - row);
            by_rows[m - 1](&q, q.a + row * q.a_stride, quads, sums);
            q7_quads_finish(x, &q, row, m, column, sums, shift);
        }
        b += (1 + q7_panel_quads(x->k)) * 4 * NR;
    }
}
