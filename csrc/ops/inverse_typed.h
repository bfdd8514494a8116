/* inverse_typed.h: the loops of inverse.c for elements of type T. Included once per dtype. */
#include "../kernels/typed_name.h"

/* y -= factor * x */
static void NAMED(subtract)(int64_t n, T factor, const T *restrict x, T *restrict y) {
    for (int64_t i = 0; i < n; i++) y[i] -= factor * x[i];
}

/* Exchanges two rows. */
static void NAMED(swap)(int64_t n, T *x, T *y) {
    for (int64_t i = 0; i < n; i++) {
        const T kept = x[i];
        x[i] = y[i];
        y[i] = kept;
    }
}

/* Gaussian elimination with partial pivoting: of a (n, n) an upper triangle is left, of x (n, n), if any, what
 * the same steps make of it. Returns the determinant of a. */
static T NAMED(eliminate)(int64_t n, T *a, T *x) {
    T product = 1;
    for (int64_t k = 0; k < n; k++) {
        const T *row = a + k * n + k;
        int64_t best = k;
        for (int64_t i = k + 1; i < n; i++)
            if (ABS(a[i * n + k]) > ABS(a[best * n + k])) best = i;
        if (best != k) {
            NAMED(swap)(n, a + k * n, a + best * n);
            if (x) NAMED(swap)(n, x + k * n, x + best * n);
        }
        product *= best != k ? -*row : *row;
        for (int64_t i = k + 1; i < n && *row != 0; i++) {
            T *to = a + i * n + k;
            const T factor = *to / *row;
            NAMED(subtract)(n - k - 1, factor, row + 1, to + 1);
            if (x) NAMED(subtract)(n, factor, x + k * n, x + i * n);
        }
    }
    return product;
}

/* y (n, n) = the inverse of a, of which an upper triangle is left. */
static void NAMED(invert)(int64_t n, T *a, T *y) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) y[i * n + j] = i == j;
    (void)NAMED(eliminate)(n, a, y);
    for (int64_t k = n - 1; k >= 0; k--) {
        T *row = y + k * n;
        for (int64_t j = 0; j < n; j++) row[j] /= a[k * n + k];
        for (int64_t i = 0; i < k; i++) NAMED(subtract)(n, a[i * n + k], row, y + i * n);
    }
}
#undef ABS
#include "../kernels/typed_end.h"
