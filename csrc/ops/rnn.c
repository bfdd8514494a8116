/* rnn.c: LSTM, GRU and RNN: all steps in time of every direction; kernels/rnn.h has the equations.
 *
 * x is input @ W for all steps, without biases. Direction 0 runs backward with `reverse`, direction
 * 1 always. A row ends after lengths[row] steps: y is 0 from there on, backward it starts there.
 * work: D * B * H * (gates + 3) floats: sums, h twice, and c for each direction.
 *
 * Rows of the batch, in blocks of at most Q7_RNN_ROWS, and directions are independent: where there are
 * enough of these for most threads, or little work in a step, each is a task from beginning to end. Else
 * every step is cut by units, all of which must be ready before the next. */
#include "../kernels/rnn.h"

#include <string.h>

#include "panels.h"

typedef struct rnn_job {
    const q7_rnn_args *x;
    const q7_call *call;
    int64_t blocks;        /* of rows */
    int64_t chunks, chunk; /* of units, and how many there are in one */
    int64_t step, part;
} rnn_job;

/* Rows [row, row + rows) of a direction, and their state. */
typedef struct rnn_unit {
    int64_t d, row, rows;
    float *sums, *h[2], *c;
} rnn_unit;

static rnn_unit unit_of(const rnn_job *job, int64_t i) {
    const q7_rnn_args *x = job->x;
    const int64_t block = i % job->blocks, d = i / job->blocks, size = x->B * x->H;
    const int64_t row = q7_part(x->B, job->blocks, block);
    float *sums = (float *)x->work + d * size * (x->gates + 3) + row * x->H;
    float *h = sums + x->gates * size;
    return (rnn_unit){.d = d,
                      .row = row,
                      .rows = q7_part(x->B, job->blocks, block + 1) - row,
                      .sums = sums,
                      .h = {h, h + size},
                      .c = h + 2 * size};
}

static int64_t state_at(const q7_rnn_args *x, const rnn_unit *unit, int64_t i) {
    return unit->d * x->state_d_stride + (unit->row + i) * x->state_b_stride;
}

static void load_state(const q7_rnn_args *x, const rnn_unit *unit, const float *from, float *to) {
    const size_t bytes = (size_t)x->H * sizeof(float);
    for (int64_t i = 0; i < unit->rows; i++, to += x->H)
        if (from)
            memcpy(to, from + state_at(x, unit, i), bytes);
        else
            memset(to, 0, bytes);
}

/* A row without a step has a last state of 0, whatever the initial one, as in onnxruntime. */
static void store_state(const q7_rnn_args *x, const rnn_unit *unit, const float *from, float *to) {
    const size_t bytes = (size_t)x->H * sizeof(float);
    const int32_t *lengths = x->lengths;
    for (int64_t i = 0; to && i < unit->rows; i++)
        if ((lengths ? lengths[unit->row + i] : x->S) > 0)
            memcpy(to + state_at(x, unit, i), from + i * x->H, bytes);
        else
            memset(to + state_at(x, unit, i), 0, bytes);
}

static void begin_task(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const rnn_job *job = arg;
    const rnn_unit unit = unit_of(job, task);
    load_state(job->x, &unit, job->x->h0, unit.h[0]);
    load_state(job->x, &unit, job->x->c0, unit.c);
}

static void end_task(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const rnn_job *job = arg;
    const rnn_unit unit = unit_of(job, task);
    store_state(job->x, &unit, unit.h[job->x->S % 2], job->x->y_h);
    store_state(job->x, &unit, unit.c, job->x->y_c);
}

