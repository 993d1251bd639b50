/* Gradients and optimizers: f32 tensors and f64 records. */
#include "ops/cpu/run.h"

#include "core/math.h"

#include <math.h>
#include <stdatomic.h>

static double *record_of(const mn_call *call, int input)
{
    return call->in[input].data;
}

/* ---- unscale --------------------------------------------------------------------------------- */

typedef struct unscaling {
    const mn_call *call;
    float inverse;
    atomic_bool found;
} unscaling;

static void run_unscale(void *arg, int64_t begin, int64_t end)
{
    unscaling *u = arg;
    float *g = mn_element(&u->call->in[0], begin);
    if (mn_bodies_of(u->call)->unscale((size_t)(end - begin), u->inverse, g))
        atomic_store_explicit(&u->found, true, memory_order_relaxed);
}

void mn_cpu_grad_unscale(const mn_call *call)
{
    double *scaler = record_of(call, 1), *optimizer = record_of(call, 2);
    unscaling u = {.call = call, .inverse = (float)(1 / scaler[MN_SCALER_SCALE])};
    if (mn_isfinite_f32(u.inverse))
        mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_unscale, &u);
    else
        u.found = true;
    if (u.found)
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
    const int64_t begin = index * s->leaf, end = mn_min64(begin + s->leaf, g->numel);
    (void)slot;
    for (int64_t i = begin; i < end; i += LEAF_UNIT)
        s->sum[index] += mn_bodies_of(s->call)->sum_squares((size_t)mn_min64(LEAF_UNIT, end - i),
                                                            mn_element(g, i));
}

static double sum_of_squares(const mn_call *call)
{
    const int64_t n = call->in[0].numel;
    squares s = {.call = call};
    double sum = 0;
    if (n == 0)
        return 0;
    const int64_t units = (n - 1) / LEAF_UNIT + 1;
    s.leaf = LEAF_UNIT * mn_max64(MN_CHUNK / LEAF_UNIT, (units - 1) / LEAVES + 1);
    const int64_t leaves = (n - 1) / s.leaf + 1;
    mn_call_parallel(call, leaves, run_squares, &s);
    for (int64_t i = 0; i < leaves; i++)
        sum += s.sum[i];
    return sum;
}

void mn_cpu_grad_norm(const mn_call *call)
{
    const mn_norm_attributes *a = (const void *)call->attributes.bytes;
    double *record = record_of(call, 1);
    if (a->first)
        record[MN_OPT_NORM_SQ] = 0;
    record[MN_OPT_NORM_SQ] += sum_of_squares(call);
    if (!a->last)
        return;
    const double norm = sqrt(record[MN_OPT_NORM_SQ]);
    const double clip = isinf(a->max_norm) ? 1 : a->max_norm / (norm + 1e-6);
    record[MN_OPT_NORM] = norm;
    record[MN_OPT_CLIP] = clip > 1 ? 1 : clip; /* NaN stays */
    record[MN_OPT_BAD_NORM] = !mn_isfinite_f64(norm);
}

static void run_clip(void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const float clip = (float)record_of(call, 1)[MN_OPT_CLIP];
    mn_bodies_of(call)->scale((size_t)(end - begin), clip, mn_element(&call->in[0], begin));
}

void mn_cpu_grad_clip(const mn_call *call)
{
    mn_call copy = *call;
    if (record_of(call, 1)[MN_OPT_CLIP] != 1)
        mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_clip, &copy);
}

/* ---- SGD ------------------------------------------------------------------------------------- */

typedef struct stepping {
    const mn_call *call;
    mn_sgd_factors factors;
    bool skip;
} stepping;

static void step_block(const stepping *s, int64_t start, int64_t n)
{
    const mn_call *call = s->call;
    const mn_bodies *bodies = mn_bodies_of(call);
    float *p = mn_element(&call->in[0], start);
    const float *g = mn_element(&call->in[1], start);
    if (s->skip)
        return;
    if (mn_has_input(call, 2))
        bodies->sgd_momentum((size_t)n, &s->factors, g, p, mn_element(&call->in[2], start));
    else
        bodies->sgd((size_t)n, &s->factors, g, p);
}

/* Shadows are rewritten while the parameters are still in the nearest cache. */
static void run_step(void *arg, int64_t begin, int64_t end)
{
    const stepping *s = arg;
    const mn_call *call = s->call;
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min64(end - i, MN_BLOCK);
        step_block(s, i, n);
        for (int k = 4; k < 6; k++)
            if (mn_has_input(call, k))
                call->cpu->converters[call->in[k].dtype].from_f32(
                    (size_t)n, mn_element(&call->in[0], i), mn_element(&call->in[k], i));
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
