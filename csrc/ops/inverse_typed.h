/* inverse_typed.h: the loops of inverse.c for elements of type T. Included once per dtype. */
#include "../kernels/typed_name.h"

/* y -= factor * x */
static void NAMED(subtract)(int64_t n, T factor, const T *restrict x, T *restrict y) {
    for (int64_t i = 0; i < n; i++) y[i] -= factor * x[i];
}

/* The largest element of column k of a (n, n) from row k on becomes that of row k; returns where it was. */
static int64_t NAMED(pivot)(int64_t n, int64_t k, T *a) {
    int64_t best = k;
    for (int64_t i = k + 1; i < n; i++)
        if (ABS(a[i * n + k]) > ABS(a[best * n + k])) best = i;
    for (int64_t j = 0; j < n && best != k; j++) {
        const T kept = a[k * n + j];
        a[k * n + j] = a[best * n + j];
        a[best * n + j] = kept;
    }
    return best;
}

/* The determinant of a (n, n), of which an upper triangle is left. */
static T NAMED(determinant)(int64_t n, T *a) {
    T product = 1;
    for (int64_t k = 0; k < n; k++) {
        const bool is_swapped = NAMED(pivot)(n, k, a) != k;
        const T *row = a + k * n + k, top = *row;
        product *= is_swapped ? -top : top;
        for (int64_t i = k + 1; i < n && top != 0; i++) {
            T *to = a + i * n + k;
            NAMED(subtract)(n - k - 1, *to / top, row + 1, to + 1);
        }
    }
    return product;
}

/* a (n, n) becomes its inverse: column k of the identity takes the place of column k, once it is cleared.
 * swaps: room for n. */
static void NAMED(invert)(int64_t n, T *a, int64_t *swaps) {
    for (int64_t k = 0; k < n; k++) {
        swaps[k] = NAMED(pivot)(n, k, a);
        T *row = a + k * n;
        const T top = row[k];
        row[k] = 1;
        for (int64_t j = 0; j < n; j++) row[j] /= top;
        for (int64_t i = 0; i < n; i++) {
            if (i == k) continue;
            const T factor = a[i * n + k];
            a[i * n + k] = 0;
            NAMED(subtract)(n, factor, row, a + i * n);
        }
    }
    for (int64_t k = n - 1; k >= 0;
         k--) /* rows of x that were swapped are columns of its inverse */
        for (int64_t i = 0; i < n && swaps[k] != k; i++) {
            const T kept = a[i * n + k];
            a[i * n + k] = a[i * n + swaps[k]];
            a[i * n + swaps[k]] = kept;
        }
}
#undef ABS
#include "../kernels/typed_end.h"
