/* Gradients and optimizers: f32 tensors, f64 records and 16-bit parameters. */
#include "ops/cpu/run.h"

#include "core/math.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

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

/* ---- steps ----------------------------------------------------------------------------------- */

typedef struct stepping {
    const mn_call *call;
    mn_step_body *body;
    mn_step_factors factors;
    mn_draw draw;
} stepping;

static void *state_of(const mn_call *call, int input, int64_t index)
{
    return mn_has_input(call, input) ? mn_element(&call->in[input], index) : NULL;
}

/* The row of the master, which follows a parameter that something else has written. */
static float *master_of(const mn_call *call, int64_t i, int64_t n, const float *p)
{
    const mn_converter *convert = &call->cpu->converters[call->in[0].dtype];
    float *master = mn_element(&call->in[7], i), back[MN_BLOCK];
    uint16_t narrow[MN_BLOCK];
    convert->from_f32((size_t)n, master, narrow);
    convert->to_f32((size_t)n, narrow, back);
    for (int64_t j = 0; j < n; j++)
        master[j] = back[j] == p[j] ? master[j] : p[j];
    return master;
}

/* A row of a 16-bit parameter, by its master or widened in scratch, which is left as the new p. */
static void step_narrow(const stepping *s, int64_t i, int64_t n, float *scratch)
{
    const mn_call *call = s->call;
    const mn_step_attributes *a = (const void *)call->attributes.bytes;
    float *p = mn_has_input(call, 7) ? master_of(call, i, n, scratch) : scratch;
    s->body((size_t)n, &s->factors, mn_element(&call->in[1], i), p, state_of(call, 2, i),
            state_of(call, 3, i));
    if (a->stochastic) {
        memset(scratch + n, 0, (size_t)(-n & 7) * sizeof *scratch);
        mn_bodies_of(call)->round_bf16((size_t)mn_ceil_div(n, 8), &s->draw, (uint32_t)(i / 8),
                                       scratch);
    }
    mn_row_store(call, &call->in[0], i, n, p);
    mn_row_load(call, &call->in[0], i, n, scratch);
}

/* Shadows are rewritten while the parameters are still in the nearest cache. */
static void run_step(const void *arg, int64_t begin, int64_t end)
{
    const stepping *s = arg;
    const mn_call *call = s->call;
    const bool skip = record_of(call, 4)[MN_OPT_FOUND_INF] != 0;
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(end - i, MN_BLOCK);
        float scratch[MN_BLOCK], *p = mn_row_place(&call->in[0], i, scratch);
        mn_row_load(call, &call->in[0], i, n, scratch);
        if (!skip && p == scratch)
            step_narrow(s, i, n, scratch);
        else if (!skip)
            s->body((size_t)n, &s->factors, mn_element(&call->in[1], i), p, state_of(call, 2, i),
                    state_of(call, 3, i));
        for (int k = 5; k < 7; k++)
            if (mn_has_input(call, k))
                mn_row_store(call, &call->in[k], i, n, p);
    }
}

static stepping stepping_of(const mn_call *call)
{
    const mn_step_attributes *a = (const void *)call->attributes.bytes;
    const double *record = record_of(call, 4);
    const double lr = a->lr * record[MN_OPT_FACTOR], t = record[MN_OPT_APPLIED] + 1;
    const uint64_t step = (uint64_t)record[MN_OPT_APPLIED];
    const mn_bodies *bodies = mn_bodies_of(call);
    stepping s = {.call = call,
                  .draw = {{a->key[0], a->key[1]}, {(uint32_t)step, (uint32_t)(step >> 32)}},
                  .body = call->op == &mn_ops[MN_OP_sgd_step] ? bodies->sgd : bodies->rmsprop,
                  .factors = {.lr = (float)lr,
                              .weight_decay = (float)a->weight_decay,
                              .rate = {(float)a->rate[0], (float)a->rate[1]},
                              .rest = {(float)(1 - a->rate[0]), (float)(1 - a->rate[1])},
                              .eps = (float)a->eps,
                              .keep = 1,
                              .variant = a->variant != 0}};
    if (call->op != &mn_ops[MN_OP_adam_step])
        return s;
    s.body = bodies->adam;
    s.factors.lr = (float)(lr / (1 - pow(a->rate[0], t)));
    s.factors.root = (float)(1 / sqrt(1 - pow(a->rate[1], t)));
    if (a->variant) {
        s.factors.keep = (float)(1 - lr * a->weight_decay);
        s.factors.weight_decay = 0;
    }
    return s;
}

/* Of the three optimizers. */
void mn_cpu_step(const mn_call *call)
{
    const stepping s = stepping_of(call);
    mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_step, &s);
}
