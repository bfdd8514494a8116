/* pair_probabilities.c: the probabilities p (N, k) of classes that fit best what each pair of them says by
 * a score (N, k (k - 1) / 2): the first of the two has r = 1 / (1 + exp(a score + b)) of both. p minimises
 * the sum of (r[j, i] p[i] - r[i, j] p[j])^2. Source: Wu, Lin and Weng 2004, the second approach, one
 * coordinate after the other until the gradient is 0.005 / k from even. */
#include <math.h>

#include "loops.h"

enum { ROWS = 16, LEAST_ROUNDS = 100 };

static float share_of(float score, float a, float b) {
    const float r = 1 / (1 + expf(score * a + b));
    return r < 1e-7f ? 1e-7f : r > 1 - 1e-7f ? 1 - 1e-7f : r;
}

/* q (k, k), of which the sum to be least is p q p. */
static void quadratic_form(const q7_pair_probabilities_args *x, const float *score, float *q) {
    const int64_t k = x->k;
    const float *a = (const float *)x->a, *b = (const float *)x->b;
    for (int64_t i = 0; i < k; i++) q[i * k + i] = 0;
    for (int64_t i = 0, pair = 0; i < k; i++)
        for (int64_t j = i + 1; j < k; j++, pair++) {
            const float r = share_of(score[pair], a[pair], b[pair]);
            q[i * k + j] = q[j * k + i] = -r * (1 - r);
            q[i * k + i] += (1 - r) * (1 - r);
            q[j * k + j] += r * r;
        }
}

static void fit(int64_t k, const float *q, float *qp, float *p) {
    for (int64_t i = 0; i < k; i++) p[i] = 1 / (float)k;
    for (int64_t round = 0; round < q7_max(LEAST_ROUNDS, k); round++) {
        float pqp = 0, most = 0;
        for (int64_t i = 0; i < k; i++) {
            qp[i] = 0;
            for (int64_t j = 0; j < k; j++) qp[i] += q[i * k + j] * p[j];
            pqp += p[i] * qp[i];
        }
        for (int64_t i = 0; i < k; i++) most = fmaxf(most, fabsf(qp[i] - pqp));
        if (most < 0.005f / (float)k) return;
        for (int64_t t = 0; t < k; t++) {
            const float own = q[t * k + t], step = (pqp - qp[t]) / own, by = 1 / (1 + step);
            p[t] += step;
            pqp = (pqp + step * (step * own + 2 * qp[t])) * by * by;
            for (int64_t i = 0; i < k; i++) {
                qp[i] = (qp[i] + step * q[t * k + i]) * by;
                p[i] *= by;
            }
        }
    }
}

static void rows_task(void *arg, int64_t task, int64_t thread) {
    const q7_pair_probabilities_args *x = arg;
    const int64_t k = x->k, pairs = k * (k - 1) / 2;
    float *q = (float *)x->work + thread * (k * k + k);
    for (int64_t row = task * ROWS; row < q7_min((task + 1) * ROWS, x->N); row++) {
        quadratic_form(x, (const float *)x->scores + row * pairs, q);
        fit(k, q, q + k * k, (float *)x->p + row * k);
    }
}

void q7_op_pair_probabilities(const q7_pair_probabilities_args *args, const q7_call *call) {
    q7_parallel(call, q7_ceil_div(args->N, ROWS), rows_task, (void *)args);
}
