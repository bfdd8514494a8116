/* pages.h: weights of a mapped model file are read once, at load, to be packed.
 *
 * Pages that have been read are given back at once, not at the end of a weight: with eight threads at
 * work on weights of their own, those would be half as much again as is packed. Who includes this defines
 * _DEFAULT_SOURCE first, for madvise. */
#ifndef Q7_PAGES_H
#define Q7_PAGES_H
#include <sys/mman.h>
#include <unistd.h>

#include "panels.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

/* Floats written past the caches, where their place allows it: nobody reads them soon. */
static inline void q7_write_past(const q7_loose_float *from, int64_t n, float *to) {
    int64_t i = 0;
#ifdef __SSE2__
    if ((uintptr_t)to % sizeof(__m128) == 0)
        for (; i + 4 <= n; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps((const float *)(from + i)));
#endif
    for (; i < n; i++) to[i] = from[i];
}

/* What went past the caches comes before what follows. */
static inline void q7_end_past(void) {
#ifdef __SSE2__
    _mm_sfence();
#endif
}

/* How many lines of so many bytes are read before their pages go. */
static inline int64_t q7_pages_band(int64_t line) {
    enum { BAND = 1 << 20 }; /* bytes */
    return q7_ceil_div(BAND, q7_max(1, line));
}

/* The pages of bytes [begin, end) of a mapping that only reads: they come back where they are read
 * again, those at the ends by their neighbours. */
static inline void q7_drop_pages(const void *b, int64_t begin, int64_t end) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t at = (uintptr_t)b, start = (at + (uintptr_t)begin) / page * page;
    if (end > begin) madvise((void *)start, at + (uintptr_t)end - start, MADV_DONTNEED);
}
#endif
