/* conv_parts.h: some lines of y of a convolution, all of its channels and some panels of filters, by
 * AMX:
 *
 *     y = act(conv(x, w) + bias) + residual, or act of all of that sum with residual_first
 *
 * Floats of x are cut into parts (amx/parts.h) once, where a product of windows cuts each for every
 * tap. Pixels lie as rows, with zeros around, so that windows of y that follow one another have any tap
 * in rows that follow one another, which are rows of a tile. Between two lines of y there are sums that
 * nobody wants.
 *
 *     row v pitch + u    x[oh + v - pad_top, u - pad_left],  oh: of the block's first line
 *     y[oh + l, ow]      of tap (i, j): row (l + i dilation_h) pitch + ow + j dilation_w
 *
 * x, w, y and residual are those of conv_last with one group and strides of 1. k runs over taps inside
 * and channels outside. Lines of y whose windows do not fit parts, and 16 filters that do not, are
 * computed by AVX-512. room: q7_conv_parts_room bytes. */
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

/* Rows that windows of a line reach into other lines, and rows from a line to the next. */
static inline int64_t q7_conv_parts_span(const q7_conv_parts_args *x) {
    return (x->kh - 1) * x->dilation_h;
}
static inline int64_t q7_conv_parts_pitch(const q7_conv_parts_args *x) {
    return x->OW + (x->kw - 1) * x->dilation_w;
}

/* Bytes of a block of up to so many lines: parts of its pixels, its sums, which of its lines fit, and
 * parts of w. */
static inline int64_t q7_conv_parts_room(const q7_conv_parts_args *x, int64_t lines) {
    enum { PARTS = 3 * 64, SUM = 64, TILE = 16, WEIGHTS = 2 * 9 * 3072 };
    const int64_t images = (lines - 2 + x->OH) / x->OH + 1;
    const int64_t all = lines + images * q7_conv_parts_span(x);
    const int64_t rows = all * q7_conv_parts_pitch(x) + TILE + 1;
    return rows * (q7_ceil_div(x->C, 32) * PARTS + SUM) + images * TILE * SUM + WEIGHTS +
           q7_ceil_div(all, 64) * 64;
}
#endif
