/* flow.c: reads, checks and frees flows: plans with control flow between them. Read flow.h first.
 *
 * What is checked here, once, lets flow_run.c trust every slot, rank and size of an element. */
#include "flow.h"

#include <stdlib.h>
#include <string.h>

static void *make(q7_flow *f, int64_t count, size_t bytes) {
    void *made = calloc((size_t)count + 1, bytes);
    if (!made) f->status = Q7_NO_MEMORY;
    return made;
}

/* The next word, which must be in [low, high). */
static int64_t word(q7_flow *f, int64_t low, int64_t high) {
    const int64_t w = f->at < f->end ? *f->at++ : low - 1;
    if (w >= low && w < high) return w;
    if (f->status == Q7_OK) f->status = Q7_BAD_ARG;
    return low < high ? low : 0;
}

static const int64_t *words(q7_flow *f, int64_t count, int64_t low, int64_t high) {
    const int64_t *start = f->at;
    for (int64_t i = 0; i < count && f->status == Q7_OK; i++) word(f, low, high);
    return start;
}

static int64_t count(q7_flow *f) { return word(f, 0, f->end - f->at + 1); }

static const int64_t *dims_of(q7_flow *f, const q7_program *p, const int64_t *slots, int64_t n,
                              int64_t high) {
    int64_t total = 0;
    for (int64_t i = 0; i < n && f->status == Q7_OK; i++) total += p->slots[slots[i]].ndim;
    return words(f, total, 0, high);
}

static void read_plan(q7_flow *f, q7_program *p, q7_phase *h) {
    const int64_t plan = word(f, 0, f->n_plans), values = word(f, 1, INT32_MAX);
    const int64_t steps = word(f, 0, INT64_MAX);
    h->n_symbols = count(f);
    h->sources = f->at;
    for (int64_t i = 0; i < h->n_symbols && f->status == Q7_OK; i++) {
        const int64_t from = word(f, -1, p->n_slots);
        const int64_t axis = word(f, 0, from < 0 ? f->n_sizes : INT64_MAX);
        if (f->status != Q7_OK || from < 0 || axis < p->slots[from].ndim) continue;
        const int64_t bytes = p->slots[from].elem_bytes; /* of a number in the slot */
        if (axis < Q7_TENSOR_NDIM || (bytes != 4 && bytes != 8)) f->status = Q7_BAD_ARG;
    }
    h->n_in = count(f);
    h->in = words(f, h->n_in, 0, p->n_slots);
    h->n_out = count(f);
    h->out = words(f, h->n_out, 0, p->n_slots);
    for (int64_t i = 0; i < h->n_out && f->status == Q7_OK; i++) p->slots[h->out[i]].is_made = true;
    h->dims = dims_of(f, p, h->in, h->n_in, values);
    dims_of(f, p, h->out, h->n_out, values);
    h->symbols = make(f, h->n_symbols, sizeof *h->symbols);
    h->values = make(f, values, sizeof *h->values);
    h->feeds = make(f, h->n_in, sizeof *h->feeds);
    h->results = make(f, h->n_out, sizeof *h->results);
    if (f->status == Q7_OK)
        f->status = q7_context_create(f->plans[plan], f->threads, &h->context, NULL);
    h->job = (q7_job){h->context, 0, steps, h->feeds, h->results, NULL};
}

static q7_program *read_program(q7_flow *f);

/* Whether a tensor may pass from one slot to the other. */
static bool alike(const q7_slot *a, const q7_slot *b, int64_t fewer) {
    return a->ndim - fewer == b->ndim && a->elem_bytes == b->elem_bytes;
}

static bool takes(const q7_program *p, const q7_phase *h, const q7_program *b, int64_t first) {
    if (b->n_inputs != first + h->n_in) return false;
    for (int64_t i = 0; i < h->n_in; i++) {
        const bool slice = i >= h->n_states && i < h->n_states + h->n_slices;
        if (!alike(&p->slots[h->in[i]], &b->slots[first + i], slice)) return false;
    }
    return true;
}

static bool gives(const q7_program *p, const q7_phase *h, const q7_program *b, int64_t first) {
    if (b->n_outputs != first + h->n_out) return false;
    for (int64_t i = 0; i < h->n_out; i++)
        if (!alike(&p->slots[h->out[i]], &b->slots[b->outputs[first + i]], i >= h->n_states))
            return false;
    return true;
}

