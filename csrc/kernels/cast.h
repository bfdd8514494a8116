/* cast.h: y[i] = (to)x[i] among all floats, integers and bool of C, float16 and bfloat16, as numpy
 * does: floats to integers are cut towards zero, integers to narrower ones wrap, anything to bool is
 * x != 0 (NaN is true), anything to a float rounds once, to nearest even. A float that its integer
 * type cannot hold, or NaN, gives what onnxruntime gives on x86, on every CPU: the lowest int32 or
 * int64; narrower targets go by way of int32, so 300.0 to u8 is 44 and 3e9 to i16 is 0, uint32 by way
 * of int64, and uint64, too, but from 2^63 on, and is 0 from 2^64 on. y may be x where both are of one
 * size. */
#ifndef Q7_KERNELS_CAST_H
#define Q7_KERNELS_CAST_H
#include "../abi.h"

typedef void (*q7_cast_kernel)(int64_t from, int64_t to, int64_t n, const void *x, void *y);
#endif
