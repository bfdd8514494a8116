/* qgemm.c: the kernel of ../qgemm.h in quads where products of bytes come as sums of two, in int16 that
 * saturate: u8x2. Weights are such that none does, and what they lack is in extras. */
#include "../quad_tiles.h"

_Static_assert(VECTORS == 2, "a panel has the extras of two");

/* sum (m, vectors) += m rows times the quads; at_once is a constant, too, where this is inlined. */
Q7_INLINE void add_steps(const q7_quads *q, const panel *of, const int m, const int vectors,
                         const int at_once, q7_i32 *sum) {
    const char *a = (const char *)of->a, *origin[3];
    const int8_t *b = of->quads, *ahead = of->ahead;
    int64_t stride = q->a_stride;
    __asm__("" : "+r"(stride)); /* in a register */
    Q7_UNROLL
    for (int i = 0; i < 3; i++) origin[i] = a + 5 * i * stride;
    for (int64_t p = 0; p < q->quads; p += at_once) {
        if (m <= 3) {
            q7_prefetch(b + FEW_AHEAD), q7_prefetch(b + FEW_AHEAD + LINE);
        } else {
            Q7_UNROLL
            for (int i = 0; i < at_once; i++) fetch_share(of, &ahead);
        }
        q7_add_quads_in_pairs(sum, origin, stride, b, m, vectors, at_once);
        b += at_once * 4 * NR;
        Q7_UNROLL
        for (int i = 0; i < 3; i++) origin[i] += at_once * 4;
    }
}

/* The same of the extras. */
Q7_INLINE void add_extras(const q7_quads *q, const panel *of, const int m, const int vectors,
                          q7_i32 *sum) {
    const char *a = (const char *)of->a, *origin[3];
    const int32_t *end = (const int32_t *)(const void *)of->end, *chunk = end + 1 + VECTORS;
    const int64_t stride = q->a_stride;
    const int8_t *b = (const int8_t *)of->end;
    b += q7_ceil_div((1 + VECTORS + end[1] + end[2]) * 4, 64) * 64;
    Q7_UNROLL
    for (int j = 0; j < vectors; j++)
        for (int64_t e = end[1 + j]; e > 0; e--, chunk++, b += 8 * Q7_W) {
            Q7_UNROLL
            for (int i = 0; i < 3; i++) origin[i] = a + 5 * i * stride + 16 * *chunk;
            Q7_UNROLL
            for (int i = 0; i < m; i++) {
                const char *bytes = origin[i / 5] + i % 5 * stride;
                const q7_i32 chunks = q7_load_chunks((const uint8_t *)bytes);
                const q7_i32 quad = q7_choose_bytes(chunks, b);
                sum[i * vectors + j] = q7_dot_quads(sum[i * vectors + j], b + 4 * Q7_W, quad);
            }
        }
}

Q7_INLINE void multiply(const q7_quads *q, const panel *of, const int m, const int vectors,
                        q7_i32 *sum) {
    begin(q, of, m, vectors, sum);
    if (*(const int32_t *)(const void *)of->end == 2)
        add_steps(q, of, m, vectors, 2, sum);
    else
        add_steps(q, of, m, vectors, 1, sum);
    add_extras(q, of, m, vectors, sum);
}

void Q7_KERNEL(qgemm_u8x2)(const q7_qgemm_block *x) {
    q7_quads q = q7_quads_of(x, 16, 1, x->a_signed ? 128 : 0); /* extras read chunks of 16 */
    q.quads = q7_ceil_div(x->k, 8) * 2;
    multiply_panels(x, &q);
}
