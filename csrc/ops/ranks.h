/* ranks.h: floats as integers of their order, and a heap of keys that have such a rank above: for topk.c and
 * nms.c. */
#ifndef Q7_OPS_RANKS_H
#define Q7_OPS_RANKS_H
#include <stdint.h>
#include <string.h>

/* Ascending, but for NaN; zeros of either sign are the same. Neither 0 nor UINT32_MAX is a number's. */
static inline uint32_t q7_rank_f32(float v) {
    uint32_t bits;
    v += 0.0f;
    memcpy(&bits, &v, 4);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Lets the key at `hole` sink to its place among the first `count`, the greatest on top. */
static inline void q7_sink_key(uint64_t *keys, int64_t hole, int64_t count, int64_t inner) {
    const uint64_t sinking = keys[hole * inner];
    for (int64_t child; (child = 2 * hole + 1) < count; hole = child) {
        child += child + 1 < count && keys[child * inner] < keys[(child + 1) * inner];
        if (keys[child * inner] <= sinking) break;
        keys[hole * inner] = keys[child * inner];
    }
    keys[hole * inner] = sinking;
}
#endif
