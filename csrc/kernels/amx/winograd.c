/* winograd.c: the kernel of ../winograd.h in AMX tiles. Read parts.h first.
 *
 * Tiles of x are cut into parts as they are transformed, once for all panels of w, 16 at a time;
 * each matrix of a panel is cut while the one before is multiplied. Where 16 tiles of x, or the
 * matrices of a panel, do not all fit, these go to the kernel of AVX-512. Blocks begin at multiples of
 * 16 tiles, so that it is the same tiles whatever the number of threads. */
#include "../winograd_tile.h"
#include "parts.h"

void q7_winograd_f32_avx512(const q7_winograd_args *x, const q7_winograd_block *block);

enum { MATRICES = 16, HALF = Q7_PARTS_ROWS / 2 };

/* A block, and where its room lies. */
typedef struct job {
    const q7_winograd_args *x;
    const q7_winograd_block *block;
    int64_t tiles, groups, steps; /* groups of 32 tiles; steps of k */
    int64_t rows;                 /* bfloat16 of the parts of a group of one matrix */
    q7_bf16 *a, *b[2];
    float *products; /* (MATRICES, groups * 32, NR) */
    float *rest;     /* for AVX-512 */
    bool fits[Q7_WINOGRAD_MOST / HALF];
} job;

/* One tile of x as the parts of a row of each matrix; false if it does not fit. */
static bool cut_tile(const job *j, int64_t tile) {
    const q7_winograd_args *x = j->x;
    const int64_t group = tile / Q7_PARTS_ROWS, row = tile % Q7_PARTS_ROWS;
    q7_bf16 *to = j->a + group * MATRICES * j->rows + row * Q7_PARTS_STEP;
    const float *from[MATRICES];
    _Alignas(64) float turned[MATRICES * Q7_PARTS_STEP];
    __m512 largest = _mm512_setzero_ps();
    q7_pixels_under(x, q7_place_of(x, j->block->first + tile), j->rest, from);
    for (int64_t c = 0; c < x->C; c += Q7_PARTS_STEP, to += Q7_PARTS_SIZE) {
        const int64_t left = x->C - c;
        q7_transform_in(from, c, left, turned, Q7_PARTS_STEP);
        q7_transform_in(from, c + Q7_W, q7_max(0, left - Q7_W), turned + Q7_W, Q7_PARTS_STEP);
        for (int64_t i = 0; i < MATRICES; i++)
            q7_store_parts(q7_load(turned + i * Q7_PARTS_STEP),
                           q7_load(turned + i * Q7_PARTS_STEP + Q7_W), to + i * j->rows,
                           2 * Q7_PARTS_TILE, &largest);
    }
    return q7_parts_fit(_mm512_set1_ps(_mm512_reduce_max_ps(largest))) != 0;
}

/* A matrix of a panel of w, of which pairs of rows are cut now and then. */
typedef struct cut {
    const float *b;
    int64_t next; /* from there to what is wanted at the same place of the next */
    int64_t k, pair, pairs;
    q7_bf16 *parts;
    __m512 largest[2];
} cut;

Q7_INLINE void cut_pairs(cut *c, int64_t count) {
    const int64_t end = q7_min(c->pair + count, c->pairs);
    for (; c->pair < end; c->pair++) {
        const int64_t k = c->pair / 16 * Q7_PARTS_STEP + c->pair % 16;
        q7_bf16 *to = c->parts + c->pair / 16 * Q7_PARTS_SIZE + c->pair % 16 * Q7_PARTS_STEP;
        for (int64_t j = 0; j < 2; j++, to += Q7_PARTS_TILE) {
            const float *b = c->b + k * NR + 16 * j;
            q7_prefetch(b + c->next);
            q7_prefetch(b + 16 * NR + c->next);
            const __m512 low = k < c->k ? _mm512_loadu_ps(b) : _mm512_setzero_ps();
            const __m512 high = k + 16 < c->k ? _mm512_loadu_ps(b + 16 * NR) : _mm512_setzero_ps();
            q7_store_parts(low, high, to, 2 * Q7_PARTS_TILE, &c->largest[j]);
        }
    }
}

/* The i-th of the matrices of a panel, and of those of the panels behind. */
static cut cut_of(const job *j, int64_t panel, int64_t i) {
    const int64_t size = j->x->C * NR, matrix = q7_ceil_div(j->x->M, NR) * size;
    return (cut){
        .b = (const float *)j->x->w + (panel + i / MATRICES) * size + i % MATRICES * matrix,
        .next = i % MATRICES + 1 < MATRICES ? matrix : size - (MATRICES - 1) * matrix,
        .k = j->x->C,
        .pairs = j->steps * 16,
        .parts = j->b[i % 2],
        .largest = {_mm512_setzero_ps(), _mm512_setzero_ps()}};
}

