/* topk_typed.h: the loops of topk.c for elements of type T, named NAME. Included once per dtype.
 * RANK(v): 32 bits that order v, of 64-bit integers how far it is above `low`, the least of a line,
 * in which IS_WIDE elements may be too far apart. */
#include "arg_best.h"

/* Whether the element at index i comes before that at j. */
static inline bool IN(_before)(const topk_line *line, int64_t i, int64_t j) {
    const T a = ((const T *)line->x)[i * line->inner], b = ((const T *)line->x)[j * line->inner];
    if (UNORDERED(a) != UNORDERED(b)) return (UNORDERED(a)) == line->nan_first;
    if (a < b || b < a) return line->largest ? a > b : a < b;
    return line->last ? i > j : i < j;
}

/* Lets the index at `hole` sink to its place among the first `count` of the heap. */
static void IN(_sink)(const topk_line *line, int64_t hole, int64_t count) {
    int64_t *heap = line->heap;
    const int64_t inner = line->inner, sinking = heap[hole * inner];
    for (int64_t child; (child = 2 * hole + 1) < count; hole = child) {
        if (child + 1 < count && IN(_before)(line, heap[child * inner], heap[(child + 1) * inner]))
            child++; /* the worse of the two */
        if (!IN(_before)(line, sinking, heap[child * inner])) break;
        heap[hole * inner] = heap[child * inner];
    }
    heap[hole * inner] = sinking;
}

#ifdef RANK
static inline uint64_t IN(_key)(const topk_line *line, int64_t i, T low) {
    const T v = ((const T *)line->x)[i * line->inner];
    uint32_t rank = RANK(v);
    (void)low;
    if (line->largest) rank = ~rank;
    if (UNORDERED(v)) rank = line->nan_first ? 0 : UINT32_MAX;
    return (uint64_t)rank << 32 | (line->last ? ~(uint32_t)i : (uint32_t)i);
}

/* Keys stand in for the indices until they are sorted. false: ranks would not fit, or are not worth finding low. */
static bool IN(_by_keys)(const topk_line *line, int64_t n) {
    const T *x = line->x;
    uint64_t *keys = (uint64_t *)line->heap;
    const int64_t inner = line->inner, k = line->k;
    const bool largest = line->largest;
    T low = x[0], high = x[0];
    if (n > UINT32_MAX || (IS_WIDE && k < n / 64)) return false;
    for (int64_t i = 0; IS_WIDE && i < n; i++) {
        low = x[i * inner] < low ? x[i * inner] : low;
        high = x[i * inner] > high ? x[i * inner] : high;
    }
    if (IS_WIDE && (uint64_t)high - (uint64_t)low > UINT32_MAX) return false;
    for (int64_t i = 0; i < k; i++) keys[i * inner] = IN(_key)(line, i, low);
    if (k < n)
        for (int64_t i = k / 2 - 1; i >= 0; i--) q7_sink_key(keys, i, k, inner);
    T worst = x[index_of(line, keys[0]) * inner];
    for (int64_t start = k, end; start < n; start = end) {
        end = q7_min(start + BLOCK, n);
        int some = inner > 1 || end < start + BLOCK;
        if (!some) /* most are worse than all, which vectors of comparisons tell */
            for (int64_t i = start; i < start + BLOCK; i++)
                some |= !(largest ? x[i] < worst : x[i] > worst);
        for (int64_t i = start; some && i < end; i++) {
            const T v = x[i * inner];
            if (largest ? v < worst : v > worst) continue;
            const uint64_t key = IN(_key)(line, i, low);
            if (key >= keys[0]) continue;
            keys[0] = key;
            q7_sink_key(keys, 0, k, inner);
            worst = x[index_of(line, keys[0]) * inner];
        }
    }
    sort_keys(keys, k, inner);
    for (int64_t i = 0; i < k; i++) line->heap[i * inner] = index_of(line, keys[i * inner]);
    return true;
}
#endif

static void IN(_by_heap)(const topk_line *line, int64_t n) {
    int64_t *heap = line->heap;
    const int64_t inner = line->inner, k = line->k;
    for (int64_t i = 0; i < k; i++) heap[i * inner] = i;
    for (int64_t i = k / 2 - 1; i >= 0; i--) IN(_sink)(line, i, k);
    const T *x = line->x;
    const bool largest = line->largest;
    T worst = x[heap[0] * inner];
    for (int64_t i = k; i < n; i++) { /* most are worse than all, which one comparison tells */
        const T v = x[i * inner];
        if ((largest ? v < worst : v > worst) || !IN(_before)(line, i, heap[0])) continue;
        heap[0] = i;
        IN(_sink)(line, 0, k);
        worst = x[heap[0] * inner];
    }
    for (int64_t left = k - 1; left > 0; left--) { /* the worst moves behind the rest */
        const int64_t first = heap[0];
        heap[0] = heap[left * inner];
        heap[left * inner] = first;
        IN(_sink)(line, 0, left);
    }
}

static void NAME(const topk_line *line, int64_t n, T *values) {
    const int64_t *indices = line->heap, inner = line->inner;
#ifdef RANK
    if (!IN(_by_keys)(line, n))
#endif
        IN(_by_heap)(line, n);
    for (int64_t i = 0; values && i < line->k; i++)
        values[i * inner] = ((const T *)line->x)[indices[i * inner] * inner];
}

/* The best, k being 1, of `count` lines that lie side by side, or one after the other where inner is 1. */
static void IN(_best)(const topk_line *line, int64_t n, int64_t count, T *values) {
    const T *x = line->x;
    const int64_t inner = line->inner, step = inner > 1 ? 1 : n;
    topk_line one = *line;
    IN(_best_of)(x, n, inner, count, line->largest, line->last, line->heap);
    for (int64_t c = 0; c < count; c++, x += step, one.heap++) {
        one.x = x;
        if (*one.heap < 0)
            NAME(&one, n, values ? values + c : NULL);
        else if (values)
            values[c] = x[*one.heap * inner];
    }
}
#undef T
#undef NAME
#undef UNORDERED
#undef RANK
#undef IS_WIDE
#undef AT
