/* reduce_typed.h: the loops of reduce.c for elements of type T, added up in W. Included once per
 * dtype other than f32. One body, made constant per op by inlining, as in kernels/reduce.c. */
#include "../kernels/typed_name.h"

static inline __attribute__((always_inline)) W NAMED(start)(int64_t op) {
    switch (op) {
        case Q7_reduce_max: return LOWEST;
        case Q7_reduce_min: return HIGHEST;
        case Q7_reduce_prod: return 1;
        default: return 0;
    }
}

/* One more element v in the result r so far. */
static inline __attribute__((always_inline)) W NAMED(step)(int64_t op, W r, W v) {
    switch (op) {
        case Q7_reduce_max: return v > r || UNORDERED(v) ? v : r;
        case Q7_reduce_min: return v < r || UNORDERED(v) ? v : r;
        case Q7_reduce_prod: return TIMES(r, v);
        case Q7_reduce_sumsq:
        case Q7_reduce_l2: return ADD(r, TIMES(v, v));
        case Q7_reduce_l1: return ADD(r, IS_NEGATIVE(v) ? TIMES(v, -1) : v);
        default: return ADD(r, v); /* sum, mean */
    }
}

static inline __attribute__((always_inline)) T NAMED(finish)(int64_t op, W r, int64_t n) {
    if (op == Q7_reduce_mean) return (T)MEAN(r, n);
    return op == Q7_reduce_l2 ? (T)ROOT(r) : (T)r;
}

/* Two results of parts. */
static inline __attribute__((always_inline)) W NAMED(merge)(int64_t op, W a, W b) {
    const bool is_kept = op == Q7_reduce_max || op == Q7_reduce_min || op == Q7_reduce_prod;
    return is_kept ? NAMED(step)(op, a, b) : ADD(a, b);
}

/* A row of n, a few elements side by side. */
static inline __attribute__((always_inline)) T NAMED(fold_row)(int64_t op, int64_t n, const T *x) {
    W r[LANES];
    for (int64_t i = 0; i < LANES; i++) r[i] = NAMED(start)(op);
    int64_t j = 0;
    for (; j + LANES <= n; j += LANES)
        for (int64_t i = 0; i < LANES; i++) r[i] = NAMED(step)(op, r[i], x[j + i]);
    for (int64_t i = 0; j < n; i++, j++) r[i] = NAMED(step)(op, r[i], x[j]);
    for (int64_t half = LANES / 2; half > 0; half /= 2)
        for (int64_t i = 0; i < half; i++) r[i] = NAMED(merge)(op, r[i], r[i + half]);
    return NAMED(finish)(op, r[0], n);
}

/* Columns of (n, inner), a few side by side, so that x is read as it lies. */
static inline __attribute__((always_inline)) void NAMED(fold)(int64_t op, int64_t n, int64_t inner,
                                                              const T *x, T *y) {
    if (inner == 1) {
        *y = NAMED(fold_row)(op, n, x);
        return;
    }
    for (int64_t first = 0; first < inner; first += COLUMNS) {
        const int64_t count = q7_min(inner - first, COLUMNS);
        W r[COLUMNS];
        for (int64_t i = 0; i < count; i++) r[i] = NAMED(start)(op);
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < count; i++)
                r[i] = NAMED(step)(op, r[i], x[j * inner + first + i]);
        for (int64_t i = 0; i < count; i++) y[first + i] = NAMED(finish)(op, r[i], n);
    }
}

static void NAMED(reduce)(const q7_reduce_args *args, int64_t outer) {
    const int64_t n = args->n, inner = args->inner;
    const T *x = (const T *)args->x + outer * n * inner; /* (n, inner) */
    T *y = (T *)args->y + outer * inner;                 /* (inner) */
    switch (args->op) {
#define REDUCE(name)                                   \
    case Q7_reduce_##name:                             \
        NAMED(fold)(Q7_reduce_##name, n, inner, x, y); \
        break;
#include "../ops.def"
#undef REDUCE
        default: break;
    }
}
#include "../kernels/typed_end.h"