static bool is_cut(const cut *c) {
    return (q7_parts_fit(c->largest[0]) & q7_parts_fit(c->largest[1])) == 0xffff;
}

Q7_INLINE void multiply(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, const bool two,
                        cut *next, int64_t count, float *sums, float *unused) {
    q7_zero_sums(two);
    for (int64_t i = 0; i < steps; i++, a += Q7_PARTS_SIZE, b += Q7_PARTS_SIZE) {
        q7_load_rows(a, 2, two);
        q7_load_columns(b, 0);
        q7_add_products(two);
        cut_pairs(next, count);
        q7_load_rows(a, 1, two);
        q7_add_products(two);
        q7_load_columns(b, 1);
        q7_add_products(two);
        cut_pairs(next, count);
        q7_load_rows(a, 0, two);
        q7_add_products(two);
        q7_load_columns(b, 2);
        q7_add_products(two);
        cut_pairs(next, count);
        q7_load_columns(b, 0);
        q7_add_products(two);
        q7_keep_stores_fast(unused);
    }
    q7_store_sums(sums, NR, two);
}

/* All matrices of a panel, the first of which is cut already; false if one does not fit. */
static bool multiply_panel(const job *j, int64_t panel, cut *now) {
    const int64_t count = q7_ceil_div(16, 3 * j->groups);
    _Alignas(64) float unused[256];
    bool fits = true;
    for (int64_t i = 0; i < MATRICES; i++) {
        const q7_bf16 *b = now->parts;
        fits &= is_cut(now);
        *now = cut_of(j, panel, i + 1);
        if (i + 1 == MATRICES && panel + 1 == j->block->panel) now->pairs = 0;
        BARRIER();
        for (int64_t g = 0; g < j->groups; g++) {
            const q7_bf16 *a = j->a + (g * MATRICES + i) * j->rows;
            float *sums = j->products + (i * j->groups + g) * Q7_PARTS_ROWS * NR;
            if (j->tiles - g * Q7_PARTS_ROWS > HALF)
                multiply(a, b, j->steps, true, now, count, sums, unused);
            else
                multiply(a, b, j->steps, false, now, count, sums, unused);
        }
        cut_pairs(now, now->pairs);
    }
    return fits;
}

static void finish(const job *j, int64_t panel, bool fits) {
    const q7_winograd_args *x = j->x;
    const int64_t step = j->groups * Q7_PARTS_ROWS * NR, channels = q7_min(NR, x->M - panel * NR);
    for (int64_t first = 0; first < j->tiles; first += HALF) {
        const int64_t end = q7_min(first + HALF, j->tiles);
        const q7_winograd_block part = {.first = j->block->first + first,
                                        .end = j->block->first + end,
                                        .first_panel = panel,
                                        .panel = panel + 1,
                                        .room = j->rest};
        if (!fits || !j->fits[first / HALF]) {
            q7_winograd_f32_avx512(x, &part);
            continue;
        }
        for (int64_t i = first; i < end; i++)
            q7_transform_out(x, q7_place_of(x, j->block->first + i), j->products + i * NR, step,
                             panel * NR, channels);
    }
}

void Q7_KERNEL(winograd_f32)(const q7_winograd_args *x, const q7_winograd_block *block) {
    if (!q7_winograd_tall(x->C, x->M)) {
        q7_winograd_f32_avx512(x, block);
        return;
    }
    job j = {.x = x,
             .block = block,
             .tiles = block->end - block->first,
             .steps = q7_ceil_div(x->C, Q7_PARTS_STEP),
             .rest = block->room};
    j.groups = q7_ceil_div(j.tiles, Q7_PARTS_ROWS);
    j.rows = j.steps * Q7_PARTS_SIZE;
    j.products = block->room + q7_winograd_room(x->C, NR, 0);
    j.b[0] = (q7_bf16 *)(void *)(j.products + MATRICES * j.groups * Q7_PARTS_ROWS * NR);
    j.b[1] = j.b[0] + j.rows;
    j.a = j.b[1] + j.rows;
    memset(j.rest, 0, (size_t)x->C * sizeof(float));
    q7_tiles_configure(16);
    for (int64_t first = 0; first < j.tiles; first += HALF) {
        j.fits[first / HALF] = true;
        for (int64_t i = first; i < q7_min(first + HALF, j.tiles); i++)
            j.fits[first / HALF] &= cut_tile(&j, i);
    }
    cut now = cut_of(&j, block->first_panel, 0);
    cut_pairs(&now, now.pairs);
    for (int64_t p = block->first_panel; p < block->panel; p++)
        finish(&j, p, multiply_panel(&j, p, &now));
    _tile_release();
}
