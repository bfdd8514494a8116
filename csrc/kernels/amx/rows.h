/* rows.h: rows of a for amx/gemm.c, cut into parts some at a time, beside products. Read parts.h first. */
#ifndef Q7_ROWS_H
#define Q7_ROWS_H
#include "../gemm.h"
#include "parts.h"

enum {
    TILE = 16, /* rows */
    GROUPS = Q7_GEMM_TILE_ROWS / Q7_PARTS_ROWS,
    STEPS = Q7_GEMM_TILE_K / Q7_PARTS_STEP,
};

/* Of a thread, whatever it multiplies: 1.4 MB that stay in its L2 as far as they are used. */
extern _Thread_local struct q7_parts_room {
    _Alignas(64) q7_bf16 a[GROUPS][STEPS * Q7_PARTS_SIZE];
    _Alignas(64) q7_bf16 b[2][STEPS * Q7_PARTS_SIZE];
    _Alignas(64) float sums[2][Q7_GEMM_TILE_ROWS * NR];
    _Alignas(64) float unscaled[2][TILE * NR];
    _Alignas(64) float tail[Q7_PARTS_STEP * NR]; /* of a panel that has no whole number of steps */
    __m512 largest[Q7_GEMM_TILE_ROWS];
    bool odd[Q7_GEMM_TILE_ROWS]; /* the row does not fit */
    bool any_odd;
    int64_t a_id;      /* of the rows whose parts are in a, or 0 */
    const char *ahead; /* a panel whose first steps are in b[turn], for those rows, or NULL */
    int turn;
    __m512 largest_ahead[2]; /* of its columns so far */
} q7_parts_room;

/* Rows to cut, some steps of one at a time. */
typedef struct rows {
    int64_t row, end, step, steps;
    q7_bf16 *parts; /* of the row and the step */
} rows;

/* Those of a group, each of which has `each`. */
static rows rows_at(const q7_gemm_block *x, int64_t group, int64_t each, int64_t step,
                    int64_t steps) {
    const int64_t row = group * each;
    const bool any = step * Q7_PARTS_STEP < x->k;
    return (rows){row, any ? q7_min(x->m, row + each) : row, step, steps,
                  q7_parts_room.a[group] + step * Q7_PARTS_SIZE};
}

Q7_INLINE void cut_rows(rows *r, const q7_gemm_block *x, int64_t count) {
    const int64_t end = q7_min(r->row + count, r->end);
    for (; r->row < end; r->row++, r->parts += Q7_PARTS_STEP) {
        const float *a = x->a + r->row * x->a_row_stride + r->step * Q7_PARTS_STEP;
        q7_bf16 *to = r->parts;
        const int64_t ahead = r->steps * Q7_PARTS_STEP;
        int64_t left = x->k - r->step * Q7_PARTS_STEP;
        __m512 largest = r->step ? q7_parts_room.largest[r->row] : _mm512_setzero_ps();
        for (int64_t i = 0; i < r->steps && left > 0; i++, to += Q7_PARTS_SIZE) {
            const bool whole = left >= Q7_PARTS_STEP;
            q7_prefetch(a + ahead);
            q7_prefetch(a + ahead + 16);
            q7_store_parts(whole ? _mm512_loadu_ps(a) : q7_load_left(a, left),
                           whole ? _mm512_loadu_ps(a + 16) : q7_load_left(a + 16, left - 16), true,
                           to, 2 * Q7_PARTS_TILE, &largest);
            a += Q7_PARTS_STEP;
            left -= Q7_PARTS_STEP;
        }
        q7_parts_room.largest[r->row] = largest;
    }
}

/* Which of the rows, which are cut, do not fit. */
static void find_odd(int64_t m) {
    q7_parts_room.any_odd = false;
    for (int64_t i = 0; i < m; i++)
        q7_parts_room.any_odd |= q7_parts_room.odd[i] = !q7_row_fits(q7_parts_room.largest[i]);
}
#endif
