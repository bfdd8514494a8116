/* flow_run.c: plans, If, Loop and Scan, one after the other, without Python. Read flow.h first.
 *
 * A state of a loop and the result that follows it exchange their rooms, so that an iteration copies
 * nothing. Any status but Q7_OK means only that the caller has to find another way: a branch that is
 * not here, sizes that do not fit, input that is out of range. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "flow.h"

static bool bytes_of(const q7_slot *s, int64_t *bytes) {
    *bytes = s->elem_bytes;
    for (int64_t i = 0; i < s->ndim; i++)
        if (s->t.shape[i] < 0 || __builtin_mul_overflow(*bytes, s->t.shape[i], bytes)) return false;
    return true;
}

/* Makes room; what it held is kept up to `kept` bytes. Never NULL, so that no operand looks absent.
 * Twice as much where it was too small, since it may grow with every iteration. */
static bool reserve(q7_room *r, int64_t bytes, int64_t kept) {
    if (r->data && bytes <= r->bytes) return true;
    if (bytes > INT64_MAX / 4) return false;
    const int64_t size = q7_max(r->data ? 2 * bytes : bytes, 64);
    void *data = NULL;
    if (posix_memalign(&data, 64, (size_t)size)) return false;
    if (kept) memcpy(data, r->data, (size_t)kept);
    free(r->data);
    *r = (q7_room){data, size};
    return true;
}

/* false: not one element */
static bool single(const q7_slot *s) {
    for (int64_t i = 0; i < s->ndim; i++)
        if (s->t.shape[i] != 1) return false;
    return true;
}

/* Number i in a slot of integers; false where it has fewer. */
static bool number_in(const q7_slot *s, int64_t i, int64_t *number) {
    int64_t bytes;
    if (!bytes_of(s, &bytes) || i >= bytes / s->elem_bytes) return false;
    int32_t narrow;
    if (s->elem_bytes == 8)
        memcpy(number, (const char *)s->t.data + i * 8, 8);
    else
        memcpy(&narrow, (const char *)s->t.data + i * 4, 4), *number = narrow;
    return true;
}

static q7_status run_plan(const q7_flow *f, q7_program *p, q7_phase *h) {
    for (int64_t i = 0; i < h->n_symbols; i++) {
        const int64_t from = h->sources[2 * i], axis = h->sources[2 * i + 1];
        if (from >= 0 && axis >= Q7_TENSOR_NDIM) {
            if (!number_in(&p->slots[from], axis - Q7_TENSOR_NDIM, &h->symbols[i]))
                return Q7_BAD_ARG;
        } else
            h->symbols[i] = from < 0 ? f->sizes[axis] : p->slots[from].t.shape[axis];
    }
    q7_status status = q7_bind(h->context, h->symbols, h->values, NULL);
    if (status != Q7_OK) return status;
    const int64_t *dim = h->dims;
    for (int64_t i = 0; i < h->n_in; i++) {
        const q7_slot *s = &p->slots[h->in[i]];
        for (int64_t j = 0; j < s->ndim; j++)
            if (s->t.shape[j] != h->values[*dim++]) return Q7_BAD_ARG;
        h->feeds[i] = s->t.data;
    }
    for (int64_t i = 0; i < h->n_out; i++) {
        q7_slot *s = &p->slots[h->out[i]];
        int64_t bytes;
        for (int64_t j = 0; j < s->ndim; j++) s->t.shape[j] = h->values[*dim++];
        if (!bytes_of(s, &bytes) || !reserve(&s->room, bytes, 0)) return Q7_NO_MEMORY;
        h->results[i] = s->t.data = s->room.data;
    }
    return q7_run(&h->job);
}

