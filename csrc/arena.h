/* arena.h: offsets for buffers that are alive in intervals of steps, so that those alive together
 * do not overlap. */
#ifndef Q7_ARENA_H
#define Q7_ARENA_H
#include <stdint.h>

enum { Q7_ARENA_ALIGN = 128 };

/* As many bytes as a buffer takes. */
static inline int64_t q7_arena_aligned(int64_t bytes) {
    return (bytes + Q7_ARENA_ALIGN - 1) / Q7_ARENA_ALIGN * Q7_ARENA_ALIGN;
}

typedef struct q7_interval {
    int64_t bytes, first, last; /* alive in steps [first, last] */
    int64_t offset;             /* out; a multiple of Q7_ARENA_ALIGN */
} q7_interval;

/* Returns the bytes needed, or -1 on overflow. order: scratch for 2 * n words. Deterministic. */
int64_t q7_arena_place(q7_interval *intervals, int64_t n, int64_t *order);

#ifdef Q7_DEBUG
/* Before a step: what it must not find there is NaN, and what it must not touch is poisoned where
 * AddressSanitizer watches. */
void q7_arena_poison(unsigned char *arena, int64_t bytes, const q7_interval *intervals, int64_t n,
                     int64_t step);
/* After a step: the offset of a byte that it wrote outside of the buffers that are alive, or -1. */
int64_t q7_arena_damage(unsigned char *arena, int64_t bytes, const q7_interval *intervals,
                        int64_t n, int64_t step);
#endif
#endif
