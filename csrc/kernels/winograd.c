/* winograd.c: the kernel of winograd.h for every ISA; its tile is that of tile.h. Read winograd.h first. */
#include "winograd_tile.h"

/* Of a line of transformed pixels: the sums that are made of it, and for each of 4 matrices of a line
 * the pixels that are multiplied by it, and to which sum they are added. */
typedef struct scheme {
    int64_t side, sums;
    struct {
        int64_t n, pixel[2], sum[2];
    } of[4];
} scheme;
static const scheme schemes[2] = {
    {4, 4, {{1, {0}, {0}}, {1, {1}, {1}}, {1, {2}, {2}}, {1, {3}, {3}}}},
    {5, 3, {{1, {0}, {0}}, {2, {1, 3}, {0, 2}}, {1, {2}, {1}}, {1, {4}, {2}}}}};

/* A tile of y, and its row in matrices: a tile of one line has none where the last sum of columns is made,
 * nor one of one column where the last of lines is: [last of columns?][of lines?]. */
typedef struct tile {
    q7_place place;
    int64_t row[2][2];
} tile;

/* What a block has: its tiles, the planes of kernels that meet x under one of them, and how many rows of
 * each kind. */
typedef struct block {
    const scheme *scheme;
    int64_t tiles, first_plane, end_plane, rows[2][2];
    tile tile[Q7_WINOGRAD_MOST];
} block;

/* Has in the range of planes those of the kernel that meet x. */
static void include_planes(const q7_winograd_args *x, q7_place at, block *all) {
    const int64_t front = x->pad_front - at.od * x->stride_d;
    const int64_t outside = q7_ceil_div(q7_max(front, 0), x->dilation_d);
    const int64_t inside = q7_ceil_div(q7_max(front + x->D, 0), x->dilation_d);
    all->first_plane = q7_min(all->first_plane, outside);
    all->end_plane = q7_max(all->end_plane, q7_min(inside, x->kd));
}

static void find_tiles(const q7_winograd_args *x, const q7_winograd_block *of, block *all) {
    *all = (block){
        .scheme = &schemes[x->stride - 1], .tiles = of->end - of->first, .first_plane = x->kd - 1};
    for (int64_t i = 0; i < all->tiles; i++) {
        tile *t = &all->tile[i];
        t->place = i > 0 ? q7_place_after(x, t[-1].place) : q7_place_of(x, of->first);
        if (x->kd > 1) include_planes(x, t->place, all); /* by divisions */
        for (int k = 0; k < 4; k++) {
            const bool below = k < 2 || t->place.oh + x->dilation_h < x->OH,
                       right = k % 2 == 0 || t->place.ow + x->dilation_w < x->OW;
            t->row[k / 2][k % 2] =
                below && right ? all->rows[k / 2][k % 2]++ : all->tiles - 1; /* nobody's */
        }
    }
    all->end_plane =
        q7_max(all->end_plane, all->first_plane + 1); /* of padding, if of nothing else */
}

/* The rows of a tile in matrices (tiles, row). */
static q7_rows rows_of(const block *all, const tile *t, float *matrices, int64_t row) {
    q7_rows rows = {.step = all->tiles * row};
    for (int k = 0; k < 4; k++) rows.at[k / 2][k % 2] = matrices + t->row[k / 2][k % 2] * row;
    return rows;
}

/* One tile of x under a line of a kernel, from the first row on: its threes, B^T d, and pixels under what is
 * left. */
static void transform_line_in(const q7_winograd_args *x, q7_place at, int64_t plane,
                              const float *zeros, q7_rows to) {
    const float *from[4];
    for (int64_t k = x->kw, taps; k > 0; k -= taps, at.ow += taps * x->dilation_w) {
        taps = k < 3 ? 1 : 3;
        q7_pixels_under(x, at, plane, zeros, from, 1, taps + 1);
        for (int64_t c = 0; c < x->C; c += Q7_W) {
            const int64_t lanes = x->C - c;
            if (taps == 3) {
                q7_transform_in(from, c, lanes, &to, 1, 4);
                continue;
            }
            q7_store(q7_row_of(&to, 0, 4) + c, q7_load_part(from[0] + c, lanes));
            q7_store(q7_row_of(&to, 3, 4) + c, q7_load_part(from[1] + c, lanes));
        }
        to.at[0][0] += x->C, to.at[0][1] += x->C;
    }
}

