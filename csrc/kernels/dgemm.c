/* dgemm.c: the kernel of dgemm.h for every ISA. A tile of c stays in registers while a block of k
 * runs: MR * VECTORS sums, VECTORS of b and a broadcast element of a, as in gemm.c. */
#include "dgemm.h"

#include "../simd/doubles.h"

/* Register tiles, those of kernels.def: NR columns are VECTORS of Q7_D. */
#if defined(Q7_ISA_avx512)
enum { MR = 8, VECTORS = 2 };
#elif defined(Q7_ISA_avx2)
enum { MR = 4, VECTORS = 3 };
#elif defined(Q7_ISA_neon)
enum { MR = 8, VECTORS = 2 };
#else
enum { MR = 4, VECTORS = 2 };
#endif
enum {
    NR = VECTORS * Q7_D,
    K_BLOCK = 128,            /* rows of a panel of b: 16 KB of L1 for NR = 16 */
    GROUP = 4 * K_BLOCK * NR, /* elements of panels that rows of a meet one after the other */
    IN_PLACE =
        2 * MR, /* rows of a, at most, for which panels whose rows are dense are not packed */
};

/* What rows of a are multiplied by: k rows of b, `stride` apart, of whole vectors, and where they go. */
typedef struct panel {
    int64_t k, n; /* columns of c */
    const double *b;
    int64_t stride;
    bool is_first; /* block of k */
} panel;

/* Rows [0, rows) of a by a panel. */
Q7_INLINE void tile(const q7_dgemm_block *x, const panel *p, const double *a, double *c,
                    const double *bias, const int rows, const int vectors) {
    const int64_t width = vectors * Q7_D, bytes = p->n * 8;
    double line[NR] = {0};
    q7_f64 sum[MR][VECTORS];
    Q7_UNROLL
    for (int r = 0; r < rows; r++) {
        const double *from = p->is_first ? bias : c + r * x->c_stride;
        if (!from || p->n < width) {
            if (from) memcpy(line, from, (size_t)bytes);
            from = line;
        }
        Q7_UNROLL
        for (int v = 0; v < vectors; v++) sum[r][v] = q7_load_f64(from + v * Q7_D);
    }
    const int64_t row_stride = x->a_row_stride, step = x->a_col_stride;
    const double *b = p->b;
    for (int64_t k = 0; k < p->k; k++, b += p->stride, a += step) {
        q7_f64 right[VECTORS];
        Q7_UNROLL
        for (int v = 0; v < vectors; v++) right[v] = q7_load_f64(b + v * Q7_D);
        Q7_UNROLL
        for (int r = 0; r < rows; r++) {
            const double left = a[r * row_stride];
            Q7_UNROLL
            for (int v = 0; v < vectors; v++) sum[r][v] += right[v] * left;
        }
    }
    Q7_UNROLL
    for (int r = 0; r < rows; r++) {
        double *to = p->n < width ? line : c + r * x->c_stride;
        Q7_UNROLL
        for (int v = 0; v < vectors; v++) q7_store_f64(to + v * Q7_D, sum[r][v]);
        if (p->n < width) memcpy(c + r * x->c_stride, line, (size_t)bytes);
    }
}

Q7_INLINE void any_width(const q7_dgemm_block *x, const panel *p, const double *a, double *c,
                         const double *bias, const int rows) {
    switch (q7_ceil_div(p->n, Q7_D)) {
        case 1: tile(x, p, a, c, bias, rows, 1); break;
#ifdef Q7_ISA_avx2
        case 2: tile(x, p, a, c, bias, rows, 2); break;
#endif
        default: tile(x, p, a, c, bias, rows, VECTORS); break;
    }
}

/* Rows of b, columns of one panel, side by side; columns behind them are 0. */
static void pack(const q7_dgemm_block *x, const double *b, int64_t k, int64_t n, double *to) {
    const int64_t step = x->b_col_stride, whole = step == 1 ? n / Q7_D * Q7_D : 0;
    for (int64_t i = 0; i < k; i++) {
        for (int64_t j = 0; j < whole; j += Q7_D)
            q7_store_f64(to + i * NR + j, q7_load_f64(b + i * x->b_row_stride + j));
        for (int64_t j = n; j < NR; j++) to[i * NR + j] = 0;
    }
    if (n == NR && step != 1) { /* a constant count: loads of all are under way at once */
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < NR; j++) to[i * NR + j] = b[i * x->b_row_stride + j * step];
        return;
    }
    for (int64_t j = whole; j < n; j++)
        for (int64_t i = 0; i < k; i++) to[i * NR + j] = b[i * x->b_row_stride + j * step];
}

