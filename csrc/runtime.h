/* runtime.h: what describe.c, exec.c, pool.c and cpu.c share. Drivers see abi.h only. */
#ifndef Q7_RUNTIME_H
#define Q7_RUNTIME_H
#include <stdatomic.h>

#include "abi.h"
#include "q7.h"

#define Q7_ABI_VERSION 1

/* Instruction sets, weakest first within an architecture. avx2 means avx2 + fma + f16c, avx512
 * means f + dq + bw + vl, amx tiles of int8 and bfloat16; each has those before it, but avx512 not avx2_vnni. */
typedef enum {
    Q7_ISA_scalar,
    Q7_ISA_neon,
    Q7_ISA_neon_dot,
    Q7_ISA_neon_i8mm,
    Q7_ISA_avx2,
    Q7_ISA_avx2_vnni,
    Q7_ISA_avx512,
    Q7_ISA_avx512_vnni,
    Q7_ISA_amx,
    Q7_ISA_COUNT
} q7_isa;
const char *q7_isa_name(q7_isa isa);
bool q7_isa_present(q7_isa isa); /* whether CPU and OS have it */

typedef struct q7_kernel_row {
    const char *family, *dtypes;
    q7_isa isa;
    int64_t mr, nr;
    void (*kernel)(void); /* NULL: not compiled in */
} q7_kernel_row;
extern const q7_kernel_row q7_kernels[Q7_KERNEL_COUNT];

/* pool.c */
int64_t q7_now_ns(void);  /* of a clock that never goes back */
void q7_pool_enter(void); /* Around each run: the thread's outermost run keeps its share of the */
void q7_pool_leave(void); /* workers to its end. */

/* The error slot of a run: the first fault wins. */
struct q7_run_state {
    atomic_int faulted; /* 0 none, 1 being written, 2 complete */
    const char *what;
    int64_t value, low, limit;
};
#endif
