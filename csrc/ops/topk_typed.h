/* topk_typed.h: the loops of topk.c for elements of type T, named NAME. Included once per dtype. */

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define IN(name) JOIN(NAME, name)

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

static void NAME(const topk_line *line, int64_t n, T *values) {
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
    for (int64_t i = 0; values && i < k; i++)
        values[i * inner] = ((const T *)line->x)[heap[i * inner] * inner];
}
#undef T
#undef NAME
#undef UNORDERED
#undef IN
#undef JOIN
#undef JOIN_
