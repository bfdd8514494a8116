/* panel.h: a packed panel of b that is cut into parts, some pairs of its rows at a time, beside tile
 * products. Read parts.h first. */
#ifndef Q7_PANEL_H
#define Q7_PANEL_H
#include "parts.h"

/* count: pairs that are cut beside each product. */
typedef struct q7_panel {
    const float *b;
    int64_t next; /* from there to what is wanted at the same place of the next panel */
    int64_t k, pair, pairs, count;
    q7_bf16 *parts;
    __m512 largest[2];
} q7_panel;

Q7_INLINE void q7_cut_pairs(q7_panel *p, int64_t count) {
    const int64_t end = q7_min(p->pair + count, p->pairs);
    for (; p->pair < end; p->pair++) {
        const int64_t k = p->pair / 16 * Q7_PARTS_STEP + p->pair % 16;
        q7_bf16 *to = p->parts + p->pair / 16 * Q7_PARTS_SIZE + p->pair % 16 * Q7_PARTS_STEP;
        for (int64_t j = 0; j < 2; j++, to += Q7_PARTS_TILE) {
            const float *b = p->b + k * NR + 16 * j;
            q7_prefetch(b + p->next);
            q7_prefetch(b + 16 * NR + p->next);
            const __m512 low = k < p->k ? _mm512_loadu_ps(b) : _mm512_setzero_ps();
            const __m512 high = k + 16 < p->k ? _mm512_loadu_ps(b + 16 * NR) : _mm512_setzero_ps();
            q7_store_parts(low, high, false, to, 2 * Q7_PARTS_TILE, &p->largest[j]);
        }
    }
}
#endif
