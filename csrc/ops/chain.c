/* chain.c: a program of elementwise ops as one loop over blocks that stay in L1.
 *
 * Values are numbered: 0 .. CHAIN_INPUTS - 1 are x0, x1, .., CHAIN_INPUTS + i is the result of
 * instruction i: op[i] (unary, binary, where, cast .., see abi.h) on the values a[i], b[i], c[i] of
 * dtype[i], giving to[i]; b and c repeat a where the op has fewer operands. slot[v] is the block of
 * `work` for a value, slots x slot_bytes per thread. The last result is y: dense, row major.
 * x_stride[k * ndim + d] are the strides of input k over `shape`. Inputs that are dense or one
 * element are read in place; of others, runs along the last dim where they are long, else blocks
 * that are gathered first. What does not vary within a block is computed once. An element's bits do
 * not depend on where it stands, so they are those of the ops run one by one.
 * A function of a byte, as of a long tensor between dequantize and quantize, is a table, made first.
 * y may be an input that is dense, has its element size and is not read by a where that comes last.
 *
 * reduce >= 0 (a member of REDUCE, f32 only): y is that of every row along the last dim; each thread
 * has rows_stride floats of `rows`, for one row or CHAIN_BLOCK of them. */
#include "../kernels/chain.h"

#include <math.h>

#include "loops.h"
#include "where.h"

enum {
    VALUES = Q7_CHAIN_INPUTS + Q7_CHAIN_LENGTH,
    BYTES = 256,
    TABLE_FROM = 4 * BYTES,
    SHORT_RUN = Q7_CHAIN_BLOCK / 4 /* an instruction costs 10 ns: gathering costs less than that */
};
_Static_assert(sizeof((q7_chain_args *)0)->op == Q7_CHAIN_LENGTH * 8, "ops.def and kernels.def");
_Static_assert(sizeof((q7_chain_args *)0)->x_bytes == Q7_CHAIN_INPUTS * 8, "ops.def, kernels.def");
_Static_assert(sizeof((q7_chain_args *)0)->slot == VALUES * 8, "ops.def and kernels.def");

/* One loop for two instructions, a Relu behind them, on three values. */
typedef struct pair_call {
    int64_t first, second, value[3], b_stride, c_stride;
    float low;
} pair_call;

typedef struct chain_job {
    const q7_chain_args *args;
    const q7_call *call;
    const q7_chain_loops *loops;
    q7_nest nest;                    /* over the inputs that are neither dense nor one element, */
    q7_nest *own;                    /* and one of each alone */
    int64_t walked[Q7_CHAIN_INPUTS]; /* operand of the nest -> input */
    bool dense[Q7_CHAIN_INPUTS];
    bool sums_bytes[Q7_CHAIN_LENGTH]; /* four instructions from there on are one loop */
    int64_t pair[Q7_CHAIN_LENGTH];    /* as pair_at() says */
    pair_call only;                   /* the chain, where it is a pair along rows of the nest */
    int64_t count, grain;             /* elements of the nest, and of a task */
    const uint8_t *x;                 /* what indexes the table */
    uint8_t table[BYTES];
} chain_job;

/* n elements from `position` on, and where the instructions find each value: stride 0 or 1. */
typedef struct chain_block {
    int64_t position, n;
    const char *at[VALUES];
    int64_t stride[VALUES];
    char *work;
} chain_block;

/* Operands stand first in an args struct, in the order of the row. */
static inline const char *input(const q7_chain_args *args, int64_t k) {
    return ((const void *const *)(const void *)args)[k];
}

/* Gathers the block of every input of the nest that cannot be read in place. */
static void load_block(const chain_job *job, chain_block *block) {
    const q7_chain_args *args = job->args;
    const q7_nest *nest = &job->nest;
    const int64_t last = nest->ndim - 1, cols = nest->shape[last];
    const int64_t col = block->position % cols;
    if (cols >= SHORT_RUN) { /* rows in even parts: what is left of one is not gathered */
        const int64_t part = q7_ceil_div(cols, q7_ceil_div(cols, Q7_CHAIN_BLOCK));
        block->n = q7_min(block->n, q7_min(cols - col, part - col % part));
    }
    const q7_cursor at = q7_nest_seek(nest, block->position / cols);
    for (int64_t j = 0; j < nest->operands; j++) {
        const int64_t k = job->walked[j], stride = nest->stride[j][last], bytes = args->x_bytes[k];
        if (block->n <= cols - col && (stride == 0 || stride == 1)) {
            block->stride[k] = stride;
            block->at[k] = input(args, k) + (at.offset[j] + col * stride) * bytes;
        } else {
            char *to = block->work + args->slot[k] * args->slot_bytes;
            q7_nest_load(&job->own[j], input(args, k), bytes, block->position, block->n, to);
            block->stride[k] = 1;
            block->at[k] = to;
        }
    }
}