/* One tile of x, B^T d B, to rows of matrices (tiles, row). */
static void transform_in(const q7_winograd_args *x, const block *all, const tile *t,
                         const float *zeros, float *rows, int64_t row) {
    const float *from[25];
    for (int64_t plane = all->first_plane; plane < all->end_plane; plane++, rows += x->C) {
        const q7_rows to = rows_of(all, t, rows, row);
        if (x->kh == 1) {
            transform_line_in(x, t->place, plane, zeros, to);
        } else if (x->stride == 1) {
            q7_pixels_under(x, t->place, plane, zeros, from, 4, 4);
            for (int64_t c = 0; c < x->C; c += Q7_W) q7_transform_in(from, c, x->C - c, &to, 4, 4);
        } else {
            q7_pixels_under(x, t->place, plane, zeros, from, 5, 5);
            for (int64_t c = 0; c < x->C; c += Q7_W) q7_transform_in(from, c, x->C - c, &to, 5, 5);
        }
    }
}

/* One tile of y from products (tiles, NR). */
static void transform_out(const q7_winograd_args *x, const block *all, const tile *t,
                          float *products, int64_t panel) {
    const q7_rows from = rows_of(all, t, products, NR);
    q7_transform_out(x, t->place, &from, panel * NR, q7_min(NR, x->M - panel * NR));
}

/* Rows and a panel of k rows to products (m, NR); meanwhile for each k `soon` floats of the panel that comes
 * next, and as many `gap` behind it: two streams keep more of the memory busy (docs/decisions.md 146);
 * and the rows of the next matrix, some of which such panels have thrown out of L2 (148). In front of the
 * rows are `before` others, of zeros: blocks of k are those of all. */
typedef struct product {
    const float *rows, *panel, *next, *next_rows;
    float *to;
    int64_t row_stride, before, k, soon, gap;
    bool add; /* to what is there */
} product;

/* What tall tiles prefetch at each k. */
Q7_INLINE void fetch(const product *p, const float **next, const float **next_rows,
                     int64_t soon_of_rows) {
    q7_prefetch(*next);
    q7_prefetch(*next + p->gap);
    q7_prefetch(*next_rows);
    *next += p->soon;
    *next_rows += soon_of_rows;
}

/* Element k of row i, whose origins are as in tile.h; i and k are constants where this is inlined, as m and
 * vectors are below. */
Q7_INLINE q7_f32 value_of(const char *const *origin, int64_t row_bytes, const int i, const int k) {
    return q7_set1(((const float *)(const void *)(origin[i / 5] + i % 5 * row_bytes))[k]);
}

/* The last two k of a block and where its sums go, row by row, so that stores of 64 bytes do not follow one
 * another (docs/decisions.md 205). */
Q7_INLINE void end_by_rows(const char *const *origin, int64_t row_bytes, const float *b, float *to,
                           bool adds, const q7_f32 *sum, const int m, const int vectors) {
    static const float zeros[NR];
    const float *from = adds ? to : zeros;
    const int64_t from_stride = adds ? NR : 0;
    q7_f32 v[2 * VECTORS]; /* [2][vectors] */
    Q7_UNROLL
    for (int j = 0; j < 2 * vectors; j++) v[j] = q7_load(b + j / vectors * NR + j % vectors * Q7_W);
    Q7_UNROLL
    for (int i = 0; i < m; i++) {
        const q7_f32 x0 = value_of(origin, row_bytes, i, 0);
        const q7_f32 x1 = value_of(origin, row_bytes, i, 1);
        Q7_UNROLL
        for (int j = 0; j < vectors; j++) {
            const q7_f32 y = q7_fma(x1, v[vectors + j], q7_fma(x0, v[j], sum[i * vectors + j]));
            q7_store(to + j * Q7_W, q7_add(q7_load(from + j * Q7_W), y));
        }
        to += NR, from += from_stride;
        __asm__ volatile("" : "+r"(to), "+r"(from)::"memory"); /* not for the optimiser to undo */
    }
}