/* The slot of a number of so many bytes, -1 where there is none. */
static int64_t number_slot(q7_flow *f, const q7_program *p, int64_t bytes) {
    const int64_t slot = word(f, -1, p->n_slots);
    if (f->status == Q7_OK && slot >= 0 && p->slots[slot].elem_bytes != bytes)
        f->status = Q7_BAD_ARG;
    return slot;
}

static void read_if(q7_flow *f, q7_program *p, q7_phase *h) {
    h->cond = number_slot(f, p, 1);
    h->n_in = count(f);
    h->in = words(f, h->n_in, 0, p->n_slots);
    h->n_out = h->n_states = count(f); /* none is stacked */
    h->out = words(f, h->n_out, 0, p->n_slots);
    for (int i = 0; i < 2; i++) {
        if (f->status != Q7_OK || !word(f, 0, 2)) continue;
        q7_program *b = h->bodies[i] = read_program(f);
        if (f->status == Q7_OK && (!takes(p, h, b, 0) || !gives(p, h, b, 0)))
            f->status = Q7_BAD_ARG;
    }
}

static void read_loop(q7_flow *f, q7_program *p, q7_phase *h) {
    const bool scan = h->kind == Q7_PHASE_SCAN;
    h->trip = number_slot(f, p, 8);
    h->cond = number_slot(f, p, 1);
    h->n_states = count(f);
    h->n_slices = count(f);
    h->n_in = count(f);
    h->in = words(f, h->n_in, 0, p->n_slots);
    h->n_out = count(f);
    h->out = words(f, h->n_out, 0, p->n_slots);
    if (f->status == Q7_OK && (h->n_states + h->n_slices > h->n_in || h->n_states > h->n_out ||
                               (scan ? h->n_slices < 1 : h->n_slices > 0)))
        f->status = Q7_BAD_ARG;
    h->is_backward = words(f, h->n_slices + h->n_out - h->n_states, 0, 2);
    h->empty = dims_of(f, p, h->out + h->n_states, h->n_out - h->n_states, INT64_MAX);
    h->rooms = make(f, h->n_out, sizeof *h->rooms);
    h->next = make(f, h->n_states, sizeof *h->next);
    if (f->status != Q7_OK) return;
    q7_program *b = h->bodies[0] = read_program(f);
    if (f->status != Q7_OK) return;
    bool fits = takes(p, h, b, scan ? 0 : 2) && gives(p, h, b, scan ? 0 : 1);
    if (fits && !scan)
        fits = b->slots[0].ndim == 0 && b->slots[0].elem_bytes == 8 && b->slots[1].ndim == 0 &&
               b->slots[1].elem_bytes == 1;
    if (!fits) f->status = Q7_BAD_ARG;
    h->is_swapped = make(f, h->n_states, sizeof *h->is_swapped);
    for (int64_t k = 0; k < h->n_states && f->status == Q7_OK; k++) {
        const int64_t result = b->outputs[b->n_outputs - h->n_out + k];
        int uses = 0;
        for (int64_t i = 0; i < b->n_outputs; i++) uses += b->outputs[i] == result;
        h->is_swapped[k] = b->slots[result].is_made && uses == 1;
    }
}

static void read_front(q7_flow *f, q7_program *p, q7_phase *h) {
    h->n_in = 2;
    h->in = words(f, 2, 0, p->n_slots);
    h->n_out = 1;
    h->out = words(f, 1, 0, p->n_slots);
    h->dims = f->status == Q7_OK ? words(f, p->slots[h->out[0]].ndim, -1, INT64_MAX) : NULL;
    if (f->status == Q7_OK && (p->slots[h->in[0]].elem_bytes != p->slots[h->out[0]].elem_bytes ||
                               p->slots[h->in[1]].elem_bytes != 8))
        f->status = Q7_BAD_ARG;
}

