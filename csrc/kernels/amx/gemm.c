/* gemm.c: the kernel of ../gemm.h in AMX tiles. Read parts.h first.
 *
 * A panel of b is multiplied some steps of k at a time, a visit, by every group of 32 rows of a; sums of a
 * group lie in memory between two visits. AVX-512 works beside the products: it cuts what b has for the
 * next visit, while the first panel is multiplied also what a has for it, and it finishes sums of the
 * panel before. Few rows, a that is not contiguous along k, and what does not fit go to the kernel of
 * AVX-512.
 *
 * A bfloat16 of b is one part, a float16 two: three and five products, whose sums have the bits of six. */
#include "../gemm_finish.h"
#include "parts.h"

enum {
    TILE = 16, /* rows */
    GROUPS = Q7_GEMM_TILE_ROWS / Q7_PARTS_ROWS,
    STEPS = Q7_GEMM_TILE_K / Q7_PARTS_STEP,
    /* Steps of a visit. Parts of b go to L2 and back where they are those of a whole panel, sums where
     * visits are short: for one or two groups, and while rows are cut, it pays to stay in L1. */
    SHORT = 1,
    FEW_GROUPS = 2,
    FIRST = 2,
    PLACES = 5,            /* where AVX-512 works, in a step */
    FINISHED = 8,          /* rows at a time, or more */
    AHEAD = 3 * TILE * NR, /* floats from where b is cut to where it is prefetched */
};

void q7_gemm_f32_avx512(const q7_gemm_block *block);

/* Of a thread, whatever it multiplies: 1.4 MB that stay in its L2 as far as they are used. */
static _Thread_local struct {
    _Alignas(64) q7_bf16 a[GROUPS][STEPS * Q7_PARTS_SIZE];
    _Alignas(64) q7_bf16 b[2][STEPS * Q7_PARTS_SIZE];
    _Alignas(64) float sums[2][Q7_GEMM_TILE_ROWS * NR];
    _Alignas(64) float tail[Q7_PARTS_STEP *
                            NR]; /* the end of a panel that has no whole number of steps */
    __m512 largest[Q7_GEMM_TILE_ROWS];
    bool odd[Q7_GEMM_TILE_ROWS]; /* the row does not fit */
} room;

/* Steps of b to cut, a pair of rows, 16 apart, at a time. */
typedef struct columns {
    const float *b; /* of a pair: a row has NR floats, or half floats */
    q7_bf16 *parts;
    int64_t pairs; /* that are left */
    bool tail;     /* the last step is in room.tail */
    bool few;      /* groups */
    __m512 largest[2];
} columns;

/* Rows of a to cut, FIRST steps of one at a time. */
typedef struct rows {
    int64_t row, end, step;
} rows;

/* Sums of a panel, to finish some rows at a time. */
typedef struct made {
    q7_gemm_block part; /* that is left */
    q7_gemm_epilogue epilogue;
    const float *sums;           /* (m, NR) */
    int64_t rows, steps, waited; /* at a time; from one time to the next */
} made;

/* What is done beside products. */
typedef struct beside {
    const q7_gemm_block *x;
    columns b;
    rows a;
    made last;
    int64_t pairs; /* at each place */
} beside;

/* `visit` steps of a panel, or what there is of them. */
static void point_at(columns *c, const q7_gemm_block *x, int64_t panel, int64_t step, int64_t visit,
                     q7_bf16 *parts) {
    const int64_t k = step * Q7_PARTS_STEP, left = x->k - k, whole = x->k - x->k % Q7_PARTS_STEP;
    const int64_t steps = q7_min(visit, q7_ceil_div(left, Q7_PARTS_STEP));
    const float *b = x->b + panel * x->b_panel_stride;
    c->pairs = panel * NR < x->n ? steps * TILE : 0;
    c->b = b + k * x->b_stride;
    c->parts = parts;
    c->tail = c->pairs && steps * Q7_PARTS_STEP > left;
    if (!c->tail) return;
    for (int64_t i = 0; i < Q7_PARTS_STEP * x->b_stride; i++)
        room.tail[i] = i < (x->k - whole) * x->b_stride ? b[whole * x->b_stride + i] : 0.0f;
    if (steps == 1) c->b = room.tail;
}

/* Bits of 16 columns of two rows of bfloat16, from column 0 or 16 on, as pairs. */
Q7_INLINE __m512i pairs_of(__m512i low, __m512i high, const int column) {
    const __m512i pairs =
        _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                         37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i first = _mm512_set1_epi16((short)column);
    return _mm512_permutex2var_epi16(low, _mm512_add_epi16(pairs, first), high);
}

