/* bands.h: convolutions that follow one another, run band by band: a few lines of the last image,
 * before them the lines of each image that those need, and so on, so that images between steps are
 * never whole, and stay in L2.
 *
 * A step is linked to the next where nothing else touches the image that it writes. Of such an image
 * each thread has room for a band; the lines that the next band needs as well are moved to its front.
 * Those rooms begin at one place for all bands of a plan, which stays in a thread's caches (exec.c).
 * Each thread has a part of the lines, the larger the faster it was lately: others use the cores, too.
 * A task is a band of a part, and a thread that has not made the one above it computes what it needs
 * of that again; bands end before a step for which that costs more than its image in memory. Every
 * element is the sum that it would be otherwise: drivers see images of fewer lines. Where a step reads
 * all of its weights for each band (conv_last), a part is one band. Read exec.c first. */
#ifndef Q7_BANDS_H
#define Q7_BANDS_H
#include "arena.h"
#include "plan.h"

enum { Q7_BANDS_STEPS = 8 /* of bands, at most */, Q7_BANDS_NONE = -1, Q7_BANDS_INSIDE = -2 };

/* What a step does to lines, for the bound shapes. Units: lines; floats. */
typedef struct q7_band_step {
    int64_t images, height, out_height; /* images: 0 where a step cannot be run in bands */
    int64_t stride, reach, pad; /* line i of y is made of reach lines from i * stride - pad on */
    int64_t work;               /* multiply-adds of a line of y */
    int64_t line, out_line;     /* floats of x, of y from one line to the next */
    int64_t room;               /* lines of y that a thread has room for, where that is linked, */
    int64_t room_at;            /* and where they are in a thread's room, in bytes */
    bool whole;                 /* it makes all lines of a part at once */
    int64_t last; /* the last step of the bands that this is the first of, or Q7_BANDS_* */
    /* Of the last image: parts, and lines: of a part at least and at most, of a band at most. */
    int64_t parts, fewest, most, lines;
} q7_band_step;

/* The lines [from, to) of y that a step makes next, [begin, end) of x that they need; `kept`: the line
 * of y that its room begins with, if it has one. */
typedef struct q7_band_lines {
    int64_t from, to, begin, end, kept;
} q7_band_lines;

/* What a thread is to do, has done, and how fast it is. */
typedef struct q7_band_thread {
    double lead;          /* its share of an image's lines, less that of the average thread */
    int64_t begin;        /* the line that the part which is its own begins with */
    int64_t made, end_ns; /* lines, when the last was done */
    int64_t task;         /* the last */
    q7_band_lines steps[Q7_BANDS_STEPS];
} q7_band_thread;

/* For each step the buffer of the image that it writes for the next alone, or -1. */
void q7_bands_link(const q7_plan *plan, int64_t *links);

/* What is run in bands, for the args in image, which need no pointers yet. steps: one for each of the
 * plan. */
void q7_bands_find(const q7_plan *plan, const unsigned char *image, int64_t threads,
                   q7_band_step *steps);

/* Sizes and lifetimes of buffers, as they are with bands. rooms: becomes alive while bands are run. Returns
 * the bytes of a thread's room for images between steps. */
int64_t q7_bands_adjust(const q7_plan *plan, q7_band_step *steps, q7_interval *intervals,
                        q7_interval *rooms);

/* Runs the bands that begin with step `first`. rooms: of threads; threads: as many as calls have, zero
 * before the first run, kept from run to run. step_ns: as for q7_profile. */
void q7_bands_run(const q7_plan *plan, const unsigned char *image, const q7_call *calls,
                  const q7_band_step *steps, int64_t first, unsigned char *rooms,
                  q7_band_thread *threads, int64_t *step_ns);
#endif
