/* add_quads.h: the step of a tile of rows by a panel, four bytes of k, that the products here are made
 * of. Rows are at origin[i / 5] + i % 5 * stride: few address registers. */
#ifndef Q7_ADD_QUADS_H
#define Q7_ADD_QUADS_H
#include "tile.h"

/* sum (m, vectors) += four bytes of m rows, `at` bytes on, by those of the first `vectors` of a panel;
 * m and vectors are constants where this is inlined. */
Q7_INLINE void q7_add_quads(q7_i32 *sum, const char *const *origin, int64_t stride, int64_t at,
                            const int8_t *w, const int m, const int vectors) {
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        int32_t four;
        memcpy(&four, origin[i / 5] + i % 5 * stride + at, sizeof four);
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            sum[i * vectors + j] =
                q7_dot_quads(sum[i * vectors + j], w + 4 * Q7_W * j, q7_i32_set1(four));
    }
}

#ifdef Q7_QUADS_SATURATE
/* What q7_add_quads() adds, of n quads whose pairs add up in int16; n is a constant, too. */
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
