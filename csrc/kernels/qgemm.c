/* qgemm.c: the kernel of qgemm.h for every ISA; its tile is that of tile.h. Read qgemm.h first. */
#include "qgemm.h"

#include "../abi.h"
#include "qfinish.h"
#include "tile.h"

/* sums (m, NR) of m rows; m is a constant where this is inlined. */
Q7_INLINE void multiply(const q7_qgemm_tile *t, const int32_t *a, const int m, int32_t *sums) {
    q7_i32 sum[MR * VECTORS];
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) sum[i] = q7_i32_set1(0);
    const int16_t *b = t->b;
    for (int64_t p = 0; p < t->pairs; p++, b += 2 * NR) {
        Q7_UNROLL
        for (int i = 0; i < m; i++) {
            const q7_i32 pair = q7_i32_set1(a[i * t->pairs + p]);
            Q7_UNROLL
            for (int j = 0; j < VECTORS; j++)
                sum[i * VECTORS + j] = q7_madd_pairs(sum[i * VECTORS + j], b + 2 * Q7_W * j, pair);
        }
    }
    Q7_UNROLL
    for (int i = 0; i < m * VECTORS; i++) q7_i32_store(sums + i * Q7_W, sum[i]);
}

static void all_rows(const q7_qgemm_tile *t, int32_t *sums) { multiply(t, t->a, MR, sums); }
static void one_row(const q7_qgemm_tile *t, int64_t i, int32_t *sums) {
    multiply(t, t->a + i * t->pairs, 1, sums + i * NR);
}

static void finish(const q7_qgemm_tile *t, const int32_t *sums, int64_t i) {
    float scaled[NR];
    if (t->c_dtype == Q7_I32) {
        memcpy((int32_t *)t->c + i * t->c_stride, sums, (size_t)t->n * sizeof(int32_t));
        return;
    }
    for (int64_t j = 0; j < t->n; j++) {
        const float x = (float)sums[j] * t->scale[j * t->scale_step];
        scaled[j] = t->bias ? x + t->bias[j] : x;
    }
    if (t->c_dtype == Q7_F32)
        memcpy((float *)t->c + i * t->c_stride, scaled, (size_t)t->n * sizeof(float));
    else
        q7_quantized(t->n, scaled, t->zero, t->c_dtype, (uint8_t *)t->c + i * t->c_stride);
}

void Q7_KERNEL(qgemm_i16)(const q7_qgemm_tile *t) {
    int32_t sums[MR * NR];
    if (t->m == MR)
        all_rows(t, sums);
    else
        for (int64_t i = 0; i < t->m; i++) one_row(t, i, sums);
    for (int64_t i = 0; i < t->m; i++) finish(t, sums + i * NR, i);
}
