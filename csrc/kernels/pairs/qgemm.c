/* qgemm.c: the kernel of ../qgemm.h in pairs of int16, where bytes have no product; its tile is that of tile.h. */
#include "../qfinish.h"
#include "../tile.h"

_Static_assert(NR == Q7_CAT(nr_qgemm_i16_, Q7_ISA), "the tile in kernels.def is another");

/* sums (m, NR) of m rows; m is a constant where this is inlined. */
Q7_INLINE void multiply(const int32_t *a, int64_t pairs, const int16_t *b, const int m,
                        int32_t *sums) {
    q7_i32 sum[MR * VECTORS];
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) sum[i] = q7_i32_set1(0);
    for (int64_t p = 0; p < pairs; p++, b += 2 * NR) {
        Q7_UNROLL
        for (int i = 0; i < m; i++) {
            const q7_i32 pair = q7_i32_set1(a[i * pairs + p]);
            Q7_UNROLL
            for (int j = 0; j < VECTORS; j++)
                sum[i * VECTORS + j] = q7_madd_pairs(sum[i * VECTORS + j], b + 2 * Q7_W * j, pair);
        }
    }
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) q7_i32_store(sums + i * Q7_W, sum[i]);
}

static void all_rows(const int32_t *a, int64_t pairs, const int16_t *b, int32_t *sums) {
    multiply(a, pairs, b, MR, sums);
}
static void one_row(const int32_t *a, int64_t pairs, const int16_t *b, int32_t *sums) {
    multiply(a, pairs, b, 1, sums);
}

static int32_t pair_of(int32_t low, int32_t high) {
    return (int32_t)((uint32_t)high << 16 | ((uint32_t)low & 0xffff));
}

/* Rows of a without the zero point, as pairs. */
static void widen(const q7_qgemm_block *x, int64_t pairs, int32_t *to) {
    for (int64_t i = 0; i < x->m; i++, to += pairs) {
        const uint8_t *a = x->a + i * x->a_stride;
        const int32_t flip = x->a_signed ? 128 : 0; /* of int8, (a ^ 128) - 128 */
        for (int64_t p = 0; p < pairs; p++) {
            const bool has_second = 2 * p + 1 < x->k;
            const int32_t first = (a[2 * p] ^ flip) - flip;
            const int32_t second = has_second ? (a[2 * p + 1] ^ flip) - flip - x->a_zero : 0;
            to[p] = pair_of(first - x->a_zero, second);
        }
    }
}

void Q7_KERNEL(qgemm_i16)(const q7_qgemm_block *x) {
    const int64_t pairs = q7_ceil_div(x->k, 2);
    int32_t *a = x->room, sums[MR * NR];
    widen(x, pairs, a);
    const int16_t *b = (const int16_t *)(const void *)x->b;
    const int64_t c_bytes = x->finish.c_dtype == Q7_I32 || x->finish.c_dtype == Q7_F32 ? 4 : 1;
    for (int64_t column = 0; column < x->n; column += NR, b += 2 * pairs * NR)
        for (int64_t row = 0; row < x->m; row += MR) {
            const int64_t m = q7_min(MR, x->m - row);
            if (m == MR)
                all_rows(a + row * pairs, pairs, b, sums);
            else
                for (int64_t i = 0; i < m; i++)
                    one_row(a + (row + i) * pairs, pairs, b, sums + i * NR);
            const q7_qsums made = {.m = m,
                                   .n = q7_min(NR, x->n - column),
                                   .first = column,
                                   .sums = sums,
                                   .stride = NR};
            q7_finish(&x->finish, &made, (char *)x->c + (row * x->c_stride + column) * c_bytes,
                      x->c_stride);
        }
}
