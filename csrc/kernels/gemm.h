/* gemm.h: the kernel of every matrix product of floats, and the layout of packed matrices.
 *
 * c = a @ b, or c += a @ b, for a block of rows and columns; with an epilogue
 * c = act(alpha * (the sum) + biases) * scale + shift + residual, or where that has `gated`
 * gated = act(gate sums + bias) * (up sums + up_bias), while c holds the sums between two blocks of
 * k. Elements of c outside (m, n) are not touched, and c is not read before it is written unless
 * accumulate is set. Any alignment. Columns [n, nr) of b are not read unless b is packed. k = 0
 * gives a sum of 0. c overlaps neither a nor b.
 *
 * Sums run over blocks of k_block k values in order, each summed by itself by fused multiply-adds,
 * where the ISA has them, in one accumulator per element: a row's result depends neither on m and n
 * nor on the strides; by a b that is a column it has two vectors of accumulators, of blocks of
 * Q7_GEMM_K_BLOCK. NaN and inf spread as in IEEE arithmetic. amx does so where q7_gemm_in_tiles()
 * says no; its tiles, in blocks of Q7_GEMM_TILE_K whatever k_block is, are told in amx/parts.h: a
 * row's result is then one of two, of few rows and of more, whatever the others are.
 *
 * Packed b (k, n): panels of nr columns one after the other, the last filled with zeros:
 *
 *     panel 0                  panel 1
 *     b[0, 0 .. nr)            b[0, nr .. 2 nr)
 *     b[1, 0 .. nr)            b[1, nr .. 2 nr)
 *     ..                       ..
 *     b[k-1, 0 .. nr)          b[k-1, nr .. 2 nr)
 *
 * A gated product has two matrices: panel p holds columns [p nr / 2, (p + 1) nr / 2) of gate, then
 * those of up.
 */
#ifndef Q7_GEMM_H
#define Q7_GEMM_H
#include "../abi.h"

typedef struct q7_gemm_epilogue {
    float alpha;
    const float *bias;     /* (n,) from column 0 of the block, or NULL */
    const float *row_bias; /* (m,) from row 0 of the block, or NULL */
    const float *residual; /* (m, n) from the block's origin, or NULL; may be c if all of k is one
                              block and accumulate is not set */
    int64_t residual_stride;
    bool residual_first;        /* act(.. + residual) */
    const float *scale, *shift; /* both, as bias; or NULL */
    int64_t act;                /* Q7_act_* */
    float act_alpha, act_beta;
    float *gated; /* (m, gated_n), or NULL; n is a multiple of nr then, and alpha is 1 */
    int64_t gated_stride, gated_n;
    const float *up_bias; /* as bias */
} q7_gemm_epilogue;

typedef struct q7_gemm_block {
    int64_t m, n, k; /* m > 0; n in [1, nr], or any number of columns if b is packed or m is 1 */
    int64_t k_block; /* in [1, Q7_GEMM_K_BLOCK] */
    const float *a;  /* (m, k) */
    int64_t a_row_stride, a_k_stride;
    int64_t a_id;     /* of a alone: amx keeps its parts for the next block of the same id; or 0 */
    int64_t n_after;  /* packed: columns behind those of b, which may be read as well */
    const float *b;   /* (k, n) */
    int64_t b_stride; /* between rows of b */
    bool b_packed;    /* b_stride is nr, and columns up to a multiple of nr may be read */
    bool b_is_column; /* no other column is multiplied by a: sums may be in another order */
    int64_t b_panel_stride; /* packed: between panels */
    int64_t b_dtype;        /* packed: Q7_F16 or Q7_BF16, where elements are half a float: so are
                               both strides; else floats */
    float *c;               /* (m, n) */
    int64_t c_stride;
    bool accumulate;
    const q7_gemm_epilogue *epilogue; /* or NULL */
} q7_gemm_block;

static inline bool q7_is_half(int64_t dtype) { return dtype == Q7_F16 || dtype == Q7_BF16; }

/* Whether rows are multiplied along, by the column that b is. */
static inline bool q7_gemm_by_column(const q7_gemm_block *x) {
    return x->b_is_column && x->a_k_stride == 1 && !q7_is_half(x->b_dtype);
}

typedef void (*q7_gemm_kernel)(const q7_gemm_block *block);

/* Whether the kernel of amx makes tiles of so many rows. */
static inline bool q7_gemm_in_tiles(int64_t m) { return m > Q7_GEMM_FEW; }

/* What follows sums from a row on. */
static inline void q7_gemm_skip_rows(q7_gemm_epilogue *epilogue, int64_t rows) {
    if (epilogue->row_bias) epilogue->row_bias += rows;
    if (epilogue->residual) epilogue->residual += rows * epilogue->residual_stride;
    if (epilogue->gated) epilogue->gated += rows * epilogue->gated_stride;
}

/* The part of a block from (row, column) on that is (m, n), and its epilogue, both written where they are to
 * be (docs/decisions.md 206); column is a multiple of nr. */
static inline void q7_gemm_part(const q7_gemm_block *x, int64_t row, int64_t m, int64_t column,
                                int64_t n, int64_t nr, q7_gemm_block *part,
                                q7_gemm_epilogue *epilogue) {
    *part = *x;
    part->m = m;
    part->n = n;
    part->a += row * x->a_row_stride;
    if (m < x->m) part->a_id = 0;
    part->b += x->b_packed ? column / nr * x->b_panel_stride : column;
    part->c += row * x->c_stride + column;
    if (!x->epilogue) return;
    *epilogue = *x->epilogue;
    part->epilogue = epilogue;
    const int64_t out = epilogue->gated ? column / 2 : column;
    if (epilogue->bias) epilogue->bias += out;
    if (epilogue->up_bias) epilogue->up_bias += out;
    if (epilogue->residual) epilogue->residual += column;
    if (epilogue->scale) epilogue->scale += column, epilogue->shift += column;
    if (epilogue->gated) epilogue->gated += out;
    q7_gemm_skip_rows(epilogue, row);
    epilogue->gated_n -= out;
}
#endif
