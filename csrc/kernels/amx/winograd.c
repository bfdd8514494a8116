/* winograd.c: the kernel of ../winograd.h for squares of stride 1, in one plane, in AMX tiles. Read that and
 * products.h first.
 *
 * What tiles of x become is cut into parts, which stay in L2 while each of the 16 matrices of every panel
 * goes by; a panel's products become y beside those of the next. Columns of w fit into parts. What a tile
 * of x becomes may not: that tile is AVX-512's. */
#include "../winograd_tile.h"
#include "products.h"

enum {
    MATRICES = 16,
    MOST_STEPS = 8, /* of all groups, in a matrix: 64 tiles of 128 channels */
    APART = 5 * 32, /* bfloat16 between matrices: not the same sets of L1 */
};
_Static_assert(MATRICES *(MOST_STEPS *Q7_PARTS_SIZE + APART) * sizeof(q7_bf16) <=
                   sizeof q7_parts_room.a,
               "parts do not fit");

void q7_winograd_f32_avx512(const q7_winograd_args *args, const q7_winograd_block *block);

/* The tiles of a task, in groups of `each`. */
typedef struct block {
    const q7_winograd_args *x;
    int64_t tiles, groups, each, steps;
    int64_t stride; /* between parts of matrices */
    q7_place place[Q7_WINOGRAD_MOST];
    bool odd[Q7_WINOGRAD_MOST]; /* it does not fit */
} block;

/* Products of a panel (MATRICES, rows, NR), of which `tile` tiles are y by now. */
typedef struct made {
    finishing when;
    const block *of;
    const float *products;
    int64_t rows, panel, tile;
} made;

static void finish_tiles(finishing *of, int64_t count) {
    made *m = (made *)of;
    const int64_t channel = m->panel * NR, channels = q7_min(NR, m->of->x->M - channel);
    for (const int64_t end = q7_min(m->tile + count, m->of->tiles); m->tile < end; m->tile++) {
        const float *from = m->products + m->tile * NR;
        q7_transform_out(m->of->x, m->of->place[m->tile], &from, m->rows * NR, channel, channels);
    }
}

/* Whether each of 16 rows of parts fits, where the largest magnitudes are these. Mostly one lane tells all
 * that none is too small. */
static bool rows_fit(const __m512 *largest) {
    __m512 low = largest[0], high = largest[0];
    for (int i = 1; i < MATRICES; i++) {
        low = _mm512_min_ps(low, largest[i]);
        high = _mm512_max_ps(high, largest[i]);
    }
    if (q7_small_enough(high) == 0xffff && q7_large_enough(low)) return true;
    bool fit = true;
    for (int i = 0; i < MATRICES; i++) fit = q7_row_fits(largest[i]) && fit;
    return fit;
}

/* B^T d B of one tile as a row of parts in each matrix. */
static void cut_tile(block *all, int64_t tile, const float *zeros) {
    const int64_t C = all->x->C;
    const float *from[MATRICES];
    __m512 largest[MATRICES];
    q7_bf16 *to = q7_parts_room.a[0] + tile / all->each * all->steps * Q7_PARTS_SIZE +
                  tile % all->each * Q7_PARTS_STEP;
    q7_pixels_under(all->x, all->place[tile], 0, zeros, from, 4, 4);
    Q7_UNROLL
    for (int i = 0; i < MATRICES; i++) largest[i] = _mm512_setzero_ps();
    for (int64_t c = 0; c < C; c += Q7_PARTS_STEP, to += Q7_PARTS_SIZE) {
        _Alignas(64) float low[MATRICES * Q7_W], high[MATRICES * Q7_W];
        q7_transform_in(from, c, C - c, low, Q7_W, 4);
        if (C - c > Q7_W)
            q7_transform_in(from, c + Q7_W, C - c - Q7_W, high, Q7_W, 4);
        else
            memset(high, 0, sizeof high);
        for (int i = 0; i < MATRICES; i++)
            q7_store_parts(q7_load(low + i * Q7_W), q7_load(high + i * Q7_W), true,
                           to + i * all->stride, 2 * Q7_PARTS_TILE, &largest[i]);
    }
    all->odd[tile] = !rows_fit(largest);
}