static q7_status run_if(const q7_flow *f, q7_program *p, q7_phase *h) {
    q7_program *b = h->bodies[0];
    if (h->cond >= 0) {
        const q7_slot *cond = &p->slots[h->cond];
        if (!single(cond)) return Q7_BAD_ARG;
        b = h->bodies[*(const unsigned char *)cond->t.data ? 0 : 1];
    }
    if (!b) return Q7_UNSUPPORTED;
    for (int64_t i = 0; i < h->n_in; i++) b->slots[i].t = p->slots[h->in[i]].t;
    const q7_status status = q7_program_run(f, b);
    if (status == Q7_OK)
        for (int64_t i = 0; i < h->n_out; i++) p->slots[h->out[i]].t = b->slots[b->outputs[i]].t;
    return status;
}

/* Adds what iteration i made to a scanned output; `times` of them in all where that is known. */
static bool collect(const q7_phase *h, int64_t k, const q7_slot *made, q7_slot *into, int64_t i,
                    int64_t times) {
    const int64_t n = h->n_states + k;
    const bool backward = h->is_backward[h->n_slices + k];
    int64_t bytes, total;
    if (!bytes_of(made, &bytes)) return false;
    if (i == 0) memcpy(into->t.shape + 1, made->t.shape, (size_t)made->ndim * 8);
    if (memcmp(into->t.shape + 1, made->t.shape, (size_t)made->ndim * 8)) return false;
    if (__builtin_mul_overflow(bytes, backward ? times : i + 1, &total)) return false;
    if (!reserve(&h->rooms[n], total, i * bytes)) return false;
    const int64_t at = backward ? times - 1 - i : i;
    memcpy((char *)h->rooms[n].data + at * bytes, made->t.data, (size_t)bytes);
    return true;
}

/* Makes the results of an iteration the states of the next. A result may be a state itself, or of
 * an inner body: those are copied, before any state changes. */
static bool advance(const q7_phase *h, q7_program *b, q7_slot *states, const int64_t *results) {
    int64_t bytes;
    for (int64_t k = 0; k < h->n_states; k++) {
        const q7_slot *made = &b->slots[results[k]];
        memcpy(h->next[k].shape, made->t.shape, sizeof made->t.shape);
        if (h->is_swapped[k]) continue;
        if (!bytes_of(made, &bytes) || !reserve(&h->rooms[k], bytes, 0)) return false;
        memcpy(h->rooms[k].data, made->t.data, (size_t)bytes);
    }
    for (int64_t k = 0; k < h->n_states; k++) {
        q7_room *from = h->is_swapped[k] ? &b->slots[results[k]].room : &h->rooms[k];
        const q7_room now = *from;
        *from = states[k].room;
        states[k].room = now;
        memcpy(states[k].t.shape, h->next[k].shape, sizeof h->next[k].shape);
        states[k].t.data = now.data;
    }
    return true;
}

/* Points the slices of a Scan at position i. */
static bool slice(const q7_program *p, const q7_phase *h, q7_slot *slices, int64_t i,
                  int64_t times) {
    for (int64_t k = 0; k < h->n_slices; k++) {
        const q7_slot *whole = &p->slots[h->in[h->n_states + k]];
        int64_t bytes;
        memcpy(slices[k].t.shape, whole->t.shape + 1, (size_t)slices[k].ndim * 8);
        if (whole->t.shape[0] != times || !bytes_of(&slices[k], &bytes)) return false;
        const int64_t at = h->is_backward[k] ? times - 1 - i : i;
        slices[k].t.data = (char *)whole->t.data + at * bytes;
    }
    return true;
}

/* How often a loop may run at most, and whether it runs at all. */
static bool begin_loop(const q7_program *p, q7_phase *h, int64_t *times) {
    const q7_slot *trip = h->trip < 0 ? NULL : &p->slots[h->trip];
    const q7_slot *cond = h->cond < 0 ? NULL : &p->slots[h->cond];
    if ((trip && !single(trip)) || (cond && !single(cond))) return false;
    *times = INT64_MAX;
    if (h->kind == Q7_PHASE_SCAN) *times = p->slots[h->in[h->n_states]].t.shape[0];
    if (trip) memcpy(times, trip->t.data, sizeof *times);
    h->going = !cond || *(const unsigned char *)cond->t.data;
    return true;
}

