/* gemm.c: the kernel of ../gemm.h in AMX tiles. Read parts.h first.
 *
 * Rows of a are cut into parts once for all columns. A panel of b is cut while the one before it is
 * multiplied, which AVX-512 and AMX do side by side; so are the results of a tile of 32 x 32 finished
 * while the next is summed. Up to Q7_GEMM_SOME rows have a way of their own, gemm_some.h. Few rows, a
 * that is not contiguous along k, and what does not fit go to the kernel of AVX-512. */
#include "../gemm_finish.h"
#include "panel.h"

enum { GROUPS = Q7_GEMM_ROWS / Q7_PARTS_ROWS, STEPS = Q7_GEMM_K_BLOCK / Q7_PARTS_STEP };

void q7_gemm_f32_avx512(const q7_gemm_block *block);

/* Of a thread, whatever it multiplies: 0.4 MB that stay in its L2. */
static _Thread_local struct {
    _Alignas(64) q7_bf16 a[GROUPS][STEPS * Q7_PARTS_SIZE];
    _Alignas(64) q7_bf16 b[2][STEPS * Q7_PARTS_SIZE];
    _Alignas(64) float sums[2][Q7_PARTS_ROWS * NR];
    _Alignas(64) float unused[256];
    uint64_t odd[GROUPS]; /* rows that do not fit */
} room;

/* Rows of a, up to those of some tiles; a bit for each that does not fit. */
static uint64_t cut_rows(const q7_gemm_block *x, int64_t row, int64_t m, q7_bf16 *parts,
                         int64_t tiles) {
    const int64_t stride = tiles * Q7_PARTS_TILE, next_block = x->k;
    uint64_t odd = 0;
    for (int64_t i = 0; i < m; i++) {
        const bool fits = q7_cut_row(x->a + (row + i) * x->a_row_stride, x->k, next_block,
                                     parts + i * Q7_PARTS_STEP, Q7_PARTS * stride, stride);
        odd |= (uint64_t)!fits << i;
    }
    return odd;
}

static q7_panel panel_of(const q7_gemm_block *x, int64_t panel, q7_bf16 *parts, int64_t count) {
    return (q7_panel){
        .b = x->b + panel * x->b_panel_stride,
        .next = (panel + 1) * NR < x->n ? x->b_panel_stride : x->k * NR - panel * x->b_panel_stride,
        .k = x->k,
        .pairs = q7_ceil_div(x->k, Q7_PARTS_STEP) * 16,
        .count = count,
        .parts = parts,
        .largest = {_mm512_setzero_ps(), _mm512_setzero_ps()}};
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

/* A tile at once: rows that do not fit by AVX-512, each by itself, so that bits of none depend on which
 * others were cut into tiles with it. */
static void finish_odd(const q7_gemm_block *x, const float *sums, uint64_t odd) {
    for (int64_t i = 0; i < x->m; i++) {
        q7_gemm_epilogue epilogue;
        const q7_gemm_block row = q7_gemm_part(x, i, 1, 0, x->n, NR, &epilogue);
        if (odd >> i & 1)
            q7_gemm_f32_avx512(&row);
        else
            q7_finish_floats(&row, sums + i * NR, NR, 0, row.n);
    }
}

#include "gemm_some.h"

/* What a tile is multiplied beside. */
typedef struct beside {
    q7_panel next;
    made last;
} beside;

Q7_INLINE void cut_or_finish(void *with, int place) {
    beside *x = with;
    if (place == 2) finish_rows(&x->last);
    if (place != 2 && place != 4) q7_cut_pairs(&x->next, x->next.count);
}

static void multiply_two(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, beside *x,
                         float *sums) {
    q7_multiply_steps(a, b, steps, true, cut_or_finish, x, sums, NR, room.unused);
}
static void multiply_one(const q7_bf16 *a, const q7_bf16 *b, int64_t steps, beside *x,
                         float *sums) {
    q7_multiply_steps(a, b, steps, false, cut_or_finish, x, sums, NR, room.unused);
}

/* Up to Q7_GEMM_ROWS rows, and k in one block. */
static void multiply_rows(const q7_gemm_block *x) {
    const int64_t groups = q7_ceil_div(x->m, Q7_PARTS_ROWS), panels = q7_ceil_div(x->n, NR);
    const int64_t steps = q7_ceil_div(x->k, Q7_PARTS_STEP), count = q7_ceil_div(16, 3 * groups);
    for (int64_t g = 0; g < groups; g++) {
        const int64_t row = g * Q7_PARTS_ROWS;
        room.odd[g] = cut_rows(x, row, q7_min(Q7_PARTS_ROWS, x->m - row), room.a[g], 2);
    }
    beside other = {.next = panel_of(x, 0, room.b[0], count),
                    .last = {.rows = q7_ceil_div(Q7_PARTS_ROWS, steps)}};
    q7_panel *next = &other.next;
    made *last = &other.last;
    q7_cut_pairs(next, next->pairs);
    int turn = 0;
    for (int64_t p = 0; p < panels; p++) {
        const bool fits = q7_columns_fit(next->largest);
        const q7_bf16 *b = next->parts;
        *next = panel_of(x, p + 1, room.b[(p + 1) % 2], count);
        if (p + 1 == panels) next->pairs = 0;
        BARRIER();
        for (int64_t g = 0; g < groups; g++) {
            const int64_t row = g * Q7_PARTS_ROWS, m = q7_min(Q7_PARTS_ROWS, x->m - row);
            const int64_t n = q7_min(NR, x->n - p * NR);
            if (!fits) {
                q7_gemm_epilogue epilogue;
                const q7_gemm_block part = q7_gemm_part(x, row, m, p * NR, n, NR, &epilogue);
                q7_gemm_f32_avx512(&part);
                continue;
            }
            float *sums = room.sums[turn];
            turn = !turn;
            (m > 16 ? multiply_two : multiply_one)(room.a[g], b, steps, &other, sums);
            last->part = q7_gemm_part(x, row, m, p * NR, n, NR, &last->epilogue);
            last->sums = sums;
            if (room.odd[g]) {
                finish_odd(&last->part, sums, room.odd[g]);
                last->part.m = 0;
            }
        }
        q7_cut_pairs(next, next->pairs);
    }
    last->rows = Q7_PARTS_ROWS;
    finish_rows(last);
}

void Q7_KERNEL(gemm_f32)(const q7_gemm_block *x) {
    if (!q7_gemm_in_tiles(x->m) || !x->b_packed || x->a_k_stride != 1 || x->k < Q7_PARTS_STEP) {
        q7_gemm_f32_avx512(x);
        return;
    }
    q7_tiles_configure(16);
    const bool small = x->m <= Q7_GEMM_SOME;
    const int64_t k_block = small ? LONG_STEPS * Q7_PARTS_STEP : Q7_GEMM_K_BLOCK;
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
            (small ? multiply_some : multiply_rows)(&part);
        }
    }
    _tile_release();
}
