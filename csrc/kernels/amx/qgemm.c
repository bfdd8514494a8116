/* qgemm.c: the kernel of ../qgemm.h in AMX tiles: 32 rows times 32 columns in four tiles of sums, two
 * of a and two of b. Few rows, which read b once, go to the kernel of AVX-512 VNNI. */
#include "../qquads.h"
#include "tiles.h"

enum { TILE = 16, FEW = 4 }; /* rows of a tile; rows that tiles are slower for */

void q7_qgemm_u8_avx512_vnni(const q7_qgemm_block *block);

/* tile c += a @ b, rows of a as they are. */
#define DOT(c, a, b)               \
    do {                           \
        if (is_signed)             \
            _tile_dpbssd(c, a, b); \
        else                       \
            _tile_dpbusd(c, a, b); \
    } while (0)

/* sums (32, NR) of 32 rows; is_signed is a constant where this is inlined. */
Q7_INLINE void two_tiles(const q7_quads *q, const uint8_t *a, const int8_t *b, int32_t *sums,
                         const bool is_signed) {
    const int64_t stride = q->a_stride;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = 0; p < q->quads; p += Q7_QUADS, a += 4 * Q7_QUADS, b += 4 * Q7_QUADS * NR) {
        _tile_loadd(6, b, 4 * NR);
        _tile_loadd(4, a, stride);
        DOT(0, 4, 6);
        _tile_loadd(7, b + 64, 4 * NR);
        DOT(1, 4, 7);
        _tile_loadd(5, a + TILE * stride, stride);
        DOT(2, 5, 6);
        DOT(3, 5, 7);
    }
    _tile_stored(0, sums, 4 * NR);
    _tile_stored(1, sums + 16, 4 * NR);
    _tile_stored(2, sums + TILE * NR, 4 * NR);
    _tile_stored(3, sums + TILE * NR + 16, 4 * NR);
    BARRIER();
}

/* sums (16, NR) of as many rows as are configured. */
Q7_INLINE void one_tile(const q7_quads *q, const uint8_t *a, const int8_t *b, int32_t *sums,
                        const bool is_signed) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t p = 0; p < q->quads; p += Q7_QUADS, a += 4 * Q7_QUADS, b += 4 * Q7_QUADS * NR) {
        _tile_loadd(4, a, q->a_stride);
        _tile_loadd(6, b, 4 * NR);
        DOT(0, 4, 6);
        _tile_loadd(7, b + 64, 4 * NR);
        DOT(1, 4, 7);
    }
    _tile_stored(0, sums, 4 * NR);
    _tile_stored(1, sums + 16, 4 * NR);
    BARRIER();
}

/* Rows [first, last), in whole tiles of `rows`, times all panels. */
Q7_INLINE void multiply(const q7_qgemm_block *x, const q7_quads *q, int64_t first, int64_t last,
                        int64_t rows, const bool is_signed) {
    _Alignas(64) int32_t sums[2 * TILE * NR], shift[NR];
    const char *b = x->b;
    q7_tiles_configure(rows, rows);
    for (int64_t column = 0; column < x->n; column += NR) {
        q7_quads_shift(q, (const int32_t *)(const void *)b, x->b_zero ? x->b_zero + column : NULL,
                       shift);
        const int8_t *quads = (const int8_t *)b + NR * sizeof(int32_t);
        for (int64_t row = first, m; row < last; row += m) {
            m = q7_min(last - row, 2 * rows);
            const uint8_t *a = q->a + row * q->a_stride;
            if (m > rows)
                two_tiles(q, a, quads, sums, is_signed);
            else
                one_tile(q, a, quads, sums, is_signed);
            q7_quads_finish(x, q, row, m, column, sums, shift);
        }
        b += (1 + q7_panel_quads(x->k)) * 4 * NR;
    }
}

static void multiply_unsigned(const q7_qgemm_block *x, const q7_quads *q, int64_t first,
                              int64_t last, int64_t rows) {
    multiply(x, q, first, last, rows, false);
}
static void multiply_signed(const q7_qgemm_block *x, const q7_quads *q, int64_t first, int64_t last,
                            int64_t rows) {
    multiply(x, q, first, last, rows, true);
}

void Q7_KERNEL(qgemm_u8)(const q7_qgemm_block *x) {
    if (x->m <= FEW) {
        q7_qgemm_u8_avx512_vnni(x);
        return;
    }
    /* A tile whose rows cross lines of the cache takes twice as long to load. */
    const q7_quads q = q7_quads_of(x, 4 * Q7_QUADS, 64, 0);
    const int64_t whole = x->m / TILE * TILE;
    BARRIER();
    if (whole) (x->a_signed ? multiply_signed : multiply_unsigned)(x, &q, 0, whole, TILE);
    if (x->m > whole)
        (x->a_signed ? multiply_signed : multiply_unsigned)(x, &q, whole, x->m, x->m - whole);
    _tile_release();
}
