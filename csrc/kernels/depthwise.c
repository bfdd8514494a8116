/* depthwise.c: the kernel of depthwise.h for every ISA. Several pixels at once share a weight and are
 * independent sums, which hide the latency of fma. Usual kernels go through a line after the other for
 * one vector of channels, whose lines are in L1 for all that they are under; others, and fewer
 * channels, pixel by pixel. Read depthwise.h first. */
#include "depthwise.h"

#include <math.h>

#include "math.h"
#include "windows.h"

enum { PIXELS = 4, FEW = 2, MANY = 4 }; /* pixels at once; vectors of channels of them, of one */
enum { ROW = 8, MOST_TAPS = 11 };       /* pixels at once where a load serves several of them */
#if defined(Q7_ISA_avx512) || defined(Q7_ISA_neon)
enum { LONG = 16, LESS = 14 }; /* the same, of some lines, where registers hold so many sums, */
enum { HOLDS = true };         /* or the weights of 3x3 and what they meet in a line */
#else
enum { LONG = ROW, LESS = ROW, HOLDS = false };
#endif
enum { LINES = 16, SOON = 2 }; /* that go through it for a vector of channels; of those, ahead */

/* A line of y: where its windows lie, and the taps that count for all of them. */
typedef struct place {
    const q7_depthwise_args *x;
    const float *corner; /* of the window at ow = 0, channel 0 */
    q7_taps planes, lines;
    float *y;
    int64_t pixel;    /* of y, at ow = 0 */
    q7_f32 low, high; /* what sums are clamped to */
} place;

/* Whether `put` does all that is wanted of a sum; else finish() does the rest. */
Q7_INLINE bool clamps(const q7_depthwise_args *x) {
    return !x->residual && !x->scale && q7_clamps(x->act);
}

Q7_INLINE void put(const place *at, int64_t ow, int64_t c, q7_f32 sum, int64_t lanes) {
    q7_store_part(at->y + ow * at->x->y_stride + c, q7_vmin(at->high, q7_vmax(at->low, sum)),
                  lanes);
}

/* y = act(y) * scale + shift + residual, or act(y + residual) .. with residual_first, of up to Q7_W channels
 * of pixels in a line. */
Q7_INLINE void finish_as(const place *at, int64_t ow, int64_t pixels, int64_t c, int64_t lanes,
                         const int64_t act) {
    const q7_depthwise_args *x = at->x;
    const q7_f32 alpha = q7_set1((float)x->act_alpha), beta = q7_set1((float)x->act_beta);
    const bool before = x->residual && x->residual_first, behind = x->residual && !before;
    const bool scaled = x->scale;
    const int64_t y_stride = x->y_stride, step = x->residual_stride;
    const q7_f32 scale = scaled ? q7_load_part((const float *)x->scale + c, lanes) : alpha;
    const q7_f32 shift = scaled ? q7_load_part((const float *)x->shift + c, lanes) : alpha;
    const float *added = x->residual;
    if (added) added += (at->pixel + ow) * step + c;
    float *y = at->y + ow * y_stride + c;
    for (; pixels > 0; pixels--, y += y_stride) {
        const q7_f32 term = added ? q7_load_part(added, lanes) : alpha;
        q7_f32 v = q7_load_part(y, lanes);
        if (before) v = q7_add(v, term);
        v = q7_act(act, v, alpha, beta);
        if (scaled) v = q7_fma(scale, v, shift);
        if (behind) v = q7_add(v, term);
        q7_store_part(y, v, lanes);
        if (added) added += step;
    }
}

