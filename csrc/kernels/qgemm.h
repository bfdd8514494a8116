/* qgemm.h: c = finish((a - a_zero) @ (b - b_zero)) for a block of rows of bytes and some panels of b.
 *
 * Sums are exact while k * 255 * 255 < 2^31, and wrap beyond.
 *
 *     real[i,j] = act(sums[i,j] * a_scale * scale[j] + bias[j])
 *     c[i,j]    = real, or as bytes saturate(round(real) + zero), to even, or the sum in int32
 *
 * A kernel takes the rows as they are, and turns them in `room` into what it multiplies. What b is
 * depends on the dtypes of the kernel's row in kernels.def, panels of nr columns in either case:
 *
 *     i16   pairs: elements 2 p and 2 p + 1 of k lie together, the last odd one beside a 0, all
 *           without their zero: (pairs, nr, 2) int16. int16 pairs multiply and add in one
 *           instruction everywhere, twice as many a cycle as float; unlike the 8-bit forms of AVX2,
 *           signs mix and nothing saturates in between.
 *     u8    quads of k: (nr,) int32, the sums of each column of b, then (quads, nr, 4) int8, zeros up
 *           to a multiple of Q7_QUADS quads. Four products in one instruction (VNNI, NEON's sdot), 64
 *           in one of AMX. a_zero and b_zero come in afterwards, by sums of columns and of rows.
 *     u8x2  the same, where an instruction adds two products of bytes as an int16 that saturates (AVX2,
 *           AVX-512): bytes 2 l and 2 l + 1 of `at_once` quads of a column, one or two, have no more
 *           than 128 in sum of either sign, as 255 * 128 fits. What they lack is in extras, each for 16
 *           bytes of k and half of the columns: behind the quads of a panel follow at_once, how many
 *           extras either half has and the chunks of 16 that they are for, int32 up to a multiple of
 *           64 bytes, and for each extra (nr / 2, 4) places in the chunk, less than 0 for none, and as
 *           many int8 that multiply those bytes, of which pairs do not saturate either. */
#ifndef Q7_QGEMM_H
#define Q7_QGEMM_H
#include "../abi.h"

enum { Q7_QUADS = 16 }; /* of one AMX tile */

typedef struct q7_qfinish {
    int64_t c_dtype;    /* Q7_I32, Q7_F32, Q7_U8 or Q7_I8 */
    const float *scale; /* (n,), or one number if scale_step is 0; NULL: 1 */
    int64_t scale_step;
    float a_scale;     /* times every scale */
    const float *bias; /* (n,) or NULL */
    int32_t zero;
    int64_t act;
    float act_alpha, act_beta;
} q7_qfinish;

/* Rows of a that are windows of an image with its borders: row i begins i / line * line_stride +
 * i % line * a_stride bytes behind a, and is `runs` pieces, run_stride apart, of as many bytes each, a
 * multiple of 4. They are of the sign that the kernel multiplies, which Q7_WINDOWS_SIGNED tells. */
typedef struct q7_qwindows {
    int64_t line, line_stride; /* line: a divisor of m */
    int64_t runs, run_stride;
} q7_qwindows;

#ifdef __aarch64__
enum { Q7_WINDOWS_SIGNED = 1 };
#else
enum { Q7_WINDOWS_SIGNED = 0 };
#endif

typedef struct q7_qgemm_block {
    int64_t m, n, k;  /* any number of each but 0 rows or columns; b from the first of a panel on */
    const uint8_t *a; /* (m, k) */
    int64_t a_stride;
    const q7_qwindows *windows; /* or NULL; only for kernels in kernels.def's u8 but AMX's */
    bool a_padded; /* rows may be read, whatever is there, up to a multiple of 64 bytes */
    bool a_signed; /* a are int8 */
    int32_t a_zero;
    const char *b;
    int64_t b_bytes;       /* of a panel */
    const int32_t *b_zero; /* whole panels, or NULL */
    q7_qfinish finish;
    void *c; /* (m, n) */
    int64_t c_stride;
    void *room; /* m * q7_qgemm_room(k) bytes, 64-byte aligned */
} q7_qgemm_block;

typedef void (*q7_qgemm_kernel)(const q7_qgemm_block *block);

/* Bytes that any kernel needs for a row; q7x2_ep/ops/quant_product.py holds the same formula. */
static inline int64_t q7_qgemm_room(int64_t k) { return q7_ceil_div(k, 64) * 128 + 64; }
#endif
