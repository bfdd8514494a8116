/* qquads.h: what the kernels of qgemm.h over quads share: rows as they multiply them, and what their
 * sums lack. Read qgemm.h first. */
#ifndef Q7_QQUADS_H
#define Q7_QQUADS_H
#include "qfinish.h"
#include "tile.h"

typedef struct q7_quads {
    const uint8_t *a; /* (m, quads), in place or in room */
    int64_t a_stride, quads;
    int64_t line, line_stride, runs, run_quads, run_stride; /* of rows and quads: q7_qwindows */
    const int32_t *row_sums;                                /* or NULL */
    int32_t a_zero, k;
} q7_quads;

static inline int64_t q7_panel_quads(int64_t k) { return q7_ceil_div(k, 4 * Q7_QUADS) * Q7_QUADS; }

/* In whole blocks of y, whatever is behind. */
static inline void q7_flip_row(int64_t n, const uint8_t *x, uint8_t flip, uint8_t *y) {
    enum { BLOCK = 4 * Q7_W };
    const q7_block bits = q7_block_set1(flip);
    int64_t i = 0;
    for (; i + BLOCK <= n; i += BLOCK)
        q7_block_store(y + i, q7_block_xor(q7_block_load(x + i), bits));
    if (i < n) q7_block_store(y + i, q7_block_xor(q7_block_load_tail(x + i, n - i), bits));
}

Q7_INLINE int32_t q7_row_sum(int64_t n, const uint8_t *x, bool is_signed) {
    enum { BLOCK = 4 * Q7_W, EXACT = 1 << 16 }; /* bytes whose sum is less than 2^24 */
    const q7_i32 ones = q7_i32_set1(0x01010101);
    int32_t all = 0;
    uint8_t last[BLOCK];
    for (int64_t i = 0; i < n;) {
        const int64_t end = q7_min(n, i + EXACT);
        q7_i32 sum = q7_i32_set1(0);
        for (; i < end; i += BLOCK, x += BLOCK) {
            if (n - i < BLOCK) {
                q7_block_store(last, q7_block_load_tail(x, n - i));
                x = last;
            }
            const q7_i32 bytes = q7_i32_load((const int32_t *)(const void *)x);
            sum = is_signed ? q7_dot_unsigned(sum, ones, bytes) : q7_dot_unsigned(sum, bytes, ones);
        }
        all += (int32_t)q7_hsum(q7_float(sum));
    }
    return all;
}

/* Rows of a in multiples of `step` bytes, in place if they are that and lie at multiples of `align`, or
 * are windows. flip is 128 to make int8 of uint8, or the other way round, else 0. */
static inline q7_quads q7_quads_of(const q7_qgemm_block *x, int64_t step, uintptr_t align,
                                   const uint8_t flip) {
    const int64_t k = q7_ceil_div(x->k, step) * step;
    const bool is_signed = x->a_signed != (flip != 0);
    const q7_qwindows *w = x->windows;
    q7_quads q = {.a = x->a, .a_stride = x->a_stride, .quads = k / 4, .k = (int32_t)x->k};
    q.line = w ? w->line : x->m;
    q.line_stride = w ? w->line_stride : 0;
    q.runs = w ? w->runs : 1;
    q.run_quads = q.quads / q.runs;
    q.run_stride = w ? w->run_stride : 0;
    q.a_zero = x->a_zero + (flip ? is_signed ? -128 : 128 : 0);
    int32_t *row_sums = (int32_t *)x->room;
    uint8_t *rows = (uint8_t *)x->room + q7_ceil_div(x->m, 16) * 64;
    const bool whole = k == x->k || x->a_padded; /* b is 0 behind k */
    if (!w && (flip || !whole || (uintptr_t)x->a % align || (uintptr_t)x->a_stride % align)) {
        q.a = rows;
        q.a_stride = k;
        for (int64_t i = 0; i < x->m; i++, rows += k) {
            q7_flip_row(x->k, x->a + i * x->a_stride, flip, rows); /* over the next: it follows */
        }
    }
    for (int64_t i = 0; i < x->m && x->b_zero; i++) {
        const uint8_t *row = q.a + i / q.line * q.line_stride + i % q.line * q.a_stride;
        row_sums[i] = 0;
        for (int64_t r = 0; r < q.runs; r++, row += q.run_stride)
            row_sums[i] += q7_row_sum(x->k / q.runs, row, is_signed);
    }
    q.row_sums = row_sums;
    return q;
}

/* What the sums of a column lack beyond row_sums * b_zero: shift = a_zero * (k * b_zero - sum). */
static inline void q7_quads_shift(const q7_quads *q, const int32_t *sums, const int32_t *b_zero,
                                  int32_t *shift) {
    for (int64_t j = 0; j < NR; j++) {
        const uint32_t zeros = b_zero ? (uint32_t)q->k * (uint32_t)b_zero[j] : 0;
        shift[j] = (int32_t)((uint32_t)q->a_zero * (zeros - (uint32_t)sums[j]));
    }
}

/* Finishes the sums (m, NR) of a tile from (row, column) of the block on. */
static inline void q7_quads_finish(const q7_qgemm_block *x, const q7_quads *q, int64_t row,
                                   int64_t m, int64_t column, const int32_t *sums,
                                   const int32_t *shift) {
    const int64_t c_bytes = x->finish.c_dtype == Q7_I32 || x->finish.c_dtype == Q7_F32 ? 4 : 1;
    const q7_qsums made = {.m = m,
                           .n = q7_min(NR, x->n - column),
                           .first = column,
                           .sums = sums,
                           .stride = NR,
                           .shift = shift,
                           .row_sums = q->row_sums + row,
                           .b_zero = x->b_zero ? x->b_zero + column : NULL};
    q7_finish(&x->finish, &made, (char *)x->c + (row * x->c_stride + column) * c_bytes,
              x->c_stride);
}
#endif
