/* forest.c: scores (N, K) = what the leaves that a row of x (N, F) reaches in each of some trees vote for,
 * together; voted (N, K): whether one does. TreeEnsemble of ai.onnx.ml.
 *
 * nodes: a split, a test and the nodes that follow where that fails and where it holds; behind the `inner`
 * ones leaves, whose split is NaN and whose test never holds: what follows is the leaf again, and in the
 * other's place its first vote. test: 32 * feature + a bit for each order of x[feature] and the split for
 * which it holds. binary: less or less_equal if that is the test of all nodes, but for NaN; another one
 * says nothing. roots: nodes. votes: a weight for a target, whether it `counts` (a leaf without votes has
 * one that does not) and whether there are `more` of the leaf.
 *
 * What follows is told from what a load brings, and where trees are any good no branch is foreseen: so
 * LANES pairs of row and tree go down together, none of which waits for another. Votes are summed in
 * double, in the order of trees: within a part, of which there are several where rows are few. Neither
 * parts nor what they hold depend on threads. */
#include "loops.h"

enum { LANES = 8, ROWS = 64, PAIRS = 512, MANY = 512 };

/* The order of x and a split: which bit of a test tells the outcome. */
enum { UNORDERED = 0, LESS = 1, EQUAL = 2, GREATER = 4, FEATURE = 5 };

typedef struct {
    int64_t rows[2], trees[2]; /* [first, end) */
} share;

typedef struct {
    const q7_forest_args *args;
    int64_t blocks, parts;
} forest_job;

typedef struct {
    double weight;
    int32_t target;
    int16_t counts, more;
} ballot;

/* Two votes for one target as one. */
static double together(int64_t reduce, double a, double b) {
    if (reduce == Q7_reduce_min) return b < a ? b : a;
    if (reduce == Q7_reduce_max) return b > a ? b : a;
    return a + b;
}

/* What a leaf votes, into the scores (K,) of a row. */
static inline void vote(const q7_forest_args *f, int64_t first, double *scores, uint8_t *voted) {
    const ballot *b = (const ballot *)(const void *)f->votes + first;
    if (f->reduce != Q7_reduce_min && f->reduce != Q7_reduce_max) {
        do { /* from 0 on, whether it counts or not */
            scores[b->target] += b->weight;
            voted[b->target] |= (uint8_t)b->counts;
        } while (b++->more);
        return;
    }
    for (bool more = b->counts; more; more = b++->more) {
        const double old = scores[b->target];
        scores[b->target] = voted[b->target] ? together(f->reduce, old, b->weight) : b->weight;
        voted[b->target] = 1;
    }
}

#define T float
#define DTYPE f32
#include "forest_typed.h"
#define T double
#define DTYPE f64
#include "forest_typed.h"

static double *scores_of(const q7_forest_args *f, int64_t part) {
    return (double *)f->work + part * f->N * f->K;
}

static uint8_t *voted_of(const q7_forest_args *f, int64_t parts, int64_t part) {
    return (uint8_t *)scores_of(f, parts) + part * f->N * f->K;
}

static void forest_task(void *arg, int64_t task, int64_t thread) {
    const forest_job *job = arg;
    const q7_forest_args *f = job->args;
    const int64_t part = task / job->blocks, row = task % job->blocks * ROWS;
    const share s = {{row, q7_min(row + ROWS, f->N)},
                     {f->trees * part / job->parts, f->trees * (part + 1) / job->parts}};
    double *scores = scores_of(f, part) + row * f->K;
    uint8_t *voted = voted_of(f, job->parts, part) + row * f->K;
    (void)thread;
    memset(scores, 0, (size_t)((s.rows[1] - row) * f->K) * sizeof *scores);
    memset(voted, 0, (size_t)((s.rows[1] - row) * f->K));
    (f->dtype == Q7_F32 ? go_down_f32 : go_down_f64)(f, s, scores, voted);
}

/* The parts of some rows as one. */
static void merge_task(void *arg, int64_t task, int64_t thread) {
    const forest_job *job = arg;
    const q7_forest_args *f = job->args;
    const int64_t end = q7_min((task + 1) * ROWS, f->N) * f->K;
    (void)thread;
    for (int64_t i = task * ROWS * f->K; i < end; i++) {
        double score = 0;
        uint8_t any = 0;
        for (int64_t part = 0; part < job->parts; part++) {
            const double more = scores_of(f, part)[i];
            const uint8_t voted = voted_of(f, job->parts, part)[i];
            if (voted) score = any ? together(f->reduce, score, more) : more;
            any |= voted;
        }
        if (f->reduce == Q7_reduce_mean) score /= (double)q7_max(f->trees, 1);
        if (f->y_dtype == Q7_F32)
            ((float *)f->scores)[i] = (float)score;
        else
            ((double *)f->scores)[i] = score;
        ((uint8_t *)f->voted)[i] = any;
    }
}

void q7_op_forest(const q7_forest_args *args, const q7_call *call) {
    if (args->features > args->F) {
        q7_fault(call, "feature that a tree tests", args->features - 1, 0, args->F);
        return;
    }
    const int64_t pairs = args->trees * q7_min(args->N, ROWS);
    const int64_t wanted = q7_min(q7_ceil_div(pairs, PAIRS), args->parts);
    forest_job job = {args, q7_ceil_div(args->N, ROWS), args->N > MANY ? 1 : q7_max(wanted, 1)};
    q7_parallel(call, job.blocks * job.parts, forest_task, &job);
    q7_parallel(call, job.blocks, merge_task, &job);
}
