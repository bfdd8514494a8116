/* nms.c: of the boxes of each batch and class, from the best score down, those that overlap no
 * better one that was kept: rows (batch, class, box). ONNX NonMaxSuppression.
 *
 * boxes (batch, n, 4) float: two corners, or centre and size if centred; scores (batch, classes, n)
 * float. Two overlap where intersection / union exceeds a threshold. Of equal scores the first box
 * comes first, NaN comes last. Only as many as are asked for are sorted out of
 * a heap. work: a vector of n words of 8 bytes, 10 of 4. */
#include <string.h>

#include "abi.h"

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

/* Whether a comes before b; an order, with NaN at its end. */
static inline bool before(const float *score, int64_t a, int64_t b) {
    const float x = score[a], y = score[b];
    if (x > y || (x == x && y != y)) return true;
    return (x == y || (x != x && y != y)) && a < b;
}

/* Moves the index at `at` of a heap, whose children may come before it, to its place. */
static void sink(int64_t *heap, int64_t n, int64_t at, const float *score) {
    const int64_t moved = heap[at];
    for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && before(score, heap[child + 1], heap[child])) child++;
        if (!before(score, heap[child], moved)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

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

void q7_op_nms(const q7_nms_args *args, const q7_call *call) {
    const int64_t n = args->n;
    const int64_t limit = args->most ? *(const int64_t *)args->most : 0;
    const float threshold = args->overlap ? *(const float *)args->overlap : 0;
    int64_t *heap = args->work, *y = args->y, rows = 0;
    const corners all = corners_at((float *)(heap + n), n), kept = corners_at(all.area + n, n);
    (void)call;
    for (int64_t line = 0; line < args->batch * args->classes && limit > 0; line++) {
        const int64_t batch = line / args->classes, class = line % args->classes;
        const float *score = (const float *)args->scores + line * n;
        int64_t candidates = 0, count = 0;
        if (class == 0)
            read_boxes((const float *)args->boxes + batch * n * 4, n, args->centred, all);
        for (int64_t i = 0; i < n; i++) {
            heap[candidates] = i;
            candidates += !args->least || score[i] > *(const float *)args->least;
        }
        for (int64_t i = candidates / 2 - 1; i >= 0; i--) sink(heap, candidates, i, score);
        while (candidates > 0 && count < limit) {
            const int64_t i = heap[0];
            heap[0] = heap[--candidates];
            sink(heap, candidates, 0, score);
            bool is_kept = true;
            for (int64_t first = 0; first < count && is_kept; first += 32)
                is_kept = !overlaps(all, i, kept, first, q7_min(first + 32, count), threshold);
            if (!is_kept) continue;
            kept.low_y[count] = all.low_y[i], kept.low_x[count] = all.low_x[i];
            kept.high_y[count] = all.high_y[i], kept.high_x[count] = all.high_x[i];
            kept.area[count++] = all.area[i];
            y[3 * rows] = batch, y[3 * rows + 1] = class, y[3 * rows++ + 2] = i;
        }
    }
    *(int64_t *)args->count = rows;
}