static void cut_tiles(block *all, const q7_winograd_block *part) {
    q7_parts_room.a_id = 0; /* the rows that a product has left there are gone */
    memset(part->room, 0, (size_t)all->x->C * sizeof(float));
    for (int64_t i = 0; i < all->tiles; i++) {
        all->place[i] =
            i > 0 ? q7_place_after(all->x, all->place[i - 1]) : q7_place_of(all->x, part->first);
        cut_tile(all, i, part->room);
    }
}

static void multiply_group(const block *all, int64_t matrix, int64_t group, const q7_bf16 *b,
                           float *products, beside *o) {
    const q7_bf16 *a =
        q7_parts_room.a[0] + matrix * all->stride + group * all->steps * Q7_PARTS_SIZE;
    BARRIER();
    if (all->tiles - group * all->each > TILE)
        multiply(a, b, all->steps, FLOATS, true, false, products, o);
    else
        multiply(a, b, all->steps, FLOATS, false, false, products, o);
}

void Q7_KERNEL(winograd_f32)(const q7_winograd_args *x, const q7_winograd_block *part) {
    block all = {.x = x, .tiles = part->end - part->first};
    all.groups = q7_ceil_div(all.tiles, Q7_PARTS_ROWS);
    all.each = q7_ceil_div(all.tiles, all.groups);
    all.steps = q7_ceil_div(x->C, Q7_PARTS_STEP);
    all.stride = all.groups * all.steps * Q7_PARTS_SIZE + APART;
    cut_tiles(&all, part);
    const int64_t size = x->C * NR, panels = part->panel - part->first_panel;
    const q7_gemm_block w = {.k = x->C,
                             .n = panels * MATRICES * NR,
                             .b = (const float *)x->w + part->first_panel * MATRICES * size,
                             .b_stride = NR,
                             .b_panel_stride = size};
    made last = {.when = {.finish = finish_tiles,
                          .rows = 1,
                          .steps = q7_max(1, MATRICES * all.groups * all.steps / all.tiles)},
                 .of = &all,
                 .rows = all.groups * all.each + 1, /* an odd number, mostly */
                 .tile = all.tiles};
    beside o = {
        .x = &w,
        .usual = all.steps,
        .b = {.all = all.groups < GROUPS, .largest = {_mm512_setzero_ps(), _mm512_setzero_ps()}},
        .last = &last.when,
        .units = q7_ceil_div(TILE, PLACES * all.groups)};
    float *places[2] = {part->room + q7_ceil_div(x->C, 16) * 16};
    places[1] = places[0] + MATRICES * last.rows * NR;
    q7_tiles_configure(q7_min(TILE, all.each), q7_max(1, all.each - TILE));
    point_at(&o.b, &w, NULL, 0, 0, all.steps);
    cut_units(&o.b, o.b.units, FLOATS);
    for (int64_t p = 0; p < panels; p++) {
        float *products = places[p % 2];
        for (int64_t i = 0; i < MATRICES; i++) {
            const q7_bf16 *b = q7_parts_room.b[o.b.turn];
            begin_panel(&o);
            for (int64_t g = 0; g < all.groups; g++)
                multiply_group(&all, i, g, b, products + (i * last.rows + g * all.each) * NR, &o);
            cut_units(&o.b, o.b.units, FLOATS);
        }
        finish_tiles(&last.when, all.tiles);
        last.products = products, last.panel = part->first_panel + p, last.tile = 0;
    }
    finish_tiles(&last.when, all.tiles);
    _tile_release();
    for (int64_t i = 0; i < all.tiles; i++) {
        q7_winograd_block one = *part;
        one.first = part->first + i, one.end = one.first + 1;
        if (all.odd[i]) q7_winograd_f32_avx512(x, &one);
    }
}
