/* cumulate_typed.h: the loops of cumulate.c for elements of type T, named CUMULATE. Included once
 * per dtype. */

/* `width` columns from x on, `step` elements from line to line. */
static void CUMULATE(const q7_cumulate_args *args, int64_t first, int64_t step, int64_t width) {
    const T *x = (const T *)args->x + first;
    T *y = (T *)args->y + first;
    T total[COLUMNS], value[COLUMNS];
    const size_t bytes = (size_t)width * sizeof(T);
    for (int64_t i = 0; i < width; i++) total[i] = args->product ? 1 : 0;
    if (width == 1) {
        T all = total[0];
        for (int64_t j = 0; j < args->n; j++) {
            const T before = all;
            all = args->product ? all * x[j * step] : all + x[j * step];
            y[j * step] = args->exclusive ? before : all;
        }
        return;
    }
    for (int64_t j = 0; j < args->n; j++, x += step, y += step) {
        const T *from = x;
        if (args->exclusive) {
            from = memcpy(value, x, bytes);
            memcpy(y, total, bytes);
        }
        if (args->product)
            for (int64_t i = 0; i < width; i++) total[i] *= from[i];
        else
            for (int64_t i = 0; i < width; i++) total[i] += from[i];
        if (!args->exclusive) memcpy(y, total, bytes);
    }
}
#undef T
#undef CUMULATE
