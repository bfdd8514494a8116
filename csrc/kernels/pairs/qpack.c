/* qpack.c: the kernel of ../qpack.h for panels in pairs. */
#include "../turn_quads.h"

/* The first or, 16 bits further, second pairs of quads, less their zeros; flip: 128 for int8, which are
 * (b ^ 128) - 128. */
Q7_INLINE void split(const uint32_t *quads, const int32_t *zero, int32_t flip, const int shift,
                     uint32_t *pairs) {
    for (int j = 0; j < NR; j++) {
        const int32_t less = zero[j] + flip;
        const int32_t low = (int32_t)((quads[j] >> shift & 255) ^ (uint32_t)flip) - less;
        const int32_t high = (int32_t)((quads[j] >> (shift + 8) & 255) ^ (uint32_t)flip) - less;
        pairs[j] = ((uint32_t)low & 0xffff) | (uint32_t)high << 16;
    }
}

void Q7_KERNEL(qpack_i16)(const q7_qpack_panel *x) {
    const int64_t pairs = q7_ceil_div(x->k, 2);
    const int32_t flip = x->is_signed ? 128 : 0;
    uint32_t turned[TURNED * NR], *to = x->panel;
    for (int64_t first = 0; first < pairs; first += 2 * TURNED) {
        turn_quads(x, 2 * first, 0, turned);
        for (int64_t p = 0; p < q7_min(2 * TURNED, pairs - first); p++, to += NR)
            split(turned + p / 2 * NR, x->zero, flip, p % 2 ? 16 : 0, to);
    }
    if (x->k % 2)
        for (int j = 0; j < NR; j++)
            to[j - NR] &= 0xffff; /* its second is none, not 0 less a zero */
}