static q7_quantize_line quantize_line(const q7_chain_args *args, int64_t i, int64_t n,
                                      const void *x, void *y) {
    return (q7_quantize_line){.n = n,
                              .x = x,
                              .y = y,
                              .is_signed = args->to[i] == Q7_I8,
                              .scale = (float)args->alpha[i],
                              .zero = (int32_t)args->beta[i]};
}

static q7_dequantize_line dequantize_line(const q7_chain_args *args, int64_t i, int64_t n,
                                          const void *x, void *y) {
    return (q7_dequantize_line){.n = n,
                                .x = x,
                                .y = y,
                                .is_signed = args->dtype[i] == Q7_I8,
                                .scale = (float)args->alpha[i],
                                .zero = (int32_t)args->beta[i]};
}

/* Instruction i on n elements. */
static void execute(const chain_job *job, const chain_block *block, int64_t i, int64_t n, void *y) {
    const q7_chain_args *args = job->args;
    const int64_t op = args->op[i], dtype = args->dtype[i];
    const int64_t a_stride = block->stride[args->a[i]], b_stride = block->stride[args->b[i]];
    const char *a = block->at[args->a[i]], *b = block->at[args->b[i]];
    if (op == Q7_chain_cast)
        job->loops->cast(dtype, args->to[i], n, a, y);
    else if (op == Q7_chain_quantize) {
        q7_quantize_line line = quantize_line(args, i, n, a, y);
        job->loops->quantize(&line);
    } else if (op == Q7_chain_dequantize) {
        const q7_dequantize_line line = dequantize_line(args, i, n, a, y);
        job->loops->dequantize(&line);
    } else if (op == Q7_chain_where)
        q7_where_loop(q7_dtype_bytes(dtype), n, a, a_stride, b, b_stride, block->at[args->c[i]],
                      block->stride[args->c[i]], y);
    else if (op < Q7_chain_binary)
        job->loops->unary(dtype, op, n, a, y, args->alpha[i], args->beta[i]);
    else
        job->loops->binary(dtype, op - Q7_chain_binary, n, a, a_stride, b, b_stride, y);
}

/* Whether instructions from `from` on read a value. */
static bool is_read(const q7_chain_args *args, int64_t value, int64_t from) {
    for (int64_t j = from; j < args->length; j++)
        if (args->a[j] == value || args->b[j] == value || args->c[j] == value) return true;
    return false;
}

/* Whether instructions from i on are the sum of two tensors of bytes, of which nothing but bytes is read
 * later on: it has a loop of its own. */
static bool sums_bytes(const q7_chain_args *args, int64_t i) {
    const int64_t *op = args->op + i, *a = args->a + i, *b = args->b + i,
                  first = Q7_CHAIN_INPUTS + i;
    if (i + 4 > args->length || op[0] != Q7_chain_dequantize || op[1] != Q7_chain_dequantize ||
        op[2] != Q7_chain_binary + Q7_binary_add || op[3] != Q7_chain_quantize)
        return false;
    if (a[2] + b[2] != 2 * first + 1 || a[3] != first + 2 || a[1] >= first) return false;
    for (int64_t v = first; v < first + 3; v++)
        if (is_read(args, v, i + 4)) return false;
    return true;
}

/* Instructions from i on as that loop. */
static void sum_bytes(const chain_job *job, const chain_block *block, int64_t i, void *y) {
    const q7_chain_args *args = job->args;
    const int64_t n = block->n;
    const q7_dequantize_line from[2] = {
        dequantize_line(args, i, n, block->at[args->a[i]], NULL),
        dequantize_line(args, i + 1, n, block->at[args->a[i + 1]], NULL)};
    q7_quantize_line to = quantize_line(args, i + 3, n, NULL, y);
    to.from = from;
    job->loops->quantize(&to);
}

