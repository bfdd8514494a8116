/* attention.c: the kernel of ../attention.h in AMX tiles. Read parts.h and ../attention.h first;
 * attention_cut.h has what is cut into parts, attention_soft.h what becomes of scores.
 *
 * Queries are rows here: S = Q K^T, whose columns are keys, and O += P V. Q, K and V are cut into
 * parts once, K transposed. A panel of 32 queries and a block of keys go through three stages: its
 * scores are summed, then they become powers of two, which are cut, then these multiply values.
 * Tiles work on the first and the last stage of two panels while AVX-512 works on the second of the
 * one between them, and fetches rows that are cut or written next: those of a head are far from each
 * other, and come from beyond L2.
 *
 * Steps of 32 keys start at multiples of 32, and a panel takes those that one of its queries sees:
 * what the others add to a query is 0, so that its bits do not depend on the panel. A score is the
 * product of AVX-512 where its query or key holds 2^40 or more; below that, what tiles take for 0 is
 * less than 2^-74 of a score. A block of values one of which does not fit goes to AVX-512 whole, and so
 * does an operand of few queries, or of few keys, of which none are kept. */
#include "../attention.h"

#include <math.h>

#include "../attention_row.h"
#include "attention_cut.h"
#include "attention_soft.h"

enum {
    FEW = 48, /* queries that AVX-512 is faster for */
    PANELS = Q7_ATTENTION_QUERIES / ROWS,
};

bool q7_attention_f32_avx512(const q7_attention_tile *t);

/* Rows to fetch. */
typedef struct far_rows {
    const float *at;
    int64_t stride, floats, rows; /* of a row; how many are left */
} far_rows;

typedef struct workspace {
    const q7_attention_tile *t;
    int64_t depth, width; /* steps of D, groups of 32 channels of Dv */
    q7_bf16 *q;           /* (panels, depth): parts */
    float *o;             /* (queries, 32 width): sums so far, of panels that have begun */
    char *places; /* block_header, parts of keys (groups, depth), of values (width, steps) */
    int64_t place_bytes, steps;
    uint32_t large[PANELS]; /* queries: bits */
    bool cut[PANELS];       /* queries */
    bool begun[PANELS];
    bool passed[PANELS]; /* over a block that the mask hides */
    bool again[PANELS];  /* passes over none */
    effect mask;         /* of the block, where all queries share it */
    stage *now, *before; /* stages two and three, or NULL */
    softening soft;      /* of `now` */
    far_rows queries, keys, values, results;
    int turn;
} workspace;

static int64_t panel_rows(const q7_attention_tile *t, int64_t panel) {
    return q7_min(ROWS, t->queries - panel * ROWS);
}

static const q7_bf16 *keys_of(const block_header *block) { return (const q7_bf16 *)(block + 1); }

/* What says whose parts are where those of the block from `key` belong. */
static int64_t *tag_of(const workspace *w, int64_t key) {
    return (int64_t *)(void *)w->t->work + q7_attention_place(w->t, key);
}

static bool has_block(const workspace *w, int64_t key) {
    return *tag_of(w, key) == q7_attention_tag(w->t, key);
}

/* The parts of the block from `key`, cut unless the thread has them. */
static const block_header *block_at(workspace *w, int64_t key) {
    const q7_attention_tile *t = w->t;
    const int64_t place = q7_attention_place(t, key), n = q7_min(KEYS, t->keys - key);
    block_header *block = (block_header *)(void *)(w->places + place * w->place_bytes);
    if (has_block(w, key)) return block;
    q7_bf16 *k = (q7_bf16 *)(block + 1), *v = k + w->steps * w->depth * Q7_PARTS_SIZE;
    *block = (block_header){.fits = true};
    for (int64_t j = 0; j < n; j += 16)
        block->large[j / STEP] |=
            cut_keys(t, t->k + (key + j) * t->k_stride, n - j,
                     k + j / STEP * w->depth * Q7_PARTS_SIZE + j % STEP / 16 * Q7_PARTS_TILE)
            << j % STEP;
    for (int64_t j = 0; j < n; j += STEP)
        for (int64_t d = 0; d < t->Dv; d += 16)
            block->fits &= cut_values(t, t->v + (key + j) * t->v_stride + d, n - j, t->Dv - d,
                                      v + (d / STEP * w->steps + j / STEP) * Q7_PARTS_SIZE +
                                          d % STEP / 16 * Q7_PARTS_TILE);
    *tag_of(w, key) = q7_attention_tag(t, key);
    return block;
}

/* Rows of a panel from `row` on, or of a block. */
static far_rows rows_from(const float *at, int64_t stride, int64_t floats, int64_t row,
                          int64_t rows) {
    return (far_rows){at + row * stride, stride, floats, rows};
}

