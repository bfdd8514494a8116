/* add_quads.h: the step of a tile of rows by a panel, Q7_STEP quads of k or one, that the products here
 * are made of. Rows are at origin[i / 5] + i % 5 * stride: few address registers. Where two rows and two
 * columns multiply as a square, sums of two rows and more are turned before the first step and behind
 * the last: they are for Q7_SUM_ROWS(m) rows. m, of rows, `vectors`, of a panel's columns, and n, of
 * quads, are constants wherever this is inlined. */
#ifndef Q7_ADD_QUADS_H
#define Q7_ADD_QUADS_H
#include "tile.h"

#ifdef Q7_HAS_SQUARES
enum { Q7_STEP = 2 };
#define Q7_SUM_ROWS(m) ((m) > 1 ? ((m) + 1) / 2 * 2 : 1)

/* Sums become squares, or rows again. */
Q7_INLINE void q7_turn_sums(q7_i32 *sum, const int m, const int vectors) {
    Q7_UNROLL
    for (int i = 0; m > 1 && i < m; i += 2) {
        Q7_UNROLL
        for (int j = i * vectors; j < (i + 1) * vectors; j++)
            q7_turn_square(&sum[j], &sum[j + vectors]);
    }
}

Q7_INLINE void q7_add_squares(q7_i32 *sum, const char *const *origin, int64_t stride, int64_t at,
                              const int8_t *w, const int m, const int vectors, const int n) {
    const int sum_rows = Q7_SUM_ROWS(m);
    q7_i32 rows[MR / 2];
    Q7_UNROLL
    for (int i = 0; i < m; i += 2) {
        const int next = i + 1 < m ? i + 1 : i;
        rows[i / 2] = q7_two_rows(origin[i / 5] + i % 5 * stride + at,
                                  origin[next / 5] + next % 5 * stride + at, 4 * n);
        __asm__("" : "+r"(w), "+w"(rows[i / 2]));
    }
    Q7_UNROLL
    for (int j = 0; j < vectors; j++, w += 4 * Q7_W) {
        q7_i32 columns[2];
        q7_two_columns(w, w + (n - 1) * 4 * NR, columns);
        Q7_UNROLL
        for (int i = 0; i < sum_rows; i++) {
            q7_i32 *to = sum + i * vectors + j;
            *to = q7_dot_square(*to, rows[i / 2], columns[i % 2]);
            __asm__("" : "+r"(w), "+w"(*to)); /* no room for more columns before */
        }
    }
}
#else
enum { Q7_STEP = 1 };
#define Q7_SUM_ROWS(m) (m)
#define q7_turn_sums(sum, m, vectors)
#endif

/* sum (m, vectors) += n quads of m rows, `at` bytes on, by those of the first `vectors` of a panel. */
Q7_INLINE void q7_add_quads(q7_i32 *sum, const char *const *origin, int64_t stride, int64_t at,
                            const int8_t *w, const int m, const int vectors, const int n) {
#ifdef Q7_HAS_SQUARES
    if (m > 1) {
        q7_add_squares(sum, origin, stride, at, w, m, vectors, n);
        return;
    }
#endif
    Q7_UNROLL
    for (int i = 0; i < m * n; i++) {
        const int row = i / n, s = i % n;
        int32_t four;
        memcpy(&four, origin[row / 5] + row % 5 * stride + at + 4 * s, sizeof four);
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[row * vectors + j] = q7_dot_quads(sum[row * vectors + j],
                                                  w + 4 * (s * NR + Q7_W * j), q7_i32_set1(four));
    }
}

#ifdef Q7_QUADS_SATURATE
/* The same, of quads whose pairs add up in int16. */
Q7_INLINE void q7_add_quads_in_pairs(q7_i32 *sum, const char *const *origin, int64_t stride,
                                     const int8_t *w, const int m, const int vectors, const int n) {
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        q7_i32 pairs[VECTORS];
        Q7_UNROLL
        for (int s = 0; s < n; s++) {
            int32_t four;
            memcpy(&four, origin[i / 5] + i % 5 * stride + 4 * s, sizeof four);
            Q7_UNROLL
            for (int j = 0; j < vectors; j++) {
                const q7_i32 more = q7_pairs_of(w + 4 * (s * NR + j * Q7_W), q7_i32_set1(four));
                pairs[j] = s == 0 ? more : q7_pairs_add(pairs[j], more);
            }
        }
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[i * vectors + j] = q7_add_pairs(sum[i * vectors + j], pairs[j]);
    }
}
#endif
#endif
