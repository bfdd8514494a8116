/* unary_int.h: the loops of unary.c for integers of type T. Included once per integer dtype. */

/* y[i] = e for every i, with V the element there, widened: narrowing the result wraps it. */
#define EACH(e) \
    for (int64_t i = 0; i < n; i++) y[i] = (T)(e)
#define V ((int64_t)x[i])
static void LOOP(int64_t op, int64_t n, const void *from, void *to, double alpha, double beta) {
    const T *x = from;
    T *y = to;
    switch (op) {
        case Q7_unary_abs: EACH(V < 0 ? 0 - (uint64_t)V : (uint64_t)V); break;
        case Q7_unary_neg: EACH(0 - (uint64_t)V); break;
        case Q7_unary_sign: EACH((V > 0) - (V < 0)); break;
        case Q7_unary_relu: EACH(V < 0 ? 0 : V); break;
        default: { /* clip */
            const int64_t low = to_bound(alpha, LOWEST, HIGHEST),
                          high = to_bound(beta, LOWEST, HIGHEST);
            EACH(q7_min(high, q7_max(low, V)));
            break;
        }
    }
}
#undef EACH
#undef V
#undef T
#undef LOWEST
#undef HIGHEST
#undef LOOP