Q7_INLINE void fetch(far_rows *x, int64_t rows, const bool to_write) {
    for (int64_t i = q7_min(rows, x->rows); i > 0; i--, x->rows--, x->at += x->stride)
        for (int64_t d = 0; d < x->floats; d += 16)
            to_write ? q7_prefetch_write(x->at + d) : q7_prefetch(x->at + d);
}

/* Beside the products of a step. */
Q7_INLINE void work(workspace *w, const int place) {
    if (place == 0) fetch(&w->keys, 1, false);
    if (place == 1 || place == 3) soften(&w->soft);
    if (place == 2) fetch(&w->values, 1, false);
    if (place == 3) fetch(&w->queries, 2, false);
    if (place == 3) fetch(&w->results, 2, true);
}

/* to (32, 32), or (16, 32) unless `two`, = a @ b. */
Q7_INLINE void multiply(workspace *w, const q7_bf16 *a, const q7_bf16 *b, int64_t steps,
                        const bool two, float *to, int64_t stride) {
    q7_zero_sums(two);
    for (int64_t i = 0; i < steps; i++, a += Q7_PARTS_SIZE, b += Q7_PARTS_SIZE) {
        q7_load_rows(a, 2, two);
        q7_load_columns(b, 0);
        q7_add_products(two);
        work(w, 0);
        q7_load_rows(a, 1, two);
        q7_add_products(two);
        q7_load_columns(b, 1);
        q7_add_products(two);
        work(w, 1);
        q7_load_rows(a, 0, two);
        q7_add_products(two);
        work(w, 2);
        q7_load_columns(b, 2);
        q7_add_products(two);
        work(w, 3);
        q7_load_columns(b, 0);
        q7_add_products(two);
        q7_keep_stores_fast(room.unused);
    }
    q7_store_sums(to, stride, two);
}
static void multiply_two(workspace *w, const q7_bf16 *a, const q7_bf16 *b, int64_t steps, float *to,
                         int64_t stride) {
    multiply(w, a, b, steps, true, to, stride);
}
static void multiply_one(workspace *w, const q7_bf16 *a, const q7_bf16 *b, int64_t steps, float *to,
                         int64_t stride) {
    multiply(w, a, b, steps, false, to, stride);
}

static float *sums_of(const workspace *w, int64_t query) { return w->o + query * w->width * STEP; }

/* o = [rescale * o +] sums, 32 channels from `d` on of the stage's rows; whether o has begun. Tiles that went on
 * from o would have errors of one sign where values have. */
static void add_sums(const workspace *w, const stage *x, int64_t d, bool begun) {
    const float *sums = room.sums;
    float *o = sums_of(w, x->panel * ROWS) + d;
    for (int64_t i = 0; i < x->rows; i++, o += w->width * STEP, sums += STEP)
        for (int64_t j = 0; j < STEP; j += Q7_W) {
            const q7_f32 sum = q7_load(sums + j), by = q7_set1(x->rescale[i]);
            q7_store(o + j, begun ? q7_fma(q7_load(o + j), by, sum) : sum);
        }
}

/* A row for the functions of attention_row.h. */
static row row_of(const workspace *w, const stage *x, int64_t i) {
    const q7_attention_tile *t = w->t;
    const int64_t query = x->panel * ROWS + i;
    return (row){.q = t->q + query * t->q_stride,
                 .o = sums_of(w, query),
                 .begin = q7_max(first_key(t, query), x->key + x->first * STEP),
                 .end = q7_min(end_key(t, query), x->key + x->last * STEP),
                 .rescale = x->rescale[i]};
}

/* o = rescale * o + P V in floats. */
static void add_unfit(const workspace *w, stage *x, bool begun) {
    float *o = sums_of(w, x->panel * ROWS);
    if (!begun) memset(o, 0, (size_t)(x->rows * w->width * STEP) * sizeof *o);
    for (int64_t i = 0; i < x->rows; i++) {
        row r = row_of(w, x, i);
        const int64_t n = q7_max(0, r.end - r.begin);
        for (int64_t j = 0; j < n; j++) r.s[j] = *score_at(x, i, r.begin + j);
        add_values(w->t, &r, 1, r.begin, n, false);
    }
}

/* Scores of queries and of keys that hold large numbers. */
static void score_large(const workspace *w, stage *x) {
    for (int64_t i = 0; i < x->rows; i++) {
        const bool all = w->large[x->panel] >> i & 1;
        row r = row_of(w, x, i);
        for (int64_t j = r.begin; j < r.end; j++) {
            const int64_t at = j - x->key;
            if (!all && !(x->block->large[at / STEP] >> at % STEP & 1)) continue;
            score_rows(w->t, &r, 1, j, 1, false);
            *score_at(x, i, j) = r.s[0];
        }
    }
}