/* Ahead of a step of floats are the high rows of the next and the low rows of the one behind it, with
 * which a page of panels begins. Where there is time, fetching only these is better: the others then come
 * unasked. */
Q7_INLINE void cut_pair(columns *c, const int parts) {
    const int64_t row = parts == Q7_PARTS ? NR : NR / 2;
    const float *low = c->b, *high = low + TILE * row;
    q7_prefetch(high + AHEAD);
    if (row == NR) q7_prefetch(high + AHEAD + 16);
    if (c->few) q7_prefetch(low + AHEAD);
    if (c->few && row == NR) q7_prefetch(low + AHEAD + 16);
    Q7_UNROLL
    for (int j = 0; j < 2; j++) {
        q7_bf16 *to = c->parts + j * Q7_PARTS_TILE;
        if (parts == 1) {
            const __m512i pairs =
                pairs_of(_mm512_loadu_si512(low), _mm512_loadu_si512(high), 16 * j);
            const __m512i upper = _mm512_and_epi32(pairs, _mm512_set1_epi32((int)0xffff0000));
            _mm512_store_si512(to, pairs);
            q7_note_largest(&c->largest[j], _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)),
                            _mm512_castsi512_ps(upper));
        } else if (parts == 2) { /* no float16 is too small, and none is an infinity */
            const uint16_t *first = (const void *)(low + 8 * j),
                           *other = (const void *)(high + 8 * j);
            q7_store_some_parts(q7_load_f16(first), q7_load_f16(other), parts, false, to,
                                2 * Q7_PARTS_TILE);
        } else {
            q7_store_parts(_mm512_loadu_ps(low + 16 * j), _mm512_loadu_ps(high + 16 * j), false, to,
                           2 * Q7_PARTS_TILE, &c->largest[j]);
        }
    }
    const bool ends = --c->pairs % TILE == 0;
    c->b = !ends ? low + row : c->tail && c->pairs == TILE ? room.tail : high + row;
    c->parts += ends ? 2 * parts * Q7_PARTS_TILE - (TILE - 1) * Q7_PARTS_STEP : Q7_PARTS_STEP;
}

Q7_INLINE void cut_pairs(columns *c, int64_t count, const int parts) {
    for (int64_t i = q7_min(count, c->pairs); i > 0; i--) cut_pair(c, parts);
}

static rows rows_at(const q7_gemm_block *x, int64_t group, int64_t step) {
    const int64_t row = group * Q7_PARTS_ROWS;
    return (rows){row, step * Q7_PARTS_STEP < x->k ? q7_min(x->m, row + Q7_PARTS_ROWS) : row, step};
}

Q7_INLINE void cut_rows(rows *r, const q7_gemm_block *x, int64_t count) {
    for (const int64_t end = q7_min(r->row + count, r->end); r->row < end; r->row++) {
        const float *a = x->a + r->row * x->a_row_stride + r->step * Q7_PARTS_STEP;
        q7_bf16 *to = room.a[r->row / Q7_PARTS_ROWS] + r->step * Q7_PARTS_SIZE +
                      r->row % Q7_PARTS_ROWS * Q7_PARTS_STEP;
        int64_t left = x->k - r->step * Q7_PARTS_STEP;
        __m512 largest = r->step ? room.largest[r->row] : _mm512_setzero_ps();
        for (int i = 0; i < FIRST && left > 0; i++, to += Q7_PARTS_SIZE) {
            const bool whole = left >= Q7_PARTS_STEP;
            q7_prefetch(a + FIRST * Q7_PARTS_STEP);
            q7_prefetch(a + FIRST * Q7_PARTS_STEP + 16);
            q7_store_parts(whole ? _mm512_loadu_ps(a) : q7_load_left(a, left),
                           whole ? _mm512_loadu_ps(a + 16) : q7_load_left(a + 16, left - 16), true,
                           to, 2 * Q7_PARTS_TILE, &largest);
            a += Q7_PARTS_STEP;
            left -= Q7_PARTS_STEP;
        }
        room.largest[r->row] = largest;
    }
}

/* Whether any of the rows, which are cut, does not fit: room.odd. */
static bool find_odd(int64_t m) {
    bool any = false;
    for (int64_t i = 0; i < m; i++) any |= room.odd[i] = !q7_row_fits(room.largest[i]);
    return any;
}

