/* abi.h: ops.def and kernels.def expanded for C, and what an op driver may use of the executor.
 *
 * A driver q7_op_<op>(args, call) turns args into loops and tiles and hands them to the kernel. It
 * never allocates and never fails, except through q7_fault for input values that are out of range.
 * Read ops.def first. */
#ifndef Q7_ABI_H
#define Q7_ABI_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* args structs */
#define IN(x) const void *x;
#define OPT(x) const void *x;
#define OUT(x) void *x;
#define OPTOUT(x) void *x;
#define SCRATCH(x) void *x;
#define ROOMS(x) void *x;
#define I64(f) int64_t f;
#define I64N(f, count) int64_t f[count];
#define F64(f) double f;
#define F64N(f, count) double f[count];
#define OP(name, meaning, OPERANDS, ARGS) \
    typedef struct q7_##name##_args {     \
        OPERANDS ARGS                     \
    } q7_##name##_args;
#include "ops.def"
#undef OP

enum {
#define OP(name, meaning, OPERANDS, ARGS) Q7_OP_##name,
#include "ops.def"
#undef OP
    Q7_OP_COUNT
};

/* kernel rows: Q7_KERNEL_gemm_f32_avx2 is a row's index */
enum {
#define KERNEL(family, dtypes, isa, mr, nr) Q7_KERNEL_##family##_##dtypes##_##isa,
#include "kernels.def"
#undef KERNEL
    Q7_KERNEL_COUNT
};

enum {
#define CONSTANT(name, value) Q7_##name = value,
#include "kernels.def"
#undef CONSTANT
};

/* closed sets */
enum {
#define ACT(x) Q7_act_##x,
#include "ops.def"
#undef ACT
    Q7_act_COUNT
};
/* Whether an activation is at most a clamp, which kernels do while sums are in registers. */
static inline bool q7_clamps(int64_t act) {
    return act == Q7_act_none || act == Q7_act_relu || act == Q7_act_clip;
}
enum {
#define UNARY(x) Q7_unary_##x,
#include "ops.def"
#undef UNARY
    Q7_unary_COUNT
};
enum {
#define BINARY(x) Q7_binary_##x,
#include "ops.def"
#undef BINARY
    Q7_binary_COUNT
};
enum {
#define REDUCE(x) Q7_reduce_##x,
#include "ops.def"
#undef REDUCE
    Q7_reduce_COUNT
};
enum {
#define POOL(x) Q7_pool_##x,
#include "ops.def"
#undef POOL
    Q7_pool_COUNT
};
enum {
#define SCATTER(x) Q7_scatter_##x,
#include "ops.def"
#undef SCATTER
    Q7_scatter_COUNT
};
enum {
#define BORDER(x) Q7_border_##x,
#include "ops.def"
#undef BORDER
    Q7_border_COUNT
};
enum {
#define COORDINATE(x) Q7_coordinate_##x,
#include "ops.def"
#undef COORDINATE
    Q7_coordinate_COUNT
};
enum {
#define INTERPOLATION(x) Q7_interpolation_##x,
#include "ops.def"
#undef INTERPOLATION
    Q7_interpolation_COUNT
};
enum {
#define ROUNDING(x) Q7_rounding_##x,
#include "ops.def"
#undef ROUNDING
    Q7_rounding_COUNT
};

/* what a chain computes with: unary, then binary, then these */
enum {
    Q7_chain_binary = Q7_unary_COUNT,
    Q7_chain_where = Q7_chain_binary + Q7_binary_COUNT,
    Q7_chain_cast,
    Q7_chain_quantize,  /* to bytes, */
    Q7_chain_dequantize /* and back; alpha: scale, beta: zero */
};

/* dtype codes of onnx.TensorProto */
enum {
    Q7_F32 = 1,
    Q7_U8 = 2,
    Q7_I8 = 3,
    Q7_U16 = 4,
    Q7_I16 = 5,
    Q7_I32 = 6,
    Q7_I64 = 7,
    Q7_BOOL = 9,
    Q7_F16 = 10,
    Q7_F64 = 11,
    Q7_U32 = 12,
    Q7_U64 = 13,
    Q7_BF16 = 16,
    Q7_U4 = 21,
    Q7_I4 = 22,
    Q7_U2 = 25,
    Q7_I2 = 26
};

/* One step of a run as a driver sees it. */
typedef struct q7_call {
    void (*kernel)(void); /* the kernel of the step's row; cast to the family's type */
    int64_t mr, nr;       /* the row's register tile */
    int64_t threads;      /* upper bound of `thread` in q7_task, constant for a bound context */
    int64_t room_bytes;   /* from a thread's room to the next one's, or 0: see q7_room_of */
    struct q7_run_state *run;
} q7_call;

/* task in [0, tasks), thread in [0, threads): ROOMS are of one thread each. Tasks are handed out
 * dynamically, so what a task computes must not depend on which thread runs it. */
typedef void (*q7_task)(void *arg, int64_t task, int64_t thread);

/* Runs all tasks and returns when the last has ended. Inline on the caller when tasks < 2. */
void q7_parallel(const q7_call *call, int64_t tasks, q7_task fn, void *arg);

/* The same for tasks of which a call of fn may do some, that lie side by side: `most` at most, and `least`,
 * unless fewer are left. */
typedef void (*q7_range_task)(void *arg, int64_t begin, int64_t end, int64_t thread);
void q7_parallel_ranges(const q7_call *call, int64_t tasks, int64_t least, int64_t most,
                        q7_range_task fn, void *arg);

/* Reports input data that is out of range: the run ends after this step with Q7_DATA_FAULT.
 * The value is not in [low, limit). `what` is a string literal; may be called from any task. */
void q7_fault(const q7_call *call, const char *what, int64_t value, int64_t low, int64_t limit);

#define OP(name, meaning, OPERANDS, ARGS) \
    void q7_op_##name(const q7_##name##_args *args, const q7_call *call);
#include "ops.def"
#undef OP

static inline int64_t q7_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t q7_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t q7_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static inline int64_t q7_dtype_bytes(int64_t dtype) {
    switch (dtype) {
        case Q7_F64:
        case Q7_I64:
        case Q7_U64: return 8;
        case Q7_F32:
        case Q7_I32:
        case Q7_U32: return 4;
        case Q7_F16:
        case Q7_BF16:
        case Q7_I16:
        case Q7_U16: return 2;
        default: return 1; /* Q7_U8, Q7_I8, Q7_BOOL */
    }
}

/* The room of a thread, of so many bytes. Where a context has several threads it is in one place for all
 * steps (exec.c); else those of all threads are side by side. */
static inline void *q7_room_of(const q7_call *call, void *rooms, int64_t bytes, int64_t thread) {
    return rooms ? (char *)rooms + thread * (call->room_bytes ? call->room_bytes : bytes) : NULL;
}
#endif
