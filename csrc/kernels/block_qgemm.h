/* block_qgemm.h: the product of block_gemm.h with rows that are rounded to int8, in blocks as the
 * weights are: MatMulNBits of accuracy_level 4.
 *
 *     a8[i, p] = round(a[i, p] / a_scale[i, b]), a_scale[i, b] = max |a[i, block b]| / 127
 *     c[i, j]  = sum over b of (sum over p in block b of a8[i, p] * (q - zero)[p, j])
 *                              * (a_scale[i, b] * scale[b, j]), + bias[j]
 *
 * The inner sums are exact, the outer one is of floats, in the order of b, so that a row has the same
 * bits among any others. A NaN or an infinity makes a_scale a NaN, and so the row of c.
 *
 * A kernel does one of two things with a tile:
 *
 *     q NULL   rounds m rows of a into `rows`
 *     else     c = rows @ w + bias for a panel; m <= Q7_BLOCK_STREAMED if `streams`
 *
 * scale is that of block_gemm.h, zero uint8 and less than 2^bits or NULL, which it has to be for 8 bits:
 * q - zero is an int8. block is a multiple of Q7_BLOCK_GROUP and at most Q7_BLOCK_QGEMM_K. q are words
 * of four bytes of a column of block_gemm.h's q, (words, nr), zeros up to a multiple of Q7_BLOCK_GROUP of k:
 * the lowest bits of the bytes of a word are a quad, the next a second one. Rows have their bytes in the
 * order of such quads.
 *
 * A row is k bytes, then for each block a_scale, 1 / a_scale and, if it streams, the sum of its a8 in
 * int32, each of the four in whole lines of 64 bytes. */
#ifndef Q7_BLOCK_QGEMM_H
#define Q7_BLOCK_QGEMM_H
#include "../abi.h"

enum { Q7_BLOCK_STREAMED = 4 }; /* rows up to which weights stay in registers, and are used once */
enum { Q7_BLOCK_GROUP = 16 };   /* of k, which are whole words of q whatever its bits */

typedef struct q7_block_qtile {
    int64_t m, n, k, bits, block; /* m <= Q7_GEMM_ROWS, n <= nr */
    const float *a;               /* (m, k) */
    int64_t a_stride;
    char *rows;
    bool streams;
    const uint8_t *q; /* a whole panel, as are: */
    const float *scale;
    const uint8_t *zero;
    const float *bias; /* (n,) or NULL */
    float *c;          /* (m, n) */
    int64_t c_stride;
    void *room; /* q7_block_room(nr) bytes */
} q7_block_qtile;

typedef void (*q7_block_qgemm_kernel)(const q7_block_qtile *tile);

static inline int64_t q7_lines(int64_t bytes) { return q7_ceil_div(bytes, 64) * 64; }

/* Of a row; q7x2_ep/ops/blocks.py holds the same formula, as that of the room. */
static inline int64_t q7_block_row_bytes(int64_t k, int64_t block) {
    return q7_lines(k) + 3 * q7_lines(q7_ceil_div(k, block) * 4);
}

/* Weights of Q7_BLOCK_QGEMM_K of k, what the sums of their blocks begin with, and sums of rows. */
static inline int64_t q7_block_room(int64_t nr) {
    return nr * (Q7_BLOCK_QGEMM_K + Q7_BLOCK_QGEMM_K / 16 * 4 + Q7_GEMM_ROWS * 4);
}
#endif
