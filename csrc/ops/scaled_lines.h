/* scaled_lines.h: how quantize and dequantize cut a tensor (outer, n, inner) into tasks: fixed runs
 * of elements, handled in pieces of one scale each. */
#ifndef Q7_OPS_SCALED_LINES_H
#define Q7_OPS_SCALED_LINES_H
#include <stdbool.h>

#include "loops.h"

typedef struct q7_scaled_lines {
    int64_t outer, n, inner;
    bool per_line; /* a scale for each of n; else one for all */
    /* Handles `count` elements from `at` on, which share scale and zero number `which`. */
    void (*body)(const void *args, int64_t which, int64_t at, int64_t count);
    const void *args;
} q7_scaled_lines;

static inline void q7_scaled_task(void *arg, int64_t task, int64_t thread) {
    const q7_scaled_lines *lines = arg;
    (void)thread;
    const int64_t total = lines->outer * lines->n * lines->inner;
    const int64_t end = q7_min(total, (task + 1) * Q7_GRAIN);
    const int64_t run = lines->per_line ? lines->inner : total;
    for (int64_t at = task * Q7_GRAIN, count; at < end; at += count) {
        count = q7_min(end, (at / run + 1) * run) - at;
        lines->body(lines->args, lines->per_line ? at / run % lines->n : 0, at, count);
    }
}

static inline void q7_scaled_run(q7_scaled_lines *lines, const q7_call *call) {
    const int64_t total = lines->outer * lines->n * lines->inner;
    q7_parallel(call, q7_ceil_div(total, Q7_GRAIN), q7_scaled_task, lines);
}
#endif
