/* winograd.h: some tiles of a 3x3 convolution of stride 1 or 2, channels last, by the algorithm of
 * Winograd that makes 2 x 2 pixels of 4 x 4 (F(2x2,3x3); Lavin and Gray 2015):
 *
 *     y = A^T [(G w G^T) * (B^T d B)] A + bias, summed over channels, then act, scale, shift and residual
 *     as in conv_last; d the 4 x 4 pixels of x under a tile of y, zeros around x
 *
 * 16 products of matrices (tiles, C) @ (C, M), a multiplication for each output of 2.25 that a direct
 * sum takes. A tile of one line or column, where y ends, has no row in those that make the other alone. Of
 * a volume the kd planes under a tile are so many times C channels. With stride 2, d is 5 x 5. Of a line
 * of it, even pixels meet w[0] and w[2], odd ones w[1]:
 *
 *     y[0] = a + b    a = (d[0] - d[2]) w[0] + d[1] w[1]    c = (d[4] - d[2]) w[2] + d[3] w[1]
 *     y[1] = b + c    b = d[2] (w[0] + w[2])
 *
 * so that 25 products with 16 matrices make 9 sums, a multiplication of 1.44. Of kernels of one line,
 * kh 1, a tile is 2 pixels of 4: 4 products with 4 matrices, a multiplication of 1.5. Kernels of one
 * column, or of one pixel in several planes, are such lines of x and y turned around. A longer line, of
 * one plane, is cut into threes, which are as so many planes; one or two elements that are left meet
 * pixels as they are, in the matrices that make but one of the two sums:
 *
 *     y[0] = m[0] + m[1] + m[2]    m[0] += d[j] w[j]            j 3 (kw / 3) .. kw - 1
 *     y[1] = m[1] - m[2] - m[3]    m[3] += d[j + 1] (-w[j])
 *
 * w holds the matrices G w G^T, below one another, as packed panels. Channels are summed in blocks of
 * Q7_WINOGRAD_K_BLOCK. room: q7_winograd_room floats. */
#ifndef Q7_WINOGRAD_H
#define Q7_WINOGRAD_H
#include "../abi.h"

typedef struct q7_winograd_block {
    int64_t first, end;         /* tiles, of (N, OD, lines(OH), lines(OW)) */
    int64_t first_panel, panel; /* of w; the one that is not computed any more */
    float *room;
} q7_winograd_block;

typedef void (*q7_winograd_kernel)(const q7_winograd_args *args, const q7_winograd_block *block);

/* Lines of tiles over `size` lines of y. With a dilation the lines of a tile, of x and of y, are so far
 * apart: a dilated convolution is one of every dilation-th pixel, for each of the pixels to begin with. */
static inline int64_t q7_winograd_lines(int64_t size, int64_t dilation) {
    return size / (2 * dilation) * dilation + q7_min(dilation, size % (2 * dilation));
}

/* The first line of y of such a line of tiles. */
static inline int64_t q7_winograd_line(int64_t at, int64_t dilation) {
    return at / dilation * 2 * dilation + at % dilation;
}

/* The first line of y of the line of tiles behind that which begins at `line`. */
static inline int64_t q7_winograd_line_after(int64_t line, int64_t dilation) {
    if (dilation == 1) return line + 2;
    return (line + 1) % (2 * dilation) == dilation ? line + 1 + dilation : line + 1;
}

static inline int64_t q7_winograd_tile_lines(const q7_winograd_args *x) {
    return x->kh == 1 ? x->OH : q7_winograd_lines(x->OH, x->dilation_h);
}

static inline int64_t q7_winograd_matrices(const q7_winograd_args *x) {
    return x->kh == 1 ? 4 : 16;
}

/* Parts of a line of a kernel that a matrix has: threes, and what is left. */
static inline int64_t q7_winograd_parts(const q7_winograd_args *x, int64_t matrix) {
    return x->kw / 3 + (matrix % 3 == 0 ? x->kw % 3 : 0);
}

/* Rows of a matrix: channels of those parts, in all planes. */
static inline int64_t q7_winograd_k(const q7_winograd_args *x, int64_t matrix) {
    return x->kd * q7_winograd_parts(x, matrix) * x->C;
}

/* Rows of all of them. */
static inline int64_t q7_winograd_rows(const q7_winograd_args *x) {
    int64_t rows = 0;
    for (int64_t i = 0; i < q7_winograd_matrices(x); i++) rows += q7_winograd_k(x, i);
    return rows;
}

/* Of x under a tile. */
static inline int64_t q7_winograd_pixels(const q7_winograd_args *x) {
    const int64_t side = x->stride + 3;
    return x->kh == 1 ? side : side * side;
}

enum { Q7_WINOGRAD_GAP = 16 }; /* floats between rows of channels: not the same sets of L1 */

/* Zeros, the transformed x of a block, and the products of a panel. */
static inline int64_t q7_winograd_room(const q7_winograd_args *x, int64_t nr) {
    const int64_t row = q7_winograd_k(x, 0) + Q7_WINOGRAD_GAP, rows = q7_winograd_pixels(x);
    const int64_t sums = x->stride == 1 ? q7_winograd_matrices(x) : 9;
    return q7_ceil_div(row + x->block * (rows * row + sums * nr), 16) * 16;
}
#endif
