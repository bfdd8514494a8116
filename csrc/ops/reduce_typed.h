/* reduce_typed.h: the loop of reduce.c for elements of type T, whose sums wrap in ACC. Included
 * once per dtype other than f32. */

static void NAME(const q7_reduce_args *args, int64_t outer) {
    const int64_t n = args->n, inner = args->inner;
    const T *x = (const T *)args->x + outer * n * inner; /* (n, inner) */
    T *y = (T *)args->y + outer * inner;                 /* (inner) */
    for (int64_t i = 0; i < inner; i++) {
        ACC sum = 0, squares = 0, absolute = 0, product = 1;
        T low = HIGHEST, high = LOWEST;
        for (int64_t j = 0; j < n; j++) {
            const T v = x[j * inner + i];
            sum += (ACC)v;
            squares += (ACC)v * (ACC)v;
            absolute += v < 0 ? 0 - (ACC)v : (ACC)v;
            product *= (ACC)v;
            if (v < low || UNORDERED(v))
                low = v; /* once NaN, no v is less: it stays, unless a NaN follows */
            if (v > high || UNORDERED(v)) high = v;
        }
        switch (args->op) {
            case Q7_reduce_sum: y[i] = (T)sum; break;
            case Q7_reduce_mean: y[i] = MEAN((T)sum, n); break;
            case Q7_reduce_max: y[i] = high; break;
            case Q7_reduce_min: y[i] = low; break;
            case Q7_reduce_prod: y[i] = (T)product; break;
            case Q7_reduce_sumsq: y[i] = (T)squares; break;
            case Q7_reduce_l1: y[i] = (T)absolute; break;
            default: y[i] = ROOT((double)(T)squares); break; /* l2 */
        }
    }
}
#undef T
#undef ACC
#undef NAME
#undef LOWEST
#undef HIGHEST
#undef ROOT
#undef MEAN
#undef UNORDERED
