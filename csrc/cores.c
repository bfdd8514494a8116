/* cores.c: see cores.h. */
#define _GNU_SOURCE /* affinities under -std=c11 */
#include "cores.h"

#include <unistd.h>

int64_t q7_clock_ns(clockid_t clock) {
    struct timespec t;
    if (clock_gettime(clock, &t)) return -1;
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#if defined(__linux__)
int q7_core(void) { return sched_getcpu(); }

int64_t q7_ran_ns(const q7_worker *who) {
    clockid_t clock;
    return pthread_getcpuclockid(who->thread, &clock) ? -1 : q7_clock_ns(clock);
}

void q7_as_process(void) {
    cpu_set_t cores;
    if (!sched_getaffinity(getpid(), sizeof cores, &cores))
        (void)sched_setaffinity(0, sizeof cores, &cores);
}

static bool get(const q7_worker *w, cpu_set_t *cores) {
    return !pthread_getaffinity_np(w->thread, sizeof *cores, cores);
}

static bool set(const q7_worker *w, const cpu_set_t *cores) {
    return !pthread_setaffinity_np(w->thread, sizeof *cores, cores);
}

/* Takes what others have made of a worker's cores meanwhile for what it has. */
static void look(q7_worker *w) {
    cpu_set_t now, whole;
    if (!get(w, &now)) return;
    whole = now;
    if (w->without >= 0) CPU_SET(w->without, &whole);
    if (w->without >= 0 && CPU_EQUAL(&whole, &w->cores)) return;
    w->cores = now;
    w->without = -1;
}

void q7_keep_off(q7_worker *who, int caller) {
    if (caller < 0 || caller == who->without) return;
    look(who);
    cpu_set_t others = who->cores;
    CPU_CLR(caller, &others);
    if (CPU_COUNT(&others) > 0 && set(who, &others)) who->without = caller;
}

void q7_after_sleep(q7_worker *me) {
    if (me->without < 0) return;
    look(me);
    if (me->without >= 0) (void)set(me, &me->cores);
    me->without = -1;
}

void q7_fetch(q7_worker *who) {
    const int core = q7_core();
    cpu_set_t here;
    CPU_ZERO(&here);
    if (core < 0 || !get(who, &who->cores) || !CPU_ISSET(core, &who->cores)) return;
    CPU_SET(core, &here);
    who->fetched = set(who, &here);
}

bool q7_let_go(q7_worker *me) {
    const bool fetched = me->fetched;
    me->fetched = false;
    if (fetched) (void)set(me, &me->cores);
    return fetched;
}
#else
int q7_core(void) { return -1; }

int64_t q7_ran_ns(const q7_worker *who) {
    (void)who;
    return -1;
}

void q7_as_process(void) {}

void q7_keep_off(q7_worker *who, int caller) {
    (void)who;
    (void)caller;
}

void q7_after_sleep(q7_worker *me) { (void)me; }

void q7_fetch(q7_worker *who) { (void)who; }

bool q7_let_go(q7_worker *me) {
    (void)me;
    return false;
}
#endif
