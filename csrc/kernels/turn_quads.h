/* turn_quads.h: bytes of b as quads of k, side by side in the columns of a panel, wherever they lie in b.
 * Read qpack.h first. */
#ifndef Q7_TURN_QUADS_H
#define Q7_TURN_QUADS_H
#include "qpack.h"
#include "tile.h"

enum { TURNED = Q7_W }; /* quads at a time, which are a vector of a column */

/* The bytes of four rows, `stride` apart, side by side. */
Q7_INLINE void zip(const uint8_t *rows, int64_t stride, uint32_t *quads) {
    Q7_UNROLL
    for (int j = 0; j < NR; j += Q7_W) {
        q7_i32 v[4];
        Q7_UNROLL
        for (int i = 0; i < 4; i++) v[i] = q7_i32_up(q7_load_bytes(rows + i * stride + j), 8 * i);
        const q7_i32 all = q7_i32_add(q7_i32_add(v[0], v[1]), q7_i32_add(v[2], v[3]));
        q7_i32_store((int32_t *)(void *)(quads + j), all);
    }
}

/* Rows that lie side by side: some from `first` on, and then `blank`. */
Q7_INLINE void zip_rows(const q7_qpack_panel *x, int64_t first, uint8_t blank, uint32_t *turned) {
    const int64_t stride = x->row_stride, left = x->k - first;
    const uint8_t *rows = x->b + first * stride;
    uint8_t part[4][NR];
    for (int64_t k = 0; k < 4 * TURNED; k += 4, rows += 4 * stride, turned += NR) {
        if (k + 4 <= left && x->n == NR) {
            zip(rows, stride, turned);
            continue;
        }
        memset(part, blank, sizeof part);
        for (int64_t i = 0; i < q7_min(4, left - k); i++)
            memcpy(part[i], rows + i * stride, (size_t)x->n);
        zip(part[0], NR, turned);
    }
}

/* Columns that do. */
Q7_INLINE void turn_columns(const q7_qpack_panel *x, int64_t first, uint8_t blank,
                            uint32_t *turned) {
    const int64_t left = x->k - first;
    uint8_t part[4 * TURNED];
    q7_f32 v[Q7_W];
    for (int64_t j = 0; j < NR; j += Q7_W) {
        Q7_UNROLL
        for (int i = 0; i < Q7_W; i++) {
            const uint8_t *from = x->b + (j + i) * x->col_stride + first;
            if (left < 4 * TURNED || j + i >= x->n) {
                memset(part, blank, sizeof part);
                if (j + i < x->n) memcpy(part, from, (size_t)q7_min(left, 4 * TURNED));
                from = part;
            }
            v[i] = q7_load((const float *)(const void *)from);
        }
        q7_transpose(v);
        Q7_UNROLL
        for (int i = 0; i < Q7_W; i++) q7_store((float *)(void *)(turned + i * NR + j), v[i]);
    }
}

/* turned (TURNED, NR): the four bytes from `first` + 4 q on of column j; `blank` where b has none. */
Q7_INLINE void turn_quads(const q7_qpack_panel *x, int64_t first, uint8_t blank, uint32_t *turned) {
    if (x->col_stride == 1)
        zip_rows(x, first, blank, turned);
    else
        turn_columns(x, first, blank, turned);
}
#endif
