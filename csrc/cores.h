/* cores.h: which cores a worker of the pool may run on. Linux alone is told; elsewhere nothing is done. */
#ifndef Q7_CORES_H
#define Q7_CORES_H
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

typedef struct q7_worker {
    pthread_t thread;
#if defined(__linux__)
    cpu_set_t cores; /* that it had before it slept or was fetched */
#endif
    bool sleeps, fetched; /* under the pool's lock, under which others change the rest as well */
    int without;          /* a core of them where it is not to be woken, or -1 */
} q7_worker;

int64_t q7_clock_ns(clockid_t clock);    /* or -1 */
int q7_core(void);                       /* this thread's, or -1 */
int64_t q7_ran_ns(const q7_worker *who); /* for how long a worker has run so far, or -1 */

/* Gives this thread the cores of the process, its first thread's: a worker works for all, and he who starts
 * it may be confined to a few. */
void q7_as_process(void);

/* A worker that sleeps is not to be woken on its caller's core. Linux would put it there on a virtual
 * machine that has been idle, since other cores count as busy while the hypervisor has them: the two
 * would wait for each other until the load is balanced, some ms later. */
void q7_keep_off(q7_worker *who, int caller); /* before it sleeps, or before it is woken */
void q7_after_sleep(q7_worker *me);

/* A worker that has begun a task, and whose core Linux has then given to another program, for some ms, can
 * have that of its caller, which sleeps until the task is done. */
void q7_fetch(q7_worker *who);
bool q7_let_go(q7_worker *me); /* whether it had been fetched */
#endif