/* Of so many vectors of the panel. Blocks of k are summed while a tile is in L1: as calls of gemm products
 * took 1.0 to 1.4 of the time (docs/decisions.md 72). */
Q7_INLINE void multiply(const product *p, const int m, const int vectors) {
    const int64_t row_bytes = p->row_stride * 4;
    const int64_t soon_of_rows = q7_ceil_div(m * p->row_stride, p->k);
    const float *b = p->panel, *next = p->next, *next_rows = p->next_rows;
    const char *origin[Q7_ORIGINS(TALL)];
    Q7_UNROLL
    for (int i = 0; i < Q7_ORIGINS(m); i++) origin[i] = (const char *)p->rows + 5 * i * row_bytes;
    int64_t n = Q7_WINOGRAD_K_BLOCK - p->before % Q7_WINOGRAD_K_BLOCK;
    for (int64_t k0 = 0; k0 < p->k; k0 += n, n = Q7_WINOGRAD_K_BLOCK) {
        q7_f32 sum[MR * VECTORS], v[VECTORS]; /* [m][vectors], [vectors] */
        Q7_UNROLL
        for (int i = 0; i < m * vectors; i++) sum[i] = q7_set1(0.0f);
        const int64_t some = q7_min(p->k - k0, n);
        const float *end = next + (SHORT_TILES ? some * p->soon : 0);
        Q7_UNROLL_BY_4
        for (; next < end; next += Q7_LINE_FLOATS) {
            q7_prefetch(next);
            q7_prefetch(next + p->gap);
        }
        const bool by_rows = Q7_W == Q7_LINE_FLOATS && some > 2;
        UNROLL_K
        for (int64_t k = by_rows ? some - 2 : some; k > 0; k--) {
            Q7_UNROLL
            for (int j = 0; j < vectors; j++) v[j] = q7_load(b + j * Q7_W);
            Q7_UNROLL
            for (int i = 0; i < m; i++) {
                const q7_f32 x = value_of(origin, row_bytes, i, 0);
                Q7_UNROLL
                for (int j = 0; j < vectors; j++)
                    sum[i * vectors + j] = q7_fma(x, v[j], sum[i * vectors + j]);
            }
            if (!SHORT_TILES) fetch(p, &next, &next_rows, soon_of_rows);
            Q7_UNROLL
            for (int i = 0; i < Q7_ORIGINS(m); i++) origin[i] += 4;
            b += NR;
        }
        if (by_rows) {
            fetch(p, &next, &next_rows, soon_of_rows);
            fetch(p, &next, &next_rows, soon_of_rows);
            end_by_rows(origin, row_bytes, b, p->to, k0 > 0 || p->add, sum, m, vectors);
            Q7_UNROLL
            for (int i = 0; i < Q7_ORIGINS(m); i++) origin[i] += 2 * 4;
            b += 2 * NR;
            continue;
        }
        Q7_UNROLL
        for (int i = 0; i < m * vectors; i++) {
            float *to = p->to + i / vectors * NR + i % vectors * Q7_W;
            q7_store(to, k0 > 0 || p->add ? q7_add(q7_load(to), sum[i]) : sum[i]);
        }
    }
}

/* One function per number of rows and of vectors. */
/* clang-format off */
#define FUNCTION(name, m, vectors) static void name##_##m(const product *p) { multiply(p, m, vectors); }
#define ONE(m) FUNCTION(one, m, 1)
#define TWO(m) FUNCTION(two, m, 2)
#define THREE(m) FUNCTION(three, m, 3)
Q7_EVERY_TALL_ROW(ONE)
Q7_EVERY_ROW(TWO)
#if VECTORS == 3
Q7_EVERY_ROW(THREE)
#endif
#undef ONE
#undef TWO
#undef THREE
#undef FUNCTION
#define ONE(m) one_##m,
#define TWO(m) two_##m,
#define THREE(m) three_##m,
static void (*const functions[VECTORS][TALL])(const product *) = {
    {Q7_EVERY_TALL_ROW(ONE)},
    {Q7_EVERY_ROW(TWO)},
#if VECTORS == 3
    {Q7_EVERY_ROW(THREE)},
#endif
};
#undef ONE
#undef TWO
#undef THREE
/* clang-format on */

