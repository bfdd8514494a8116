/* nms.c: of the boxes of each batch and class, from the best score down, those that overlap no
 * better one that was kept: rows (batch, class, box). ONNX NonMaxSuppression.
 *
 * boxes (batch, n, 4) float: two corners, or centre and size if centred; scores (batch, classes, n)
 * float. Two overlap where intersection / union exceeds a threshold. Of equal scores the first box
 * comes first, NaN comes last. Only as many as are asked for are sorted out of
 * a heap. Many boxes that are small beside all of them are compared with those alone that have a bin
 * along one axis in common. work: 2 BINS words of 8 bytes, a vector of n of them, 10 + 5 (SPAN + 1)
 * of 4 bytes. */
#include <math.h>
#include <string.h>

#include "abi.h"
#include "ranks.h"

enum { BINS = 1024, SPAN = 4, MANY = 256 };

typedef struct {
    float *low_y, *low_x, *high_y, *high_x, *area; /* of the boxes of a batch, of the kept ones */
} corners;

static inline float larger(float a, float b) { return a > b ? a : b; }
static inline float smaller(float a, float b) { return a < b ? a : b; }

static corners corners_at(float *at, int64_t n) {
    return (corners){at, at + n, at + 2 * n, at + 3 * n, at + 4 * n};
}

static void read_boxes(const float *boxes, int64_t n, bool centred, corners c) {
    for (int64_t i = 0; i < n; i++, boxes += 4) {
        const float a = boxes[0], b = boxes[1], p = boxes[2], q = boxes[3];
        c.low_y[i] = centred ? a - p / 2 : a < p ? a : p;
        c.low_x[i] = centred ? b - q / 2 : b < q ? b : q;
        c.high_y[i] = centred ? a + p / 2 : a < p ? p : a;
        c.high_x[i] = centred ? b + q / 2 : b < q ? q : b;
        c.area[i] = (c.high_y[i] - c.low_y[i]) * (c.high_x[i] - c.low_x[i]);
    }
}

/* A box as a number, the larger the earlier it comes: its score above its place, counted from the end. */
static inline uint64_t rank_of(float score, int64_t box) {
    const uint32_t rank = score != score ? 0 : q7_rank_f32(score);
    return (uint64_t)rank << 32 | (uint32_t)~box;
}
static inline int64_t box_of(uint64_t rank) { return (uint32_t)~rank; }

/* Whether box i of `all` overlaps one of the kept boxes [first, last). */
static bool overlaps(corners all, int64_t i, corners kept, int64_t first, int64_t last,
                     float threshold) {
    int found = 0;
    for (int64_t k = first; k < last; k++) {
        const float top = larger(all.low_y[i], kept.low_y[k]);
        const float left = larger(all.low_x[i], kept.low_x[k]);
        const float bottom = smaller(all.high_y[i], kept.high_y[k]);
        const float right = smaller(all.high_x[i], kept.high_x[k]);
        const float height = larger(bottom - top, 0), width = larger(right - left, 0);
        const float shared = height * width, either = all.area[i] + kept.area[k] - shared;
        const int valid = (shared > 0) & (all.area[i] > 0) & (kept.area[k] > 0) & (either > 0);
        found |= (valid ? shared / either : 0.0f) > threshold;
    }
    return found;
}

/* The same in parts, so that it ends early. */
static bool overlaps_any(corners all, int64_t i, corners kept, int64_t first, int64_t last,
                         float threshold) {
    for (; first < last; first += 32)
        if (overlaps(all, i, kept, first, q7_min(first + 32, last), threshold)) return true;
    return false;
}

static void keep(corners all, int64_t i, corners kept, int64_t at) {
    kept.low_y[at] = all.low_y[i], kept.low_x[at] = all.low_x[i];
    kept.high_y[at] = all.high_y[i], kept.high_x[at] = all.high_x[i];
    kept.area[at] = all.area[i];
}

/* Bins along an axis, and the kept boxes that are in each of up to SPAN of them: [begin, end) of
 * `kept`. The others are wide. */
typedef struct {
    int64_t count, wide_count; /* 0 bins: all boxes are compared with all */
    const float *low, *high;   /* of all boxes along the axis */
    float origin, per;
    int64_t *begin, *end;
    corners kept, wide;
} bins;

/* The bins of box i; false where it is wide, upside down, or has no place. */
static bool bins_of(const bins *b, int64_t i, int64_t *first, int64_t *last) {
    const float low = (b->low[i] - b->origin) * b->per, high = (b->high[i] - b->origin) * b->per;
    if (!(low >= 0 && high >= low && high < (float)b->count)) return false;
    *first = (int64_t)low, *last = (int64_t)high;
    return *last - *first < SPAN;
}

/* Chooses the axis along which boxes are small beside all of them, and gives each bin its room, where
 * so many are wanted that it saves time. */
