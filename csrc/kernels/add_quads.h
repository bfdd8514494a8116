/* add_quads.h: the step of a tile of rows by a panel, four bytes of k, that the products here are made
 * of. Rows are at origin[i / 5] + i % 5 * stride: few address registers. */
#ifndef Q7_ADD_QUADS_H
#define Q7_ADD_QUADS_H
#include "tile.h"

/* sum (m, VECTORS) += four bytes of m rows, `at` bytes on, by those of NR columns; m is a constant where
 * this is inlined. */
Q7_INLINE void q7_add_quads(q7_i32 *sum, const char *const *origin, int64_t stride, int64_t at,
                            const int8_t *w, const int m) {
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        int32_t four;
        memcpy(&four, origin[i / 5] + i % 5 * stride + at, sizeof four);
        Q7_UNROLL
        for (int j = 0; j < VECTORS; j++)
            sum[i * VECTORS + j] =
                q7_dot_quads(sum[i * VECTORS + j], w + 4 * Q7_W * j, q7_i32_set1(four));
    }
}
#endif
