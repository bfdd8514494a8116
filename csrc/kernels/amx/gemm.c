/* gemm.c: the kernel of ../gemm.h in AMX tiles. Read parts.h first.
 *
 * Rows of a are cut into parts once for all columns. A panel of b is cut while the one before it is
 * multiplied, which AVX-512 and AMX do side by side; so are the results of a tile of 32 x 32 finished
 * while the next is summed. Up to Q7_GEMM_SOME rows have a way of their own, gemm_some.h. Few rows, a
 * that is not contiguous along k, and what does not fit go to the kernel of AVX-512. */
#include "../gemm_finish.h"
#include "parts.h"

enum { GROUPS = Q7_GEMM_ROWS / Q7_PARTS_ROWS, STEPS = Q7_GEMM_K_BLOCK / Q7_PARTS_STEP };

void q7_gemm_f32_avx512(const q7_gemm_block *block);

/* Of a thread, whatever it multiplies: 0.4 MB that stay in its L2. */
static _Thread_local struct {
    _Alignas(64) q7_bf16 a[GROUPS][STEPS * Q7_PARTS_SIZE];
    _Alignas(64) q7_bf16 b[2][STEPS * Q7_PARTS_SIZE];
    _Alignas(64) float sums[2][Q7_PARTS_ROWS * NR];
    _Alignas(64) float unused[256];
    bool fits[GROUPS];
} room;

/* Rows of a, up to those of some tiles; false if one does not fit. */
static bool cut_rows(const q7_gemm_block *x, int64_t row, int64_t m, q7_bf16 *parts,
                     int64_t tiles) {
    const int64_t whole = x->k / Q7_PARTS_STEP * Q7_PARTS_STEP, stride = tiles * Q7_PARTS_TILE;
    bool fits = true;
    for (int64_t i = 0; i < m; i++) {
        const float *a = x->a + (row + i) * x->a_row_stride;
        __m512 largest = _mm512_setzero_ps();
        q7_bf16 *to = parts + i * Q7_PARTS_STEP;
        for (int64_t k = 0; k < whole; k += Q7_PARTS_STEP, to += Q7_PARTS * stride) {
            q7_prefetch(a + k + x->k); /* for the next block of k */
            q7_prefetch(a + k + x->k + 16);
            q7_store_parts(_mm512_loadu_ps(a + k), _mm512_loadu_ps(a + k + 16), to, stride,
                           &largest);
        }
        if (whole < x->k)
            q7_store_parts(q7_load_left(a + whole, x->k - whole),
                           q7_load_left(a + whole + 16, x->k - whole - 16), to, stride, &largest);
        fits &= q7_parts_fit(_mm512_set1_ps(_mm512_reduce_max_ps(largest))) != 0;
    }
    return fits;
}

/* A panel of b, of which pairs of rows are cut now and then. */
typedef struct cut {
    const float *b;
    int64_t next; /* from there to what is wanted at the same place of the next panel */
    int64_t k, pair, pairs;
    q7_bf16 *parts;
    __m512 largest[2];
} cut;

static cut cut_of(const q7_gemm_block *x, int64_t panel, q7_bf16 *parts) {
    return (cut){
        .b = x->b + panel * x->b_panel_stride,
        .next = (panel + 1) * NR < x->n ? x->b_panel_stride : x->k * NR - panel * x->b_panel_stride,
        .k = x->k,
        .pairs = q7_ceil_div(x->k, Q7_PARTS_STEP) * 16,
        .parts = parts,
        .largest = {_mm512_setzero_ps(), _mm512_setzero_ps()}};
}

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

static bool is_cut(const cut *c) {
    return (q7_parts_fit(c->largest[0]) & q7_parts_fit(c->largest[1])) == 0xffff;
}

/* Sums of a tile, whose rows are finished now and then. */
typedef struct made {
    q7_gemm_block part;
    q7_gemm_epilogue epilogue;
    const float *sums; /* (m, NR) */
    int64_t rows;      /* at a time */
} made;

static void finish_rows(made *x) {
    const int64_t rows = q7_min(x->rows, x->part.m);
    if (!rows) return;
    q7_gemm_epilogue epilogue;
    const q7_gemm_block now = q7_gemm_part(&x->part, 0, rows, 0, x->part.n, NR, &epilogue);
    q7_finish_floats(&now, x->sums, NR, 0, now.n);
    x->part = q7_gemm_part(&x->part, rows, x->part.m - rows, 0, x->part.n, NR, &x->epilogue);
    x->sums += rows * NR;
}

