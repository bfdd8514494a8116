/* bands.c: see bands.h. */
#include "bands.h"

#include <string.h>

#include "ops/gemm_tasks.h"

enum {
    WORDS = 48,     /* of args */
    ROOM = 3 << 16, /* floats of all images between the steps: 768 KB of L2 */
    WORTH = 3,      /* multiply-adds that an image between steps saves for each of its floats */
    MORE = 8, /* a thread has about its share of lines if it has no more than one more in so many */
    LATELY_NS = 500000 /* what a thread did in so long is half of what its share follows */
};

/* Where an op has what an image op has, in words of its args; 0 where it has none. */
typedef struct {
    int64_t words; /* of its args */
    int8_t x, y, residual, depth, rooms[2];
    int8_t N, C, H, W, M, OH, OW, kh, kw, groups, stride_h, dilation_h, pad_top;
    int8_t x_n_stride, x_c_stride, x_h_stride, x_w_stride, y_stride, residual_stride;
    int8_t w, w_n_stride;
} layout;

#define AT(op, field) (int8_t)(offsetof(q7_##op##_args, field) / 8)
#define IMAGES(op, filters)                                                                       \
    .words = sizeof(q7_##op##_args) / 8, .x = AT(op, x), .y = AT(op, y),                          \
    .residual = AT(op, residual), .N = AT(op, N), .C = AT(op, C), .H = AT(op, H), .W = AT(op, W), \
    .M = AT(op, filters), .OH = AT(op, OH), .OW = AT(op, OW), .kh = AT(op, kh), .kw = AT(op, kw), \
    .stride_h = AT(op, stride_h), .dilation_h = AT(op, dilation_h), .pad_top = AT(op, pad_top),   \
    .x_n_stride = AT(op, x_n_stride), .x_h_stride = AT(op, x_h_stride),                           \
    .x_w_stride = AT(op, x_w_stride), .y_stride = AT(op, y_stride),                               \
    .residual_stride = AT(op, residual_stride)
static const layout layouts[Q7_OP_COUNT] = {
    [Q7_OP_conv_direct] = {IMAGES(conv_direct, M), .groups = AT(conv_direct, groups),
                           .x_c_stride = AT(conv_direct, x_c_stride),
                           .rooms = {AT(conv_direct, offsets), AT(conv_direct, lines)},
                           .w = AT(conv_direct, w), .w_n_stride = AT(conv_direct, w_n_stride)},
    [Q7_OP_depthwise] = {IMAGES(depthwise, C), .depth = AT(depthwise, OD)},
    [Q7_OP_conv_last] = {IMAGES(conv_last, M), .groups = AT(conv_last, groups),
                         .depth = AT(conv_last, OD), .rooms = {AT(conv_last, windows)}},
};
#undef IMAGES
_Static_assert(sizeof(q7_depthwise_args) <= WORDS * 8 && sizeof(q7_conv_direct_args) <= WORDS * 8 &&
                   sizeof(q7_conv_last_args) <= WORDS * 8,
               "args do not fit");
#undef AT

/* ---- what is linked ---- */

void q7_bands_link(const q7_plan *p, int64_t *links) {
    for (int64_t i = 0; i < p->n_steps; i++) {
        links[i] = -1;
        if (i + 1 == p->n_steps) break;
        const layout *from = &layouts[p->steps[i].op], *to = &layouts[p->steps[i + 1].op];
        if (!from->words || !to->words) continue;
        const pointer_row *y = q7_pointer_of(p, i, from->y), *x = q7_pointer_of(p, i + 1, to->x);
        if (!x || !y || y->space != Q7_SPACE_ARENA || x->space != Q7_SPACE_ARENA) continue;
        if (x->index != y->index || x->offset != y->offset) continue;
        const buffer_row *buffer = &p->buffers[y->index];
        if (buffer->first != i || buffer->last != i + 1) continue;
        if (q7_uses_of(p, i, y->index) == 1 && q7_uses_of(p, i + 1, y->index) == 1)
            links[i] = y->index;
    }
}

/* ---- what is run in bands, for some sizes ---- */

static int64_t word(const int64_t *args, int8_t at) {
    int64_t value;
    memcpy(&value, args + at, sizeof value);
    return value;
}

static q7_band_step describe(const q7_plan *p, int64_t step, const int64_t *args) {
    const layout *at = &layouts[p->steps[step].op];
    q7_band_step s = {.last = Q7_BANDS_NONE};
    if (!at->words || (at->depth && word(args, at->depth) != 1)) return s;
    s.images = word(args, at->N);
    s.height = word(args, at->H);
    s.out_height = word(args, at->OH);
    s.stride = word(args, at->stride_h);
    s.reach = (word(args, at->kh) - 1) * word(args, at->dilation_h) + 1;
    s.pad = word(args, at->pad_top);
    s.work = word(args, at->OW) * word(args, at->M) * word(args, at->kh) * word(args, at->kw);
    if (at->groups) s.work *= word(args, at->C) / word(args, at->groups);
    s.line = word(args, at->x_h_stride);
    s.out_line = word(args, at->OW) * word(args, at->y_stride);
    s.whole = p->steps[step].op == Q7_OP_conv_last;
    if (s.out_height * s.out_line == 0) s.images = 0;
    return s;
}

/* Whether what step i writes for the next lies as that reads it, line after line. */
static bool joins(const q7_plan *p, int64_t i, const int64_t *from, const int64_t *to) {
    const layout *a = &layouts[p->steps[i].op], *b = &layouts[p->steps[i + 1].op];
    const int64_t width = word(to, b->W), pixel = word(to, b->x_w_stride);
    return word(from, a->N) == word(to, b->N) && word(from, a->M) == word(to, b->C) &&
           word(from, a->OH) == word(to, b->H) && word(from, a->OW) == width &&
           word(from, a->y_stride) == pixel && word(to, b->x_h_stride) == width * pixel &&
           (!b->x_c_stride || word(to, b->x_c_stride) == 1);
}

/* Lines of x for `lines` of y. */
static int64_t under(const q7_band_step *s, int64_t lines) {
    return q7_min(s->height, (lines - 1) * s->stride + s->reach);
}

/* Sets how many lines of each image there is room for, if `lines` of the last are made at a time;
 * returns their floats. */
static int64_t make_room(q7_band_step *steps, int64_t first, int64_t last, int64_t lines) {
    int64_t floats = 0;
    for (int64_t i = last; i > first; i--) {
        lines = under(&steps[i], lines);
        steps[i - 1].room = lines;
        floats += lines * steps[i - 1].out_line;
    }
    return floats;
}

/* Whether each thread has about as many lines of y, of images in so many parts. */
static bool is_even(const q7_band_step *s, int64_t parts, int64_t threads) {
    const int64_t lines = q7_ceil_div(s->out_height, parts), all = s->images * s->out_height;
    const int64_t most = q7_ceil_div(s->images * parts, threads) * lines;
    return (most * threads - all) * MORE <= all;
}

/* Parts of an image: one for each thread, or fewer where images are enough. */
static int64_t parts_of(const q7_band_step *s, int64_t threads) {
    int64_t parts = q7_min(q7_ceil_div(threads, s->images), s->out_height);
    while (parts < q7_min(threads, s->out_height) && !is_even(s, parts, threads)) parts++;
    return parts;
}

/* The lines [begin, end) of x under lines [from, to) of y. */
typedef struct {
    int64_t begin, end;
} span;
static span span_under(const q7_band_step *s, int64_t from, int64_t to) {
    const int64_t begin = q7_min(s->height, q7_max(0, from * s->stride - s->pad));
    const int64_t end = q7_min(s->height, (to - 1) * s->stride - s->pad + s->reach);
    return (span){begin, q7_max(begin, end)};
}

/* Whether one of the steps wants a part to be one band. */
static bool any_whole(const q7_band_step *steps, int64_t first, int64_t last) {
    bool any = false;
    for (int64_t i = first; i <= last; i++) any |= steps[i].whole;
    return any;
}

/* Whether each part is one band, and all are even, if one of the steps wants that. */
static bool parts_do(q7_band_step *steps, int64_t first, int64_t last, int64_t threads) {
    const q7_band_step *s = &steps[last];
    const int64_t parts = parts_of(s, threads), lines = q7_ceil_div(s->out_height, parts);
    if (!any_whole(steps, first, last)) return true;
    return is_even(s, parts, threads) && make_room(steps, first, last, lines) <= ROOM;
}

/* Whether it pays to run step `last` in bands with the others: its image need not be whole, but what is
 * under its lines is made twice where parts meet. */
static bool pays(const q7_band_step *steps, int64_t first, int64_t last, int64_t threads) {
    const q7_band_step *s = &steps[last], *from = s - 1;
    const int64_t meetings = parts_of(s, threads) - 1;
    int64_t lines = q7_max(0, s->reach - s->stride), again = 0; /* multiply-adds, for a meeting */
    for (int64_t i = last - 1; i >= first; i--) {
        again += lines * steps[i].work;
        lines *= steps[i].stride;
    }
    return meetings * again <= from->out_height * from->out_line * WORTH;
}

/* Whether steps [first, last] can be run in bands: there is room, and parts do. */
static bool can_be_run(q7_band_step *steps, int64_t first, int64_t last, int64_t threads) {
    return make_room(steps, first, last, 1) <= ROOM && parts_do(steps, first, last, threads);
}

/* Whether a thread that is alone would run the steps one after the other in any case: x, y and what is
 * between them would have memory of their own for nothing. */
static bool is_one_band(q7_band_step *steps, int64_t first, int64_t last, int64_t threads) {
    const q7_band_step *s = &steps[last];
    return threads == 1 && s->images == 1 && make_room(steps, first, last, s->out_height) <= ROOM;
}

static void settle(q7_band_step *steps, int64_t first, int64_t last, int64_t threads) {
    q7_band_step *s = &steps[first];
    s->last = last;
    for (int64_t i = first + 1; i <= last; i++) steps[i].last = Q7_BANDS_INSIDE;
    const int64_t height = steps[last].out_height;
    s->parts = parts_of(&steps[last], threads);
    s->fewest = q7_ceil_div(height / s->parts, 2);
    s->most = height - (s->parts - 1) * s->fewest;
    s->lines = 1;
    while (s->lines < s->most && make_room(steps, first, last, s->lines + 1) <= ROOM) s->lines++;
    if (any_whole(steps, first, last)) s->most = s->lines;
    make_room(steps, first, last, s->lines);
}

void q7_bands_find(const q7_plan *p, const unsigned char *image, int64_t threads,
                   q7_band_step *steps) {
    for (int64_t i = 0; i < p->n_steps; i++)
        steps[i] = describe(p, i, (const int64_t *)(const void *)(image + p->steps[i].args));
    for (int64_t i = 0, last; i < p->n_steps; i = last + 1) {
        for (last = i; last - i + 1 < Q7_BANDS_STEPS && p->links[last] >= 0; last++) {
            if (!steps[last].images || !steps[last + 1].images) break;
            const unsigned char *from = image + p->steps[last].args;
            const unsigned char *to = image + p->steps[last + 1].args;
            if (!joins(p, last, (const int64_t *)(const void *)from,
                       (const int64_t *)(const void *)to) ||
                !pays(steps, i, last + 1, threads))
                break;
        }
        while (last > i && !can_be_run(steps, i, last, threads)) last--;
        if (is_one_band(steps, i, last, threads)) last = i;
        if (last > i) settle(steps, i, last, threads);
    }
}

/* Bytes of a thread's room for what a step writes. */
static int64_t room_bytes(const q7_band_step *s) {
    return q7_arena_aligned(s->room * s->out_line * 4);
}

int64_t q7_bands_adjust(const q7_plan *p, q7_band_step *steps, q7_interval *intervals,
                        q7_interval *rooms) {
    int64_t most = 0;
    for (int64_t first = 0; first < p->n_steps; first++) {
        const int64_t last = steps[first].last;
        if (last < 0) continue;
        rooms->first = q7_min(rooms->first, first);
        rooms->last = q7_max(rooms->last, last);
        for (int64_t i = 0; i < p->n_buffers; i++) {
            q7_interval *v = &intervals[i];
            if (v->last < first || v->first > last) continue;
            v->first = q7_min(v->first, first);
            v->last = q7_max(v->last, last);
        }
        int64_t bytes = 0;
        for (int64_t i = first; i < last; i++) {
            steps[i].room_at = bytes;
            bytes += room_bytes(&steps[i]);
            intervals[p->links[i]].bytes = 0;
        }
        most = q7_max(most, bytes);
    }
    return most;
}

/* ---- run ---- */

typedef struct {
    const q7_plan *plan;
    const unsigned char *image;
    const q7_call *calls;
    const q7_band_step *steps;
    int64_t first, last;
    unsigned char *rooms;
    q7_band_thread *threads;
    int64_t bands; /* of a part */
    int64_t *step_ns;
} bands_job;

static void move(int64_t *args, int8_t at, int64_t bytes) { /* an operand, unless there is none */
    const int64_t address = word(args, at);
    if (address) args[at] = address + bytes;
}

/* A thread's room for the image that step i writes for the next. */
static int64_t room_of(const bands_job *job, int64_t i, int64_t thread) {
    void *room = q7_room_of(&job->calls[i], job->rooms, 0, thread);
    return (int64_t)(intptr_t)room + job->steps[i].room_at;
}

/* The driver of step i on lines of an image. */
static void run_lines(const bands_job *job, int64_t i, int64_t image, const q7_band_lines *all,
                      int64_t thread) {
    const q7_band_step *s = &job->steps[i];
    const step_row *step = &job->plan->steps[i];
    const layout *at = &layouts[step->op];
    const q7_band_lines *now = &all[i - job->first];
    int64_t args[WORDS];
    memcpy(args, job->image + step->args, (size_t)at->words * 8);
    const int64_t pixel = (image * s->out_height + now->from) * word(args, at->OW);
    if (i == job->first)
        move(args, at->x, (image * word(args, at->x_n_stride) + now->begin * s->line) * 4);
    else
        args[at->x] = room_of(job, i - 1, thread) + (now->begin - now[-1].kept) * s->line * 4;
    if (i == job->last)
        move(args, at->y, pixel * word(args, at->y_stride) * 4);
    else
        args[at->y] = room_of(job, i, thread) + (now->from - now->kept) * s->out_line * 4;
    if (at->w) move(args, at->w, image * word(args, at->w_n_stride) * 4);
    move(args, at->residual, pixel * word(args, at->residual_stride) * 4);
    for (int k = 0; k < 2; k++)
        if (at->rooms[k]) move(args, at->rooms[k], thread * job->calls[i].room_bytes);
    args[at->N] = 1;
    args[at->H] = now->end - now->begin;
    args[at->OH] = now->to - now->from;
    args[at->pad_top] = s->pad - now->from * s->stride + now->begin;
    q7_call call = job->calls[i];
    call.threads = 1;
    q7_drive(step->op, args, &call);
}

/* Makes room for the lines that step i needs and the one before has not made yet: moves those that it
 * has to the front. */
static void advance(const bands_job *job, int64_t i, q7_band_lines *now, int64_t thread) {
    const q7_band_step *s = &job->steps[i];
    const span needs = span_under(s, now->from, now->to);
    now->begin = needs.begin;
    now->end = needs.end;
    if (i == job->first) return;
    q7_band_lines *before = now - 1;
    const int64_t made = before->to;
    before->from = q7_max(now->begin, q7_min(made, now->end));
    before->to = now->end;
    if (made > now->begin && now->begin > before->kept) {
        unsigned char *room = (unsigned char *)(intptr_t)room_of(job, i - 1, thread);
        memmove(room, room + (now->begin - before->kept) * s->line * 4,
                (size_t)((made - now->begin) * s->line * 4));
    }
    before->kept = now->begin;
}

/* The lines of y in a part. */
static span span_of_part(const bands_job *job, int64_t part) {
    const bool last = part + 1 == job->steps[job->first].parts;
    return (span){job->threads[part].begin,
                  last ? job->steps[job->last].out_height : job->threads[part + 1].begin};
}

static void bands_task(void *arg, int64_t task, int64_t thread) {
    const bands_job *job = arg;
    q7_band_thread *mine = &job->threads[thread];
    q7_band_lines *all = mine->steps;
    const int64_t bands = job->bands, tasks = job->steps[job->first].parts * bands;
    const int64_t image = task / tasks, n = job->last - job->first;
    const span part = span_of_part(job, task % tasks / bands);
    const int64_t lines = q7_ceil_div(part.end - part.begin, bands);
    const int64_t from = part.begin + task % bands * lines;
    if (from >= part.end) return;
    if (task != mine->task + 1 || task % tasks == 0) memset(all, 0, sizeof mine->steps);
    mine->task = task;
    all[n].from = from;
    all[n].to = q7_min(from + lines, part.end);
    for (int64_t i = n; i >= 0; i--) advance(job, job->first + i, &all[i], thread);
    int64_t before = job->step_ns && thread == 0 ? q7_now_ns() : 0;
    for (int64_t i = 0; i <= n; i++) {
        if (all[i].from < all[i].to) run_lines(job, job->first + i, image, all, thread);
        if (!before) continue;
        const int64_t after = q7_now_ns();
        job->step_ns[job->first + i] += after - before;
        job->step_ns[job->first] -= after - before; /* what is left for it is waiting */
        before = after;
    }
    mine->made += all[n].to - all[n].from;
    mine->end_ns = q7_now_ns();
}

/* Cuts the lines of an image into parts. Those of several images are even. */
static void cut(bands_job *job, int64_t threads) {
    const q7_band_step *s = &job->steps[job->first];
    const int64_t height = job->steps[job->last].out_height;
    const bool uneven = s->images == 1 && s->parts == threads;
    int64_t begin = 0;
    double share = 0; /* of this part and those before */
    job->bands = 1;
    for (int64_t part = 0; part < s->parts; part++) {
        const int64_t behind = s->parts - part - 1; /* parts */
        job->threads[part].begin = begin;
        share += 1.0 / (double)s->parts + (uneven ? job->threads[part].lead : 0);
        int64_t end = (int64_t)((double)height * share + 0.5);
        end = q7_max(end, q7_max(begin + s->fewest, height - behind * s->most));
        end = q7_min(end, q7_min(begin + s->most, height - behind * s->fewest));
        job->bands = q7_max(job->bands, q7_ceil_div(end - begin, s->lines));
        begin = end;
    }
}

/* Lines in a nanosecond of a region that began then. */
static double rate_of(const q7_band_thread *t, int64_t begin_ns) {
    return (double)t->made / (double)(t->end_ns - begin_ns + 1);
}

/* Moves each thread's lead towards what it was faster by in a region that began then. */
static void compare(q7_band_thread *all, int64_t threads, int64_t begin_ns) {
    double sum = 0;
    int64_t end_ns = begin_ns;
    for (int64_t i = 0; i < threads; i++) {
        if (!all[i].made) return; /* was not there: by how much it is slower is not known */
        sum += rate_of(&all[i], begin_ns);
        end_ns = q7_max(end_ns, all[i].end_ns);
    }
    const double weight = (double)(end_ns - begin_ns) / (double)(end_ns - begin_ns + LATELY_NS);
    for (int64_t i = 0; i < threads; i++) {
        const double share = rate_of(&all[i], begin_ns) / sum;
        all[i].lead += weight * (share - 1.0 / (double)threads - all[i].lead);
    }
}

void q7_bands_run(const q7_plan *plan, const unsigned char *image, const q7_call *calls,
                  const q7_band_step *steps, int64_t first, unsigned char *rooms,
                  q7_band_thread *threads, int64_t *step_ns) {
    bands_job job = {plan,  image,   calls, steps,  first, steps[first].last,
                     rooms, threads, 1,     step_ns};
    const int64_t count = calls[first].threads;
    cut(&job, count);
    for (int64_t i = 0; i < count; i++) {
        threads[i].task = -2; /* before none */
        threads[i].made = 0;
    }
    const int64_t begin_ns = q7_now_ns();
    q7_parallel(&calls[first], steps[first].images * steps[first].parts * job.bands, bands_task,
                &job);
    compare(threads, count, begin_ns);
}
