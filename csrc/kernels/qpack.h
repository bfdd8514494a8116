/* qpack.h: columns of bytes b (k, n) that a run has made as a panel of qgemm.h: in pairs (i16) or in quads
 * (u8). What quads make of zeros is the caller's: q7_qgemm_block.b_zero. */
#ifndef Q7_QPACK_H
#define Q7_QPACK_H
#include "../abi.h"

typedef struct q7_qpack_panel {
    int64_t k, n;     /* n: columns that there are, nr at most */
    const uint8_t *b; /* b[i,j] at i * row_stride + j * col_stride, of which one is 1 */
    int64_t row_stride, col_stride;
    bool is_signed;      /* b are int8; of quads uint8 are 128 less */
    const int32_t *zero; /* (nr,), taken off b where they become pairs */
    void *panel;
} q7_qpack_panel;

typedef void (*q7_qpack_kernel)(const q7_qpack_panel *panel);
#endif
