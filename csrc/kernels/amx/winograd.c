/* winograd.c: the kernel of ../winograd.h in AMX tiles. Read parts.h first.
 *
 * Tiles of x are cut into parts as they are transformed, once for all panels of w, 16 at a time;
 * each matrix of a panel is cut while the one before is multiplied. Where 16 tiles of x, or the
 * matrices of a panel, do not all fit, these go to the kernel of AVX-512. Blocks begin at multiples of
 * 16 tiles, so that it is the same tiles whatever the number of threads. */
#include "../winograd_tile.h"
#include "panel.h"

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
    q7_pixels_under(x, q7_place_of(x, j->block->first + tile), j->rest, from, 4);
    for (int64_t c = 0; c < x->C; c += Q7_PARTS_STEP, to += Q7_PARTS_SIZE) {
        const int64_t left = x->C - c;
        q7_transform_in(from, c, left, turned, Q7_PARTS_STEP);
        q7_transform_in(from, c + Q7_W, q7_max(0, left - Q7_W), turned + Q7_W, Q7_PARTS_STEP);
        for (int64_t i = 0; i < MATRICES; i++)
            q7_store_parts(q7_load(turned + i * Q7_PARTS_STEP),
                           q7_load(turned + i * Q7_PARTS_STEP + Q7_W), true, to + i * j->rows,
                           2 * Q7_PARTS_TILE, &largest);
    }
    return q7_row_fits(largest);
}

/* The i-th of the matrices of a panel, and of those of the panels behind. */
static q7_panel matrix_of(const job *j, int64_t panel, int64_t i) {
    const int64_t size = j->x->C * NR, matrix = q7_ceil_div(j->x->M, NR) * size;
    return (q7_panel){
        .b = (const float *)j->x->w + (panel + i / MATRICES) * size + i % MATRICES * matrix,
        .next = i % MATRICES + 1 < MATRICES ? matrix : size - (MATRICES - 1) * matrix,
        .k = j->x->C,
        .pairs = j->steps * 16,
        .count = q7_ceil_div(16, 3 * j->groups),
        .parts = j->b[i % 2],
        .largest = {_mm512_setzero_ps(), _mm512_setzero_ps()}};
}

Q7_INLINE void cut_some(void *with, int place) {
    q7_panel *next = with;
    if (place != 2 && place != 4) q7_cut_pairs(next, next->count);
}

static void multiply_two(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, q7_panel *next,
                         float *sums, float *unused) {
    q7_multiply_steps(a, b, steps, true, cut_some, next, sums, NR, unused);
}
static void multiply_one(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, q7_panel *next,
                         float *sums, float *unused) {
    q7_multiply_steps(a, b, steps, false, cut_some, next, sums, NR, unused);
}

/* All matrices of a panel, the first of which is cut already; false if one does not fit. */
static bool multiply_panel(const job *j, int64_t panel, q7_panel *now) {
    _Alignas(64) float unused[256];
    bool fits = true;
    for (int64_t i = 0; i < MATRICES; i++) {
        const q7_bf16 *b = now->parts;
        fits &= q7_columns_fit(now->largest);
        *now = matrix_of(j, panel, i + 1);
        if (i + 1 == MATRICES && panel + 1 == j->block->panel) now->pairs = 0;
        BARRIER();
        for (int64_t g = 0; g < j->groups; g++) {
            const q7_bf16 *a = j->a + (g * MATRICES + i) * j->rows;
            float *sums = j->products + (i * j->groups + g) * Q7_PARTS_ROWS * NR;
            const bool two = j->tiles - g * Q7_PARTS_ROWS > HALF;
            (two ? multiply_two : multiply_one)(a, b, j->steps, now, sums, unused);
        }
        q7_cut_pairs(now, now->pairs);
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
        for (int64_t i = first; i < end; i++) {
            const float *from = j->products + i * NR;
            q7_transform_out(x, q7_place_of(x, j->block->first + i), &from, step, panel * NR,
                             channels);
        }
    }
}

void Q7_KERNEL(winograd_f32)(const q7_winograd_args *x, const q7_winograd_block *block) {
    if (!q7_winograd_tall(x->stride, x->C, x->M)) {
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
    j.products = block->room + q7_winograd_room(1, x->C, NR, 0);
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
    q7_panel now = matrix_of(&j, block->first_panel, 0);
    q7_cut_pairs(&now, now.pairs);
    for (int64_t p = block->first_panel; p < block->panel; p++)
        finish(&j, p, multiply_panel(&j, p, &now));
    _tile_release();
}