static bool is_one_of_a_pair(const q7_chain_args *args, int64_t i) {
    return i < args->length && args->dtype[i] == Q7_F32 && args->op[i] >= Q7_chain_binary &&
           q7_binary_pairs(args->op[i] - Q7_chain_binary);
}

/* Whether the operands of one of a pair may change places. */
static bool commutes(const q7_chain_args *args, int64_t i) {
    return args->op[i] != Q7_chain_binary + Q7_binary_sub;
}

/* How many instructions from i on are one loop of floats, a pair and a Relu, as nothing else reads what is
 * between them: 0, 2 or 3. */
static int64_t pair_at(const q7_chain_args *args, int64_t i) {
    const int64_t first = Q7_CHAIN_INPUTS + i, next = i + 1, relu = i + 2;
    if (!is_one_of_a_pair(args, i) || !is_one_of_a_pair(args, next)) return 0;
    const bool left = args->a[next] == first, right = args->b[next] == first;
    if (left == right || (right && !commutes(args, next)) || is_read(args, first, relu)) return 0;
    const bool clamps = relu < args->length && args->op[relu] == Q7_unary_relu &&
                        args->a[relu] == first + 1 && !is_read(args, first + 1, relu + 1);
    return clamps ? 3 : 2;
}

/* Which operand of instruction i such a loop goes along, where they have these strides, or -1: its first is
 * no repeated element. */
static int64_t along(const chain_job *job, const int64_t *stride, int64_t i) {
    const q7_chain_args *args = job->args;
    if (!job->pair[i]) return -1;
    if (stride[args->a[i]]) return args->a[i];
    return commutes(args, i) && stride[args->b[i]] ? args->b[i] : -1;
}

/* A pair from instruction i on, along operand a. */
static pair_call pair_of(const chain_job *job, const int64_t *stride, int64_t i, int64_t a) {
    const q7_chain_args *args = job->args;
    const int64_t b = args->a[i] == a ? args->b[i] : args->a[i];
    const int64_t c = args->a[i + 1] == Q7_CHAIN_INPUTS + i ? args->b[i + 1] : args->a[i + 1];
    return (pair_call){.first = args->op[i] - Q7_chain_binary,
                       .second = args->op[i + 1] - Q7_chain_binary,
                       .value = {a, b, c},
                       .b_stride = stride[b],
                       .c_stride = stride[c],
                       .low = job->pair[i] == 3 ? 0.0f : -INFINITY};
}

static void run_pair(const chain_job *job, const pair_call *p, int64_t n, const char *const at[3],
                     void *y) {
    const float *from[] = {(const void *)at[0], (const void *)at[1], (const void *)at[2]};
    job->loops->pair(p->first, p->second, n, from[0], from[1], p->b_stride, from[2], p->c_stride,
                     p->low, y);
}

static void execute_pair(const chain_job *job, const chain_block *block, int64_t i, int64_t a,
                         void *y) {
    const pair_call p = pair_of(job, block->stride, i, a);
    const char *const at[] = {block->at[p.value[0]], block->at[p.value[1]], block->at[p.value[2]]};
    run_pair(job, &p, block->n, at, y);
}

/* All instructions on one block; `result` is where its last one goes. */
static void run_block(const chain_job *job, chain_block *block, char *result) {
    const q7_chain_args *args = job->args;
    const int64_t last = args->length - 1;
    for (int64_t i = 0; i <= last; i++) {
        const bool sums =
            job->sums_bytes[i] && block->stride[args->a[i]] && block->stride[args->a[i + 1]];
        const int64_t paired = along(job, block->stride, i);
        const int64_t together = sums ? 4 : paired >= 0 ? job->pair[i] : 1;
        const int64_t to = i + together - 1, value = Q7_CHAIN_INPUTS + to;
        const bool varies = paired >= 0 || block->stride[args->a[i]] || block->stride[args->b[i]] ||
                            block->stride[args->c[i]];
        char *y = to == last ? result : block->work + args->slot[value] * args->slot_bytes;
        if (sums)
            sum_bytes(job, block, i, y);
        else if (paired >= 0)
            execute_pair(job, block, i, paired, y);
        else
            execute(job, block, i, varies ? block->n : 1, y);
        i = to;
        block->at[value] = y;
        block->stride[value] = varies;
    }
    const int64_t bytes = q7_dtype_bytes(args->to[last]);
    if (!block->stride[Q7_CHAIN_INPUTS + last])
        q7_load_run(result + bytes, result, block->n - 1, 0, bytes);
}

