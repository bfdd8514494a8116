/* describe.c: the ABI as text, one fact a line, from which Python builds its structs
 * (plan/target.py).
 *
 *   abi 1
 *   source 0123456789abcdef
 *   op gemm bytes=128 in:a@0 .. i64:m@48 .. i64[8]:shape@64 .. f64:alpha@104
 *   set act none relu ..
 *   constant GEMM_K_BLOCK 256
 *   kernel gemm f32 avx2 6 16 compiled=1 supported=1
 *   cpu scalar avx2
 * Read runtime.h first. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include "runtime.h"

#define CAPACITY 32768
#ifndef Q7_SOURCE /* a hash of all sources, see setup.py */
#define Q7_SOURCE unknown
#endif
#define TEXT(x) #x
#define TEXT_OF(x) TEXT(x)

static char text[CAPACITY];
static size_t used;

static void put(const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(text + used, CAPACITY - used, format, args);
    va_end(args);
    if (n > 0) used = used + (size_t)n < CAPACITY ? used + (size_t)n : CAPACITY - 1;
}

static void describe_ops(void) {
#define IN(x) put(" in:%s@%zu", #x, offsetof(T, x));
#define OPT(x) put(" opt:%s@%zu", #x, offsetof(T, x));
#define OUT(x) put(" out:%s@%zu", #x, offsetof(T, x));
#define OPTOUT(x) put(" optout:%s@%zu", #x, offsetof(T, x));
#define SCRATCH(x) put(" scratch:%s@%zu", #x, offsetof(T, x));
#define ROOMS SCRATCH
#define I64(x) put(" i64:%s@%zu", #x, offsetof(T, x));
#define I64N(x, count) put(" i64[%d]:%s@%zu", count, #x, offsetof(T, x));
#define F64(x) put(" f64:%s@%zu", #x, offsetof(T, x));
#define F64N(x, count) put(" f64[%d]:%s@%zu", count, #x, offsetof(T, x));
#define OP(name, meaning, OPERANDS, ARGS)         \
    {                                             \
        typedef q7_##name##_args T;               \
        put("op %s bytes=%zu", #name, sizeof(T)); \
        OPERANDS ARGS put("\n");                  \
    }
#include "ops.def"
#undef OP
}

static void describe_sets(void) {
    put("set act");
#define ACT(x) put(" %s", #x);
#include "ops.def"
#undef ACT
    put("\nset unary");
#define UNARY(x) put(" %s", #x);
#include "ops.def"
#undef UNARY
    put("\nset binary");
#define BINARY(x) put(" %s", #x);
#include "ops.def"
#undef BINARY
    put("\nset reduce");
#define REDUCE(x) put(" %s", #x);
#include "ops.def"
#undef REDUCE
    put("\nset pool");
#define POOL(x) put(" %s", #x);
#include "ops.def"
#undef POOL
    put("\nset scatter");
#define SCATTER(x) put(" %s", #x);
#include "ops.def"
#undef SCATTER
    put("\nset border");
#define BORDER(x) put(" %s", #x);
#include "ops.def"
#undef BORDER
    put("\nset coordinate");
#define COORDINATE(x) put(" %s", #x);
#include "ops.def"
#undef COORDINATE
    put("\nset interpolation");
#define INTERPOLATION(x) put(" %s", #x);
#include "ops.def"
#undef INTERPOLATION
    put("\nset rounding");
#define ROUNDING(x) put(" %s", #x);
#include "ops.def"
#undef ROUNDING
    put("\nset chain");
#define UNARY(x) put(" %s", #x);
#define BINARY(x) put(" %s", #x);
#include "ops.def"
#undef UNARY
#undef BINARY
    put(" where cast quantize dequantize\n");
}

static void describe_all(void) {
    put("abi %d\nsource %s\n", Q7_ABI_VERSION, TEXT_OF(Q7_SOURCE));
    describe_ops();
    describe_sets();
#define CONSTANT(name, value) put("constant %s %d\n", #name, value);
#include "kernels.def"
#undef CONSTANT
    for (int64_t i = 0; i < Q7_KERNEL_COUNT; i++) {
        const q7_kernel_row *row = &q7_kernels[i];
        put("kernel %s %s %s %lld %lld compiled=%d supported=%d\n", row->family, row->dtypes,
            q7_isa_name(row->isa), (long long)row->mr, (long long)row->nr, row->kernel != NULL,
            row->kernel != NULL && q7_isa_present(row->isa));
    }
    put("cpu");
    for (q7_isa isa = Q7_ISA_scalar; isa < Q7_ISA_COUNT; isa++)
        if (q7_isa_present(isa)) put(" %s", q7_isa_name(isa));
    put("\n");
}

const char *q7_describe(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, describe_all);
    return text;
}
