/* flow.h: programs of several plans, as flow.c reads them and flow_run.c runs them.
 *
 * A program is a list of phases over slots: a slot is a tensor, written by one phase. What a plan
 * writes lies in rooms that grow and are kept; all else passes on by address. The layout of the
 * words that they are read from is in q7.h. */
#ifndef Q7_FLOW_H
#define Q7_FLOW_H
#include "runtime.h"

typedef struct {
    void *data;
    int64_t bytes;
} q7_room;

typedef struct {
    q7_tensor t;
    int64_t ndim, elem_bytes;
    bool is_made; /* by a plan, in this room */
    q7_room room;
} q7_slot;

typedef struct q7_program q7_program;

typedef struct {
    int64_t kind, n_in, n_out;
    const int64_t *in, *out; /* slots */
    /* a plan */
    q7_context *context;
    q7_job job;
    int64_t n_symbols;
    const int64_t *sources, *dims; /* see q7.h */
    int64_t *symbols, *values;
    const void **feeds;
    void **results;
    /* bodies: of an If two, of a loop one */
    int64_t cond, trip;
    q7_program *bodies[2];
    int64_t n_states, n_slices;
    const int64_t *is_backward, *empty; /* see q7.h */
    bool *is_swapped; /* of states: whether their result may become the state as it is */
    q7_room *rooms;   /* of states, then of scanned outputs */
    q7_tensor *next;  /* shapes of the states of the next iteration */
    int64_t index;
    bool going;
} q7_phase;

struct q7_program {
    q7_slot *slots;
    q7_phase *phases;
    int64_t n_slots, n_inputs, n_phases, n_outputs;
    const int64_t *outputs;
};

struct q7_flow {
    q7_program *main;
    int64_t *words;
    const int64_t *at, *end; /* while it is read */
    const q7_plan *const *plans;
    const void *const *constants;
    int64_t n_plans, n_constants, n_sizes, threads;
    const int64_t *sizes; /* of the run in progress */
    q7_status status;
};

q7_status q7_program_run(const q7_flow *f, q7_program *p);
#endif
