/* binary_int.h: the loops of binary.c for integers of type T. Included once per integer dtype. */

/* y[i] = e for every i, with X and Z the operands there, widened: narrowing the result wraps it. */
#define EACH(R, e) \
    for (int64_t i = 0; i < n; i++) ((R *)y)[i] = (R)(e)
#define X ((int64_t)a[i * a_stride])
#define Z ((int64_t)b[i * b_stride])
static void LOOP(int64_t op, int64_t n, const void *pa, int64_t a_stride, const void *pb,
                 int64_t b_stride, void *y) {
    const T *a = pa, *b = pb;
    switch (op) {
        case Q7_binary_add: EACH(T, (uint64_t)X + (uint64_t)Z); break;
        case Q7_binary_sub: EACH(T, (uint64_t)X - (uint64_t)Z); break;
        case Q7_binary_mul: EACH(T, (uint64_t)X * (uint64_t)Z); break;
        case Q7_binary_div: EACH(T, int_div(X, Z)); break;
        case Q7_binary_pow: EACH(T, int_pow(X, Z)); break;
        case Q7_binary_mod: EACH(T, int_mod(X, Z)); break;
        case Q7_binary_min: EACH(T, X < Z ? X : Z); break;
        case Q7_binary_max: EACH(T, X > Z ? X : Z); break;
        case Q7_binary_equal: EACH(uint8_t, X == Z); break;
        case Q7_binary_less: EACH(uint8_t, X < Z); break;
        case Q7_binary_less_equal: EACH(uint8_t, X <= Z); break;
        case Q7_binary_greater: EACH(uint8_t, X > Z); break;
        case Q7_binary_greater_equal: EACH(uint8_t, X >= Z); break;
        case Q7_binary_and: EACH(T, X & Z); break;
        case Q7_binary_or: EACH(T, X | Z); break;
        default: EACH(T, X ^ Z); break;
    }
}
#undef EACH
#undef X
#undef Z
#undef T
#undef LOOP
