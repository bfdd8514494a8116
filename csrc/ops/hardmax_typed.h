/* hardmax_typed.h: the loop of hardmax.c for elements of type T. Included once per dtype. */
#include "../kernels/typed_name.h"

static void NAMED(hardmax)(const q7_hardmax_args *args, int64_t outer) {
    const int64_t n = args->n, inner = args->inner;
    const T *x = (const T *)args->x + outer * n * inner; /* (n, inner) */
    T *y = (T *)args->y + outer * n * inner;
    for (int64_t i = 0; i < inner; i++) {
        int64_t best = 0;
        for (int64_t j = 1; j < n; j++) {
            const T v = x[j * inner + i], top = x[best * inner + i];
            if (v > top || (v != v && top == top)) best = j;
        }
        for (int64_t j = 0; j < n; j++) y[j * inner + i] = j == best;
    }
}
#include "../kernels/typed_end.h"
