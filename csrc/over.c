/* over.c: see over.h. */
#include "over.h"

#include "ops/panels.h"

/* Whether an op writes each element of y once, when it has read that of the residual: activations that
 * registers cannot do follow stores, and in conv_last sums of several blocks of k wait in y for one another. */
static bool conv_direct_ends_in_registers(const void *args) {
    return q7_clamps(((const q7_conv_direct_args *)args)->act);
}

static bool conv_last_has_one_block(const void *args) {
    const q7_conv_last_args *x = args;
    const int64_t taps = x->kd * x->kh * x->kw, k = taps * x->C / x->groups;
    return q7_conv_k_block(k, 1, taps == 1) >= k;
}

static bool always(const void *args) {
    (void)args;
    return true;
}

/* Of an op, the words of its args. */
typedef struct {
    bool (*reads_first)(const void *args); /* as above; NULL: never */
    int8_t y, residual, y_stride, residual_stride;
} layout;

#define AT(op, field) (int8_t)(offsetof(q7_##op##_args, field) / 8)
#define OVER(op, reads_first)                                                   \
    [Q7_OP_##op] = {reads_first, AT(op, y), AT(op, residual), AT(op, y_stride), \
                    AT(op, residual_stride)}
static const layout layouts[Q7_OP_COUNT] = {
    OVER(conv_direct, conv_direct_ends_in_registers),
    OVER(conv_last, conv_last_has_one_block),
    OVER(winograd, always),
};
#undef OVER
#undef AT

/* The buffer that an operand is at the front of, or -1. */
static int64_t buffer_of(const q7_plan *p, const int64_t *values, int64_t step, int64_t word) {
    const pointer_row *r = q7_pointer_of(p, step, word);
    return r && r->space == Q7_SPACE_ARENA && values[r->offset] == 0 ? r->index : -1;
}

void q7_over_find(const q7_plan *p, const int64_t *values, const unsigned char *image,
                  const q7_band_step *bands, q7_interval *intervals, int64_t *over) {
    for (int64_t i = 0; i < p->n_buffers; i++) over[i] = i;
    for (int64_t i = 0; i < p->n_steps; i++) {
        const layout *at = &layouts[p->steps[i].op];
        const int64_t *args = (const int64_t *)(const void *)(image + p->steps[i].args);
        if (!at->reads_first || bands[i].last != Q7_BANDS_NONE || !at->reads_first(args)) continue;
        const int64_t y = buffer_of(p, values, i, at->y);
        const int64_t residual = buffer_of(p, values, i, at->residual);
        if (y < 0 || residual < 0 || args[at->y_stride] != args[at->residual_stride]) continue;
        if (q7_uses_of(p, i, y) != 1 || q7_uses_of(p, i, residual) != 1) continue;
        q7_interval *from = &intervals[over[residual]], *to = &intervals[y];
        if (to->first != i || from->last != i || from->bytes != to->bytes) continue;
        from->last = to->last;
        to->bytes = 0;
        over[y] = over[residual];
    }
}
