/* binary_int.h: the loops of binary_typed.c for integers of type T. Included once per integer dtype. */

/* y[i] = e for every i, with X and Z the operands there, widened: narrowing the result wraps it. */
#define EACH(R, e) \
    for (int64_t i = 0; i < n; i++) ((R *)y)[i] = (R)(e)
/* Those of up to 32 bits as doubles, exactly: there are vectors for that. */
#define QUOTIENTS(f)                                    \
    if (HIGHEST <= INT32_MAX)                           \
        EACH(T, f##_i32((int32_t)a[i], (int32_t)b[i])); \
    else                                                \
        EACH(T, Q7_INT(f, X, Z))
#define X ((W)a[i])
#define Z ((W)b[i])
static void NAMED(binary)(int64_t op, int64_t n, const void *pa, const void *pb, void *y) {
    const T *a = pa, *b = pb;
    switch (op) {
        case Q7_binary_add: EACH(T, (uint64_t)X + (uint64_t)Z); break;
        case Q7_binary_sub: EACH(T, (uint64_t)X - (uint64_t)Z); break;
        case Q7_binary_mul: EACH(T, (uint64_t)X * (uint64_t)Z); break;
        case Q7_binary_div: QUOTIENTS(div); break;
        case Q7_binary_pow: EACH(T, Q7_INT(pow, X, Z)); break;
        case Q7_binary_mod: QUOTIENTS(mod); break;
        case Q7_binary_fmod: QUOTIENTS(fmod); break;
        case Q7_binary_min: EACH(T, X < Z ? X : Z); break;
        case Q7_binary_max: EACH(T, X > Z ? X : Z); break;
        case Q7_binary_prelu:
            EACH(T, IS_NEGATIVE(X) ? (uint64_t)X * (uint64_t)Z : (uint64_t)X);
            break;
        case Q7_binary_equal: EACH(uint8_t, X == Z); break;
        case Q7_binary_less: EACH(uint8_t, X < Z); break;
        case Q7_binary_less_equal: EACH(uint8_t, X <= Z); break;
        case Q7_binary_greater: EACH(uint8_t, X > Z); break;
        case Q7_binary_greater_equal: EACH(uint8_t, X >= Z); break;
        case Q7_binary_and: EACH(T, X & Z); break;
        case Q7_binary_or: EACH(T, X | Z); break;
        case Q7_binary_xor: EACH(T, X ^ Z); break;
        case Q7_binary_shift_left: EACH(T, Q7_INT(shl, X, Z)); break;
        default: EACH(T, Q7_INT(shr, X, Z)); break; /* shift_right */
    }
}
#undef EACH
#undef QUOTIENTS
#undef X
#undef Z
#include "typed_end.h"
