/* qgemm.c: the kernel of ../qgemm.h in quads, for ISAs that multiply and add four bytes at a time.
 *
 * Sums of a tile stay in registers for all k. Few rows have several sums each, which are added at
 * the end: one chain of dependent additions would wait 4 of 5 cycles. */
#include "../qquads.h"
#include "add_quads.h"

enum { AHEAD = 3072 }; /* bytes, of weights that are read once; docs/decisions.md 43 */

/* A panel: its columns from `first` on, its quads, and what its sums begin with. */
typedef struct panel {
    int64_t first;
    const int8_t *quads;
    const int32_t *shift, *b_zero; /* or NULL */
    int64_t bytes, share;          /* of the panel, and that a step of a tile fetches of the next */
#ifdef Q7_QUADS_SATURATE
    const int32_t *extras;
#endif
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

#ifdef Q7_QUADS_SATURATE
/* sum (m, NR) += m rows from `row` on times the quads; m and at_once are constants where this is inlined. */
Q7_INLINE void add_steps(const q7_quads *q, const panel *of, int64_t row, const int m,
                         const int at_once, q7_i32 *sum) {
    const char *a = (const char *)q->a + row * q->a_stride, *origin[3];
    const int8_t *b = of->quads, *ahead = b + of->bytes + row / MR * q->quads * of->share;
    int64_t stride = q->a_stride;
    __asm__("" : "+r"(stride)); /* in a register */
    Q7_UNROLL
    for (int i = 0; i < 3; i++) origin[i] = a + 5 * i * stride;
    for (int64_t p = 0; p < q->quads; p += at_once) {
        if (m <= 3)
            q7_prefetch(b + AHEAD), q7_prefetch(b + AHEAD + 64);
        else
            q7_prefetch_near(ahead), ahead += at_once * of->share;
        if (at_once == 2)
            q7_add_two_quads(sum, origin, stride, 0, b, m);
        else
            q7_add_quads(sum, origin, stride, 0, b, m);
        b += at_once * 4 * NR;
        Q7_UNROLL
        for (int i = 0; i < 3; i++) origin[i] += at_once * 4;
    }
}

/* The same of the extras. */
Q7_INLINE void add_extras(const q7_quads *q, const panel *of, int64_t row, const int m,
                          q7_i32 *sum) {
    const char *a = (const char *)q->a + row * q->a_stride, *origin[3];
    const int64_t stride = q->a_stride, extras = of->extras[1];
    const int32_t *chunk = of->extras + 2;
    const int8_t *b = (const int8_t *)of->extras + q7_ceil_div((2 + extras) * 4, 64) * 64;
    for (int64_t e = 0; e < extras; e++, b += 8 * NR) {
        Q7_UNROLL
        for (int i = 0; i < 3; i++) origin[i] = a + 5 * i * stride + 16 * chunk[e];
        Q7_UNROLL
        for (int i = 0; i < m; i++) {
            const q7_i32 bytes = q7_load_chunks((const uint8_t *)origin[i / 5] + i % 5 * stride);
            Q7_UNROLL
            for (int j = 0; j < VECTORS; j++) {
                const q7_i32 quad = q7_choose_bytes(bytes, b + 4 * Q7_W * j);
                sum[i * VECTORS + j] =
                    q7_dot_quads(sum[i * VECTORS + j], b + 4 * NR + 4 * Q7_W * j, quad);
            }
        }
    }
}

/* sum (m, NR) of m rows from `row` on; m is a constant where this is inlined. */
Q7_INLINE void multiply(const q7_quads *q, const panel *of, int64_t row, const int m, q7_i32 *sum) {
    begin(q, of, row, m, sum);
    if (of->extras[0] == 2)
        add_steps(q, of, row, m, 2, sum);
    else
        add_steps(q, of, row, m, 1, sum);
    add_extras(q, of, row, m, sum);
}
#else
/* sum (m, NR) of m rows from `row` on; m is a constant where this is inlined. */
Q7_INLINE void multiply(const q7_quads *q, const panel *of, int64_t row, const int m, q7_i32 *sum) {
    const int chains = m == 1 ? 4 : m <= 3 ? 2 : 1;
    const uint8_t *a = q->a + row * q->a_stride;
    const int8_t *b = of->quads, *ahead = b + of->bytes + row / MR * q->quads * of->share;
    begin(q, of, row, m, sum);
    Q7_UNROLL
    for (int i = m * VECTORS; i < chains * m * VECTORS; i++) sum[i] = q7_i32_set1(0);
    int64_t stride = q->a_stride;
    __asm__("" : "+r"(stride)); /* in a register */
    const char *origin[3];
    Q7_UNROLL
    for (int i = 0; i < 3; i++) origin[i] = (const char *)a + 5 * i * stride;
    int64_t p = 0;
    for (; p + chains <= q->quads; p += chains) {
        Q7_UNROLL
        for (int s = 0; s < chains; s++) {
            if (m <= 3)
                q7_prefetch(b + AHEAD), q7_prefetch(b + AHEAD + 64);
            else
                q7_prefetch_near(ahead), ahead += of->share;
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
    }
}
#endif

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

#ifdef Q7_QUADS_SATURATE
void Q7_KERNEL(qgemm_u8x2)(const q7_qgemm_block *x) {
    q7_quads q = q7_quads_of(x, 16, 1, x->a_signed ? 128 : 0); /* extras read chunks of 16 */
    q.quads = q7_ceil_div(x->k, 8) * 2;
#else
void Q7_KERNEL(qgemm_u8)(const q7_qgemm_block *x) {
    const q7_quads q = q7_quads_of(x, 4, 1, (x->a_signed ? 128 : 0) ^ Q7_QUAD_FLIP);
#endif
    _Alignas(64) int32_t shift[NR];
    const char *b = x->b;
#ifdef Q7_QUADS_SATURATE
    const int64_t end = (1 + q7_panel_quads(x->k)) * 4 * NR; /* of the quads of a panel */
#endif
    for (int64_t column = 0; column < x->n; column += NR) {
        const panel of = {.first = column,
                          .quads = (const int8_t *)b + NR * sizeof(int32_t),
                          .shift = shift,
                          .b_zero = x->b_zero ? x->b_zero + column : NULL,
                          .bytes = x->b_bytes,
#ifdef Q7_QUADS_SATURATE
                          .extras = (const int32_t *)(const void *)(b + end),
#endif
                          .share = 4 * NR / q7_ceil_div(x->m, MR)};
        q7_quads_shift(&q, (const int32_t *)(const void *)b, of.b_zero, shift);
        for (int64_t row = 0, m; row < x->m; row += m) {
            m = q7_min(MR, x->m - row);
            by_rows[m - 1](x, &q, &of, row);
        }
        b += x->b_bytes;
    }
}
