/* where_typed.h: the loop of where.c for elements of type T, named SELECT. Included once per width.
 */

/* By bits, as a branch is mispredicted at every other element: compilers make one of 8 bytes. */
#define CHOOSE(c, yes, no) (T)((no) ^ (((yes) ^ (no)) & (T)(0 - (T)((c) != 0))))
static void SELECT(int64_t n, const uint8_t *c, int64_t c_stride, const void *pa, int64_t a_stride,
                   const void *pb, int64_t b_stride, void *restrict py) {
    const T *a = pa, *b = pb;
    T *restrict y = py;
    if (c_stride == 0) {
        const T *from = *c ? a : b;
        const int64_t stride = *c ? a_stride : b_stride;
        for (int64_t i = 0; i < n; i++) y[i] = from[i * stride];
    } else if (a_stride && b_stride) { /* constant strides in each loop, so that it vectorises */
        for (int64_t i = 0; i < n; i++) {
            const T yes = a[i], no = b[i]; /* both loaded: a select, not a branch */
            y[i] = CHOOSE(c[i], yes, no);
        }
    } else if (a_stride) {
        const T other = *b;
        for (int64_t i = 0; i < n; i++) {
            const T yes = a[i];
            y[i] = CHOOSE(c[i], yes, other);
        }
    } else if (b_stride) {
        const T other = *a;
        for (int64_t i = 0; i < n; i++) {
            const T no = b[i];
            y[i] = CHOOSE(c[i], other, no);
        }
    } else {
        const T yes = *a, no = *b;
        for (int64_t i = 0; i < n; i++) y[i] = CHOOSE(c[i], yes, no);
    }
}
#undef CHOOSE
#undef T
#undef SELECT
