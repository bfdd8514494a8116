/* qgemm.c: the kernel of ../qgemm.h in quads, for ISAs that multiply and add four bytes at a time.
 *
 * Few rows have several sums each, which are added at the end: one chain of dependent additions would
 * wait 4 of 5 cycles. */
#include "../quad_tiles.h"

Q7_INLINE void multiply(const q7_quads *q, const panel *of, const int m, const int vectors,
                        q7_i32 *sum) {
    const int sums = Q7_SUM_ROWS(m) * vectors, chains = sums < 4 ? 4 : sums < 8 ? 2 : 1;
    const int at_once = chains * Q7_STEP;
    const int8_t *b = of->quads, *ahead = of->ahead;
    begin(q, of, m, vectors, sum);
    Q7_UNROLL
    for (int i = m * vectors; i < chains * sums; i++) sum[i] = q7_i32_set1(0);
    q7_turn_sums(sum, m, vectors);
    int64_t stride = q->a_stride;
    __asm__("" : "+r"(stride)); /* in a register */
    const char *a = (const char *)of->a, *origin[3];
    for (int64_t r = 0; r < q->runs; r++, a += q->run_stride) {
        Q7_UNROLL
        for (int i = 0; i < 3; i++) origin[i] = a + 5 * i * stride;
        int64_t p = 0;
        for (; p + at_once <= q->run_quads; p += at_once) {
            Q7_UNROLL
            for (int s = 0; s < chains; s++) {
                Q7_UNROLL
                for (int i = 0; i < Q7_STEP; i++) {
                    if (m <= 3) {
                        const int8_t *soon = b + i * 4 * NR + (m < 3 ? FEW_AHEAD : AHEAD);
                        q7_prefetch(soon), q7_prefetch(soon + LINE);
                    } else {
                        fetch_share(of, &ahead);
                    }
                }
                q7_add_quads(sum + s * sums, origin, stride, 4 * Q7_STEP * s, b, m, vectors,
                             Q7_STEP);
                b += 4 * NR * Q7_STEP;
            }
            Q7_UNROLL
            for (int i = 0; i < 3; i++) origin[i] += 4 * at_once;
        }
        for (; p < q->run_quads; p++, b += 4 * NR) {
            q7_add_quads(sum, origin, stride, 0, b, m, vectors, 1);
            Q7_UNROLL
            for (int i = 0; i < 3; i++) origin[i] += 4;
        }
    }
    Q7_UNROLL
    for (int i = 0; i < sums; i++) {
        Q7_UNROLL
        for (int s = 1; s < chains; s++) sum[i] = q7_i32_add(sum[i], sum[s * sums + i]);
    }
    q7_turn_sums(sum, m, vectors);
}

void Q7_KERNEL(qgemm_u8)(const q7_qgemm_block *x) {
    const q7_quads q = q7_quads_of(x, 4, 1, (x->a_signed ? 128 : 0) ^ Q7_QUAD_FLIP);
    multiply_panels(x, &q);
}
