/* binary_int.h: the loops of binary.c for integers of type T. Included once per integer dtype. */

/* y[i] = e for every i, with x and z the operands there, widened: narrowing the result wraps it. */
#define EACH(R, e)                                              \
    for (int64_t i = 0; i < n; i++) {                           \
        const int64_t x = a[i * a_stride], z = b[i * b_stride]; \
        ((R *)y)[i] = (R)(e);                                   \
    }                                                           \
    break
static void LOOP(int64_t op, int64_t n, const void *pa, int64_t a_stride, const void *pb, int64_t b_stride, void *y) {
    const T *a = pa, *b = pb;
    switch (op) {
        case Q7_binary_add: EACH(T, (uint64_t)x + (uint64_t)z);
        case Q7_binary_sub: EACH(T, (uint64_t)x - (uint64_t)z);
        case Q7_binary_mul: EACH(T, (uint64_t)x * (uint64_t)z);
        case Q7_binary_div: EACH(T, int_div(x, z));
        case Q7_binary_pow: EACH(T, int_pow(x, z));
        case Q7_binary_mod: EACH(T, int_mod(x, z));
        case Q7_binary_min: EACH(T, x < z ? x : z);
        case Q7_binary_max: EACH(T, x > z ? x : z);
        case Q7_binary_equal: EACH(uint8_t, x == z);
        case Q7_binary_less: EACH(uint8_t, x < z);
        case Q7_binary_less_equal: EACH(uint8_t, x <= z);
        case Q7_binary_greater: EACH(uint8_t, x > z);
        case Q7_binary_greater_equal: EACH(uint8_t, x >= z);
        case Q7_binary_and: EACH(T, x & z);
        case Q7_binary_or: EACH(T, x | z);
        default: EACH(T, x ^ z);
    }
}
#undef EACH
#undef T
#undef LOOP
