/* gemm_finish.h: the epilogue of gemm.h, and its accumulation, for sums that lie in memory. */
#ifndef Q7_GEMM_FINISH_H
#define Q7_GEMM_FINISH_H
#include "gemm.h"
#include "math.h"
#include "tile.h"

/* c = act(alpha * (sums + what c held if accumulating) + biases) * scale + shift + residual, for n
 * columns from the given first one. */
Q7_INLINE void q7_finish_floats_as(const q7_gemm_block *t, const float *sums, int64_t sums_stride,
                                   int64_t first, int64_t n, const int64_t act) {
    static const q7_gemm_epilogue none = {.alpha = 1.0f};
    const q7_gemm_epilogue *e = t->epilogue ? t->epilogue : &none;
    const q7_f32 alpha = q7_set1(e->alpha);
    const q7_f32 act_alpha = q7_set1(e->act_alpha), act_beta = q7_set1(e->act_beta);
    const bool before = e->residual && e->residual_first, behind = e->residual && !before;
    /* What a store could change, for all that compilers know. */
    const bool accumulate = t->accumulate, scaled = e->scale;
    const int64_t m = t->m, stride = t->c_stride, residual_stride = e->residual_stride;
    const float *row_bias = e->row_bias;
    for (int64_t j = 0; j < n; j += Q7_W) {
        const int64_t lanes = q7_min(n - j, Q7_W);
        const q7_f32 bias = e->bias ? q7_load_part(e->bias + first + j, lanes) : q7_set1(0.0f);
        const q7_f32 scale = scaled ? q7_load_part(e->scale + first + j, lanes) : bias;
        const q7_f32 shift = scaled ? q7_load_part(e->shift + first + j, lanes) : bias;
        float *c = t->c + first + j;
        const float *residual = e->residual ? e->residual + first + j : NULL;
        for (int64_t i = 0; i < m; i++, c += stride) {
            q7_f32 x = q7_load(sums + i * sums_stride + j);
            if (accumulate) x = q7_add(q7_load_part(c, lanes), x);
            x = q7_fma(alpha, x, row_bias ? q7_add(q7_set1(row_bias[i]), bias) : bias);
            if (before) x = q7_add(x, q7_load_part(residual, lanes));
            x = q7_act(act, x, act_alpha, act_beta);
            if (scaled) x = q7_fma(scale, x, shift);
            if (behind) x = q7_add(x, q7_load_part(residual, lanes));
            q7_store_part(c, x, lanes);
            if (residual) residual += residual_stride;
        }
    }
}

/* gated = act(gate + bias) * (up + up_bias) for the panels in columns [first, first + n). */
Q7_INLINE void q7_finish_gated_as(const q7_gemm_block *t, const float *sums, int64_t sums_stride,
                                  int64_t first, int64_t n, const int64_t act) {
    enum { HALF = NR / 2 };
    const q7_gemm_epilogue *e = t->epilogue;
    const q7_f32 act_alpha = q7_set1(e->act_alpha), act_beta = q7_set1(e->act_beta);
    const bool accumulate = t->accumulate; /* as above */
    const int64_t m = t->m, c_stride = t->c_stride, gated_stride = e->gated_stride;
    for (int64_t p = 0; p < n; p += NR) {
        const int64_t column = (first + p) / 2, columns = q7_min(e->gated_n - column, HALF);
        for (int64_t j = 0; j < columns; j += Q7_W) {
            const int64_t lanes = q7_min(columns - j, Q7_W), at = column + j;
            const q7_f32 zero = q7_set1(0.0f);
            const q7_f32 bias = e->bias ? q7_load_part(e->bias + at, lanes) : zero;
            const q7_f32 up_bias = e->up_bias ? q7_load_part(e->up_bias + at, lanes) : zero;
            const float *s = sums + p + j, *c = t->c + first + p + j;
            float *gated = e->gated + at;
            for (int64_t i = 0; i < m;
                 i++, s += sums_stride, c += c_stride, gated += gated_stride) {
                q7_f32 gate = q7_load_part(s, lanes), up = q7_load_part(s + HALF, lanes);
                if (accumulate) {
                    gate = q7_add(q7_load_part(c, lanes), gate);
                    up = q7_add(q7_load_part(c + HALF, lanes), up);
                }
                gate = q7_act(act, q7_add(gate, bias), act_alpha, act_beta);
                const q7_f32 y = q7_mul(gate, q7_add(up, up_bias));
                q7_store_part(gated, y, lanes);
            }
        }
    }
}

static inline void q7_finish_floats(const q7_gemm_block *t, const float *sums, int64_t sums_stride,
                                    int64_t first, int64_t n) {
    switch (t->epilogue ? t->epilogue->act : Q7_act_none) { /* a loop for each */
#define ACT(act)                                                               \
    case Q7_act_##act:                                                         \
        if (t->epilogue && t->epilogue->gated)                                 \
            q7_finish_gated_as(t, sums, sums_stride, first, n, Q7_act_##act);  \
        else                                                                   \
            q7_finish_floats_as(t, sums, sums_stride, first, n, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
}
#endif
