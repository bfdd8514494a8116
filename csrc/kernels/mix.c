/* mix.c: a few planes of y at a time, of some vectors, which stay in registers. Read mix.h first. */
#include "mix.h"

#include "../simd/simd.h"

enum { PLANES = 4, VECTORS = 2 };

/* Planes from m on, floats from i on, of the last vector `lanes`; planes and vectors are constants where this
 * is inlined. */
Q7_INLINE void tile(const q7_mix_part *t, int64_t m, int64_t i, const int planes, const int vectors,
                    int64_t lanes) {
    q7_f32 sum[PLANES * VECTORS];
    Q7_UNROLL
    for (int k = 0; k < planes * vectors; k++) sum[k] = q7_set1(0.0f);
    const float *x = t->x + i, *w = t->w + m * t->C;
    for (int64_t c = 0; c < t->C; c++, x += t->x_stride) {
        q7_f32 v[VECTORS];
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            v[j] = q7_load_part(x + j * Q7_W, j + 1 < vectors ? Q7_W : lanes);
        Q7_UNROLL
        for (int k = 0; k < planes; k++) {
            const q7_f32 weight = q7_set1(w[k * t->C + c]);
            Q7_UNROLL
            for (int j = 0; j < vectors; j++)
                sum[k * vectors + j] = q7_fma(weight, v[j], sum[k * vectors + j]);
        }
    }
    Q7_UNROLL
    for (int k = 0; k < planes; k++) {
        const q7_f32 bias = q7_set1(t->bias ? t->bias[m + k] : 0.0f);
        float *y = t->y + (m + k) * t->y_stride + i;
        Q7_UNROLL
        for (int j = 0; j < vectors; j++)
            q7_store_part(y + j * Q7_W, q7_add(sum[k * vectors + j], bias),
                          j + 1 < vectors ? Q7_W : lanes);
    }
}

/* All planes, of some vectors. */
Q7_INLINE void planes_of(const q7_mix_part *t, int64_t i, const int vectors, int64_t lanes) {
    int64_t m = 0;
    for (; m + PLANES <= t->M; m += PLANES) tile(t, m, i, PLANES, vectors, lanes);
    for (; m < t->M; m++) tile(t, m, i, 1, vectors, lanes);
}

void Q7_KERNEL(mix_f32)(const q7_mix_part *t);

void Q7_KERNEL(mix_f32)(const q7_mix_part *t) {
    int64_t i = 0;
    for (; i + VECTORS * Q7_W <= t->n; i += VECTORS * Q7_W) planes_of(t, i, VECTORS, Q7_W);
    for (; i < t->n; i += Q7_W) planes_of(t, i, 1, q7_min(Q7_W, t->n - i));
}