/* Part `part` of step `step` of a unit, for chunk `chunk` of its hidden units. */
static void advance(const rnn_job *job, const rnn_unit *unit, int64_t step, int64_t part,
                    int64_t chunk) {
    const q7_rnn_args *x = job->x;
    const int64_t d = unit->d, first = chunk * job->chunk;
    const int64_t t = x->reverse || d > 0 ? x->S - 1 - step : step;
    const int64_t panels = q7_ceil_div(x->H, x->nr);
    const float *bias = x->bias, *peephole = x->peephole;
    const int32_t *lengths = x->lengths;
    float *y = x->y;
    q7_rnn_step s = {
        .gates = x->gates,
        .linear_before_reset = x->linear_before_reset != 0,
        .input_forget = x->input_forget != 0,
        .rows = unit->rows,
        .H = x->H,
        .first = first,
        .n = q7_min(job->chunk, x->H - first),
        .x = (const float *)x->x + t * x->x_s_stride + unit->row * x->x_b_stride +
             d * x->gates * x->H,
        .r = (const float *)x->r + d * x->gates * panels * x->nr * x->H,
        .bias = bias ? bias + d * 2 * x->gates * x->H : NULL,
        .peephole = peephole ? peephole + d * 3 * x->H : NULL,
        .sums = unit->sums,
        .h = unit->h[step % 2],
        .h_next = unit->h[(step + 1) % 2],
        .c = unit->c,
        .y = y ? y + t * x->y_s_stride + d * x->y_d_stride + unit->row * x->y_b_stride : NULL,
        .x_stride = x->x_b_stride,
        .sums_stride = x->B * x->H,
        .y_stride = x->y_b_stride,
        .lengths = lengths ? lengths + unit->row : NULL,
        .t = t,
        .clip = (float)x->clip,
    };
    for (int64_t i = 0; i < 3; i++)
        s.function[i] = (q7_rnn_function){x->act[3 * d + i], (float)x->act_alpha[3 * d + i],
                                          (float)x->act_beta[3 * d + i]};
    ((q7_rnn_kernel)job->call->kernel)(&s, part);
}

static void step_task(void *arg, int64_t task, int64_t thread) {
    (void)thread;
    const rnn_job *job = arg;
    const rnn_unit unit = unit_of(job, task / job->chunks);
    advance(job, &unit, job->step, job->part, task % job->chunks);
}

static void sequence_task(void *arg, int64_t task, int64_t thread) {
    const rnn_job *job = arg;
    const q7_rnn_args *x = job->x;
    const rnn_unit unit = unit_of(job, task);
    begin_task(arg, task, thread);
    for (int64_t step = 0; step < x->S; step++)
        for (int64_t part = 0; part < q7_rnn_parts(x->gates, x->linear_before_reset); part++)
            advance(job, &unit, step, part, 0);
    end_task(arg, task, thread);
}

/* Multiply-adds of a step in time. */
static int64_t step_work(const q7_rnn_args *x) {
    return q7_min(x->B, Q7_RNN_ROWS) * x->gates * x->H * x->H;
}

/* The fewest rows that are worth a thread of their own, for which it reads all of r. */
static int64_t fewest_rows(const q7_rnn_args *x) {
    enum { RESIDENT = 1 << 17 }; /* floats that stay in L2 */
    if (x->S * step_work(x) <= Q7_SMALL_WORK) return x->B;
    if (step_work(x) <= Q7_SMALL_WORK) return 1;
    return x->gates * x->H * x->H <= RESIDENT ? 4 : 16;
}

void q7_op_rnn(const q7_rnn_args *x, const q7_call *call) {
    const int32_t *lengths = x->lengths;
    for (int64_t i = 0; lengths && i < x->B; i++)
        if (lengths[i] < 0 || lengths[i] > x->S)
            q7_fault(call, "sequence length out of range", lengths[i], 0, x->S + 1);
    if (x->B * x->H == 0) return;
    rnn_job job = {.x = x, .call = call, .chunks = 1, .chunk = x->H};
    job.blocks = q7_ceil_div(x->B, Q7_RNN_ROWS);
    const int64_t alone = q7_min(q7_ceil_div(call->threads, x->D), x->B / fewest_rows(x));
    if (2 * x->D * alone > call->threads) job.blocks = q7_max(job.blocks, alone);
    const int64_t units = x->D * job.blocks;
    if (2 * units > call->threads || step_work(x) <= Q7_SMALL_WORK) {
        q7_parallel(call, units, sequence_task, &job);
        return;
    }
    job.chunk = q7_ceil_div(q7_ceil_div(x->H, x->nr), call->threads) * x->nr;
    job.chunks = q7_ceil_div(x->H, job.chunk);
    q7_parallel(call, units, begin_task, &job);
    for (job.step = 0; job.step < x->S; job.step++)
        for (job.part = 0; job.part < q7_rnn_parts(x->gates, x->linear_before_reset); job.part++)
            q7_parallel(call, units * job.chunks, step_task, &job);
    q7_parallel(call, units, end_task, &job);
}
