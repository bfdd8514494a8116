/* cumulate_typed.h: the loops of cumulate.c for elements of type T, named CUMULATE. Included once
 * per dtype. */

/* `width` columns from x on, `step` elements from line to line. */
static void CUMULATE(const q7_cumulate_args *args, int64_t first, int64_t step, int64_t width) {
    const T *x = (const T *)args->x + first;
    T *y = (T *)args->y + first;
    const size_t bytes = (size_t)width * sizeof(T);
    if (width == 1) {
        T all = args->product ? 1 : 0;
        for (int64_t j = 0; j < args->n; j++) {
            const T before = all;
            all = args->product ? all * x[j * step] : all + x[j * step];
            y[j * step] = args->exclusive ? before : all;
        }
        return;
    }
    if (!args->exclusive) {
        if (x != y) memcpy(y, x, bytes);
        for (int64_t j = 1; j < args->n; j++) {
            const T *before = y;
            x += step, y += step;
            if (args->product)
                for (int64_t i = 0; i < width; i++) y[i] = before[i] * x[i];
            else
                for (int64_t i = 0; i < width; i++) y[i] = before[i] + x[i];
        }
        return;
    }
    T total[COLUMNS];
    for (int64_t i = 0; i < width; i++) total[i] = args->product ? 1 : 0;
    for (int64_t j = 0; j < args->n; j++, x += step, y += step)
        for (int64_t i = 0; i < width; i++) {
            const T value = x[i];
            y[i] = total[i];
            total[i] = args->product ? total[i] * value : total[i] + value;
        }
}
#undef T
#undef CUMULATE
