/* windows.h: which taps of a window count. */
#ifndef Q7_WINDOWS_H
#define Q7_WINDOWS_H
#include "../abi.h"

/* A run of taps. */
typedef struct q7_taps {
    int64_t first, end;
} q7_taps;

/* The taps of a window that lie in [low, high), of k that start at `start`. */
static inline q7_taps q7_taps_within(int64_t start, int64_t k, int64_t dilation, int64_t low,
                                     int64_t high) {
    if (start >= low && start + (k - 1) * dilation < high) return (q7_taps){0, k}; /* no division */
    const int64_t first = start < low ? q7_ceil_div(low - start, dilation) : 0;
    const int64_t end = start < high ? q7_min(k, q7_ceil_div(high - start, dilation)) : 0;
    return (q7_taps){first, q7_max(first, end)};
}
#endif