static void finish(const place *at, int64_t ow, int64_t pixels, int64_t c, int64_t lanes) {
    switch (at->x->act) { /* a loop for each */
#define ACT(act)                                           \
    case Q7_act_##act:                                     \
        finish_as(at, ow, pixels, c, lanes, Q7_act_##act); \
        return;
#include "../ops.def"
#undef ACT
    }
}

/* For each lane, where its group begins in the vector. */
Q7_INLINE q7_i32 groups_of(int64_t width) {
    int32_t first[Q7_W];
    for (int i = 0; i < Q7_W; i++) first[i] = i & -(int32_t)width;
    return q7_i32_load(first);
}

/* The sums of some vectors of channels from c on, the last of `lanes`, for some pixels from ow on;
 * vectors and pixels are constants where this is inlined. */
Q7_INLINE void tile(const place *at, int64_t ow, q7_taps columns, int64_t c, const int pixels,
                    const int vectors, int64_t lanes, const bool grouped) {
    const q7_depthwise_args *x = at->x;
    const int64_t step = x->stride_w * x->x_w_stride;
    const float *corner = at->corner + ow * step + c;
    const int64_t width = grouped ? x->width : 1;
    const q7_i32 groups = groups_of(width);
    q7_f32 sum[PIXELS * MANY], w[MANY];
    Q7_UNROLL
    for (int i = 0; i < pixels * vectors; i++) sum[i] = q7_set1(0.0f);
    for (int64_t l = at->planes.first; l < at->planes.end; l++)
        for (int64_t i = at->lines.first; i < at->lines.end; i++) {
            const float *line =
                corner + l * x->dilation_d * x->x_d_stride + i * x->dilation_h * x->x_h_stride;
            const float *weight =
                (const float *)x->w + ((l * x->kh + i) * x->kw + columns.first) * width * x->C + c;
            for (int64_t j = columns.first; j < columns.end; j++) {
                const float *from = line + j * x->dilation_w * x->x_w_stride;
                for (int64_t k = 0; k < width; k++, weight += x->C) {
                    const q7_i32 which = q7_i32_add(groups, q7_i32_set1((int32_t)k));
                    Q7_UNROLL
                    for (int v = 0; v < vectors; v++) w[v] = q7_load_part(weight + v * Q7_W, lanes);
                    Q7_UNROLL
                    for (int p = 0; p < pixels; p++) {
                        Q7_UNROLL
                        for (int v = 0; v < vectors; v++) {
                            const q7_f32 pixel = q7_load_part(from + p * step + v * Q7_W, lanes);
                            sum[p * vectors + v] =
                                q7_fma(w[v], grouped ? q7_permute(pixel, which) : pixel,
                                       sum[p * vectors + v]);
                        }
                    }
                }
            }
        }
    Q7_UNROLL
    for (int p = 0; p < pixels; p++) {
        Q7_UNROLL
        for (int v = 0; v < vectors; v++) {
            const float *bias = x->bias ? (const float *)x->bias + c + v * Q7_W : NULL;
            const q7_f32 y = sum[p * vectors + v];
            put(at, ow + p, c + v * Q7_W, bias ? q7_add(y, q7_load_part(bias, lanes)) : y, lanes);
        }
    }
}

/* What the pixels of a line share, for a vector of channels: all that the loops below need, since what
 * they store might otherwise be in the args. Units: bytes, for strides. */
typedef struct strip {
    const char *corner; /* of the window at ow = 0, of the first tap that counts */
    const char *w;      /* of that tap */
    int64_t planes, lines, plane, down, step; /* how many, and how far apart */
    int64_t w_plane, w_step, w_channel, width;
    q7_i32 groups;
    int64_t pad, W;
    char *y;
    int64_t y_stride;
    const q7_f32 *last; /* bias, low, high: in memory, as sums and weights need the registers */
    const place *unfinished; /* or NULL */
    int64_t c;
} strip;

Q7_INLINE q7_f32 load_at(const char *p) { return q7_load((const float *)(const void *)p); }

/* Of some pixels in a strip, where their windows' first line begins at every fifth column. */
Q7_INLINE void find_origins(const strip s, const char *line, int64_t ow, const int stride,
                            const int columns, const char **origin) {
    Q7_UNROLL
    for (int i = 0; i <= (columns - 1) / 5; i++) origin[i] = line + (ow * stride + 5 * i) * s.step;
}

/* Column j of a line, of which x has those from `first` on. `edge`: whether windows stick out, which they
 * do by less than their taps; zeros are outside. */
Q7_INLINE q7_f32 column_of(const strip s, const char *const *origin, int64_t first, const int j,
                           const int columns, const int taps, const bool edge) {
    static const float zeros[Q7_W];
    const char *column = origin[j / 5] + j % 5 * s.step;
    if (edge && j < taps - 1 && j < first) column = (const char *)zeros;
    if (edge && j > columns - taps && j >= first + s.W) column = (const char *)zeros;
    return q7_keep(load_at(column)); /* not three times */
}

/* What becomes of sums. */
Q7_INLINE void put_row(const strip s, int64_t ow, const q7_f32 *sum, const int pixels) {
    const q7_f32 bias = s.last[0], low = s.last[1], high = s.last[2];
    char *y = s.y + ow * s.y_stride;
    Q7_UNROLL
    for (int p = 0; p < pixels; p++, y += s.y_stride) {
        const q7_f32 v = q7_add(sum[p], bias); /* last: sums that begin with it have its errors */
        q7_store((float *)(void *)y, q7_vmin(high, q7_vmax(low, v)));
    }
}

/* Some pixels of a strip by kernels of `taps` columns, a constant as is `stride`: what is loaded of x
 * is used for every pixel that it is under. `grouped`, another: whether groups have several channels. */
Q7_INLINE void row(const strip s, int64_t ow, const int pixels, const int taps, const int stride,
                   const bool edge, const bool grouped) {
    const int columns = (pixels - 1) * stride + taps;
    const int64_t first = s.pad - ow * stride;
    q7_f32 sum[LONG];
    Q7_UNROLL
    for (int p = 0; p < pixels; p++) sum[p] = q7_set1(0.0f);
    for (int64_t l = 0; l < s.planes; l++) {
        const char *origin[8], *w_line = s.w + l * s.w_plane;
        find_origins(s, s.corner + l * s.plane, ow, stride, columns, origin);
        for (int64_t i = s.lines; i > 0; i--, w_line += taps * s.w_step) {
            for (int64_t channel = 0; channel < (grouped ? s.width : 1); channel++) {
                const char *weight = w_line + channel * s.w_channel;
                const q7_i32 which = q7_i32_add(s.groups, q7_i32_set1((int32_t)channel));
                q7_f32 w[MOST_TAPS];
                Q7_UNROLL
                for (int j = 0; j < taps; j++, weight += s.w_step) w[j] = q7_keep(load_at(weight));
                Q7_UNROLL
                for (int j = 0; j < columns; j++) {
                    q7_f32 v = column_of(s, origin, first, j, columns, taps, edge);
                    if (grouped) v = q7_permute(v, which);
                    Q7_UNROLL
                    for (int p = 0; p < pixels; p++)
                        if (j >= p * stride && j < p * stride + taps)
                            sum[p] = q7_fma(w[j - p * stride], v, sum[p]);
                }
            }
            Q7_UNROLL
            for (int k = 0; k <= (columns - 1) / 5; k++) origin[k] += s.down;
        }
    }
    put_row(s, ow, sum, pixels);
}

/* The same of 3x3 windows of stride 1 that are in x from top to bottom, whose weights the caller holds. */
Q7_INLINE void square(const strip s, const q7_f32 *w, int64_t ow, const int pixels,
                      const bool edge) {
    const int columns = pixels + 2;
    q7_f32 sum[ROW], v[ROW + 2];
    Q7_UNROLL
    for (int i = 0; i < 3; i++) {
        const char *origin[2];
        find_origins(s, s.corner + i * s.down, ow, 1, columns, origin);
        Q7_UNROLL
        for (int j = 0; j < columns; j++)
            v[j] = column_of(s, origin, s.pad - ow, j, columns, 3, edge);
        Q7_UNROLL
        for (int j = 0; j < 3; j++) {
            Q7_UNROLL
            for (int p = 0; p < pixels; p++)
                sum[p] = i + j > 0 ? q7_fma(w[3 * i + j], v[p + j], sum[p]) : q7_mul(w[0], v[p]);
        }
    }
    put_row(s, ow, sum, pixels);
}

/* Of so many pixels, by weights that are held, or by others. */
Q7_INLINE void some(const strip s, const q7_f32 *held, int64_t ow, const int pixels, const int taps,
                    const int stride, const bool edge, const bool grouped) {
    if (held)
        square(s, held, ow, pixels, edge);
    else
        row(s, ow, pixels, taps, stride, edge, grouped);
}

/* A vector of channels of a line whose length is some parts of LESS or LONG pixels, but for one that is
 * then made twice. 3x3 of stride 1, which shares few loads, gains nothing. */
Q7_INLINE bool long_rows(const strip s, int64_t ow, int64_t end, const int taps, const int stride,
                         const bool grouped) {
    int64_t left = q7_ceil_div(end - ow, LONG);
    if (LONG == ROW || (stride == 1 && taps == 3 && !grouped)) return false;
    if (end - ow < left * LESS || (left == 1 && (end - ow) % 2)) return false;
    for (; left > 0; left--) {
        const int64_t n = end - ow == left * LESS ? LESS : LONG;
        ow = q7_min(ow, end - n);
        if (n == LESS)
            row(s, ow, LESS, taps, stride, true, grouped);
        else
            row(s, ow, LONG, taps, stride, true, grouped);
        if (s.unfinished) finish(s.unfinished, ow, n, s.c, Q7_W);
        ow += n;
    }
    return true;
}

/* Any, in even parts of up to ROW pixels. */
Q7_INLINE void rows(const strip s, const q7_f32 *held, int64_t ow, int64_t end, const int taps,
                    const int stride, const bool grouped) {
    const int64_t whole =
        (s.W + s.pad - taps) / stride; /* the last pixel that is, in part outside */
    if (long_rows(s, ow, end, taps, stride, grouped)) return;
    for (int64_t left = q7_ceil_div(end - ow, ROW), n; left > 0; left--, ow += n) {
        n = end - ow == left * ROW ? ROW : (end - ow) / left;
        const bool inside = n == ROW && ow * stride >= s.pad && ow + n - 1 <= whole;
        switch (inside ? 0 : n) {
            case 0: some(s, held, ow, ROW, taps, stride, false, grouped); break;
            case 1: some(s, held, ow, 1, taps, stride, true, grouped); break;
            case 2: some(s, held, ow, 2, taps, stride, true, grouped); break;
            case 3: some(s, held, ow, 3, taps, stride, true, grouped); break;
            case 4: some(s, held, ow, 4, taps, stride, true, grouped); break;
            case 5: some(s, held, ow, 5, taps, stride, true, grouped); break;
            case 6: some(s, held, ow, 6, taps, stride, true, grouped); break;
            case 7: some(s, held, ow, 7, taps, stride, true, grouped); break;
            default: some(s, held, ow, ROW, taps, stride, true, grouped); break;
        }
        if (s.unfinished) finish(s.unfinished, ow, n, s.c, Q7_W);
    }
}

/* A vector of channels, from c on, of n lines. */
Q7_INLINE void lines(const place *at, int64_t n, const q7_depthwise_part *part, int64_t c,
                     const int taps, const int stride, const bool grouped) {
    const q7_depthwise_args *x = at->x;
    const q7_f32 last[3] = {x->bias ? q7_load((const float *)x->bias + c) : q7_set1(0.0f), at->low,
                            at->high};
    strip s = {.plane = 4 * x->dilation_d * x->x_d_stride,
               .down = 4 * x->dilation_h * x->x_h_stride,
               .step = 4 * x->x_w_stride,
               .w_plane = 4 * x->kh * x->kw * x->width * x->C,
               .w_step = 4 * x->width * x->C,
               .w_channel = 4 * x->C,
               .width = x->width,
               .groups = groups_of(x->width),
               .pad = x->pad_left,
               .W = x->W,
               .y_stride = 4 * x->y_stride,
               .last = last,
               .c = c};
    const bool done = clamps(x);
    __asm__("" : "+r"(s.last) : : "memory"); /* where they stay */
    const char *w = (const char *)((const float *)x->w + c);
    for (; n > 0; n--, at++) {
        s.corner =
            (const char *)(at->corner + c) + at->planes.first * s.plane + at->lines.first * s.down;
        s.w = w + at->planes.first * s.w_plane + at->lines.first * taps * s.w_step;
        s.planes = at->planes.end - at->planes.first;
        s.lines = at->lines.end - at->lines.first;
        s.y = (char *)(at->y + c);
        s.unfinished = done ? NULL : at;
        if (HOLDS && taps == 3 && stride == 1 && !grouped && s.planes == 1 && s.lines == 3) {
            q7_f32 held[9];
            Q7_UNROLL
            for (int i = 0; i < 9; i++) held[i] = q7_keep(load_at(s.w + i * s.w_step));
            rows(s, held, part->ow, part->ow_end, 3, 1, false);
            continue;
        }
        rows(s, NULL, part->ow, part->ow_end, taps, stride, grouped);
    }
}

/* clang-format off */
#define ARGS const place *at, int64_t n, const q7_depthwise_part *part, int64_t c
static void lines_3_1(ARGS) { lines(at, n, part, c, 3, 1, false); }
static void lines_3_2(ARGS) { lines(at, n, part, c, 3, 2, false); }
static void lines_5_1(ARGS) { lines(at, n, part, c, 5, 1, false); }
static void lines_5_2(ARGS) { lines(at, n, part, c, 5, 2, false); }
static void lines_7_1(ARGS) { lines(at, n, part, c, 7, 1, false); }
static void lines_7_2(ARGS) { lines(at, n, part, c, 7, 2, false); }
static void lines_9_1(ARGS) { lines(at, n, part, c, 9, 1, false); }
static void lines_11_1(ARGS) { lines(at, n, part, c, 11, 1, false); }
static void groups_3_1(ARGS) { lines(at, n, part, c, 3, 1, true); }
static void groups_3_2(ARGS) { lines(at, n, part, c, 3, 2, true); }
typedef void (*lines_of)(ARGS);
#undef ARGS
/* clang-format on */

/* What goes through lines for a vector of channels, or NULL. */
static lines_of find_lines(const q7_depthwise_args *x, const q7_depthwise_part *part) {
    const int64_t right = (x->OW - 1) * x->stride_w + x->kw - x->pad_left - x->W;
    if (part->end - part->first < Q7_W || x->dilation_w != 1 || x->pad_left >= x->kw ||
        right >= x->kw)
        return NULL;
    if (x->width > 1)
        return x->kw != 3 || x->stride_w > 2 ? NULL : x->stride_w == 1 ? groups_3_1 : groups_3_2;
    switch (x->kw * 8 + x->stride_w) {
        case 3 * 8 + 1: return lines_3_1;
        case 3 * 8 + 2: return lines_3_2;
        case 5 * 8 + 1: return lines_5_1;
        case 5 * 8 + 2: return lines_5_2;
        case 7 * 8 + 1: return lines_7_1;
        case 7 * 8 + 2: return lines_7_2;
        case 9 * 8 + 1: return lines_9_1;
        case 11 * 8 + 1: return lines_11_1;
        default: return NULL;
    }
}

/* All channels of the line for some pixels. */
Q7_INLINE void channels(const place *at, const q7_depthwise_part *part, int64_t ow, q7_taps columns,
                        const int pixels, const int vectors, const bool grouped) {
    int64_t c = part->first;
    for (; c + vectors * Q7_W <= part->end; c += vectors * Q7_W)
        tile(at, ow, columns, c, pixels, vectors, Q7_W, grouped);
    for (; c + Q7_W <= part->end; c += Q7_W) tile(at, ow, columns, c, pixels, 1, Q7_W, grouped);
    if (c < part->end) tile(at, ow, columns, c, pixels, 1, part->end - c, grouped);
}

/* Line oh of the part. */
static place place_of(const q7_depthwise_args *x, const q7_depthwise_part *part, int64_t oh) {
    const int64_t d = part->od * x->stride_d - x->pad_front, h = oh * x->stride_h - x->pad_top;
    place at = {.x = x,
                .corner = (const float *)x->x + part->n * x->x_n_stride + d * x->x_d_stride +
                          h * x->x_h_stride - x->pad_left * x->x_w_stride,
                .planes = q7_taps_within(d, x->kd, x->dilation_d, 0, x->D),
                .lines = q7_taps_within(h, x->kh, x->dilation_h, 0, x->H),
                .pixel = ((part->n * x->OD + part->od) * x->OH + oh) * x->OW};
    at.y = (float *)x->y + at.pixel * x->y_stride;
    const bool done = clamps(x);
    at.low = q7_set1(!done || !x->act        ? -INFINITY
                     : x->act == Q7_act_clip ? (float)x->act_alpha
                                             : 0.0f);
    at.high = q7_set1(done && x->act == Q7_act_clip ? (float)x->act_beta : INFINITY);
    return at;
}

/* Of a vector of channels: each line of a cache is in another place, which no hardware foresees. Inline,
 * since gcc drops calls of functions that prefetch and do nothing else. */
Q7_INLINE void prefetch_weights(const q7_depthwise_args *x, int64_t c) {
    if (x->bias) q7_prefetch_near((const float *)x->bias + c);
    for (int64_t tap = 0; tap < x->kd * x->kh * x->kw * x->width; tap++)
        q7_prefetch_near((const float *)x->w + tap * x->C + c);
}

/* All pixels and channels of a line, for any kernel. */
Q7_INLINE void line(const place *at, const q7_depthwise_part *part, const bool grouped) {
    const q7_depthwise_args *x = at->x;
    const q7_taps all = {0, x->kw};
    for (int64_t ow = part->ow; ow < part->ow_end;) {
        const int64_t w = ow * x->stride_w - x->pad_left;
        const int64_t last = x->W - (x->kw - 1) * x->dilation_w; /* where windows stick out */
        const int64_t whole =
            w < 0 ? 0 : q7_min(part->ow_end - ow, q7_ceil_div(last - w, x->stride_w));
        if (whole >= PIXELS) {
            channels(at, part, ow, all, PIXELS, FEW, grouped);
            ow += PIXELS;
        } else {
            channels(at, part, ow, q7_taps_within(w, x->kw, x->dilation_w, 0, x->W), 1, MANY,
                     grouped);
            ow++;
        }
    }
}

void Q7_KERNEL(depthwise_f32)(const q7_depthwise_args *x, const q7_depthwise_part *part) {
    const lines_of by_lines = find_lines(x, part);
    place at[LINES];
    for (int64_t oh = part->oh, n; oh < part->oh_end; oh += n) {
        n = q7_min(part->oh_end - oh, LINES);
        for (int64_t i = 0; i < n; i++) at[i] = place_of(x, part, oh + i);
        for (int64_t c = part->first; by_lines && c < part->end; c += Q7_W) {
            prefetch_weights(x, c + SOON * Q7_W); /* the last vector may begin earlier */
            by_lines(at, n, part, q7_min(c, part->end - Q7_W));
        }
        for (int64_t i = 0; i < n && !by_lines; i++) {
            x->width == 1 ? line(&at[i], part, false) : line(&at[i], part, true);
            for (int64_t c = part->first; c < part->end && !clamps(x); c += Q7_W)
                finish(&at[i], part->ow, part->ow_end - part->ow, c, part->end - c);
        }
    }
}
