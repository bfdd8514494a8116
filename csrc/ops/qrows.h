/* qrows.h: what the drivers of integer products share. Read ../kernels/qgemm.h first. */
#ifndef Q7_OPS_QROWS_H
#define Q7_OPS_QROWS_H
#include "../kernels/qgemm.h"

/* The zero point of a tensor, 0 where there is none. */
static inline int32_t q7_first_byte(const void *p, int64_t dtype) {
    if (!p) return 0;
    return dtype == Q7_I8 ? *(const int8_t *)p : *(const uint8_t *)p;
}

static inline int64_t q7_sum_bytes(int64_t dtype) { return dtype == Q7_I32 || dtype == Q7_F32 ? 4 : 1; }

/* From a column on. */
static inline q7_qfinish q7_finish_from(const q7_qfinish *f, int64_t column) {
    q7_qfinish from = *f;
    if (from.scale) from.scale += column * from.scale_step;
    if (from.bias) from.bias += column;
    return from;
}
#endif
