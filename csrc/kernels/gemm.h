/* gemm.h: the register-tile kernel of every matrix product, and the layout of packed matrices.
 *
 * c = a @ b, or c += a @ b, for a tile of up to mr rows and nr columns (kernels.def); with an
 * epilogue c = act(alpha * (the sum) + biases) + residual, or where that has `gated`
 * gated = act(gate sums + bias) * (up sums + up_bias), while c, of which only the sums so far are
 * read, stays. Elements of c outside (m, n) are not touched, and c is not read unless accumulate is
 * set. Any alignment. Columns [n, nr) of b are not
 * read unless b is packed. k = 0 gives a sum of 0. Sums run over k in order, in f32 (fused
 * multiply-add where the ISA has it), one accumulator per element: a row's result depends neither
 * on m and n nor on the strides. NaN and inf spread as in IEEE arithmetic.
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
#include <stdbool.h>
#include <stdint.h>

typedef struct q7_gemm_epilogue {
    float alpha;
    const float *bias;     /* (n,) from column 0 of the tile, or NULL */
    const float *row_bias; /* (m,) from row 0 of the tile, or NULL */
    const float
        *residual; /* (m, n) from the tile's origin, or NULL; may be c unless accumulate is set */
    int64_t residual_stride;
    bool residual_first; /* act(.. + residual) */
    int64_t act;         /* Q7_act_* */
    float act_alpha, act_beta;
    float *gated; /* (m, gated_n), or NULL; t->n is a multiple of nr then, and alpha is 1 */
    int64_t gated_stride, gated_n;
    const float *up_bias; /* as bias */
} q7_gemm_epilogue;

typedef struct q7_gemm_tile {
    int64_t m, n, k; /* m in [1, mr]; n in [1, nr], or any number of columns if b is packed */
    const float *a;  /* (m, k) */
    int64_t a_row_stride, a_k_stride;
    const float *b;         /* (k, n) */
    int64_t b_stride;       /* between rows of b */
    bool b_packed;          /* b_stride is nr, and columns up to a multiple of nr may be read */
    int64_t b_panel_stride; /* packed, n > nr: between panels */
    float *c;               /* (m, n) */
    int64_t c_stride;
    bool accumulate;
    const q7_gemm_epilogue *epilogue; /* or NULL */
    const float
        *prefetch; /* wanted soon, or NULL: prefetch_stride floats for every k. Panels that */
    int64_t prefetch_stride; /* are multiplied several at once are prefetched in any case */
    int64_t prefetch_gap;    /* from there to what is wanted at the same time */
} q7_gemm_tile;

typedef void (*q7_gemm_kernel)(const q7_gemm_tile *tile);

/* Floats from where b is read to where it is prefetched if it is read once: in a single panel, and in
 * each of several. The products of BERT-base from memory, one core, avx512, GB/s: m = 1 in four panels
 * 18.1, 17.5 with 512; m = 4 in two panels 16.7, in one 14.6; m = 8 12.4 with
 * 768, 13.1 with 1024, the same place of the next page, and Q7_GEMM_NEAR for L2 to L1. */
enum { Q7_GEMM_AHEAD = 1024, Q7_GEMM_NEAR = 256, Q7_GEMM_PANELS_AHEAD = 256 };

/* How many packed panels the kernel takes at once where there are few rows: independent sums to
 * hide the latency of fma, and streams of b to keep the memory busy, as far as registers reach. */
static inline int64_t q7_gemm_panels(int64_t m, int64_t mr) {
    return m == 1 ? 4 : 2 * m + 2 <= mr ? 2 : 1;
}
#endif