/* Products (tiles, NR) = rows (tiles, C) @ so many vectors of one panel of each matrix of w, which
 * prefetches the next one. */
static void multiply_panel(const q7_winograd_args *x, const block *all, const float *rows,
                           int64_t row_stride, const float *panel, int64_t vectors,
                           float *products) {
    const scheme *s = all->scheme;
    const int64_t matrices = q7_winograd_matrices(x), planes = all->end_plane - all->first_plane;
    const int64_t tallest = vectors == 1 ? TALL : MR, pixels = q7_winograd_pixels(x);
    bool begun[16] = {false};
    for (int64_t i = 0; i < matrices; i++) {
        const int64_t k = planes * q7_winograd_k(x, i) / x->kd;
        const int64_t half = planes * q7_winograd_k(x, (i + 1) % matrices) / x->kd * NR / 2;
        const float *next = panel + q7_winograd_k(x, i) * NR;
        const int64_t down = s->of[i / 4].n, across = s->of[i % 4].n;
        int64_t parts = 0, done = 0;
        for (int pass = 0; pass < 2; pass++) /* the first counts */
            for (int64_t use = 0; use < down * across; use++) {
                const int64_t h = s->of[i / 4].pixel[use / across],
                              w = s->of[i % 4].pixel[use % across];
                const int64_t line = s->of[i / 4].sum[use / across],
                              column = s->of[i % 4].sum[use % across];
                const int64_t sum = line * s->sums + column;
                const int64_t n = all->rows[line + 1 == s->sums][column + 1 == s->sums];
                const int64_t tiles = q7_ceil_div(n, tallest);
                if (pass == 0) parts += tiles;
                for (int64_t m0 = 0; m0 < tiles && pass == 1; m0++, done++) {
                    const int64_t first = n * m0 / tiles, m = n * (m0 + 1) / tiles - first;
                    const product p = {
                        .rows = rows + ((h * s->side + w) * all->tiles + first) * row_stride,
                        .panel = panel,
                        .next_rows = rows + ((h * s->side + w + 1) % pixels * all->tiles + first) *
                                                row_stride,
                        .next = next + half * done / parts,
                        .to = products + (sum * all->tiles + first) * NR,
                        .row_stride = row_stride,
                        .before = all->first_plane * x->C,
                        .k = k,
                        .soon = q7_ceil_div(half, k * parts),
                        .gap = half,
                        .add = begun[sum]};
                    functions[vectors - 1][m - 1](&p);
                }
                if (pass == 1) begun[sum] = true;
            }
        panel = next;
    }
}

void Q7_KERNEL(winograd_f32)(const q7_winograd_args *x, const q7_winograd_block *part) {
    block all;
    find_tiles(x, part, &all);
    const int64_t size = q7_winograd_rows(x) * NR, row = q7_winograd_k(x, 0) + Q7_WINOGRAD_GAP;
    const float *w = (const float *)x->w + all.first_plane * x->C * NR;
    float *zeros = part->room, *rows = zeros + row;
    float *products = rows + q7_winograd_pixels(x) * all.tiles * row;
    memset(zeros, 0, (size_t)x->C * sizeof(float));
    for (int64_t i = 0; i < all.tiles; i++) transform_in(x, &all, &all.tile[i], zeros, rows, row);
    for (int64_t p = part->first_panel; p < part->panel; p++) {
        const int64_t vectors = q7_min(q7_ceil_div(x->M - p * NR, Q7_W), VECTORS);
        multiply_panel(x, &all, rows, row, w + p * size, vectors, products);
        for (int64_t i = 0; i < all.tiles; i++) transform_out(x, &all, &all.tile[i], products, p);
    }
}
