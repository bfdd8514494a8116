/* gemm_tasks.h: a product by a packed matrix as tasks, which may run among those of other products.
 * Read gemm.c first. */
#ifndef Q7_GEMM_TASKS_H
#define Q7_GEMM_TASKS_H
#include "../abi.h"

typedef struct q7_gemm_job {
    const q7_gemm_args *x;
    const q7_call *call;
    int64_t row_tiles, row_blocks, panels, chunks;
    int64_t unit;    /* panels that are multiplied at once: chunks are whole ones */
    int64_t columns; /* of b: n, or whole panels where gated */
    int64_t k_block; /* k values summed at a time */
    int64_t k0, k;   /* that are multiplied now: all, or those of one block of tiles */
    int64_t tasks;
    int64_t first_id; /* of rows in tiles, or 0 */
} q7_gemm_job;

enum { Q7_TALL = 32 }; /* rows of a tile of AMX, as kernels.def has them */

/* A cut for threads of rows and panels whose product is made of AMX tiles. */
typedef struct q7_cut {
    int64_t blocks, chunk; /* even blocks of tiles of rows; panels of a task */
} q7_cut;

/* The cut that takes the least time, of tasks of up to `longest` panels. */
q7_cut q7_cut_for_tiles(const q7_call *call, int64_t rows, int64_t k, int64_t panels,
                        int64_t longest);

/* The first of so many a_id in a row that nothing else has, one for each row of an operand; the a_id of a block
 * is that of its first row. */
int64_t q7_new_ids(int64_t rows);
static inline int64_t q7_id_of(int64_t first_id, int64_t row) {
    return first_id ? first_id + row : 0;
}

/* The floats that one thread needs for the sums of m rows. */
static inline int64_t q7_gemm_sums(int64_t m, int64_t nr) {
    return q7_min(m, Q7_GEMM_ROWS) * Q7_GEMM_PANELS * nr;
}

/* k: of x, or less: the first block of them. */
q7_gemm_job q7_gemm_job_of(const q7_gemm_args *x, int64_t k, const q7_call *call);

/* sums: those of the thread where x has any, else NULL. */
void q7_gemm_task(const q7_gemm_job *job, int64_t task, float *sums);
#endif