static void divide(bins *b, corners all, const uint64_t *ranks, int64_t n, int64_t limit,
                   float threshold) {
    b->count = b->wide_count = 0;
    if (n < MANY || limit < MANY || !(threshold >= 0))
        return; /* below 0 boxes overlap that do not meet */
    double most = 8;
    for (int axis = 0; axis < 2; axis++) {
        const float *low = axis ? all.low_x : all.low_y, *high = axis ? all.high_x : all.high_y;
        float from = INFINITY, to = -INFINITY;
        double size = 0;
        for (int64_t i = 0; i < n; i++) {
            const int64_t box = box_of(ranks[i]);
            from = smaller(from, low[box]), to = larger(to, high[box]);
            size += (double)high[box] - low[box];
        }
        const double ratio = ((double)to - from) * (double)n / size;
        if (!(ratio > most && to - from < INFINITY)) continue;
        most = ratio;
        b->count = ratio < BINS ? (int64_t)ratio : BINS;
        b->low = low, b->high = high, b->origin = from, b->per = (float)b->count / (to - from);
    }
    memset(b->end, 0, (size_t)b->count * sizeof(int64_t));
    int64_t first, last, begin = 0;
    for (int64_t i = 0; i < n && b->count > 0; i++)
        if (bins_of(b, box_of(ranks[i]), &first, &last))
            for (; first <= last; first++) b->end[first]++;
    for (int64_t k = 0; k < b->count; k++) {
        const int64_t size = b->end[k];
        b->begin[k] = b->end[k] = begin;
        begin += size;
    }
}

/* The ranks of the boxes of these scores that are above the least, if there is one. Returns how many. Most
 * boxes of a detector are not: parts of which none is take one look. */
static int64_t candidates_of(const float *score, int64_t n, const float *least, uint64_t *ranks) {
    enum { PART = 32 };
    int64_t count = 0;
    for (int64_t first = 0; first < n; first += PART) {
        const int64_t last = q7_min(n, first + PART);
        int some = !least;
        for (int64_t i = first; i < last && least; i++) some |= score[i] > *least;
        for (int64_t i = first; i < last && some; i++) {
            ranks[count] = rank_of(score[i], i);
            count += !least || score[i] > *least;
        }
    }
    return count;
}

void q7_op_nms(const q7_nms_args *args, const q7_call *call) {
    const int64_t n = args->n;
    const int64_t limit = args->most ? *(const int64_t *)args->most : 0;
    const float threshold = args->overlap ? *(const float *)args->overlap : 0;
    bins b = {.begin = args->work, .end = (int64_t *)args->work + BINS};
    uint64_t *heap = (uint64_t *)b.end + BINS;
    int64_t *y = args->y, rows = 0, first = 0, last = -1;
    const corners all = corners_at((float *)(heap + n), n), kept = corners_at(all.area + n, n);
    b.wide = corners_at(kept.area + n, n), b.kept = corners_at(b.wide.area + n, SPAN * n);
    if (n > UINT32_MAX) {
        q7_fault(call, "too many boxes", n, 0, UINT32_MAX);
        return;
    }
    for (int64_t line = 0; line < args->batch * args->classes && limit > 0; line++) {
        const int64_t batch = line / args->classes, class = line % args->classes;
        const float *score = (const float *)args->scores + line * n;
        if (class == 0)
            read_boxes((const float *)args->boxes + batch * n * 4, n, args->centred, all);
        int64_t candidates = candidates_of(score, n, args->least, heap), count = 0;
        divide(&b, all, heap, candidates, limit, threshold);
        for (int64_t i = candidates / 2 - 1; i >= 0; i--) q7_sink_key(heap, i, candidates, 1);
        while (candidates > 0 && count < limit) {
            const int64_t i = box_of(heap[0]);
            heap[0] = heap[--candidates];
            q7_sink_key(heap, 0, candidates, 1);
            const bool is_narrow = b.count > 0 && bins_of(&b, i, &first, &last);
            bool overlaps_one = is_narrow ? overlaps_any(all, i, b.wide, 0, b.wide_count, threshold)
                                          : overlaps_any(all, i, kept, 0, count, threshold);
            for (int64_t k = first; is_narrow && !overlaps_one && k <= last; k++)
                overlaps_one = overlaps_any(all, i, b.kept, b.begin[k], b.end[k], threshold);
            if (overlaps_one) continue;
            for (int64_t k = first; is_narrow && k <= last; k++) keep(all, i, b.kept, b.end[k]++);
            if (!is_narrow) keep(all, i, b.wide, b.wide_count++);
            keep(all, i, kept, count++);
            y[3 * rows] = batch, y[3 * rows + 1] = class, y[3 * rows++ + 2] = i;
        }
    }
    *(int64_t *)args->count = rows;
}
