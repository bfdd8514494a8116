/* resize_typed.h: the weights and loops of resize.c in T, with names made by NAME. Included once
 * per dtype. */

/* The weights of output position j; returns the position in x of the first, -1 for none. */
static int64_t NAME(weigh)(const q7_resize_args *args, int64_t j, T *weight) {
    const int64_t n = args->n;
    const double scale = args->scale > 0 ? args->scale : (double)args->m / (double)n;
    double x = source_of(args->coordinate, j, n, args->m, scale, args->roi_start, args->roi_end);
    if (args->coordinate == Q7_coordinate_tf_crop_and_resize && !(x >= 0 && x <= (double)(n - 1)))
        return -1;
    x = x > -1e9 ? (x < 1e15 ? x : 1e15) : -1e9; /* NaN too: what follows are integers */
    const double step = args->antialias && scale < 1 ? scale : 1;
    const double support = (args->interpolation == Q7_interpolation_linear ? 1 : 2) / step;
    const int64_t first = (int64_t)floor(x - support) + 1;
    const int64_t last = q7_min((int64_t)ceil(x + support) - 1, first + args->taps - 1);
    const int64_t start = q7_max(0, q7_min(first, n - args->taps));
    double sum = 0;
    for (int64_t t = 0; t < args->taps; t++) weight[t] = 0;
    for (int pass = 0; pass < 2; pass++) /* first the sum */
        for (int64_t i = first; i <= last; i++) {
            const int64_t inside = q7_max(0, q7_min(i, n - 1));
            if (args->exclude_outside && inside != i) continue;
            const double w = filter(args->interpolation, args->cubic_a, ((double)i - x) * step);
            const bool scaled = args->antialias || args->exclude_outside;
            if (pass == 0)
                sum += w;
            else
                weight[inside - start] += (T)(scaled && sum != 0 ? w / sum : w);
        }
    return start;
}

/* One run of y out of runs of x, `stride` from each to that of the next sample. */
static void NAME(blend)(const T *x, int64_t stride, const T *weight, int64_t taps, int64_t run,
                        T *restrict y) {
    const T first = weight[0];
    if (taps == 2) {
        const T second = weight[1], *next = x + stride;
        for (int64_t i = 0; i < run; i++) y[i] = first * x[i] + second * next[i];
        return;
    }
    for (int64_t i = 0; i < run; i++) y[i] = first * x[i];
    for (int64_t t = 1; t < taps; t++)
        for (int64_t i = 0; i < run; i++) y[i] += weight[t] * x[t * stride + i];
}

/* y[j] for j of begin..end along the innermost axis, which is dense; x and y start at j = 0. */
static void NAME(line)(const resize_job *job, const T *x, T *restrict y, int64_t begin,
                       int64_t end) {
    const int64_t *first = job->first, stride = job->args->taps, taps = job->taps;
    const T *weight = job->weight;
    for (int64_t j = begin; j < end; j++) {
        if (first[j] < 0) {
            y[j] = (T)job->args->extrapolation;
            continue;
        }
        const T *from = x + first[j], *w = weight + j * stride;
        T sum = w[0] * from[0];
        if (taps == 2)
            sum += w[1] * from[1];
        else
            for (int64_t t = 1; t < taps; t++) sum += w[t] * from[t];
        y[j] = sum;
    }
}

static void NAME(rows)(const resize_job *job, int64_t begin, int64_t end) {
    const q7_resize_args *args = job->args;
    const int64_t m = args->m, run = args->run, taps = job->taps;
    const int64_t x_row = args->runs * args->x_stride, y_row = args->runs * args->y_stride;
    const bool by_line = run == 1 && x_row == 1 && y_row == 1;
    int64_t o = begin / m, j = begin % m;
    for (int64_t row = begin; by_line && row < end; row += m - j, o++, j = 0) {
        const T *x = (const T *)args->x + o * args->n;
        NAME(line)(job, x, (T *)args->y + o * m, j, q7_min(m, j + end - row));
    }
    for (int64_t row = begin; !by_line && row < end; row++) {
        const T *x = (const T *)args->x + (o * args->n + job->first[j]) * x_row;
        const T *weight = (const T *)job->weight + j * args->taps;
        T *y = (T *)args->y + row * y_row;
        for (int64_t r = 0; r < args->runs; r++, x += args->x_stride, y += args->y_stride) {
            if (job->first[j] >= 0)
                NAME(blend)(x, x_row, weight, taps, run, y);
            else
                for (int64_t i = 0; i < run; i++) y[i] = (T)args->extrapolation;
        }
        if (++j == m) j = 0, o++;
    }
}
#undef T
#undef NAME
