/* Gradients and optimizers: f32 tensors and f64 records. */
#include "ops/cpu/run.h"

#include "core/math.h"

#include <stdatomic.h>

static double *record_of(const mn_call *call, int input)
{
    return call->in[input].data;
}

/* ---- unscale --------------------------------------------------------------------------------- */

typedef struct unscaling {
    const mn_call *call;
    float inverse;
    atomic_bool *found;
} unscaling;

static void run_unscale(const void *arg, int64_t begin, int64_t end)
{
    const unscaling *u = arg;
    float *g = mn_element(&u->call->in[0], begin);
    if (mn_bodies_of(u->call)->unscale((size_t)(end - begin), u->inverse, g))
        atomic_store_explicit(u->found, true, memory_order_relaxed);
}

void mn_cpu_grad_unscale(const mn_call *call)
{
    double *scaler = record_of(call, 1), *optimizer = record_of(call, 2);
    atomic_bool found = false;
    const unscaling u = {call, (float)(1 / scaler[MN_SCALER_SCALE]), &found};
    if (mn_isfinite_f32(u.inverse))
        mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_unscale, &u);
    else
        found = true;
    if (found)
        scaler[MN_SCALER_FOUND_INF] = optimizer[MN_OPT_FOUND_INF] = 1;
}

/* ---- norm and clip --------------------------------------------------------------------------- */

#define LEAVES    64
#define LEAF_UNIT 4096

typedef struct squares {
    const mn_call *call;
    int64_t leaf; /* elements, a multiple of LEAF_UNIT */
    double sum[LEAVES];
} squares;

static void run_squares(void *arg, int64_t index, int slot)
{
    squares *s = arg;
    const mn_view *g = &s->call->in[0];
    const int64_t begin = index * s->leaf, end = mn_min(begin + s->leaf, g->numel);
    (void)slot;
    for (int64_t i = begin; i < end; i += LEAF_UNIT)
        s->sum[index] += mn_bodies_of(s->call)->sum_squares((size_t)mn_min(LEAF_UNIT, end - i),
                                                            mn_element(g, i));
}

static double sum_of_squares(const mn_call *call)
{
    const int64_t n = call->in[0].numel;
    squares s = {.call = call};
    double sum = 0;
    s.leaf = mn_max(MN_CHUNK, mn_ceil_div(mn_ceil_div(n, LEAF_UNIT), LEAVES) * LEAF_UNIT);
    const int64_t leaves = mn_ceil_div(n, s.leaf);
    mn_call_parallel(call, leaves, run_squares, &s);
    for (int64_t i = 0; i < leaves; i++)
        sum += s.sum[i];
    return sum;
}

void mn_cpu_grad_norm(const mn_call *call)
{
    mn_norm_add((const void *)call->attributes.bytes, sum_of_squares(call), record_of(call, 1));
}

static void run_clip(const void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const float clip = (float)record_of(call, 1)[MN_OPT_CLIP];
    mn_bodies_of(call)->scale((size_t)(end - begin), clip, mn_element(&call->in[0], begin));
}

void mn_cpu_grad_clip(const mn_call *call)
{
    if (record_of(call, 1)[MN_OPT_CLIP] != 1)
        mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_clip, call);
}

/* ---- SGD ------------------------------------------------------------------------------------- */

typedef struct stepping {
    const mn_call *call;
    mn_sgd_factors factors;
    bool skip;
} stepping;

/* Shadows are rewritten while the parameters are still in the nearest cache. */
static void run_step(const void *arg, int64_t begin, int64_t end)
{
    const stepping *s = arg;
    const mn_call *call = s->call;
    const mn_bodies *bodies = mn_bodies_of(call);
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(end - i, MN_BLOCK);
        const float *g = mn_element(&call->in[1], i);
        float *p = mn_element(&call->in[0], i);
        if (!s->skip && mn_has_input(call, 2))
            bodies->sgd_momentum((size_t)n, &s->factors, g, p, mn_element(&call->in[2], i));
        else if (!s->skip)
            bodies->sgd((size_t)n, &s->factors, g, p);
        for (int k = 4; k < 6; k++)
            if (mn_has_input(call, k))
                mn_row_store(call, &call->in[k], i, n, p);
    }
}

void mn_cpu_sgd_step(const mn_call *call)
{
    const mn_sgd_attributes *a = (const void *)call->attributes.bytes;
    const double *record = record_of(call, 3);
    stepping s = {.call = call,
                  .factors = {.lr = (float)record[MN_OPT_LR],
                              .momentum = (float)a->momentum,
                              .weight_decay = (float)a->weight_decay,
                              .nesterov = a->nesterov != 0},
                  .skip = record[MN_OPT_FOUND_INF] != 0};
    mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_step, &s);
}
