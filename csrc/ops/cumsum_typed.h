/* cumsum_typed.h: the loop of cumsum.c for elements of type T, named CUMSUM. Included once per
 * dtype. */

static void CUMSUM(const q7_cumsum_args *args, int64_t outer) {
    const int64_t n = args->n, inner = args->inner;
    const T *x = (const T *)args->x + outer * n * inner; /* (n, inner) */
    T *y = (T *)args->y + outer * n * inner;             /* (n, inner) */
    for (int64_t i = 0; i < inner; i++) {
        T sum = 0;
        for (int64_t step = 0; step < n; step++) {
            const int64_t at = (args->reverse ? n - 1 - step : step) * inner + i;
            const T before = sum;
            sum = ADD(sum, x[at]);
            y[at] = args->exclusive ? before : sum;
        }
    }
}
#undef T
#undef ADD
#undef CUMSUM
