/* gather_elements.c: y[idx] = x[idx . x_stride + indices[idx . index_stride] * axis_stride] for every
 * idx in shape; y is dense. ONNX GatherElements. Index rules as in gather.c. */
#include "loops.h"

enum { X, INDICES }; /* operands of the nest */
enum { BLOCK = 256 };

typedef struct gather_elements_job {
    const q7_gather_elements_args *args;
    const q7_call *call;
    int64_t x_step, index_step; /* along the innermost dim */
} gather_elements_job;

/* One loop per type of index and width of an element. Where no index of a block is below 0 or out of range,
 * which its sign bits tell, elements are loads alone; else one that is out of range takes the first element,
 * until all of a run are checked together. One that is the same for all of a run, as boxes have one for
 * their coordinates, is taken once. */
#define GATHER(I, T)                                                                      \
    {                                                                                     \
        const T *x = (const T *)args->x + offset[X];                                      \
        const I *indices = (const I *)args->indices + first;                              \
        T *y = (T *)args->y + position;                                                   \
        if (index_step == 0) {                                                            \
            const int64_t index = q7_checked_index(job->call, indices[0], limit);         \
            for (int64_t i = 0; i < n && index >= 0; i++)                                 \
                y[i] = x[index * axis_stride + i * x_step];                               \
            break;                                                                        \
        }                                                                                 \
        bool wrong = limit == 0;                                                          \
        for (int64_t begin = 0, end; begin < n && limit > 0; begin = end) {               \
            end = q7_min(n, begin + BLOCK);                                               \
            uint64_t signs = 0;                                                           \
            for (int64_t i = begin; i < end; i++) {                                       \
                const uint64_t raw = (uint64_t)indices[i * index_step];                   \
                signs |= raw | ((uint64_t)limit - 1 - raw);                               \
            }                                                                             \
            if (signs >> 63 == 0 && index_step == 1 && axis_stride == 1 && x_step == 0) { \
                for (int64_t i = begin; i < end; i++) y[i] = x[indices[i]];               \
                continue;                                                                 \
            }                                                                             \
            if (signs >> 63 == 0) {                                                       \
                for (int64_t i = begin; i < end; i++)                                     \
                    y[i] = x[i * x_step + indices[i * index_step] * axis_stride];         \
                continue;                                                                 \
            }                                                                             \
            for (int64_t i = begin; i < end; i++) {                                       \
                const int64_t raw = indices[i * index_step];                              \
                const int64_t index = raw + (raw < 0 ? limit : 0);                        \
                const bool is_in = (uint64_t)index < (uint64_t)limit;                     \
                wrong |= !is_in;                                                          \
                y[i] = x[i * x_step + (is_in ? index : 0) * axis_stride];                 \
            }                                                                             \
        }                                                                                 \
        for (int64_t i = 0; i < n && wrong; i++)                                          \
            if (q7_checked_index(job->call, indices[i * index_step], limit) < 0) return;  \
    }                                                                                     \
    break
#define GATHER_ANY(I)                 \
    switch (args->elem_bytes) {       \
        case 1: GATHER(I, uint8_t);   \
        case 2: GATHER(I, uint16_t);  \
        case 4: GATHER(I, uint32_t);  \
        default: GATHER(I, uint64_t); \
    }
static void body(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const gather_elements_job *job = arg;
    const q7_gather_elements_args *args = job->args;
    const int64_t limit = args->limit, axis_stride = args->axis_stride, first = offset[INDICES];
    const int64_t x_step = job->x_step, index_step = job->index_step;
    if (args->index_dtype == Q7_I32)
        GATHER_ANY(int32_t)
    else
        GATHER_ANY(int64_t)
}
#undef GATHER_ANY
#undef GATHER

void q7_op_gather_elements(const q7_gather_elements_args *args, const q7_call *call) {
    q7_nest nest = q7_nest_of(args->shape, args->ndim);
    q7_nest_walk(&nest, args->x_stride);
    q7_nest_walk(&nest, args->index_stride);
    q7_nest_collapse(&nest);
    gather_elements_job job = {args, call, nest.stride[X][nest.ndim - 1],
                               nest.stride[INDICES][nest.ndim - 1]};
    q7_nest_run(&nest, call, body, &job);
}
