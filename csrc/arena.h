/* arena.h: offsets for buffers that are alive in intervals of steps, so that those alive together
 * do not overlap. */
#ifndef Q7_ARENA_H
#define Q7_ARENA_H
#include <stdint.h>

enum { Q7_ARENA_ALIGN = 128 };

typedef struct q7_interval {
    int64_t bytes, first, last; /* alive in steps [first, last] */
    int64_t offset;             /* out; a multiple of Q7_ARENA_ALIGN */
} q7_interval;

/* Returns the bytes needed, or -1 on overflow. order: scratch for 2 * n words. Deterministic. */
int64_t q7_arena_place(q7_interval *intervals, int64_t n, int64_t *order);
#endif
