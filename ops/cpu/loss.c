/* Losses element by element, with their mean or sum in the same pass, and their gradient. */
#include "ops/cpu/run.h"

#include <string.h>

#define LEAVES 64   /* sums made in parallel */
#define TERMS  1024 /* most f32 terms in a lane */

_Static_assert(MN_LOSS_KINDS == (int)MN_LOSS_COUNT, "one body per loss");

typedef struct losses {
    const mn_call *call;
    const mn_pointwise_loss_attributes *attributes;
    int64_t n, per_leaf;
    double sum[LEAVES];
} losses;

/* Losses of n elements from `start` on, or their slopes: x and t are inputs `first` and the next.
 */
static void run_body(const mn_call *call, mn_loss_body body, int first, int64_t start, int64_t n,
                     float *y)
{
    const mn_pointwise_loss_attributes *a = (const void *)call->attributes.bytes;
    float row[2][MN_BLOCK];
    const float *x = mn_row_load(call, &call->in[first], start, n, row[0]);
    const float *t = mn_row_load(call, &call->in[first + 1], start, n, row[1]);
    body((size_t)n, x, t, (float)a->delta, y);
}

/* Sum of up to TERMS blocks: f32 in lanes, the lanes in f64. */
static double sum_lanes(const losses *l, int64_t begin, int64_t end)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    float lane[MN_BLOCK] = {0}, y[MN_BLOCK];
    double sum = 0;
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(MN_BLOCK, end - i);
        run_body(l->call, bodies->loss[l->attributes->kind], 0, i, n, y);
        bodies->accumulate((size_t)n, lane, y);
    }
    for (int i = 0; i < MN_BLOCK; i++)
        sum += (double)lane[i];
    return sum;
}

static void run_leaf(void *arg, int64_t index, int slot)
{
    losses *l = arg;
    const int64_t begin = index * l->per_leaf, end = mn_min(begin + l->per_leaf, l->n);
    (void)slot;
    for (int64_t i = begin; i < end; i += TERMS * MN_BLOCK)
        l->sum[index] += sum_lanes(l, i, mn_min(end, i + TERMS * MN_BLOCK));
}

static void run_losses(const void *arg, int64_t begin, int64_t end)
{
    const losses *l = arg;
    const mn_loss_body body = mn_bodies_of(l->call)->loss[l->attributes->kind];
    for (int64_t i = begin; i < end; i += MN_BLOCK)
        run_body(l->call, body, 0, i, mn_min(MN_BLOCK, end - i), mn_element(&l->call->out[0], i));
}

/* The first probability out of range becomes the call's fault, whatever the number of threads. */
static void check_probabilities(const mn_call *call)
{
    float row[MN_BLOCK];
    for (int64_t i = 0; i < call->in[0].numel; i += MN_BLOCK) {
        const int64_t n = mn_min(MN_BLOCK, call->in[0].numel - i);
        const float *p = mn_row_load(call, &call->in[0], i, n, row);
        for (int64_t j = 0; j < n; j++)
            if (p[j] < 0 || p[j] > 1) {
                mn_call_fault(call, MN_ERR_ARGUMENT, "probability %lld is not in [0, 1]",
                              (long long)(i + j), 0);
                return;
            }
    }
}

void mn_cpu_pointwise_loss(const mn_call *call)
{
    const mn_pointwise_loss_attributes *a = (const void *)call->attributes.bytes;
    losses l = {.call = call, .attributes = a, .n = call->in[0].numel};
    double sum = 0;
    l.per_leaf = mn_max(MN_CHUNK, mn_ceil_div(l.n, LEAVES));
    if (a->kind == MN_LOSS_BCE)
        check_probabilities(call);
    if (a->reduction == MN_REDUCTION_NONE) {
        mn_run_ranges(call, l.n, MN_CHUNK, run_losses, &l);
        return;
    }
    mn_call_parallel(call, mn_ceil_div(l.n, l.per_leaf), run_leaf, &l);
    for (int64_t i = 0; i < LEAVES; i++)
        sum += l.sum[i];
    *(float *)call->out[0].data =
        (float)(a->reduction == MN_REDUCTION_MEAN ? sum / (double)l.n : sum);
}

/* Elements from begin to end. */
static void run_gradient(const void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_pointwise_loss_attributes *a = (const void *)call->attributes.bytes;
    const mn_bodies *bodies = mn_bodies_of(call);
    const float *g = call->in[0].data;
    const float mean = a->reduction == MN_REDUCTION_MEAN ? (float)call->in[1].numel : 1.0F;
    float result[MN_BLOCK], slope[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(MN_BLOCK, end - i);
        float *dx = mn_row_place(&call->out[0], i, result);
        run_body(call, bodies->slope[a->kind], 1, i, n, slope);
        if (a->reduction == MN_REDUCTION_NONE)
            bodies->binary[MN_OP_mul]((size_t)n, slope, g + i, dx);
        else
            bodies->mul_scalar((size_t)n, slope, *g / mean, dx);
        mn_row_store(call, &call->out[0], i, n, dx);
    }
}

void mn_cpu_pointwise_loss_backward(const mn_call *call)
{
    mn_run_ranges(call, call->out[0].numel, MN_CHUNK, run_gradient, call);
}
