/* qpack.c: the kernel of ../qpack.h for panels in quads. */
#include "../qgemm.h"
#include "../turn_quads.h"

void Q7_KERNEL(qpack_u8)(const q7_qpack_panel *x) {
    const int64_t all = q7_ceil_div(x->k, 4 * Q7_QUADS) * Q7_QUADS;
    const uint8_t flip = x->is_signed ? 0 : 128;
    const q7_i32 ones = q7_i32_set1(0x01010101);
    uint32_t *to = (uint32_t *)x->panel + NR, *end = to + all * NR;
    q7_i32 sum[VECTORS];
    Q7_UNROLL
    for (int j = 0; j < VECTORS; j++) sum[j] = q7_i32_set1(0);
    for (int64_t k = 0; k < x->k; k += 4 * TURNED) {
        turn_quads(x, k, flip, to);
        for (int q = 0; q < TURNED; q++, to += NR) {
            for (int j = 0; flip && j < NR; j++) to[j] ^= 0x80808080;
            Q7_UNROLL
            for (int j = 0; j < VECTORS; j++) {
                const void *quads = to + j * Q7_W;
                sum[j] = q7_dot_unsigned(sum[j], ones, q7_i32_load(quads));
            }
        }
    }
    memset(to, 0, (size_t)((char *)end - (char *)to));
    Q7_UNROLL
    for (int j = 0; j < VECTORS; j++) q7_i32_store((int32_t *)x->panel + j * Q7_W, sum[j]);
}
