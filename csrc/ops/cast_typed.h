/* cast_typed.h: the loops of cast.c from one dtype to all others. Included once per source dtype.
 */

static void CAST(const void *from, void *to, int64_t n, int64_t to_dtype) {
    const FROM *x = from;
    switch (to_dtype) {
        case Q7_F32:
            for (int64_t i = 0; i < n; i++) ((float *)to)[i] = (float)READ(x[i]);
            break;
        case Q7_F64:
            for (int64_t i = 0; i < n; i++) ((double *)to)[i] = (double)READ(x[i]);
            break;
        case Q7_F16:
            for (int64_t i = 0; i < n; i++) ((f16 *)to)[i] = HALF(READ(x[i]));
            break;
        case Q7_I64:
            for (int64_t i = 0; i < n; i++) ((int64_t *)to)[i] = I64(READ(x[i]));
            break;
        case Q7_I32:
            for (int64_t i = 0; i < n; i++) ((int32_t *)to)[i] = I32(READ(x[i]));
            break;
        case Q7_BOOL:
            for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = READ(x[i]) != 0;
            break;
        default: /* Q7_I8, Q7_U8 */
            for (int64_t i = 0; i < n; i++) ((uint8_t *)to)[i] = (uint8_t)I64(READ(x[i]));
            break;
    }
}
#undef FROM
#undef CAST
#undef READ
#undef I64
#undef I32
#undef HALF
