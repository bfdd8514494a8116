/* q7.h: the public C ABI of libq7: thirteen functions, plain C11.
 *
 * A plan is made by Python (q7x2_ep/plan/encode.py), position independent, and copied at creation.
 * One plan serves many contexts; one context serves one run at a time. Sizes in the plan are
 * expressions over symbols (symbolic dims of the inputs), evaluated by q7_bind. */
#ifndef Q7_H
#define Q7_H
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define Q7_API __attribute__((visibility("default"))) /* the build hides everything else */

typedef int32_t q7_status;
enum {
    Q7_OK,
    Q7_BAD_ARG,     /* a corrupt plan, or a bind whose guards fail */
    Q7_UNSUPPORTED, /* the plan needs a kernel that this CPU or build lacks */
    Q7_NO_MEMORY,
    Q7_DATA_FAULT, /* input values out of range, found while running */
    Q7_INTERNAL
};

/* Filled on any status but Q7_OK. index is the guard (q7_bind) or the step (q7_run), else -1. */
typedef struct q7_error {
    int32_t code;
    int32_t reserved;
    int64_t index;
    int64_t value, low, limit; /* the offending value, which is not in [low, limit) */
    char message[240];
} q7_error;

typedef struct q7_plan q7_plan;
typedef struct q7_context q7_context;

/* The ops, sets, kernels and CPU as text, one fact a line (describe.c). Static storage. */
Q7_API const char *q7_describe(void);

/* How many threads runs at once may have together; without it, one run at a time has workers. A run
 * that is alone has as many as its context says. */
Q7_API void q7_pool_cores(int64_t cores);

/* The plan in `blob` (see "Plan" below), over `n_constants` base addresses that must outlive it. */
Q7_API q7_status q7_plan_create(const void *blob, int64_t blob_bytes, const void *const *constants,
                                int64_t n_constants, q7_plan **plan, q7_error *error);
Q7_API void q7_plan_destroy(q7_plan *plan);

Q7_API q7_status q7_context_create(const q7_plan *plan, int64_t threads, q7_context **context,
                                   q7_error *error);
Q7_API void q7_context_destroy(q7_context *context);

/* Evaluates every expression for these symbol values, places the buffers in the arena and patches
 * the args of all steps. values[0..n_values) of the plan is written to `values`. Cheap when
 * repeated with the same symbols. */
Q7_API q7_status q7_bind(q7_context *context, const int64_t *symbols, int64_t *values,
                         q7_error *error);

/* Runs steps [first, last) of a bound context. One pointer, since ctypes takes 50 ns for every
 * argument: a caller keeps its job. */
typedef struct q7_job {
    q7_context *context;
    int64_t first, last;
    const void *const *inputs;
    void *const *outputs;
    q7_error *error;
} q7_job;
Q7_API q7_status q7_run(const q7_job *job);

/* From now on adds each step's time to step_ns[step], in nanoseconds; NULL switches it off. */
Q7_API void q7_profile(q7_context *context, int64_t *step_ns);

/* Facts about a bound context: Q7_STAT_*. The base address of the arena is one of them. */
Q7_API int64_t q7_stat(const q7_context *context, int32_t what, int64_t index);
enum {
    Q7_STAT_ARENA,          /* address of the arena */
    Q7_STAT_ARENA_BYTES,    /* bytes in use for the bound shapes */
    Q7_STAT_RESERVED_BYTES, /* bytes held, the maximum so far */
    Q7_STAT_ALLOCATIONS,    /* allocations since the context was created */
    Q7_STAT_BUFFER_OFFSET,  /* offset of buffer `index` in the arena */
    Q7_STAT_BUFFER_BYTES
};

/* A flow: plans with If, Loop and Scan around them. One flow serves one run at a time, and plans and
 * constants must outlive it. Any status but Q7_OK says only that this cannot be run so. */
typedef struct q7_flow q7_flow;
enum { Q7_TENSOR_NDIM = 8 };
typedef struct q7_tensor {
    void *data;
    int64_t shape[Q7_TENSOR_NDIM];
} q7_tensor; /* dense; dtype and rank are those of its slot */