/* The results of positions [begin, end), to `y` on. */
static void run_span(const chain_job *job, int64_t begin, int64_t end, int64_t thread, char *y) {
    const q7_chain_args *args = job->args;
    const int64_t bytes = q7_dtype_bytes(args->to[args->length - 1]);
    chain_block block = {.position = begin};
    block.work = q7_room_of(job->call, args->work, args->slots * args->slot_bytes, thread);
    for (; block.position < end; block.position += block.n) {
        block.n = q7_min(Q7_CHAIN_BLOCK, end - block.position);
        for (int64_t k = 0; k < args->inputs; k++) {
            block.stride[k] = job->dense[k];
            block.at[k] = input(args, k) + (job->dense[k] ? block.position * args->x_bytes[k] : 0);
        }
        if (job->nest.operands) load_block(job, &block);
        run_block(job, &block, y + (block.position - begin) * bytes);
    }
}

static void dense_task(void *arg, int64_t task, int64_t thread) {
    const chain_job *job = arg;
    const q7_chain_args *args = job->args;
    const int64_t begin = task * job->grain, bytes = q7_dtype_bytes(args->to[args->length - 1]);
    run_span(job, begin, q7_min(job->count, begin + job->grain), thread,
             (char *)args->y + begin * bytes);
}

/* A chain that is one pair, along rows: nothing waits between two loops. */
static void pair_body(void *arg, int64_t n, const int64_t *offset, int64_t position) {
    const chain_job *job = arg;
    const pair_call *p = &job->only;
    const char *at[3];
    for (int i = 0; i < 3; i++)
        at[i] = input(job->args, p->value[i]) + offset[p->value[i]] * (int64_t)sizeof(float);
    run_pair(job, p, n, at, (float *)job->args->y + position);
}

/* Whether a chain is that, its rows long enough for a loop each. Makes its nest, of all inputs. */
static bool is_pair_of_rows(chain_job *job) {
    const q7_chain_args *args = job->args;
    enum { SHORT = 32 };
    if (args->reduce >= 0 || job->pair[0] != args->length) return false;
    q7_nest nest = q7_nest_of(args->shape, args->ndim);
    for (int64_t k = 0; k < args->inputs; k++) q7_nest_walk(&nest, args->x_stride + k * args->ndim);
    q7_nest_collapse(&nest);
    const int64_t last = nest.ndim - 1;
    int64_t stride[Q7_CHAIN_INPUTS];
    for (int64_t k = 0; k < args->inputs; k++) {
        stride[k] = nest.stride[k][last];
        if (stride[k] != 0 && stride[k] != 1) return false;
    }
    const int64_t a = along(job, stride, 0);
    if (a < 0 || (last > 0 && nest.shape[last] < SHORT)) return false;
    job->nest = nest;
    job->only = pair_of(job, stride, 0, a);
    return true;
}

/* The input whose bytes alone say what y's are, where so many are worth a table; or -1. */
static int64_t input_of_table(const chain_job *job) {
    const q7_chain_args *args = job->args;
    const bool makes_bytes = q7_dtype_bytes(args->to[args->length - 1]) == 1;
    if (!makes_bytes || args->reduce >= 0 || job->nest.operands || job->count < TABLE_FROM)
        return -1;
    int64_t found = -1;
    for (int64_t k = 0; k < args->inputs; k++) {
        if (!job->dense[k]) continue;
        if (found >= 0 || args->x_bytes[k] != 1) return -1;
        found = k;
    }
    return found;
}

static void make_table(chain_job *job, int64_t of) {
    const q7_chain_args *args = job->args;
    uint8_t bytes[BYTES];
    for (int i = 0; i < BYTES; i++) bytes[i] = (uint8_t)i;
    chain_block block = {.n = BYTES, .work = (char *)args->work};
    for (int64_t k = 0; k < args->inputs; k++) {
        block.stride[k] = k == of;
        block.at[k] = k == of ? (const char *)bytes : input(args, k);
    }
    run_block(job, &block, (char *)job->table);
    job->x = (const uint8_t *)input(args, of);
}

