/* scatter_typed.h: the loops of scatter.h for elements of type T, named NAME. Included once per
 * dtype. */

static inline void NAME(int64_t scatter, int64_t n, const void *px, void *py) {
    const T *x = px;
    T *y = py;
    switch (scatter) {
        case Q7_scatter_add:
            for (int64_t i = 0; i < n; i++) y[i] = (T)((U)y[i] + (U)x[i]);
            break;
        case Q7_scatter_mul:
            for (int64_t i = 0; i < n; i++) y[i] = (T)((U)y[i] * (U)x[i]);
            break;
        case Q7_scatter_max:
            for (int64_t i = 0; i < n; i++) y[i] = x[i] > y[i] || NAN_OF(x[i]) ? x[i] : y[i];
            break;
        default:
            for (int64_t i = 0; i < n; i++) y[i] = x[i] < y[i] || NAN_OF(x[i]) ? x[i] : y[i];
            break;
    }
}
#undef T
#undef U
#undef NAME
#undef NAN_OF