static q7_program *read_program(q7_flow *f) {
    q7_program *p = make(f, 1, sizeof *p);
    if (!p) return NULL;
    p->n_slots = count(f);
    p->slots = make(f, p->n_slots, sizeof *p->slots);
    for (int64_t i = 0; i < p->n_slots && f->status == Q7_OK; i++) {
        p->slots[i].ndim = word(f, 0, Q7_TENSOR_NDIM + 1);
        p->slots[i].elem_bytes = word(f, 1, 17);
    }
    p->n_inputs = word(f, 0, p->n_slots + 1);
    const int64_t constants = count(f);
    for (int64_t i = 0; i < constants && f->status == Q7_OK; i++) {
        q7_slot *s = &p->slots[word(f, 0, p->n_slots)];
        const int64_t constant = word(f, 0, f->n_constants);
        const int64_t *shape = words(f, s->ndim, 0, INT64_MAX);
        if (f->status != Q7_OK) break;
        s->t.data = (void *)(uintptr_t)f->constants[constant];
        memcpy(s->t.shape, shape, (size_t)s->ndim * 8);
    }
    const int64_t n = count(f);
    p->phases = make(f, n, sizeof *p->phases);
    for (; p->n_phases < n && f->status == Q7_OK; p->n_phases++) {
        q7_phase *h = &p->phases[p->n_phases];
        h->kind = word(f, 0, Q7_PHASE_FRONT + 1);
        if (h->kind == Q7_PHASE_PLAN)
            read_plan(f, p, h);
        else if (h->kind == Q7_PHASE_IF)
            read_if(f, p, h);
        else if (h->kind == Q7_PHASE_FRONT)
            read_front(f, p, h);
        else
            read_loop(f, p, h);
    }
    p->n_outputs = count(f);
    p->outputs = words(f, p->n_outputs, 0, p->n_slots);
    return p;
}

static void free_program(q7_program *p) {
    if (!p) return;
    for (int64_t i = 0; p->slots && i < p->n_slots; i++) free(p->slots[i].room.data);
    for (int64_t i = 0; p->phases && i <= p->n_phases; i++) { /* one more: it may be half read */
        q7_phase *h = &p->phases[i];
        q7_context_destroy(h->context);
        for (int64_t j = 0; h->rooms && j < h->n_out; j++) free(h->rooms[j].data);
        free(h->symbols), free(h->values), free(h->feeds), free(h->results), free(h->rooms),
            free(h->next), free(h->is_swapped);
        free_program(h->bodies[0]);
        free_program(h->bodies[1]);
    }
    free(p->slots), free(p->phases), free(p);
}

q7_status q7_flow_create(const int64_t *given, int64_t n_words, const q7_plan *const *plans,
                         int64_t n_plans, const void *const *constants, int64_t n_constants,
                         int64_t threads, q7_flow **flow) {
    *flow = NULL;
    if (n_words < 1 || n_plans < 0 || n_constants < 0) return Q7_BAD_ARG;
    q7_flow *f = calloc(1, sizeof *f);
    if (!f) return Q7_NO_MEMORY;
    f->plans = plans, f->n_plans = n_plans, f->threads = threads;
    f->constants = constants, f->n_constants = n_constants;
    f->words = make(f, n_words, sizeof *f->words);
    if (f->words) {
        memcpy(f->words, given, (size_t)n_words * sizeof *given);
        f->at = f->words, f->end = f->words + n_words;
        f->n_sizes = word(f, 0, INT64_MAX);
        f->main = read_program(f);
        if (f->status == Q7_OK && f->at != f->end) f->status = Q7_BAD_ARG;
    }
    const q7_status status = f->status;
    if (status == Q7_OK)
        *flow = f;
    else
        q7_flow_destroy(f);
    return status;
}

void q7_flow_destroy(q7_flow *flow) {
    if (!flow) return;
    free_program(flow->main);
    free(flow->words);
    free(flow);
}

q7_status q7_flow_run(q7_flow *flow, const q7_tensor *inputs, const int64_t *sizes,
                      q7_tensor *outputs) {
    q7_program *p = flow->main;
    flow->sizes = sizes;
    for (int64_t i = 0; i < p->n_inputs; i++) p->slots[i].t = inputs[i];
    q7_pool_enter();
    const q7_status status = q7_program_run(flow, p);
    q7_pool_leave();
    for (int64_t i = 0; i < p->n_outputs && status == Q7_OK; i++)
        outputs[i] = p->slots[p->outputs[i]].t;
    return status;
}
