/* arena.c: greedy by size. The largest buffer is placed first; each goes to the lowest gap among
 * the buffers already placed that are alive with it (Pisarchyk and Lee, "Efficient Memory
 * Management for Deep Neural Net Inference", 2020, section 5.2). On transformers this reaches the
 * lower bound (the largest sum alive in one step) or a few percent above; n^2 with n around 100.
 * Read arena.h first. */
#include "arena.h"

#include <stdbool.h>
#include <string.h>

static int goes_before(const q7_interval *a, int64_t i, const q7_interval *b, int64_t j) {
    return a->bytes != b->bytes ? a->bytes > b->bytes : i < j;
}

/* Insertion sort: buffers come nearly in order of size classes, and n is small. */
static void sort_by_size(const q7_interval *v, int64_t n, int64_t *order) {
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i;
        for (; at > 0 && goes_before(&v[i], i, &v[order[at - 1]], order[at - 1]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
}

/* The lowest offset where v[i] fits among `placed`, which is sorted by offset. */
static int64_t lowest_gap(const q7_interval *v, int64_t i, const int64_t *placed, int64_t n_placed,
                          int64_t bytes) {
    int64_t offset = 0;
    for (int64_t k = 0; k < n_placed; k++) {
        const q7_interval *other = &v[placed[k]];
        if (other->last < v[i].first || other->first > v[i].last) continue;
        if (other->offset - offset >= bytes) break;
        const int64_t end = other->offset + q7_arena_aligned(other->bytes);
        if (end > offset) offset = end;
    }
    return offset;
}

int64_t q7_arena_place(q7_interval *v, int64_t n, int64_t *order) {
    int64_t *placed = order + n, total = 0;
    sort_by_size(v, n, order);
    for (int64_t k = 0; k < n; k++) {
        const int64_t i = order[k];
        const int64_t bytes = q7_arena_aligned(v[i].bytes);
        v[i].offset = lowest_gap(v, i, placed, k, bytes);
        int64_t end;
        if (__builtin_add_overflow(v[i].offset, bytes, &end)) return -1;
        if (end > total) total = end;
        int64_t at = k;
        for (; at > 0 && v[placed[at - 1]].offset > v[i].offset; at--) placed[at] = placed[at - 1];
        placed[at] = i;
    }
    return total;
}

#ifdef Q7_DEBUG
#ifndef __has_feature /* clang's, which has no macro of gcc's */
#define __has_feature(feature) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes) ((void)(at), (void)(bytes))
#endif
enum { POISON = 0xff }; /* as float, a NaN */

typedef struct {
    const q7_interval *v;
    int64_t n, bytes, first, last; /* of the arena: n buffers; those alive in [first, last] count */
    int64_t begin, end;            /* the range found */
} gap;

static bool is_alive(const gap *g, int64_t i) {
    return g->v[i].bytes > 0 && g->v[i].first <= g->first && g->v[i].last >= g->last;
}

/* The next range that is in no buffer, after the one in g; false where there is none. */
static bool next_gap(gap *g) {
    g->begin = g->end;
    for (int64_t i = 0; i < g->n; i++)
        if (is_alive(g, i) && g->v[i].offset <= g->begin &&
            g->begin < g->v[i].offset + g->v[i].bytes) {
            g->begin = g->v[i].offset + g->v[i].bytes;
            i = -1; /* that end may be another's start */
        }
    g->end = g->bytes;
    for (int64_t i = 0; i < g->n; i++)
        if (is_alive(g, i) && g->v[i].offset >= g->begin && g->v[i].offset < g->end)
            g->end = g->v[i].offset;
    return g->begin < g->bytes;
}

void q7_arena_poison(unsigned char *arena, int64_t bytes, const q7_interval *v, int64_t n,
                     int64_t step) {
    for (gap g = {v, n, bytes, step - 1, step, 0, 0}; next_gap(&g);)
        memset(arena + g.begin, POISON, (size_t)(g.end - g.begin));
    for (gap g = {v, n, bytes, step, step, 0, 0}; next_gap(&g);)
        ASAN_POISON_MEMORY_REGION(arena + g.begin, (size_t)(g.end - g.begin));
}

int64_t q7_arena_damage(unsigned char *arena, int64_t bytes, const q7_interval *v, int64_t n,
                        int64_t step) {
    ASAN_UNPOISON_MEMORY_REGION(arena, (size_t)bytes);
    for (gap g = {v, n, bytes, step, step, 0, 0}; next_gap(&g);)
        for (int64_t i = g.begin; i < g.end; i++)
            if (arena[i] != POISON) return i;
    return -1;
}
#endif
