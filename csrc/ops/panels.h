/* panels.h: how the drivers of gemm, matmul and conv cut up their work; read kernels/gemm.h first.
 *
 * Neither a cut nor the number of threads changes the arithmetic of any element. */
#ifndef Q7_PANELS_H
#define Q7_PANELS_H
#include <string.h>

#include "../abi.h"
#include "../kernels/gemm.h"
#include "../simd/transpose.h"

enum {
    Q7_TASKS_PER_THREAD = 4, /* so that a stolen core does not stall the step */
    Q7_SMALL_WORK = 1 << 16, /* multiply-adds, about 2 us: not worth waking a thread */
    Q7_FEW_TILES = 2,        /* row tiles up to which b is better read in place than packed */
    Q7_PACK_STRIP = 16       /* floats of a cache line */
};

/* Where the i-th of n even parts of [0, count) starts. */
static inline int64_t q7_part(int64_t count, int64_t n, int64_t i) { return count * i / n; }

/* All of it. */
typedef struct q7_span {
    int64_t begin, end;
} q7_span;
static inline q7_span q7_span_of(int64_t count, int64_t n, int64_t i) {
    return (q7_span){q7_part(count, n, i), q7_part(count, n, i + 1)};
}

/* At any address: weights are packed out of mapped model files as they lie there. */
typedef float q7_loose_float __attribute__((aligned(1)));
typedef uint16_t q7_loose_half __attribute__((aligned(1)));

/* How many of the k steps of a convolution are summed at a time, each of `together` products, which are
 * summed apart; docs/decisions.md 19, 130. Sums of 72 in one block have 1.8 times the error of onnxruntime,
 * in four 1.1; of 320 in two 1.8, in four 1.3. */
static inline int64_t q7_conv_k_block(int64_t k, int64_t together, bool single_tap) {
    enum { LEAST = 16, SHORT = 128, LONG = 96, PARTS = 4 };
    const int64_t products = k * together;
    const int64_t parts = single_tap          ? 1
                          : products <= SHORT ? PARTS
                                              : q7_min(q7_ceil_div(products, LONG), PARTS);
    const int64_t blocks = q7_max(q7_ceil_div(k, Q7_CONV_K_BLOCK), q7_ceil_div(parts, together));
    return q7_max(q7_ceil_div(k, blocks), LEAST);
}

/* How many tiles of rows a task has at most: fewer where tiles are short, whose CPUs have less L2
 * (docs/decisions.md 130). */
static inline int64_t q7_tiles_of_task(const q7_call *call) {
    enum { FEW_ROWS = 72 };
    return (call->mr > Q7_SHORT_TILE ? Q7_GEMM_ROWS : FEW_ROWS) / call->mr;
}

/* How many tasks so many multiply-adds are worth. */
static inline int64_t q7_tasks_of(const q7_call *call, int64_t work) {
    return call->threads > 1 && work > Q7_SMALL_WORK ? call->threads * Q7_TASKS_PER_THREAD : 1;
}

/* Some panels of a block: of rows, of pixels, or of what else each panel is multiplied with. */
typedef void (*q7_panels_task)(void *arg, int64_t block, q7_span panels, int64_t thread);

/* The product of all blocks and all panels. A call of fn has whole units of panels, up to `most` panels. */
typedef struct q7_panels_job {
    int64_t blocks, panels, unit, most;
    int64_t work; /* multiply-adds */
    q7_panels_task fn;
    void *arg;
} q7_panels_job;

static inline void q7_panels_range(void *arg, int64_t begin, int64_t end, int64_t thread) {
    const q7_panels_job *job = arg;
    const int64_t units = q7_ceil_div(job->panels, job->unit);
    for (int64_t next; begin < end; begin = next) {
        const int64_t block = begin / units, first = block * units;
        next = q7_min(first + units, end);
        const q7_span panels = {(begin - first) * job->unit,
                                q7_min((next - first) * job->unit, job->panels)};
        job->fn(job->arg, block, panels, thread);
    }
}

/* Units side by side have the same block, which L2 holds. */
static inline void q7_parallel_panels(const q7_call *call, q7_panels_job *job) {
    const int64_t units = q7_ceil_div(job->panels, job->unit), all = units * job->blocks;
    if (all == 0) return;
    const int64_t parts = q7_ceil_div(units, q7_max(1, job->most / job->unit));
    const int64_t most = q7_ceil_div(units, parts);
    int64_t least = all;
    if (job->work > Q7_SMALL_WORK)
        least = q7_min(q7_ceil_div(all * (Q7_SMALL_WORK / 2), job->work), most);
    q7_parallel_ranges(call, all, least, most, q7_panels_range, job);
}

/* The unit where a block is prepared again for each call: so many panels as make up for that, if all threads
 * get some, of many of which one is often held up; all panels if there are some blocks for each thread. */
static inline int64_t q7_panels_at_once(const q7_call *call, int64_t blocks, int64_t panels,
                                        int64_t enough) {
    enum { FEW_THREADS = 4 };
    if (blocks >= Q7_TASKS_PER_THREAD * call->threads) return panels;
    const int64_t calls = call->threads > FEW_THREADS ? 2 * call->threads : call->threads;
    return q7_max(1, q7_min(enough, blocks * panels / calls));
}

/* b (k, n) of any strides as the first `width` columns of a panel (k, nr); n <= width <= nr. */
static inline void q7_pack_panel(const q7_loose_float *b, int64_t k_stride, int64_t n_stride,
                                 int64_t k, int64_t n, int64_t width, int64_t nr, float *panel) {
    for (int64_t i = 0; i < k && n < width; i++)
        memset(panel + i * nr + n, 0, (size_t)(width - n) * sizeof(float));
    if (n_stride == 1) {
        for (int64_t i = 0; i < k; i++)
            memcpy(panel + i * nr, b + i * k_stride, (size_t)n * sizeof(float));
        return;
    }
    for (int64_t first = 0; first < k; first += Q7_PACK_STRIP) { /* one cache line of each column */
        const int64_t last = q7_min(first + Q7_PACK_STRIP, k);
        const int64_t rows = k_stride == 1 ? (last - first) / 4 * 4 : 0, columns = n / 4 * 4;
        for (int64_t j = 0; rows > 0 && j < columns; j += 4)
            for (int64_t i = first; i < first + rows; i += 4)
                q7_transpose_4x4(b + i + j * n_stride, n_stride, panel + i * nr + j, nr);
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = j < columns ? first + rows : first; i < last; i++)
                panel[i * nr + j] = b[i * k_stride + j * n_stride];
    }
}
#endif
