/* forest_typed.h: how rows of type T go down the trees of forest.c. Included once per dtype. */
#include "../kernels/typed_name.h"

typedef struct {
    T split;
    int32_t test, next[2];
} NAMED(node);

/* The node behind `at`. Constants: binary, as in forest.c; numbers: no element is NaN. */
static inline int32_t NAMED(next_of)(const NAMED(node) * nodes, const T *x, int32_t at,
                                     const int binary, const bool numbers) {
    const NAMED(node) *node = nodes + at;
    const T v = x[node->test >> FEATURE], split = node->split;
    const int order = (v < split) * LESS | (v == split) * EQUAL | (v > split) * GREATER;
    const int unordered = !numbers & (v != v) & (node->test >> UNORDERED);
    const int holds = binary == Q7_binary_less         ? (v < split) | unordered
                      : binary == Q7_binary_less_equal ? (v <= split) | unordered
                                                       : node->test >> order & 1;
    return node->next[holds];
}

static inline void NAMED(go_down_by)(const q7_forest_args *f, share s, double *scores,
                                     uint8_t *voted, const int binary, const bool numbers) {
    const NAMED(node) *nodes = (const NAMED(node) *)(const void *)f->nodes;
    const int32_t *roots = (const int32_t *)f->roots, inner = (int32_t)f->inner;
    const T *x = (const T *)f->x;
    int64_t row = s.rows[0], tree = s.trees[0];
    while (tree < s.trees[1]) {
        const T *rows[LANES];
        int32_t at[LANES], any;
        int64_t of[LANES], pairs = 0;
        for (int i = 0; i < LANES; i++) { /* the last pair again where there are no more */
            const bool is_new = tree < s.trees[1];
            of[i] = is_new ? row : of[i - 1];
            at[i] = is_new ? roots[tree] : at[i - 1];
            rows[i] = x + of[i] * f->F;
            pairs += is_new;
            if (is_new && ++row == s.rows[1]) row = s.rows[0], tree++;
        }
        do {
            any = 0;
            for (int i = 0; i < LANES; i++) {
                at[i] = NAMED(next_of)(nodes, rows[i], at[i], binary, numbers);
                any |= at[i] - inner; /* below 0: not at a leaf */
            }
        } while (any < 0);
        for (int64_t i = 0; i < pairs; i++) {
            const int64_t place = (of[i] - s.rows[0]) * f->K;
            vote(f, nodes[at[i]].next[1], scores + place, voted + place);
        }
    }
}

static bool NAMED(all_numbers)(const T *x, int64_t n) {
    bool any = false;
    for (int64_t i = 0; i < n; i++) any |= x[i] != x[i];
    return !any;
}

static void NAMED(go_down)(const q7_forest_args *f, share s, double *scores, uint8_t *voted) {
    const T *x = (const T *)f->x + s.rows[0] * f->F;
    const bool numbers = NAMED(all_numbers)(x, (s.rows[1] - s.rows[0]) * f->F);
    if (f->binary == Q7_binary_less && numbers)
        NAMED(go_down_by)(f, s, scores, voted, Q7_binary_less, true);
    else if (f->binary == Q7_binary_less)
        NAMED(go_down_by)(f, s, scores, voted, Q7_binary_less, false);
    else if (f->binary == Q7_binary_less_equal && numbers)
        NAMED(go_down_by)(f, s, scores, voted, Q7_binary_less_equal, true);
    else if (f->binary == Q7_binary_less_equal)
        NAMED(go_down_by)(f, s, scores, voted, Q7_binary_less_equal, false);
    else
        NAMED(go_down_by)(f, s, scores, voted, -1, false);
}
#include "../kernels/typed_end.h"
