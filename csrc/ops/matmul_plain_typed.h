/* matmul_plain_typed.h: m rows of one product of matmul_plain.c, for elements of type T, which begin at
 * so many elements of a, b and c. Included once per dtype. */
#include "../kernels/typed_name.h"

/* The same of few columns, which are copied side by side, some of k at a time: c[i,j] += a[i,:] . column. */
static void NAMED(multiply_columns)(const q7_matmul_plain_args *x, const T *a, const T *b, T *c,
                                    int64_t m) {
    T column[DEEP];
    const int64_t n = x->n;
    for (int64_t first = 0, some; first < x->k; first += some) {
        some = q7_min(x->k - first, DEEP);
        for (int64_t j = 0; j < n; j++) {
            const T *from = b + first * x->b_row_stride + j * x->b_col_stride;
            for (int64_t k = 0; k < some; k++) column[k] = from[k * x->b_row_stride];
            for (int64_t i = 0; i < m; i++) {
                const T *row = a + i * x->a_row_stride + first;
                T sum = 0;
                for (int64_t k = 0; k < some; k++) sum += row[k] * column[k];
                c[i * n + j] += sum;
            }
        }
    }
}

static void NAMED(multiply)(const q7_matmul_plain_args *x, int64_t from_a, int64_t from_b,
                            int64_t from_c, int64_t m) {
    const T *a = (const T *)x->a + from_a, *b = (const T *)x->b + from_b, *bias = x->bias;
    T *c = (T *)x->c + from_c;
    const int64_t n = x->n, stride = x->b_col_stride;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) c[i * n + j] = bias ? bias[j] : 0;
    if (n <= FEW && x->a_col_stride == 1) {
        NAMED(multiply_columns)(x, a, b, c, m);
        return;
    }
    for (int64_t k = 0; k < x->k; k++) /* a row of b serves all rows while it is in L1 */
        for (int64_t i = 0; i < m; i++) {
            const T v = a[i * x->a_row_stride + k * x->a_col_stride];
            const T *from = b + k * x->b_row_stride;
            T *to = c + i * n;
            if (stride == 1)
                for (int64_t j = 0; j < n; j++) to[j] += v * from[j];
            else
                for (int64_t j = 0; j < n; j++) to[j] += v * from[j * stride];
        }
}
#include "../kernels/typed_end.h"
