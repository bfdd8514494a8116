/* dft.c: y[b,l,k] = the sum over j of x[b,l,j] w^(j k): kernels/dft.h has the forms. x and y have any
 * strides between lines, which may share elements of x; where lines are, or elements of one, parts of
 * numbers are side by side.
 *
 * turns: 2 n floats. A task is some groups of lines, which are the lanes of a vector. */
#include "../kernels/dft.h"

#include <math.h>

#include "../abi.h"

enum { TASK = 1 << 14 }; /* numbers: some 20 us */

typedef struct dft_job {
    q7_dft_group group;
    q7_dft_kernel kernel;
    const q7_call *call;
    int64_t lines, groups; /* of a batch */
    int64_t all, some;     /* groups in all, and of a task */
    int64_t nr, x_batch, y_batch;
} dft_job;

static void dft_task(void *arg, int64_t task, int64_t thread) {
    const dft_job *job = arg;
    q7_dft_group group = job->group;
    group.work = q7_room_of(job->call, group.work, 24 * group.n * job->nr, thread);
    const int64_t end = q7_min(job->all, (task + 1) * job->some);
    for (int64_t i = task * job->some; i < end; i++) {
        const int64_t batch = i / job->groups, first = i % job->groups * job->nr;
        group.lines = q7_min(job->nr, job->lines - first);
        group.x = job->group.x + batch * job->x_batch + first * group.x_line;
        group.y = job->group.y + batch * job->y_batch + first * group.y_line;
        job->kernel(&group);
    }
}

/* turns[k] = exp(-2 pi i k / n), by mirrors of those up to n / 8. */
static void fill_turns(int64_t n, float *turns) {
    for (int64_t k = 0; k < n; k++) {
        float *w = turns + 2 * k;
        if (2 * k > n) {
            const float *other = turns + 2 * (n - k);
            w[0] = other[0], w[1] = -other[1];
        } else if (n % 2 == 0 && 4 * k > n) {
            const float *other = turns + 2 * (n / 2 - k);
            w[0] = -other[0], w[1] = other[1];
        } else if (n % 4 == 0 && 8 * k > n) {
            const float *other = turns + 2 * (n / 4 - k);
            w[0] = -other[1], w[1] = -other[0];
        } else {
            const double angle = 6.283185307179586477 * (double)k / (double)n;
            w[0] = (float)cos(angle), w[1] = (float)-sin(angle);
        }
    }
}

/* Fours, a two, then the odd primes of n, and 0. A two in front of them rounds as others do. */
static void factorize(int64_t n, int64_t *factors) {
    int64_t count = 0;
    for (int64_t fours = n; fours % 4 == 0; fours /= 4, n /= 4) factors[count++] = 4;
    if (n % 2 == 0) factors[count++] = 2, n /= 2;
    for (int64_t r = 3; n > 1; r += 2) {
        if (r * r > n) r = n;
        for (; n % r == 0; n /= r) factors[count++] = r;
    }
    factors[count] = 0;
}

void q7_op_dft(const q7_dft_args *x, const q7_call *call) {
    if (x->batch * x->lines * x->n == 0) return;
    const bool pairs =
        x->x_parts + x->y_parts == 3 && x->n % 2 == 0 && (x->inverse != 0) == (x->y_parts == 1);
    int64_t factors[Q7_DFT_FACTORS];
    factorize(pairs ? x->n / 2 : x->n, factors);
    fill_turns(x->n, x->turns);
    dft_job job = {.group = {.x = x->x,
                             .window = x->window,
                             .turns = x->turns,
                             .y = x->y,
                             .work = x->work,
                             .n = x->n,
                             .x_line = x->x_line_stride,
                             .x_stride = x->x_stride,
                             .x_parts = x->x_parts,
                             .y_line = x->y_line_stride,
                             .y_stride = x->y_stride,
                             .y_parts = x->y_parts,
                             .x_count = x->x_count,
                             .y_count = x->y_count,
                             .factors = factors,
                             .inverse = x->inverse != 0,
                             .pairs = pairs},
                   .kernel = (q7_dft_kernel)call->kernel,
                   .call = call,
                   .lines = x->lines,
                   .groups = q7_ceil_div(x->lines, call->nr),
                   .nr = call->nr,
                   .x_batch = x->x_batch_stride,
                   .y_batch = x->y_batch_stride};
    job.all = x->batch * job.groups;
    job.some = q7_max(1, TASK / (x->n * call->nr));
    q7_parallel(call, q7_ceil_div(job.all, job.some), dft_task, &job);
}
