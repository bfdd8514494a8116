/* attention_cut.h: queries, keys and values of amx/attention.c in parts (parts.h). A query or key that
 * holds LARGE or more is told: its scores are not made of parts. */
#ifndef Q7_KERNELS_AMX_ATTENTION_CUT_H
#define Q7_KERNELS_AMX_ATTENTION_CUT_H
#include "../attention.h"
#include "../attention_mask.h"
#include "parts.h"

enum {
    ROWS = Q7_PARTS_ROWS,
    STEP = Q7_PARTS_STEP,
    STEPS = KEYS / STEP,
};
_Static_assert(STEP == Q7_ATTENTION_STEP, "scratch is for another step: kernels.def");

#define LARGE 0x1p40f /* of queries, keys and the scale: all below */

/* Of a block, before its parts. */
typedef struct block_header {
    _Alignas(64) uint32_t large[STEPS]; /* keys: bits */
    bool fits;                          /* all values */
} block_header;

/* Lanes that hold LARGE or more. */
Q7_INLINE uint32_t lanes_large(__m512 largest) {
    return _mm512_cmp_ps_mask(largest, _mm512_set1_ps(LARGE), _CMP_GE_OQ);
}

/* Parts of a panel's queries with the sign of the scale. Returns those that are large. */
static uint32_t cut_queries(const q7_attention_tile *t, const float *q, int64_t n, q7_bf16 *to) {
    const q7_f32 sign = q7_set1(sign_of(t->scale));
    uint32_t large = 0;
    for (int64_t i = 0; i < n; i++, q += t->q_stride) {
        q7_bf16 *part = to + i * STEP;
        __m512 largest = _mm512_setzero_ps();
        for (int64_t d = 0; d < t->D; d += STEP, part += Q7_PARTS_SIZE)
            q7_store_parts(q7_mul(sign, q7_load_left(q + d, t->D - d)),
                           q7_mul(sign, q7_load_left(q + d + 16, t->D - d - 16)), true, part,
                           2 * Q7_PARTS_TILE, &largest);
        large |= (uint32_t)(lanes_large(largest) != 0) << i;
    }
    return large;
}

/* Parts of up to 16 keys, transposed. Returns those that are large. */
static uint32_t cut_keys(const q7_attention_tile *t, const float *k, int64_t n, q7_bf16 *to) {
    __m512 largest = _mm512_setzero_ps(), low[16], high[16];
    for (int64_t d = 0; d < t->D; d += STEP, to += Q7_PARTS_SIZE) {
        for (int64_t j = 0; j < 16; j++) {
            const float *key = k + j * t->k_stride + d;
            low[j] = j < n ? q7_load_left(key, t->D - d) : _mm512_setzero_ps();
            high[j] = j < n ? q7_load_left(key + 16, t->D - d - 16) : _mm512_setzero_ps();
        }
        q7_transpose(low);
        q7_transpose(high);
        for (int64_t j = 0; j < 16; j++)
            q7_store_parts(low[j], high[j], false, to + j * STEP, 2 * Q7_PARTS_TILE, &largest);
    }
    return lanes_large(largest);
}

/* Parts of the values of up to 32 keys in 16 channels. Returns whether they fit. */
static bool cut_values(const q7_attention_tile *t, const float *v, int64_t n, int64_t left,
                       q7_bf16 *to) {
    __m512 largest = _mm512_setzero_ps();
    __mmask16 unordered = 0;
    for (int64_t j = 0; j < 16; j++, v += t->v_stride) {
        const __m512 low = j < n ? q7_load_left(v, left) : _mm512_setzero_ps();
        const __m512 high =
            j + 16 < n ? q7_load_left(v + 16 * t->v_stride, left) : _mm512_setzero_ps();
        unordered |= _mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q);
        q7_store_parts(low, high, true, to + j * STEP, 2 * Q7_PARTS_TILE, &largest);
    }
    return q7_parts_fit(largest) == 0xffff && !unordered;
}
#endif
