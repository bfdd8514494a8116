/* reduce_typed.c: reduce.h in f64, integers and bool. Integers are summed in 64 bits, and wrap; their
 * mean is cut towards zero, and l2 is not for them. */
#include <math.h>

#include "typed.h"

/* Elements of a row side by side; steps that are added up first; columns whose partial sums stay in L1; bytes
 * of a row side by side, below which compilers unroll the loop and make no vectors of it: maxima of doubles
 * take four times as long. */
enum { LANES = 8, BLOCK = 64, COLUMNS = 512, BEST_BYTES = 256 };

#define T double
#define W double
#define DTYPE f64
#define LOWEST (-INFINITY)
#define HIGHEST INFINITY
#define ADD(a, b) ((a) + (b))
#define TIMES(a, b) ((a) * (b))
#define MEAN(sum, n) ((sum) / (double)(n))
#define ROOT sqrt
#define IS_NEGATIVE(v) ((v) < 0)
#define UNORDERED(v) ((v) != (v))
#define IS_WHOLE 0
#include "reduce_loops.h"
#undef W
#undef ADD
#undef TIMES
#undef MEAN
#undef ROOT
#undef IS_NEGATIVE
#undef UNORDERED
#undef IS_WHOLE

#define ADD(a, b) (W)((uint64_t)(a) + (uint64_t)(b))
#define TIMES(a, b) (W)((uint64_t)(a) * (uint64_t)(b))
#define MEAN(sum, n) ((n) == 0 ? 0 : (sum) / (W)(n))
#define ROOT(sum) (sum) /* l2 is for floats */
#define UNORDERED(v) 0
#define IS_WHOLE 1
#define W uint64_t
#define IS_NEGATIVE(v) 0
#define T uint8_t
#define DTYPE boolean
#define LOWEST 0
#define HIGHEST 1
#include "reduce_loops.h"
#undef W
#undef IS_NEGATIVE
#define LOOPS "reduce_loops.h"
#include "each_int.h"

void Q7_KERNEL(reduce_typed)(int64_t dtype, int64_t op, int64_t count, int64_t n, int64_t stride,
                             const void *x, void *y) {
    switch (dtype) {
        case Q7_F64: reduce_f64(op, count, n, stride, x, y); break;
        case Q7_I64: reduce_i64(op, count, n, stride, x, y); break;
        case Q7_I32: reduce_i32(op, count, n, stride, x, y); break;
        case Q7_I16: reduce_i16(op, count, n, stride, x, y); break;
        case Q7_I8: reduce_i8(op, count, n, stride, x, y); break;
        case Q7_U64: reduce_u64(op, count, n, stride, x, y); break;
        case Q7_U32: reduce_u32(op, count, n, stride, x, y); break;
        case Q7_U16: reduce_u16(op, count, n, stride, x, y); break;
        case Q7_U8: reduce_u8(op, count, n, stride, x, y); break;
        default: reduce_boolean(op, count, n, stride, x, y); break;
    }
}