static q7_status run_loop(const q7_flow *f, q7_program *p, q7_phase *h) {
    const bool scan = h->kind == Q7_PHASE_SCAN;
    q7_program *b = h->bodies[0];
    q7_slot *formals = b->slots + (scan ? 0 : 2);
    const int64_t *results = b->outputs + (scan ? 0 : 1);
    const int64_t n_scanned = h->n_out - h->n_states;
    int64_t times, i = 0;
    if (!begin_loop(p, h, &times)) return Q7_BAD_ARG;
    for (int64_t k = 0; k < h->n_in; k++)
        if (k < h->n_states || k >= h->n_states + h->n_slices) formals[k].t = p->slots[h->in[k]].t;
    if (!scan) b->slots[0].t.data = &h->index, b->slots[1].t.data = &h->going;
    const int64_t *empty = h->empty;
    for (int64_t k = 0; k < n_scanned; k++) {
        q7_slot *s = &p->slots[h->out[h->n_states + k]];
        memcpy(s->t.shape, empty, (size_t)s->ndim * 8);
        empty += s->ndim;
    }
    for (; h->going && i < times; i++) {
        h->index = i;
        if (scan && !slice(p, h, formals + h->n_states, i, times)) return Q7_BAD_ARG;
        const q7_status status = q7_program_run(f, b);
        if (status != Q7_OK) return status;
        const q7_slot *on = scan ? NULL : &b->slots[b->outputs[0]];
        if (on && !single(on)) return Q7_BAD_ARG;
        const bool going = !on || *(const unsigned char *)on->t.data;
        for (int64_t k = 0; k < n_scanned; k++)
            if (!collect(h, k, &b->slots[results[h->n_states + k]],
                         &p->slots[h->out[h->n_states + k]], i, times))
                return Q7_BAD_ARG;
        if (!advance(h, b, formals, results)) return Q7_NO_MEMORY;
        h->going = going; /* a result may be the condition that this iteration was given */
    }
    for (int64_t k = 0; k < h->n_out; k++) {
        q7_tensor *into = &p->slots[h->out[k]].t;
        if (k < h->n_states) {
            *into = formals[k].t;
            continue;
        }
        if (!reserve(&h->rooms[k], 0, 0)) return Q7_NO_MEMORY;
        into->shape[0] = i;
        into->data = h->rooms[k].data;
    }
    return Q7_OK;
}

static q7_status run_front(q7_program *p, const q7_phase *h) {
    const q7_slot *from = &p->slots[h->in[0]], *number = &p->slots[h->in[1]];
    if (!single(number)) return Q7_INTERNAL;
    q7_slot *into = &p->slots[h->out[0]];
    int64_t count, room, bytes;
    memcpy(&count, number->t.data, sizeof count);
    for (int64_t i = 0; i < into->ndim; i++) into->t.shape[i] = h->dims[i] < 0 ? count : h->dims[i];
    into->t.data = from->t.data;
    const bool fits = bytes_of(from, &room) && bytes_of(into, &bytes) && bytes <= room;
    return fits ? Q7_OK : Q7_INTERNAL;
}

static q7_status run_phase(const q7_flow *f, q7_program *p, q7_phase *h) {
    switch (h->kind) {
        case Q7_PHASE_PLAN: return run_plan(f, p, h);
        case Q7_PHASE_IF: return run_if(f, p, h);
        case Q7_PHASE_FRONT: return run_front(p, h);
        default: return run_loop(f, p, h);
    }
}

q7_status q7_program_run(const q7_flow *f, q7_program *p) {
    q7_status status = Q7_OK;
    for (int64_t i = 0; i < p->n_phases && status == Q7_OK; i++)
        status = run_phase(f, p, &p->phases[i]);
    return status;
}
