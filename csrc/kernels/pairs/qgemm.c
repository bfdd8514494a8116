/* qgemm.c: the kernel of ../qgemm.h in pairs of int16, where bytes have no product; its tile is that of tile.h. */
#include "../qfinish.h"
#include "../tile.h"

_Static_assert(NR == Q7_CAT(nr_qgemm_i16_, Q7_ISA), "the tile in kernels.def is another");

/* sums (m, NR) of m rows, of which a has pairs; m is a constant where this is inlined. */
Q7_INLINE void multiply(const int16_t *a, int64_t pairs, const int16_t *b, const int m,
                        int32_t *sums) {
    q7_i32 sum[MR * VECTORS];
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) sum[i] = q7_i32_set1(0);
    for (int64_t p = 0; p < pairs; p++, a += 2, b += 2 * NR) {
        Q7_UNROLL
        for (int i = 0; i < m; i++) {
            int32_t both;
            memcpy(&both, a + 2 * i * pairs, sizeof both);
            const q7_i32 pair = q7_i32_set1(both);
            Q7_UNROLL
            for (int j = 0; j < VECTORS; j++)
                sum[i * VECTORS + j] = q7_madd_pairs(sum[i * VECTORS + j], b + 2 * Q7_W * j, pair);
        }
    }
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) q7_i32_store(sums + i * Q7_W, sum[i]);
}

typedef void rows_of(const int16_t *a, int64_t pairs, const int16_t *b, int32_t *sums);
#define ROWS(m)                                                                              \
    static void rows_##m(const int16_t *a, int64_t pairs, const int16_t *b, int32_t *sums) { \
        multiply(a, pairs, b, m, sums);                                                      \
    }
Q7_EVERY_ROW(ROWS)
#undef ROWS
#define ROWS(m) rows_##m,
static rows_of *const by_rows[MR] = {Q7_EVERY_ROW(ROWS)};
#undef ROWS

/* Rows of a without the zero point, as pairs. */
static void widen(const q7_qgemm_block *x, int64_t pairs, int16_t *to) {
    const int32_t flip = x->a_signed ? 128 : 0, less = flip + x->a_zero; /* (a ^ 128) - 128 */
    for (int64_t i = 0; i < x->m; i++, to += 2 * pairs) {
        const uint8_t *a = x->a + i * x->a_stride;
        for (int64_t k = 0; k < x->k; k++) to[k] = (int16_t)((a[k] ^ flip) - less);
        if (x->k % 2) to[x->k] = 0;
    }
}

void Q7_KERNEL(qgemm_i16)(const q7_qgemm_block *x) {
    const int64_t pairs = q7_ceil_div(x->k, 2);
    int16_t *a = x->room;
    int32_t sums[MR * NR];
    widen(x, pairs, a);
    const int16_t *b = (const int16_t *)(const void *)x->b;
    const int64_t c_bytes = x->finish.c_dtype == Q7_I32 || x->finish.c_dtype == Q7_F32 ? 4 : 1;
    for (int64_t column = 0; column < x->n; column += NR, b += 2 * pairs * NR)
        for (int64_t row = 0; row < x->m; row += MR) {
            const int64_t m = q7_min(MR, x->m - row);
            by_rows[m - 1](a + 2 * row * pairs, pairs, b, sums);
            const q7_qsums made = {.m = m,
                                   .n = q7_min(NR, x->n - column),
                                   .first = column,
                                   .sums = sums,
                                   .stride = NR};
            q7_finish(&x->finish, &made, (char *)x->c + (row * x->c_stride + column) * c_bytes,
                      x->c_stride);
        }
}