#include "gemm_some.h"

/* sums (32, NR), or (16, NR) unless `two`, while the sums before are finished and 3 * count pairs per
 * step of another panel are cut. */
Q7_INLINE void multiply(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, const bool two,
                        cut *next, int64_t count, made *last, float *sums) {
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
        finish_rows(last);
        q7_load_columns(b, 2);
        q7_add_products(two);
        cut_pairs(next, count);
        q7_load_columns(b, 0);
        q7_add_products(two);
        q7_keep_stores_fast(room.unused);
    }
    q7_store_sums(sums, NR, two);
}
static void multiply_two(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, cut *next,
                         int64_t count, made *last, float *sums) {
    multiply(a, b, steps, true, next, count, last, sums);
}
static void multiply_one(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, cut *next,
                         int64_t count, made *last, float *sums) {
    multiply(a, b, steps, false, next, count, last, sums);
}

/* Up to Q7_GEMM_ROWS rows, and k in one block. */
static void multiply_rows(const q7_gemm_block *x) {
    const int64_t groups = q7_ceil_div(x->m, Q7_PARTS_ROWS), panels = q7_ceil_div(x->n, NR);
    const int64_t steps = q7_ceil_div(x->k, Q7_PARTS_STEP), count = q7_ceil_div(16, 3 * groups);
    for (int64_t g = 0; g < groups; g++) {
        const int64_t row = g * Q7_PARTS_ROWS;
        room.fits[g] = cut_rows(x, row, q7_min(Q7_PARTS_ROWS, x->m - row), room.a[g], 2);
    }
    cut next = cut_of(x, 0, room.b[0]);
    cut_pairs(&next, next.pairs);
    made last = {.rows = q7_ceil_div(Q7_PARTS_ROWS, steps)};
    int turn = 0;
    for (int64_t p = 0; p < panels; p++) {
        const bool fits = is_cut(&next);
        const q7_bf16 *b = next.parts;
        next = cut_of(x, p + 1, room.b[(p + 1) % 2]);
        if (p + 1 == panels) next.pairs = 0;
        BARRIER();
        for (int64_t g = 0; g < groups; g++) {
            const int64_t row = g * Q7_PARTS_ROWS, m = q7_min(Q7_PARTS_ROWS, x->m - row);
            const int64_t n = q7_min(NR, x->n - p * NR);
            if (!fits || !room.fits[g]) {
                q7_gemm_epilogue epilogue;
                const q7_gemm_block part = q7_gemm_part(x, row, m, p * NR, n, NR, &epilogue);
                q7_gemm_f32_avx512(&part);
                continue;
            }
            float *sums = room.sums[turn];
            turn = !turn;
            (m > 16 ? multiply_two : multiply_one)(room.a[g], b, steps, &next, count, &last, sums);
            last.part = q7_gemm_part(x, row, m, p * NR, n, NR, &last.epilogue);
            last.sums = sums;
        }
        cut_pairs(&next, next.pairs);
    }
    last.rows = Q7_PARTS_ROWS;
    finish_rows(&last);
}

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *x) {
    if (!q7_gemm_in_tiles(x->m) || !x->b_packed || x->a_k_stride != 1 || x->k < Q7_PARTS_STEP) {
        q7_gemm_f32_avx512(x);
        return;
    }
    q7_tiles_configure(16);
    const bool some = x->m <= Q7_GEMM_SOME;
    const int64_t k_block = some ? LONG_STEPS * Q7_PARTS_STEP : Q7_GEMM_K_BLOCK;
    for (int64_t row = 0, m; row < x->m; row += m) {
        m = q7_min(Q7_GEMM_ROWS, x->m - row);
        q7_gemm_epilogue epilogue;
        const q7_gemm_block rows = q7_gemm_part(x, row, m, 0, x->n, NR, &epilogue);
        for (int64_t k0 = 0; k0 < x->k; k0 += k_block) {
            q7_gemm_block part = rows;
            part.k = q7_min(x->k - k0, k_block);
            part.a += k0;
            part.b += k0 * NR;
            part.accumulate = x->accumulate || k0 > 0;
            if (k0 + part.k < x->k) part.epilogue = NULL;
            (some ? multiply_some : multiply_rows)(&part);
        }
    }
    _tile_release();
}