/* The rows that follow; the same rows are fetched where the next panel will be written. */
static void finish_rows(made *x, int64_t count) {
    const int64_t rows = q7_min(count, x->part.m);
    if (!rows) return;
    q7_gemm_epilogue epilogue;
    const q7_gemm_block now = q7_gemm_part(&x->part, 0, rows, 0, x->part.n, NR, &epilogue);
    q7_finish_floats(&now, x->sums, NR, 0, now.n);
    const bool gated = now.epilogue && now.epilogue->gated;
    const float *next = gated ? epilogue.gated + NR / 2 : now.c + NR;
    const int64_t stride = gated ? epilogue.gated_stride : now.c_stride;
    for (int64_t i = 0; i < rows; i++, next += stride) {
        q7_prefetch_write(next);
        if (!gated) q7_prefetch_write(next + 16);
    }
    x->part = q7_gemm_part(&x->part, rows, x->part.m - rows, 0, x->part.n, NR, &x->epilogue);
    x->sums += rows * NR;
}

/* All rows at once: those that do not fit by AVX-512, each by itself, so that bits of none depend on
 * which others were cut into tiles with it. */
static void finish_odd(const q7_gemm_block *x, const float *sums) {
    for (int64_t i = 0; i < x->m; i++) {
        q7_gemm_epilogue epilogue;
        const q7_gemm_block row = q7_gemm_part(x, i, 1, 0, x->n, NR, &epilogue);
        if (room.odd[i])
            q7_gemm_f32_avx512(&row);
        else
            q7_finish_floats(&row, sums + i * NR, NR, 0, row.n);
    }
}

/* `parts` is a constant where these are inlined, as is `two`. */
Q7_INLINE void work(beside *o, columns *b, int place, const int parts) {
    enum { ROWS = Q7_PARTS_ROWS / (FIRST * PLACES - 1) + 1 };
    cut_pairs(b, o->pairs, parts);
    cut_rows(&o->a, o->x, ROWS);
    if (place != 2 || ++o->last.waited < o->last.steps) return;
    o->last.waited = 0;
    finish_rows(&o->last, o->last.rows);
}

/* sums (32, NR), or (16, NR) unless `two`, = or += a @ b. */
Q7_INLINE void multiply(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, const int parts,
                        const bool two, bool add, float *sums, beside *o) {
    columns next = o->b;
    q7_load_rows(a, 2, two);
    q7_load_columns(b, 0);
    if (add)
        q7_load_sums(sums, NR, two);
    else
        q7_zero_sums(two);
    for (;;) {
        q7_add_products(two);
        work(o, &next, 0, parts);
        q7_load_rows(a, 1, two);
        q7_add_products(two);
        if (parts > 1) {
            q7_load_columns(b, 1);
            q7_add_products(two);
        }
        work(o, &next, 1, parts);
        q7_load_rows(a, 0, two);
        q7_add_products(two);
        work(o, &next, 2, parts);
        if (parts > 2) {
            q7_load_columns(b, 2);
            q7_add_products(two);
        }
        work(o, &next, 3, parts);
        if (parts > 1) {
            q7_load_columns(b, 0);
            q7_add_products(two);
        }
        if (!--steps) break;
        work(o, &next, 4, parts);
        a += Q7_PARTS_SIZE;
        b += 2 * parts * Q7_PARTS_TILE;
        q7_load_rows(a, 2, two);
        q7_load_columns(b, 0);
    }
    q7_store_sums(sums, NR, two);
    o->b = next;
}

/* clang-format off */
typedef void multiplier(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, bool add, float *sums, beside *o);
#define MULTIPLIER(parts, two)                                                                    \
    static void multiply_##parts##_##two(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, bool add, \
                                         float *sums, beside *o) {                                \
        multiply(a, b, steps, parts, two, add, sums, o);                                          \
    }
MULTIPLIER(1, false) MULTIPLIER(1, true)
MULTIPLIER(2, false) MULTIPLIER(2, true)
MULTIPLIER(3, false) MULTIPLIER(3, true)
static multiplier *const multipliers[Q7_PARTS][2] = {
    {multiply_1_false, multiply_1_true},
    {multiply_2_false, multiply_2_true},
    {multiply_3_false, multiply_3_true}};
/* clang-format on */