/* The product of a row of a and a column of b, both dense. */
static double dot(int64_t k, const double *a, const double *b, double bias) {
    enum { SUMS = 4 };
    q7_f64 sum[SUMS] = {{0}};
    int64_t i = 0;
    for (; i + SUMS * Q7_D <= k; i += SUMS * Q7_D) {
        Q7_UNROLL
        for (int s = 0; s < SUMS; s++)
            sum[s] += q7_load_f64(a + i + s * Q7_D) * q7_load_f64(b + i + s * Q7_D);
    }
    for (; i + Q7_D <= k; i += Q7_D) sum[0] += q7_load_f64(a + i) * q7_load_f64(b + i);
    const q7_f64 all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    for (; i < k; i++) bias += a[i] * b[i];
    for (int v = 0; v < Q7_D; v++) bias += all[v];
    return bias;
}

/* Columns [column, column + n) of c by a block of k. */
static void group(const q7_dgemm_block *x, int64_t first, int64_t k, int64_t column, int64_t n,
                  const double *a, double *room) {
    const bool in_place = x->b_panel_stride || (x->b_col_stride == 1 && x->m <= IN_PLACE);
    const int64_t panel_stride = x->b_panel_stride ? x->b_panel_stride : NR * x->b_col_stride;
    const double *b = x->b + first * x->b_row_stride + column / NR * panel_stride;
    const bool fits = x->b_panel_stride || n % NR == 0; /* the last one, in place */
    const int64_t whole = in_place ? (fits ? n : n / NR * NR) : 0;
    for (int64_t j = whole; j < n; j += NR)
        pack(x, b + j / NR * panel_stride, k, q7_min(n - j, NR), room + j * k);
    for (int64_t i = 0, rows; i < x->m; i += rows) {
        const int64_t left = x->m - i;
        rows = left >= MR ? MR : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        for (int64_t j = 0; j < n; j += NR) {
            const bool lies = j < whole;
            const panel p = {k, q7_min(n - j, NR), lies ? b + j / NR * panel_stride : room + j * k,
                             lies ? x->b_row_stride : NR, first == 0};
            const double *from = a + i * x->a_row_stride;
            const double *bias = x->bias ? x->bias + column + j : NULL;
            double *c = x->c + i * x->c_stride + column + j;
            switch (rows) {
                case 1: any_width(x, &p, from, c, bias, 1); break;
                case 2: any_width(x, &p, from, c, bias, 2); break;
#if defined(Q7_ISA_avx512) || defined(Q7_ISA_neon)
                case 4: any_width(x, &p, from, c, bias, 4); break;
#endif
                default: any_width(x, &p, from, c, bias, MR); break;
            }
        }
    }
}

void Q7_KERNEL(dgemm_f64)(const q7_dgemm_block *x) {
    if ((x->m == 1 || x->n == 1) && x->a_col_stride == 1 && x->b_row_stride == 1 &&
        !x->b_panel_stride) {
        for (int64_t i = 0; i < x->m; i++)
            for (int64_t j = 0; j < x->n; j++)
                x->c[i * x->c_stride + j] =
                    dot(x->k, x->a + i * x->a_row_stride, x->b + j * x->b_col_stride,
                        x->bias ? x->bias[j] : 0);
        return;
    }
    double room[GROUP];
    int64_t first = 0;
    do { /* once where k is 0 */
        const int64_t k = q7_min(x->k - first, K_BLOCK);
        const int64_t columns = GROUP / (q7_max(k, 1) * NR) * NR;
        const double *a = x->a + first * x->a_col_stride;
        for (int64_t j = 0; j < x->n; j += columns)
            group(x, first, k, j, q7_min(x->n - j, columns), a, room);
        first += k;
    } while (first < x->k);
}
