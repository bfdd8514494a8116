/* conv_parts.h: some lines of y of a convolution, all of its channels and some panels of filters, by
 * AMX:
 *
 *     y = act(conv(x, w) + bias) + residual, or act of all of that sum with residual_first
 *
 * Floats of x are cut into parts (amx/parts.h) once, where a product of windows cuts each for every
 * tap. They lie in planes, one for every phase of the strides, with zeros around: windows of y that
 * follow one another have any tap in rows that follow one another, which are rows of a tile. So there
 * are rows between two lines of y whose sums nobody wants.
 *
 *     plane (ph, pw)    x[(v + low_h) stride_h + ph, (u + low_w) stride_w + pw],  u < pitch
 *     y[oh, ow], tap    row (oh + shift_h) pitch + ow + shift_w of the plane of that tap
 *
 * x, w, y and residual are those of conv_last with one group; sums run over all of k at once. Lines of
 * y whose windows do not fit parts, and 16 filters that do not, are computed by AVX-512. room:
 * q7_conv_parts_room bytes. */
#ifndef Q7_CONV_PARTS_H
#define Q7_CONV_PARTS_H
#include "../abi.h"

typedef struct q7_conv_parts_block {
    int64_t first, end;         /* lines of y, N images one after the other */
    int64_t first_panel, panel; /* of w; the one that is not computed any more */
    void *room;
} q7_conv_parts_block;

typedef void (*q7_conv_parts_kernel)(const q7_conv_parts_args *args,
                                     const q7_conv_parts_block *block);

/* How the taps of an axis meet its planes: tap i reads plane i % planes, at shift(i). */
typedef struct q7_conv_axis {
    int64_t taps, stride, dilation, pad, planes;
    int64_t span; /* of shifts */
} q7_conv_axis;

/* Of the first element of tap i: which one of its phase, and the phase. */
static inline int64_t q7_conv_shift(const q7_conv_axis *a, int64_t i) {
    const int64_t at = i * a->dilation - a->pad;
    return at >= 0 ? at / a->stride : -((a->stride - 1 - at) / a->stride);
}
static inline int64_t q7_conv_phase(const q7_conv_axis *a, int64_t i) {
    return i * a->dilation - a->pad - q7_conv_shift(a, i) * a->stride;
}

static inline q7_conv_axis q7_conv_axis_of(int64_t taps, int64_t stride, int64_t dilation,
                                           int64_t pad) {
    q7_conv_axis a = {taps, stride, dilation, pad, q7_min(taps, stride), 0};
    a.span = q7_conv_shift(&a, taps - 1) - q7_conv_shift(&a, 0);
    return a;
}

/* Bytes of a block of up to so many lines: parts of its planes, its sums, which of its lines fit, and
 * parts of w. */
static inline int64_t q7_conv_parts_room(const q7_conv_parts_args *x, int64_t lines) {
    enum { PIXEL = 3 * 64, SUM = 64, TILE = 16, WEIGHTS = 2 * 9 * 3072 };
    const q7_conv_axis h = q7_conv_axis_of(x->kh, x->stride_h, x->dilation_h, x->pad_top);
    const q7_conv_axis w = q7_conv_axis_of(x->kw, x->stride_w, x->dilation_w, x->pad_left);
    const int64_t images = (lines - 2 + x->OH) / x->OH + 1;
    const int64_t rows = (lines + images * h.span) * (x->OW + w.span) + TILE + 1;
    const int64_t planes = h.planes * w.planes * q7_ceil_div(x->C, 32);
    return rows * (planes * PIXEL + SUM) + images * TILE * SUM + WEIGHTS +
           q7_ceil_div(lines + images * h.span, 64) * 64;
}
#endif
