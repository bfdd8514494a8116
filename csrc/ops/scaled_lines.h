/* scaled_lines.h: how quantize and dequantize cut a tensor (outer, n, inner) into tasks: fixed runs
 * of elements, handled in pieces whose scales are the same one, or follow each other. */
#ifndef Q7_OPS_SCALED_LINES_H
#define Q7_OPS_SCALED_LINES_H
#include <stdbool.h>

#include "../kernels/move.h"
#include "loops.h"

/* `count` elements from `at` on; element i has scale and zero number which + i * step of these. */
typedef struct q7_scaled_piece {
    int64_t at, count, which, step;
    const float *scale;
    const void *zero; /* or NULL */
} q7_scaled_piece;

typedef struct q7_scaled_lines {
    int64_t outer, n, inner;
    bool per_line;  /* a scale for each of n; else one for all */
    int64_t block;  /* or, if not 0: scales (outer, ceil(n / block), inner) */
    int64_t period; /* per_line of an inner of 1: after so many elements scales begin again */
    const float *scale;
    const void *zero;
    int64_t zero_bytes; /* of one */
    void (*body)(const void *args, q7_scaled_piece piece);
    const void *args;
} q7_scaled_lines;

/* The longest piece from `at` on. */
static inline q7_scaled_piece q7_scaled_from(const q7_scaled_lines *lines, int64_t at) {
    const int64_t n = lines->n, inner = lines->inner, block = lines->block;
    q7_scaled_piece piece = {.at = at, .scale = lines->scale, .zero = lines->zero};
    if (!block && lines->per_line && inner == 1) {
        piece.which = at % lines->period;
        piece.step = 1;
        piece.count = lines->period - piece.which;
        return piece;
    }
    if (!block) {
        const int64_t run = lines->per_line ? inner : lines->outer * n * inner;
        piece.which = lines->per_line ? at / run % n : 0;
        piece.count = run - at % run;
        return piece;
    }
    const int64_t row = at / inner, column = at % inner, i = row % n; /* row: (outer, n) */
    const int64_t first = (row / n * q7_ceil_div(n, block) + i / block) * inner;
    piece.which = first + column;
    piece.step = inner > 1;
    piece.count = inner > 1 ? inner - column : q7_min(block - i % block, n - i);
    return piece;
}

enum { Q7_SCALES = 256 };

/* Scales, and zeros of an integer dtype, of a few neighbours, over and over. */
typedef struct q7_scaled_few {
    float scales[Q7_SCALES];
    uint8_t zeros[4 * Q7_SCALES];
} q7_scaled_few;

/* Has pieces be long where few neighbours have scales of their own: they are repeated in `few`. */
static inline void q7_scaled_repeat(q7_scaled_lines *lines, q7_scaled_few *few) {
    const int64_t n = lines->n, times = Q7_SCALES / q7_max(1, n), bytes = lines->zero_bytes;
    lines->period = n;
    if (!lines->per_line || lines->block || lines->inner != 1 || times < 2) return;
    for (int64_t i = 0; i < times; i++) {
        memcpy(few->scales + i * n, lines->scale, (size_t)n * sizeof(float));
        if (lines->zero) memcpy(few->zeros + i * n * bytes, lines->zero, (size_t)(n * bytes));
    }
    lines->period = n * times;
    lines->scale = few->scales;
    if (lines->zero) lines->zero = few->zeros;
}

/* A piece of lines that are short, up to the end of Q7_SCALES elements or `end`: each of its elements has
 * a scale and a zero of its own, in `few`. */
static inline q7_scaled_piece q7_scaled_spread(const q7_scaled_lines *lines, int64_t at,
                                               int64_t end, q7_scaled_few *few) {
    const int64_t count = q7_min(end - at, Q7_SCALES), bytes = lines->zero_bytes;
    int64_t line = at / lines->inner % lines->n, left = lines->inner - at % lines->inner;
    for (int64_t i = 0, run; i < count; i += run, left = lines->inner) {
        run = q7_min(left, count - i);
        q7_repeat((char *)(few->scales + i), lines->scale + line, run, sizeof(float));
        if (lines->zero)
            q7_repeat((char *)few->zeros + i * bytes, (const char *)lines->zero + line * bytes, run,
                      bytes);
        line = line + 1 < lines->n ? line + 1 : 0;
    }
    return (q7_scaled_piece){.at = at,
                             .count = count,
                             .step = 1,
                             .scale = few->scales,
                             .zero = lines->zero ? few->zeros : NULL};
}

static inline void q7_scaled_task(void *arg, int64_t task, int64_t thread) {
    enum { SHORT = 16 }; /* a call for each takes longer */
    const q7_scaled_lines *lines = arg;
    (void)thread;
    const int64_t total = lines->outer * lines->n * lines->inner;
    const int64_t end = q7_min(total, (task + 1) * Q7_GRAIN);
    const bool spreads =
        lines->per_line && !lines->block && lines->inner > 1 && lines->inner < SHORT;
    q7_scaled_few few;
    for (int64_t at = task * Q7_GRAIN; at < end;) {
        q7_scaled_piece piece =
            spreads ? q7_scaled_spread(lines, at, end, &few) : q7_scaled_from(lines, at);
        piece.count = q7_min(piece.count, end - at);
        lines->body(lines->args, piece);
        at += piece.count;
    }
}

/* The lines of quantize's and dequantize's args, of which `dtype` names that of the zeros. */
#define Q7_SCALED_LINES(x, dtype)                                                       \
    .outer = (x)->outer, .n = (x)->n, .inner = (x)->inner, .per_line = (x)->scales > 1, \
    .block = (x)->block, .scale = (x)->scale, .zero = (x)->zero,                        \
    .zero_bytes = q7_dtype_bytes(dtype)

static inline void q7_scaled_run(q7_scaled_lines lines, const q7_call *call) {
    const int64_t total = lines.outer * lines.n * lines.inner;
    q7_scaled_few few;
    q7_scaled_repeat(&lines, &few);
    q7_parallel(call, q7_ceil_div(total, Q7_GRAIN), q7_scaled_task, &lines);
}

/* The numbers of dtype from `which` on. */
static inline const void *q7_quantized_from(const void *p, int64_t dtype, int64_t which) {
    const bool is_wide = dtype == Q7_U16 || dtype == Q7_I16;
    return p ? (const uint8_t *)p + (which << is_wide) : NULL;
}

/* An integer of any quantised dtype; 4 and 2 bits are the lowest of a byte each. */
static inline int32_t q7_quantized(const void *p, int64_t dtype, int64_t i) {
    switch (dtype) {
        case Q7_U8: return ((const uint8_t *)p)[i];
        case Q7_I8: return ((const int8_t *)p)[i];
        case Q7_U16: return ((const uint16_t *)p)[i];
        case Q7_I16: return ((const int16_t *)p)[i];
        case Q7_U4: return ((const uint8_t *)p)[i] & 15;
        case Q7_I4: return ((((const uint8_t *)p)[i] & 15) ^ 8) - 8;
        case Q7_U2: return ((const uint8_t *)p)[i] & 3;
        case Q7_I2: return ((((const uint8_t *)p)[i] & 3) ^ 2) - 2;
        default: return ((const int32_t *)p)[i];
    }
}

/* Zero number i of a piece. */
static inline int32_t q7_scaled_zero(const q7_scaled_piece *piece, int64_t dtype, int64_t i) {
    return piece->zero ? q7_quantized(piece->zero, dtype, i) : 0;
}
#endif
