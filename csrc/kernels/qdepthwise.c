/* qdepthwise.c: the kernel of qdepthwise.h in pairs of int16, for every ISA. */
#include "../simd/simd.h"

enum { SIZE = 2, IS_SIGNED = 0 };

Q7_INLINE void zip(const q7_block *x, q7_i32 *pairs) { q7_zip_pairs(x, pairs); }
Q7_INLINE q7_i32 dot(q7_i32 sum, const char *weight, q7_i32 pair) {
    return q7_madd_pairs(sum, (const int16_t *)(const void *)weight, pair);
}
#include "qtaps.h"

void Q7_KERNEL(qdepthwise_i16)(const q7_qdepthwise_args *x, const q7_qdepthwise_line *line) {
    line_of(x, line);
}