/* What follows the products of a stage before its scores are softened. */
static void prepare(const workspace *w, stage *x, effect masked) {
    const q7_attention_tile *t = w->t;
    uint32_t large = w->large[x->panel];
    for (int64_t step = x->first; step < x->last; step++) large |= x->block->large[step];
    if (large) score_large(w, x);
    /* the same for every panel with the query, since it makes a difference of a rounding */
    const bool plain = t->softcap == 0.0f && !t->bias.at &&
                       (!t->mask.at || (masked == NOTHING && !t->mask.q_stride));
    if (!plain) mask_scores_of(t, x, masked);
    hide_unseen(t, x);
    x->unit = plain ? unit_of(t->scale) : LOG2_E;
    level(x, plain);
}

/* Every stage takes a step; next comes in, or NULL. */
static void advance(workspace *w, stage *next, effect masked) {
    const q7_attention_tile *t = w->t;
    stage *before = w->before;
    const int64_t value_steps = before && before->block->fits ? before->last - before->first : 0;
    const int64_t hooks =
        2 * (w->width * value_steps + (next ? w->depth * (next->last - next->first) : 0));
    const int64_t rows = w->now ? w->now->rows : 0;
    w->soft = (softening){w->now, 0, rows, q7_ceil_div(rows, q7_max(1, hooks))};
    const bool begun = before && w->begun[before->panel];
    if (before) w->begun[before->panel] = true;
    BARRIER();
    for (int64_t g = 0; g < w->width && value_steps; g++) {
        const q7_bf16 *v = keys_of(before->block) + w->steps * w->depth * Q7_PARTS_SIZE;
        (before->rows > 16 ? multiply_two : multiply_one)(
            w, before->p + before->first * Q7_PARTS_SIZE,
            v + (g * w->steps + before->first) * Q7_PARTS_SIZE, value_steps, room.sums, STEP);
        add_sums(w, before, g * STEP, begun);
    }
    if (before && !value_steps) add_unfit(w, before, begun);
    for (int64_t step = next ? next->first : 0; next && step < next->last; step++)
        (next->rows > 16 ? multiply_two : multiply_one)(
            w, w->q + next->panel * w->depth * Q7_PARTS_SIZE,
            keys_of(next->block) + step * w->depth * Q7_PARTS_SIZE, w->depth, next->s[step][0],
            STEP);
    w->soft.count = rows;
    soften(&w->soft);
    if (next) prepare(w, next, masked);
    w->before = w->now;
    w->now = next;
}

/* Whether all queries of the panel have seen a key that is not masked: to such, keys that the mask
 * hides add 2^(-1e30 or less) = 0. */
static bool all_saw(const q7_attention_tile *t, int64_t panel) {
    for (int64_t i = 0; i < panel_rows(t, panel); i++)
        if (!(room.max[panel * ROWS + i] > LOW / 10)) return false;
    return true;
}

/* The keys of the block from `key` for a panel. */
static void panel_step(workspace *w, int64_t panel, int64_t key) {
    const q7_attention_tile *t = w->t;
    const int64_t query = panel * ROWS, rows = panel_rows(t, panel);
    const int64_t first = q7_max(0, first_key(t, query) - key) / STEP;
    const int64_t end = q7_min(KEYS, end_key(t, query + rows - 1) - key);
    if (end <= first * STEP) return;
    const effect masked = t->mask.q_stride ? effect_of(&t->mask, t->fill, query, rows,
                                                       key + first * STEP, end - first * STEP)
                                           : w->mask;
    if (masked == HIDES && !w->again[panel]) {
        w->passed[panel] = true;
        return;
    }
    if (!w->cut[panel]) {
        w->large[panel] = cut_queries(t, t->q + query * t->q_stride, rows,
                                      w->q + panel * w->depth * Q7_PARTS_SIZE);
        w->cut[panel] = true;
    }
    const int64_t below = query + rows;
    if (below < t->queries && !w->cut[panel + 1])
        w->queries = rows_from(t->q, t->q_stride, t->D, below, panel_rows(t, panel + 1));
    if (key + KEYS >= end_key(t, below - 1))
        w->results = rows_from(t->o, t->o_stride, t->Dv, query, rows);
    stage *x = &room.stages[w->turn % 3];
    x->s = room.s[w->turn % 2], x->p = room.p[w->turn % 2];
    w->turn++;
    x->panel = panel, x->rows = rows, x->key = key, x->first = first;
    x->last = q7_ceil_div(end, STEP);
    x->block = block_at(w, key);
    advance(w, x, masked);
}

/* All blocks of keys, but those that the mask hides, for all panels, or these as well for those that
 * go `again`. */
