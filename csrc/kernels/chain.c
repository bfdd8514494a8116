/* chain.c: the loops of unary.c, binary.c, cast.c, reduce.c and quantize.c behind one address. Read chain.h first. */
#include "chain.h"

#include "../simd/simd.h"

void Q7_KERNEL(unary_any)(int64_t dtype, int64_t op, int64_t n, const void *x, void *y,
                          double alpha, double beta);
void Q7_KERNEL(binary_any)(int64_t dtype, int64_t op, int64_t n, const void *a, int64_t a_stride,
                           const void *b, int64_t b_stride, void *y);
#ifdef Q7_ISA_avx512
#define PAIR q7_binary_pair_avx2
#else
#define PAIR Q7_KERNEL(binary_pair)
#endif
void PAIR(int64_t first, int64_t second, int64_t n, const float *a, const float *b,
          int64_t b_stride, const float *c, int64_t c_stride, float low, float *y);
void Q7_KERNEL(cast_any)(int64_t from, int64_t to, int64_t n, const void *x, void *y);
void Q7_KERNEL(reduce_any)(int64_t dtype, int64_t op, int64_t count, int64_t n, int64_t stride,
                           const void *x, void *y);
void Q7_KERNEL(quantize_f32)(q7_quantize_line *line);
void Q7_KERNEL(dequantize_u8)(const q7_dequantize_line *line);

const q7_chain_loops *Q7_KERNEL(chain_any)(void);

const q7_chain_loops *Q7_KERNEL(chain_any)(void) {
    static const q7_chain_loops loops = {
        Q7_KERNEL(unary_any),    Q7_KERNEL(binary_any), PAIR,
        Q7_KERNEL(cast_any),     Q7_KERNEL(reduce_any), Q7_KERNEL(quantize_f32),
        Q7_KERNEL(dequantize_u8)};
    return &loops;
}
