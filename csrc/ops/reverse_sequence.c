/* reverse_sequence.c: of every batch entry b the first lengths[b] steps of time come in reverse
 * order, the rest as it is. x (time, batch, inner_bytes) if time_first, else (batch, time,
 * inner_bytes); lengths int64. A length out of 0..time is a data fault. ONNX ReverseSequence. */
#include <string.h>

#include "loops.h"

typedef struct reverse_job {
    const q7_reverse_sequence_args *args;
    const q7_call *call;
} reverse_job;

static void reverse_task(void *arg, int64_t outer, int64_t thread) {
    const reverse_job *job = arg;
    const q7_reverse_sequence_args *args = job->args;
    (void)thread;
    const int64_t bytes = args->inner_bytes, inner = args->inner;
    const int64_t time = args->time_first ? args->outer : inner;
    for (int64_t i = 0; i < inner; i++) {
        const int64_t b = args->time_first ? i : outer, t = args->time_first ? outer : i;
        const int64_t length = ((const int64_t *)args->lengths)[b];
        if (length < 0 || length > time) {
            q7_fault(job->call, "sequence length out of range", length, 0, time + 1);
            return;
        }
        const int64_t source = t < length ? length - 1 - t : t;
        const int64_t from = args->time_first ? source * inner + b : b * inner + source;
        memcpy((char *)args->y + (outer * inner + i) * bytes, (const char *)args->x + from * bytes,
               (size_t)bytes);
    }
}

void q7_op_reverse_sequence(const q7_reverse_sequence_args *args, const q7_call *call) {
    reverse_job job = {args, call};
    q7_parallel(call, args->outer, reverse_task, &job);
}