static void table_task(void *arg, int64_t task, int64_t thread) {
    const chain_job *job = arg;
    (void)thread;
    const int64_t end = q7_min(job->count, (task + 1) * job->grain);
    const uint8_t *x = job->x;
    uint8_t *y = job->args->y;
    int64_t i = task * job->grain;
    for (; i + 8 <= end; i += 8) /* a loop of single bytes takes 1.25 times as long */
        for (int64_t j = i; j < i + 8; j++) y[j] = job->table[x[j]];
    for (; i < end; i++) y[i] = job->table[x[i]];
}

/* Rows at a time: one, or as many as a block holds. */
static inline int64_t rows_of(int64_t cols) { return q7_max(1, Q7_CHAIN_BLOCK / q7_max(1, cols)); }

static void reduce_task(void *arg, int64_t task, int64_t thread) {
    const chain_job *job = arg;
    const q7_chain_args *args = job->args;
    const int64_t cols = args->shape[args->ndim - 1],
                  rows = q7_product(args->shape, args->ndim - 1);
    const int64_t end = q7_min(rows, (task + 1) * job->grain);
    float *buffer = q7_room_of(job->call, args->rows, args->rows_stride * 4, thread);
    for (int64_t row = task * job->grain, n; row < end; row += n) {
        n = q7_min(rows_of(cols), end - row);
        run_span(job, row * cols, (row + n) * cols, thread, (char *)buffer);
        job->loops->reduce(Q7_F32, args->reduce, n, cols, 1, buffer, (float *)args->y + row);
    }
}

/* Sorts an input: one element, dense, or an operand of the nest. */
static void add_input(chain_job *job, int64_t k) {
    const q7_chain_args *args = job->args;
    const int64_t *stride = args->x_stride + k * args->ndim;
    bool single = true, dense = true;
    int64_t step = 1;
    for (int64_t i = args->ndim - 1; i >= 0; i--) {
        if (args->shape[i] == 1) continue;
        single = single && stride[i] == 0;
        dense = dense && stride[i] == step;
        step *= args->shape[i];
    }
    job->dense[k] = dense && !single;
    if (single || dense) return;
    job->walked[job->nest.operands] = k;
    q7_nest *own = &job->own[job->nest.operands];
    *own = q7_nest_of(args->shape, args->ndim);
    q7_nest_walk(own, stride);
    q7_nest_collapse(own);
    q7_nest_walk(&job->nest, stride);
}

void q7_op_chain(const q7_chain_args *args, const q7_call *call) {
    q7_nest own[Q7_CHAIN_INPUTS];
    chain_job job = {
        .args = args, .call = call, .loops = ((q7_chain_kernel)call->kernel)(), .own = own};
    for (int64_t i = 0; i < args->length; i++) {
        job.sums_bytes[i] = sums_bytes(args, i);
        job.pair[i] = pair_at(args, i);
    }
    if (is_pair_of_rows(&job)) {
        q7_nest_run(&job.nest, call, pair_body, &job);
        return;
    }
    job.nest = q7_nest_of(args->shape, args->ndim);
    for (int64_t k = 0; k < args->inputs; k++) add_input(&job, k);
    q7_nest_collapse(&job.nest);
    job.count = q7_product(args->shape, args->ndim);
    const int64_t table_of = input_of_table(&job);
    const int64_t grain =
        4 * Q7_GRAIN / (args->length + 3); /* as much work as Q7_GRAIN of one op */
    if (args->reduce >= 0) {
        const int64_t cols = args->shape[args->ndim - 1], together = rows_of(cols);
        const int64_t rows = q7_product(args->shape, args->ndim - 1);
        const int64_t most = grain / q7_max(cols, Q7_CHAIN_BLOCK); /* times as many */
        job.grain = q7_units_of_task(call, q7_ceil_div(rows, together), most) * together; /* rows */
        q7_parallel(call, q7_ceil_div(rows, job.grain), reduce_task, &job);
    } else if (table_of >= 0) {
        make_table(&job, table_of);
        job.grain = 4 * Q7_GRAIN;
        q7_parallel(call, q7_ceil_div(job.count, job.grain), table_task, &job);
    } else {
        const int64_t blocks = q7_ceil_div(job.count, Q7_CHAIN_BLOCK);
        job.grain = q7_units_of_task(call, blocks, grain / Q7_CHAIN_BLOCK) * Q7_CHAIN_BLOCK;
        q7_parallel(call, q7_ceil_div(job.count, job.grain), dense_task, &job);
    }
}
