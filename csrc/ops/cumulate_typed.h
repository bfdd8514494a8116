/* cumulate_typed.h: the loop of cumulate.c for elements of type T, named CUMULATE. Included once
 * per dtype. */

static void CUMULATE(const q7_cumulate_args *args, int64_t outer) {
    const int64_t n = args->n, inner = args->inner;
    const T *x = (const T *)args->x + outer * n * inner; /* (n, inner) */
    T *y = (T *)args->y + outer * n * inner;             /* (n, inner) */
    for (int64_t i = 0; i < inner; i++) {
        T total = args->product ? 1 : 0;
        for (int64_t step = 0; step < n; step++) {
            const int64_t at = (args->reverse ? n - 1 - step : step) * inner + i;
            const T before = total;
            total = args->product ? total * x[at] : total + x[at];
            y[at] = args->exclusive ? before : total;
        }
    }
}
#undef T
#undef CUMULATE
