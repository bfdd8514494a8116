/* qdepthwise.c: the kernel of ../qdepthwise.h in quads of bytes. */
#include "../../simd/simd.h"

enum { SIZE = 4, IS_SIGNED = Q7_QUAD_FLIP != 0 };

Q7_INLINE void zip(const q7_block *x, q7_i32 *quads) { q7_zip_quads(x, quads); }
Q7_INLINE q7_i32 dot(q7_i32 sum, const char *weight, q7_i32 quad) {
    return q7_dot_quads(sum, (const int8_t *)weight, quad);
}
#include "../qtaps.h"

void Q7_KERNEL(qdepthwise_u8)(const q7_qdepthwise_args *x, const q7_qdepthwise_line *line) {
    line_of(x, line);
}