/* Up to Q7_GEMM_TILE_ROWS rows, and k in one block. */
Q7_INLINE void multiply_rows(const q7_gemm_block *x, const int parts) {
    const int64_t groups = q7_ceil_div(x->m, Q7_PARTS_ROWS), panels = q7_ceil_div(x->n, NR);
    const int64_t steps = q7_ceil_div(x->k, Q7_PARTS_STEP);
    const bool few = groups <= FEW_GROUPS;
    const int64_t usual = few ? SHORT : steps;
    const int64_t finished = q7_max(FINISHED, q7_ceil_div(x->m, groups * steps));
    beside o = {.x = x,
                .b = {.few = few, .largest = {_mm512_setzero_ps(), _mm512_setzero_ps()}},
                .a = rows_at(x, 0, 0),
                .last = {.rows = finished, .steps = q7_max(1, groups * steps * finished / x->m)},
                .pairs = q7_ceil_div(TILE, PLACES * groups)};
    bool odd = false;
    int turn = 0;
    point_at(&o.b, x, 0, 0, FIRST, room.b[turn]);
    cut_pairs(&o.b, o.b.pairs, parts);
    cut_rows(&o.a, x, x->m);
    for (int64_t p = 0; p < panels; p++) {
        const int64_t visit = p ? usual : FIRST;
        float *sums = room.sums[p % 2];
        bool fits = true;
        for (int64_t step = 0; step < steps; step += visit) {
            const q7_bf16 *b = room.b[turn];
            turn = !turn;
            if (step + visit < steps) {
                point_at(&o.b, x, p, step + visit, visit, room.b[turn]);
            } else {
                fits = q7_columns_fit(o.b.largest);
                o.b.largest[0] = o.b.largest[1] = _mm512_setzero_ps();
                point_at(&o.b, x, p + 1, 0, usual, room.b[turn]);
            }
            for (int64_t g = 0; g < groups; g++) {
                if (!p)
                    o.a = g + 1 < groups ? rows_at(x, g + 1, step) : rows_at(x, 0, step + visit);
                BARRIER();
                multipliers[parts - 1][x->m - g * Q7_PARTS_ROWS > TILE](
                    room.a[g] + step * Q7_PARTS_SIZE, b, q7_min(visit, steps - step), step > 0,
                    sums + g * Q7_PARTS_ROWS * NR, &o);
                cut_rows(&o.a, x, x->m);
            }
            cut_pairs(&o.b, o.b.pairs, parts);
        }
        if (!p) odd = find_odd(x->m);
        finish_rows(&o.last, x->m);
        q7_gemm_epilogue epilogue;
        const q7_gemm_block part =
            q7_gemm_part(x, 0, x->m, p * NR, q7_min(NR, x->n - p * NR), NR, &epilogue);
        if (!fits)
            q7_gemm_f32_avx512(&part);
        else if (odd)
            finish_odd(&part, sums);
        else {
            o.last.part = q7_gemm_part(&part, 0, x->m, 0, part.n, NR, &o.last.epilogue);
            o.last.sums = sums;
        }
    }
    finish_rows(&o.last, x->m);
}

static void multiply_floats(const q7_gemm_block *x) { multiply_rows(x, 3); }
static void multiply_f16(const q7_gemm_block *x) { multiply_rows(x, 2); }
static void multiply_bf16(const q7_gemm_block *x) { multiply_rows(x, 1); }

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *x) {
    if (!q7_gemm_in_tiles(x->m) || !x->b_packed || x->a_k_stride != 1 || x->k < Q7_PARTS_STEP) {
        q7_gemm_f32_avx512(x);
        return;
    }
    void (*const multiply)(const q7_gemm_block *) = x->b_dtype == Q7_BF16  ? multiply_bf16
                                                    : x->b_dtype == Q7_F16 ? multiply_f16
                                                                           : multiply_floats;
    q7_tiles_configure(TILE);
    const int64_t groups = q7_ceil_div(x->m, Q7_PARTS_ROWS), blocks = q7_ceil_div(groups, GROUPS);
    for (int64_t i = 0; i < blocks; i++) {
        const int64_t row = i * groups / blocks * Q7_PARTS_ROWS;
        const int64_t m = q7_min((i + 1) * groups / blocks * Q7_PARTS_ROWS, x->m) - row;
        q7_gemm_epilogue epilogue;
        const q7_gemm_block rows = q7_gemm_part(x, row, m, 0, x->n, NR, &epilogue);
        for (int64_t k0 = 0; k0 < x->k; k0 += Q7_GEMM_TILE_K) {
            q7_gemm_block part = rows;
            part.k = q7_min(x->k - k0, Q7_GEMM_TILE_K);
            part.a += k0;
            part.b += k0 * x->b_stride;
            part.accumulate = x->accumulate || k0 > 0;
            if (k0 + part.k < x->k) part.epilogue = NULL;
            multiply(&part);
        }
    }
    _tile_release();
}
