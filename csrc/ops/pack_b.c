/* pack_b.c: b (k, n) of any strides into panels of nr columns; kernels/gemm.h shows the layout.
 *
 * Runs at load over all weights, so it goes at the speed of memory for both orders of b. */
#include <string.h>

#include "../abi.h"

enum { STRIP = 16 }; /* rows per step when b is transposed: a cache line of each column */

typedef struct pack_job {
    const q7_pack_b_args *x;
    int64_t nr;
} pack_job;

static void pack_panel(void *arg, int64_t panel, int64_t thread) {
    (void)thread;
    const q7_pack_b_args *x = ((const pack_job *)arg)->x;
    const int64_t nr = ((const pack_job *)arg)->nr, n = q7_min(nr, x->n - panel * nr);
    const float *b = (const float *)x->b + panel * nr * x->n_stride;
    float *packed = (float *)x->packed + panel * nr * x->k;
    if (n < nr) memset(packed, 0, (size_t)(x->k * nr) * sizeof(float));
    if (x->n_stride == 1) {
        for (int64_t k = 0; k < x->k; k++) memcpy(packed + k * nr, b + k * x->k_stride, (size_t)n * sizeof(float));
        return;
    }
    for (int64_t k0 = 0; k0 < x->k; k0 += STRIP) {
        const int64_t k1 = q7_min(k0 + STRIP, x->k);
        for (int64_t j = 0; j < n; j++)
            for (int64_t k = k0; k < k1; k++) packed[k * nr + j] = b[k * x->k_stride + j * x->n_stride];
    }
}

void q7_op_pack_b(const q7_pack_b_args *x, const q7_call *call) {
    pack_job job = {x, call->nr};
    q7_parallel(call, q7_ceil_div(x->n, call->nr), pack_panel, &job);
}
