/* pool_typed.h: one element of pool.c in type T, tap by tap; included once per type. */
static void NAME(const q7_pool_args *x, int64_t at, int64_t ow) {
    const int64_t oh = at % x->OH, od = at / x->OH % x->OD, n = at / x->OH / x->OD;
    const int64_t d = od * x->stride_d - x->pad_front, h = oh * x->stride_h - x->pad_top;
    const int64_t w = ow * x->stride_w - x->pad_left;
    const q7_taps planes = q7_taps_within(d, x->kd, x->dilation_d, 0, x->D);
    const q7_taps lines = q7_taps_within(h, x->kh, x->dilation_h, 0, x->H);
    const q7_taps columns = q7_taps_within(w, x->kw, x->dilation_w, 0, x->W);
    const T *from = (const T *)x->x + n * x->D * x->H * x->W;
    T best = LOWEST;
    int64_t where = 0;
    bool any = false;
    double sum = 0;
    for (int64_t l = planes.first; l < planes.end; l++)
        for (int64_t i = lines.first; i < lines.end; i++)
            for (int64_t j = columns.first; j < columns.end; j++) {
                const int64_t pd = d + l * x->dilation_d, ph = h + i * x->dilation_h;
                const int64_t pw = w + j * x->dilation_w, p = (pd * x->H + ph) * x->W + pw;
                const T v = from[p];
                if (x->op == Q7_pool_max) {
                    if (any && !(v > best) && !(UNORDERED(v) && !UNORDERED(best))) continue;
                    any = true;
                    best = v;
                    where = x->column_major ? (pw * x->H + ph) * x->D + pd : p;
                } else {
                    sum += x->op == Q7_pool_lp ? pow(fabs((double)v), x->p) : (double)v;
                }
            }
    T *y = (T *)x->y + at * x->OW + ow;
    if (x->op == Q7_pool_max) {
        *y = best;
        if (x->indices) ((int64_t *)x->indices)[at * x->OW + ow] = n * x->D * x->H * x->W + where;
    } else if (x->op == Q7_pool_lp) {
        *y = (T)pow(sum, 1 / x->p);
    } else {
        *y = (T)(sum / (double)count_of(x, d, h, w));
    }
}
#undef T
#undef NAME
#undef LOWEST
#undef UNORDERED
