/* tile.h: the register tile of the products of this ISA, MR rows by NR columns in VECTORS vectors.
 * Drivers and packing know it from the rows of kernels.def. Kernels whose panels are those of gemm define
 * Q7_GEMM_TILE first: 12 sums of avx2 take 7 loads for each k as 4 x 24, and 8 as 6 x 16, which suits
 * images of 16, 32 and 64 channels (docs/decisions.md 131). */
#ifndef Q7_TILE_H
#define Q7_TILE_H
#include "../simd/simd.h"

#if defined(Q7_ISA_avx512)
#define MR 14
#define VECTORS 2
#elif defined(Q7_ISA_avx2) && defined(Q7_GEMM_TILE)
#define MR 4
#define VECTORS 3
#elif defined(Q7_ISA_avx2)
#define MR 6
#define VECTORS 2
#elif defined(Q7_ISA_neon)
#define MR 8
#define VECTORS 3
#else
#define MR 4
#define VECTORS 2
#endif
#define NR (VECTORS * Q7_W)

/* Whether tiles have so few multiply-adds for each k that what is issued beside them is the limit where
 * another program is on the core: docs/decisions.md 130. */
#define SHORT_TILES (MR <= 6)

/* Before a loop over k, and the k of one of its turns. */
#if SHORT_TILES
#define UNROLL_K Q7_UNROLL_BY_8
enum { UNROLLED_K = 8 };
#else /* long enough as it is, and compilers would hoist so many loads that they spill */
#define UNROLL_K
enum { UNROLLED_K = 1 };
#endif

/* Rows of sums that wait for an activation: calls of tiles alone take as long as it (docs/decisions.md 133). */
enum { UNFINISHED = 32 };

/* Addresses of m rows of any stride, with few registers: row i is at origin[i / 5] + i % 5 * row_bytes. */
#define Q7_ORIGINS(m) (((m) + 4) / 5)

/* The most rows of a tile: MR, or as many as a set of L1 has lines where all of them lie in one set,
 * unless they are few more: two shorter tiles read b twice. */
static inline int64_t q7_tallest(int64_t rows, int64_t stride_bytes) {
    enum { PAGE = 4096, WAYS = 8, FEW = 2 };
    return MR > WAYS && stride_bytes % PAGE == 0 && rows > WAYS + FEW ? WAYS : MR;
}

/* Every vector *x of sum, m by `vectors`, and the row that it belongs to in rows from `origin` on: row, and j
 * in it. The optimiser does not see where rows are: it would compute all addresses up front and keep
 * them on the stack from loop to loop. */
#define Q7_EACH_VECTOR(origin, row_stride, ...)    \
    do {                                           \
        __typeof__(origin) row = origin;           \
        Q7_UNROLL                                  \
        for (int i = 0; i < m; i++) {              \
            Q7_UNROLL                              \
            for (int j = 0; j < vectors; j++) {    \
                q7_f32 *x = &sum[i * vectors + j]; \
                __VA_ARGS__;                       \
            }                                      \
            row += row_stride;                     \
            __asm__("" : "+r"(row));               \
        }                                          \
    } while (0)

/* f(1) .. f(MR): a kernel has a function for each number of rows. */
/* clang-format off */
#if MR == 4
#define Q7_EVERY_ROW(f) f(1) f(2) f(3) f(4)
#elif MR == 6
#define Q7_EVERY_ROW(f) f(1) f(2) f(3) f(4) f(5) f(6)
#elif MR == 8
#define Q7_EVERY_ROW(f) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8)
#else
#define Q7_EVERY_ROW(f) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14)
#endif
/* f(1) .. f(TALL): tiles of a single vector, where the last panel has no more, are so tall. 4 sums would wait
 * for one another. */
#if MR == 4
#define TALL 8
#define Q7_EVERY_TALL_ROW(f) Q7_EVERY_ROW(f) f(5) f(6) f(7) f(8)
#else
#define TALL MR
#define Q7_EVERY_TALL_ROW(f) Q7_EVERY_ROW(f)
#endif
/* clang-format on */

enum {
#define KERNEL(family, dtypes, isa, mr, nr) \
    mr_##family##_##dtypes##_##isa = mr, nr_##family##_##dtypes##_##isa = nr,
#include "../kernels.def"
#undef KERNEL
};
#define Q7_TILE_IS_OF(kernel)                                                              \
    _Static_assert(MR == Q7_CAT(mr_##kernel, Q7_ISA) && NR == Q7_CAT(nr_##kernel, Q7_ISA), \
                   "the tile in kernels.def is another")
#ifdef Q7_GEMM_TILE
Q7_TILE_IS_OF(gemm_f32_);
Q7_TILE_IS_OF(block_gemm_f32_);
#elif !defined(Q7_EXTENSION) /* whose kernels say for themselves */
Q7_TILE_IS_OF(winograd_f32_);
Q7_TILE_IS_OF(conv_direct_f32_);
#endif
#undef Q7_TILE_IS_OF
#endif
