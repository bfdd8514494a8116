/* topk.c: the k greatest (or least) along the middle axis of x (outer, n, inner), best first, and
 * where they are. ONNX TopK, ArgMax, ArgMin. Of equals the lower index comes first, or the higher one
 * if `last`; NaN beats every number if `nan_first`, else none. One heap of k indices per line, kept in
 * the output. */
#include <stdbool.h>

#include "loops.h"
#include "ranks.h"

/* x[0], x[inner], .. is a line; heap[0], heap[inner], .. holds k of its indices, or their keys, the
 * worst on top. */
typedef struct topk_line {
    const void *x;
    int64_t *heap;
    int64_t inner, k;
    bool largest, last, nan_first;
} topk_line;

enum { BLOCK = 16, FEW = 16 };

static inline int64_t index_of(const topk_line *line, uint64_t key) {
    return (int64_t)(line->last ? ~(uint32_t)key : (uint32_t)key);
}

static inline void swap_keys(uint64_t *a, uint64_t *b) {
    const uint64_t key = *a;
    *a = *b;
    *b = key;
}

static void sort_by_heap(uint64_t *keys, int64_t n, int64_t inner) {
    for (int64_t i = n / 2 - 1; i >= 0; i--) q7_sink_key(keys, i, n, inner);
    for (int64_t left = n - 1; left > 0; left--) {
        swap_keys(keys, keys + left * inner);
        q7_sink_key(keys, 0, left, inner);
    }
}

/* The n keys in ascending order; no two are the same. A quicksort whose partition has no branch to
 * mispredict; where its pivots are bad time after time, a heapsort. */
static void sort_some(uint64_t *keys, int64_t n, int64_t inner, int depth) {
    for (; n > FEW; depth--) {
        if (depth == 0) {
            sort_by_heap(keys, n, inner);
            return;
        }
        uint64_t *first = keys, *middle = keys + n / 2 * inner, *last = keys + (n - 1) * inner;
        if (*middle < *first) swap_keys(middle, first);
        if (*last < *middle) swap_keys(last, middle);
        if (*middle < *first) swap_keys(middle, first);
        swap_keys(middle, last);
        const uint64_t pivot = *last;
        int64_t less = 0;
        for (int64_t i = 0; i < n - 1; i++) {
            const uint64_t key = keys[i * inner];
            keys[i * inner] = keys[less * inner];
            keys[less * inner] = key;
            less += key < pivot;
        }
        swap_keys(keys + less * inner, last);
        const int64_t above = n - 1 - less;
        uint64_t *rest = keys + (less + 1) * inner;
        if (less < above) { /* the smaller part by recursion, so that depth is little */
            sort_some(keys, less, inner, depth - 1);
            keys = rest;
            n = above;
        } else {
            sort_some(rest, above, inner, depth - 1);
            n = less;
        }
    }
    for (int64_t i = 1; i < n; i++) {
        const uint64_t key = keys[i * inner];
        int64_t at = i;
        for (; at > 0 && key < keys[(at - 1) * inner]; at--)
            keys[at * inner] = keys[(at - 1) * inner];
        keys[at * inner] = key;
    }
}

static void sort_keys(uint64_t *keys, int64_t n, int64_t inner) {
    int depth = 8;
    for (int64_t size = n; size > 1; size /= 2) depth += 2;
    sort_some(keys, n, inner, depth);
}

