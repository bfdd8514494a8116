/* block_gemm.h: rows times one panel of a matrix of a few bits per weight, for some of its k.
 *
 * w[i, j] = (q[i, j] - zero[i / block, j]) * scale[i / block, j], rounded once, is made for k rows
 * and one panel at a time in `room`, for the kernel of gemm.h. Up to Q7_BLOCK_FEW rows, which take as
 * long as reading q does, multiply what is in the registers instead, all k of a panel in one call:
 *
 * the sums over blocks of scale * the sum of a * (q - zero). Panels of nr columns:
 *
 *     q            byte [i / per, j] holds rows i / per * per and on of column j, per = 8 / bits, the
 *                  first in the lowest bits
 *     scale        (ceil(k / block), nr) float
 *     zero         likewise, uint8 or float; NULL: 2^(bits - 1)
 *
 * bits is 2, 4 or 8; block and `first` are multiples of per.
 *
 * amx multiplies q - zero, an integer, in tiles where there are more than Q7_BLOCK_UNTILED rows, and takes
 * any number of rows and columns then, and all k in one call. zero is uint8 then, below 16 for up to 4 bits, or NULL, and
 * blocks of a multiple of 32 rows divide Q7_GEMM_TILE_K, or it them, or there is one. */
#ifndef Q7_BLOCK_GEMM_H
#define Q7_BLOCK_GEMM_H
#include "gemm.h"

enum { Q7_BLOCK_FEW = 3, Q7_BLOCK_UNTILED = 6 };

typedef struct q7_block_tile {
    q7_gemm_block gemm; /* of n <= nr columns; its b is for the kernel */
    int64_t first;      /* of the k rows that are made */
    int64_t bits, block;
    int64_t k, blocks; /* of a panel */
    const uint8_t *q;  /* a whole panel, or several, as are: */
    const float *scale;
    const void *zero;
    bool byte_zeros;
    float *room; /* (k rounded up to a multiple of per, nr) */
} q7_block_tile;

typedef void (*q7_block_gemm_kernel)(const q7_block_tile *tile);
#endif
