/* im2col.c: the windows of a convolution over bytes as rows, for an integer product:
 *
 *     rows[(n, oh, ow), (c, i, j)] = x[n, c, h, w], or the zero point outside of x, with
 *     h = oh * stride_h - pad_top + i * dilation_h,  w = ow * stride_w - pad_left + j * dilation_w
 *
 * x (N, C, H, W), rows (N OH OW, C kh kw). A task is one line of output pixels. */
#include <stdbool.h>
#include <string.h>

#include "loops.h"

/* The kw bytes of line `h` of one channel under the window that starts at column w. */
static void copy_line(const q7_im2col_args *args, const uint8_t *line, int64_t w, uint8_t pad,
                      uint8_t *row) {
    for (int64_t j = 0; j < args->kw; j++, w += args->dilation_w)
        row[j] = w >= 0 && w < args->W ? line[w] : pad;
}

static void im2col_task(void *arg, int64_t task, int64_t thread) {
    const q7_im2col_args *args = arg;
    (void)thread;
    const int64_t n = task / args->OH, oh = task % args->OH;
    const int64_t area = args->kh * args->kw, k = args->C * area;
    const uint8_t *x = (const uint8_t *)args->x + n * args->C * args->H * args->W;
    const uint8_t pad = args->zero ? *(const uint8_t *)args->zero : 0;
    uint8_t *row = (uint8_t *)args->rows + task * args->OW * k;
    for (int64_t ow = 0; ow < args->OW; ow++, row += k) {
        const int64_t w = ow * args->stride_w - args->pad_left;
        for (int64_t line = 0; line < args->C * args->kh; line++) {
            const int64_t c = line / args->kh, i = line % args->kh;
            const int64_t h = oh * args->stride_h - args->pad_top + i * args->dilation_h;
            if (h < 0 || h >= args->H)
                memset(row + line * args->kw, pad, (size_t)args->kw);
            else
                copy_line(args, x + (c * args->H + h) * args->W, w, pad, row + line * args->kw);
        }
    }
}

void q7_op_im2col(const q7_im2col_args *args, const q7_call *call) {
    const bool any = args->C * args->kh * args->kw * args->OW > 0;
    q7_parallel(call, any ? args->N * args->OH : 0, im2col_task, (void *)args);
}