#define T float
#define NAME topk_f32
#define UNORDERED(v) ((v) != (v))
#define RANK(v) (q7_rank_f32(v))
#define IS_WIDE 0
#include "topk_typed.h"
#define T double
#define AT int64_t
#define NAME topk_f64
#define UNORDERED(v) ((v) != (v))
#include "topk_typed.h"
#define T int8_t
#define NAME topk_i8
#define UNORDERED(v) 0
#define RANK(v) ((uint32_t)(v) ^ 0x80000000u)
#define IS_WIDE 0
#include "topk_typed.h"
#define T uint8_t
#define NAME topk_u8
#define UNORDERED(v) 0
#define RANK(v) ((uint32_t)(v))
#define IS_WIDE 0
#include "topk_typed.h"
#define T int16_t
#define NAME topk_i16
#define UNORDERED(v) 0
#define RANK(v) ((uint32_t)(v) ^ 0x80000000u)
#define IS_WIDE 0
#include "topk_typed.h"
#define T uint16_t
#define NAME topk_u16
#define UNORDERED(v) 0
#define RANK(v) ((uint32_t)(v))
#define IS_WIDE 0
#include "topk_typed.h"
#define T uint32_t
#define NAME topk_u32
#define UNORDERED(v) 0
#define RANK(v) ((v))
#define IS_WIDE 0
#include "topk_typed.h"
#define T uint64_t
#define AT int64_t
#define NAME topk_u64
#define UNORDERED(v) 0
#define RANK(v) ((uint32_t)((v)-low))
#define IS_WIDE 1
#include "topk_typed.h"
#define T int32_t
#define NAME topk_i32
#define UNORDERED(v) 0
#define RANK(v) ((uint32_t)(v) ^ 0x80000000u)
#define IS_WIDE 0
#include "topk_typed.h"
#define T int64_t
#define AT int64_t
#define NAME topk_i64
#define UNORDERED(v) 0
#define RANK(v) ((uint32_t)((uint64_t)(v) - (uint64_t)low))
#define IS_WIDE 1
#include "topk_typed.h"

typedef struct {
    const q7_topk_args *args;
    int64_t per_task; /* lines */
} topk_job;

/* `count` lines that lie side by side: one, or of which the best alone is wanted. */
static void lines_of(const q7_topk_args *args, int64_t outer, int64_t i, int64_t count,
                     bool is_best) {
    const int64_t bytes = q7_dtype_bytes(args->dtype), inner = args->inner;
    const int64_t from = outer * args->n * inner + i, to = outer * args->k * inner + i;
    const topk_line line = {(const char *)args->x + from * bytes,
                            (int64_t *)args->indices + to,
                            inner,
                            args->k,
                            args->largest != 0,
                            args->last != 0,
                            args->nan_first != 0};
    void *values = args->values ? (char *)args->values + to * bytes : NULL;
#define LINES(name)                                 \
    if (is_best)                                    \
        name##_best(&line, args->n, count, values); \
    else                                            \
        name(&line, args->n, values);               \
    break
    switch (args->dtype) {
        case Q7_F32: LINES(topk_f32);
        case Q7_F64: LINES(topk_f64);
        case Q7_I8: LINES(topk_i8);
        case Q7_U8: LINES(topk_u8);
        case Q7_I16: LINES(topk_i16);
        case Q7_U16: LINES(topk_u16);
        case Q7_I32: LINES(topk_i32);
        case Q7_U32: LINES(topk_u32);
        case Q7_U64: LINES(topk_u64);
        default: LINES(topk_i64);
    }
#undef LINES
}

static void topk_task(void *arg, int64_t task, int64_t thread) {
    const topk_job *job = arg;
    const q7_topk_args *args = job->args;
    const bool is_best = args->k == 1 && args->n < INT32_MAX;
    const int64_t inner = args->inner,
                  end = q7_min((task + 1) * job->per_task, args->outer * inner);
    (void)thread;
    for (int64_t line = task * job->per_task, some; line < end; line += some) {
        const int64_t left = inner > 1 ? q7_min(end - line, inner - line % inner) : end - line;
        some = is_best ? q7_min(left, Q7_BEST_COLUMNS) : 1;
        lines_of(args, line / inner, line % inner, some, is_best);
    }
}

void q7_op_topk(const q7_topk_args *args, const q7_call *call) {
    const int64_t lines = args->k == 0 ? 0 : args->outer * args->inner;
    const int64_t most = Q7_GRAIN / 4 / q7_max(args->n, 1);
    const int64_t even = q7_units_of_task(call, lines, most);
    topk_job job = {args,
                    args->inner > 1 ? q7_ceil_div(even, Q7_BEST_COLUMNS) * Q7_BEST_COLUMNS : even};
    q7_parallel(call, q7_ceil_div(lines, job.per_task), topk_task, &job);
}
