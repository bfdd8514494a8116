/* each_int.h: includes the file LOOPS once per integer dtype. It sees T, the type; W, 64 bits of the
 * same signedness; LOWEST and HIGHEST; IS_NEGATIVE(w), constant where T has no sign; and NAMED(f),
 * which is f_<dtype>. bool is not among them: its bytes are those of u8. */
#include "typed_name.h"

#define IS_NEGATIVE(w) ((w) < 0)
#define W int64_t
#define T int8_t
#define DTYPE i8
#define LOWEST INT8_MIN
#define HIGHEST INT8_MAX
#include LOOPS
#define T int16_t
#define DTYPE i16
#define LOWEST INT16_MIN
#define HIGHEST INT16_MAX
#include LOOPS
#define T int32_t
#define DTYPE i32
#define LOWEST INT32_MIN
#define HIGHEST INT32_MAX
#include LOOPS
#define T int64_t
#define DTYPE i64
#define LOWEST INT64_MIN
#define HIGHEST INT64_MAX
#include LOOPS
#undef IS_NEGATIVE
#undef W

#define IS_NEGATIVE(w) 0
#define W uint64_t
#define T uint8_t
#define DTYPE u8
#define LOWEST 0
#define HIGHEST UINT8_MAX
#include LOOPS
#define T uint16_t
#define DTYPE u16
#define LOWEST 0
#define HIGHEST UINT16_MAX
#include LOOPS
#define T uint32_t
#define DTYPE u32
#define LOWEST 0
#define HIGHEST UINT32_MAX
#include LOOPS
#define T uint64_t
#define DTYPE u64
#define LOWEST 0
#define HIGHEST UINT64_MAX
#include LOOPS
#undef IS_NEGATIVE
#undef W
#undef LOOPS
