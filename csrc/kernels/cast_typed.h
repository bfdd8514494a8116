/* cast_typed.h: the loops of cast.c from one dtype to all others. Included once per source dtype.
 */

#ifndef TO_F16
#define TO_F16(x, y, n) \
    for (int64_t i = 0; i < n; i++) ((f16 *)y)[i] = f16_of(NARROW(x[i]))
#endif
#define EACH(type, value)                                            \
    for (int64_t i = 0; i < n; i++) ((type *)to)[i] = (type)(value); \
    break
static void CAST(const void *from, void *to, int64_t n, int64_t to_dtype) {
    const FROM *x = from;
    switch (to_dtype) {
        case Q7_F32: EACH(float, x[i]);
        case Q7_F64: EACH(double, x[i]);
        case Q7_F16: TO_F16(x, to, n); break;
        case Q7_BF16:
            for (int64_t i = 0; i < n; i++) ((bf16 *)to)[i] = bf16_of(NARROW(x[i]));
            break;
        case Q7_I64: EACH(int64_t, I64(x[i]));
        case Q7_U64: EACH(uint64_t, U64(x[i]));
        case Q7_I32: EACH(int32_t, I32(x[i]));
        case Q7_U32: EACH(uint32_t, I64(x[i]));
        case Q7_I16: EACH(int16_t, I32(x[i]));
        case Q7_U16: EACH(uint16_t, I32(x[i]));
        case Q7_BOOL: EACH(uint8_t, x[i] != 0);
        default: EACH(uint8_t, I32(x[i])); /* Q7_I8, Q7_U8 */
    }
}
#undef EACH
#undef TO_F16
#undef FROM
#undef CAST
#undef NARROW
#undef I64
#undef U64
#undef I32