Q7_API q7_status q7_flow_create(const int64_t *words, int64_t n_words, const q7_plan *const *plans,
                                int64_t n_plans, const void *const *constants, int64_t n_constants,
                                int64_t threads, q7_flow **flow);
Q7_API void q7_flow_destroy(q7_flow *flow);

/* `outputs` lie in the flow's memory, or where inputs and constants lie, until its next run. */
Q7_API q7_status q7_flow_run(q7_flow *flow, const q7_tensor *inputs, const int64_t *sizes,
                             q7_tensor *outputs);

/* Flow: int64 words: the number of sizes that each run gives, then a program:
 *   slots      n, n x {ndim, bytes of an element}; the number of inputs, which are the first slots
 *   constants  n, n x {slot, constant, its shape}
 *   phases     n, n x {kind, ..}
 *   outputs    n, n slots
 * A list is its length, then its items. The phases:
 *   PLAN       plan, number of its values, number of its steps, list of symbols x {slot or -1, axis
 *              or size; Q7_TENSOR_NDIM + i: integer i in the slot}, list of inputs, list of
 *              outputs; value indices of the dims of all of these
 *   IF         slot of the condition or -1 (true), list of inputs, list of outputs; then both
 *              branches: 0, or 1 and a program
 *   LOOP,SCAN  slot of the trip count or -1, that of the condition or -1; how many inputs are
 *              states, and how many after them are cut into slices; list of inputs, list of
 *              outputs: states, then scanned ones; for each slice, then for each scanned output
 *              whether it runs backwards; the shapes of scanned outputs without iterations; a program
 *   FRONT      slot of a vector, slot of a number, slot of the output, which is the front of the
 *              vector; its dims, -1 for that number
 * The body of a LOOP takes iteration and condition before its inputs, and gives the condition first.
 */
enum { Q7_PHASE_PLAN, Q7_PHASE_IF, Q7_PHASE_LOOP, Q7_PHASE_SCAN, Q7_PHASE_FRONT };

/* Plan: little-endian int64 words.
 *   header    Q7_PLAN_HEADER words: magic, version, then a count per section and the image's bytes
 *   exprs     n_exprs x {op, a, b}: values[n_symbols + i]; a and b are value indices (const: a is
 *             the value)
 *   guards    n_guards x {value, kind, limit}: checked by bind; kind as below
 *   buffers   n_buffers x {size value, first step, last step}: alive in [first, last], both included
 *   steps     n_steps x {op, kernel row or -1, args offset in the image}
 *   values    n_value_patches x {image offset, value index}: an I64 field
 *   pointers  n_pointer_patches x {image offset, space, index, byte offset value}: an operand
 *   image     the args of all steps, each 64-byte aligned
 * values[0] is always the number of threads; symbols follow from 1 (n_symbols counts both). */
#define Q7_PLAN_MAGIC INT64_C(0x6e616c7032783771)
enum {
    Q7_PLAN_MAGIC_WORD,
    Q7_PLAN_ABI,
    Q7_PLAN_SYMBOLS,
    Q7_PLAN_EXPRS,
    Q7_PLAN_GUARDS,
    Q7_PLAN_BUFFERS,
    Q7_PLAN_STEPS,
    Q7_PLAN_VALUE_PATCHES,
    Q7_PLAN_POINTER_PATCHES,
    Q7_PLAN_IMAGE_BYTES,
    Q7_PLAN_INPUTS,
    Q7_PLAN_OUTPUTS,
    Q7_PLAN_HEADER
};
/* Where an operand is; its index is that of the buffer, base address, feed or output. */
enum { Q7_SPACE_ARENA, Q7_SPACE_CONSTANT, Q7_SPACE_INPUT, Q7_SPACE_OUTPUT };
enum {
    Q7_EXPR_CONST,
    Q7_EXPR_ADD,
    Q7_EXPR_SUB,
    Q7_EXPR_MUL,
    Q7_EXPR_FLOORDIV,
    Q7_EXPR_MIN,
    Q7_EXPR_MAX,
    Q7_EXPR_BROADCAST /* a if b is 1, b if a is 1 or equal, else -1 */
};
enum { Q7_GUARD_EQ, Q7_GUARD_GE }; /* value == limit, value >= limit; limit is a value index */

#ifdef __cplusplus
}
#endif
#endif