static void each_block(workspace *w, bool again) {
    const q7_attention_tile *t = w->t;
    const int64_t panels = q7_ceil_div(t->queries, ROWS), limit = end_key(t, t->queries - 1);
    for (int64_t key = first_key(t, 0) / KEYS * KEYS; key < limit; key += KEYS) {
        if (t->mask.at && !t->mask.q_stride)
            w->mask = effect_of(&t->mask, t->fill, 0, 1, key, q7_min(KEYS, t->keys - key));
        const int64_t after = key + KEYS;
        const int64_t n = has_block(w, after) ? 0 : q7_max(0, q7_min(KEYS, limit - after));
        w->keys = rows_from(t->k, t->k_stride, t->D, after, n);
        w->values = rows_from(t->v, t->v_stride, t->Dv, after, n);
        for (int64_t i = 0; i < panels; i++)
            if (!again || w->again[i]) panel_step(w, i, key);
    }
    advance(w, NULL, NOTHING);
    advance(w, NULL, NOTHING);
}

/* o of all queries = sums / total, which is 0 when every key was masked by -inf, and NaN when a score
 * was, or was +inf. */
static bool finish(const workspace *w) {
    const q7_attention_tile *t = w->t;
    float watched[Q7_W] = {0};
    for (int64_t i = 0; i < t->queries; i++) {
        const float sum = q7_hsum(q7_load(room.sum[i]));
        const bool masked = sum == 0.0f && t->zero_masked_rows,
                   unordered = sum != sum && t->zero_nan_rows;
        const q7_f32 total = q7_set1(sum), by = q7_div(q7_set1(1.0f), total);
        const bool begun = w->begun[i / ROWS];
        float *o = t->o + i * t->o_stride;
        for (int64_t d = 0; d < t->Dv; d += Q7_W) {
            const q7_f32 x =
                quotient(begun ? q7_load(sums_of(w, i) + d) : q7_set1(0.0f), total, by);
            watch(watched, x);
            q7_store_part(o + d, masked || unordered ? q7_set1(0.0f) : x, t->Dv - d);
        }
    }
    return saw_finite(watched);
}

static workspace workspace_of(const q7_attention_tile *t) {
    const int64_t steps = q7_ceil_div(q7_min(KEYS, t->all_keys), STEP);
    const int64_t depth = q7_ceil_div(t->D, STEP), width = q7_ceil_div(t->Dv, STEP);
    const int64_t panels = q7_ceil_div(t->queries, ROWS);
    const uintptr_t work = (uintptr_t)(t->work + 2 * Q7_ATTENTION_KEPT);
    workspace w = {.t = t, .depth = depth, .width = width, .steps = steps};
    w.place_bytes = (int64_t)sizeof(block_header) +
                    steps * (depth + width) * Q7_PARTS_SIZE * (int64_t)sizeof(q7_bf16);
    w.places = (char *)((work + 63) / 64 * 64); /* first: they stay there for other queries */
    w.q = (q7_bf16 *)(void *)(w.places + t->kept * w.place_bytes);
    w.o = (float *)(void *)(w.q + panels * depth * Q7_PARTS_SIZE);
    return w;
}

/* Nothing seen yet. */
static void start_panel(workspace *w, int64_t panel) {
    const q7_attention_tile *t = w->t;
    const float sink = t->sinks ? t->sinks[0] * LOG2_E : -INFINITY;
    for (int64_t i = panel * ROWS; i < panel * ROWS + panel_rows(t, panel); i++) {
        q7_store(room.sum[i], q7_set1(0.0f));
        room.max[i] = floorf(sink);
        room.sum[i][0] = sink == -INFINITY ? 0.0f : exp2f(sink - floorf(sink));
    }
    w->begun[panel] = w->passed[panel] = false;
}

/* Panels of which a query has seen nothing but what the mask hides take all keys in order, as in
 * kernels/attention.c. Returns whether there are any. */
static bool start_again(workspace *w) {
    bool any = false;
    for (int64_t i = 0; i < q7_ceil_div(w->t->queries, ROWS); i++) {
        w->again[i] = w->passed[i] && !all_saw(w->t, i);
        if (w->again[i]) start_panel(w, i), any = true;
    }
    return any;
}

bool Q7_KERNEL(attention_f32)(const q7_attention_tile *t) {
    if (t->kept == 0 || t->heads > 1 || t->all_queries <= FEW || !(fabsf(t->scale) <= LARGE)) {
        q7_attention_tile in_place = *t;
        in_place.kept = 0;
        return q7_attention_f32_avx512(&in_place);
    }
    workspace w = workspace_of(t);
    for (int64_t i = 0; i < q7_ceil_div(t->queries, ROWS); i++) start_panel(&w, i);
    q7_tiles_configure(16, 16);
    each_block(&w, false);
    if (start_again(&w)) each_block(&w, true);
    _tile_release();
    return finish(&w);
}
