/* conv2d and the gradient of its input. Both gather: with stride u the latter falls into u phases
 * per axis, in each of which the result's pixels h = phase + i u see the same taps of the filter.
 */
#include "ops/cpu/conv.h"

static const mn_conv2d_attributes *attributes_of(const mn_call *call)
{
    return (const void *)call->attributes.bytes;
}

static mn_matrix image_of(const mn_call *call, const mn_view *view)
{
    return (mn_matrix){call, view, view->shape[2] * view->shape[3]};
}

/* ---- forward --------------------------------------------------------------------------------- */

static void pack_forward(const mn_conv_gather *g, int64_t group, int64_t panel, float *dst)
{
    const int64_t width = g->kernels->columns, first = panel * width;
    const mn_matrix w = {g->call, g->weights, g->depth};
    mn_region region = {group * g->columns + first, 0, mn_min(width, g->columns - first), g->depth};
    mn_pack_transposed(g->kernels, &w, &region, dst);
}

static mn_conv_gather forward(const mn_call *call, int64_t phase)
{
    const mn_conv2d_attributes *attributes = attributes_of(call);
    const mn_view *x = &call->in[0], *w = &call->in[1], *y = &call->out[0];
    const mn_conv_axis v = mn_conv_axis_forward(attributes, 0, x->shape[1], y->shape[1],
                                                w->shape[1]),
                       h = mn_conv_axis_forward(attributes, 1, x->shape[2], y->shape[2],
                                                w->shape[2]);
    (void)phase;
    return (mn_conv_gather){.call = call,
                            .weights = w,
                            .bias = mn_has_input(call, 2) ? &call->in[2] : NULL,
                            .strips = {.image = image_of(call, x),
                                       .images = x->shape[0],
                                       .channels = x->shape[3],
                                       .group_channels = x->shape[3] / attributes->groups,
                                       .y = v,
                                       .x = h},
                            .phases = {1, 1},
                            .phase = {{v}, {h}},
                            .groups = attributes->groups,
                            .columns = w->shape[0] / attributes->groups,
                            .pack = pack_forward,
                            .moments = call->op == &mn_ops[MN_OP_conv2d_moments]
                                           ? mn_moments_of(call, y)
                                           : (mn_moments){.slots = 0}};
}

/* ---- gradient of the input ------------------------------------------------------------------- */

static int64_t greatest_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Axis of the phase. Pixel h = phase + i u takes from g[p] by tap r where p u = h + padding - r d:
 * the taps with u | phase + padding - r d, each u / gcd(u, d) after the one before. */
static mn_conv_axis phase_axis(const mn_conv2d_attributes *a, int axis, int64_t phase, int64_t size,
                               int64_t taps)
{
    const int64_t u = a->stride[axis], d = a->dilation[axis], pad = a->padding[axis];
    const int64_t common = greatest_divisor(u, d), step = u / common;
    int64_t first = 0;
    while (first < taps && first < step && (phase + pad - first * d) % u != 0)
        first++;
    const bool found = first < taps && first < step;
    return (mn_conv_axis){.size = size,
                          .points =
                              a->extent[axis] > phase ? mn_ceil_div(a->extent[axis] - phase, u) : 0,
                          .step = 1,
                          .taps = found ? mn_ceil_div(taps - first, step) : 0,
                          .base = found ? (phase + pad - first * d) / u : 0,
                          .delta = -(d / common),
                          .filter_base = first,
                          .filter_step = step,
                          .out_base = phase,
                          .out_step = u};
}

/* Depth runs over (phase, row tap, column tap, output channel k); columns are input channels. */
static void pack_phases(const mn_conv_gather *g, int64_t group, int64_t panel, float *dst)
{
    const int64_t width = g->kernels->columns, first = panel * width;
    const int64_t terms = g->strips.group_channels;
    const int64_t R = g->weights->shape[1], S = g->weights->shape[2];
    /* Row k is that channel's filter. */
    const mn_matrix w = {g->call, g->weights, R * S * g->columns};
    for (int64_t i = 0; i < g->phases[0] * g->phases[1]; i++) {
        const mn_conv_axis *y = &g->phase[0][i / g->phases[1]], *x = &g->phase[1][i % g->phases[1]];
        for (int64_t t = 0; t < y->taps * x->taps; t++, dst += terms * width) {
            int64_t r = y->filter_base + t / x->taps * y->filter_step;
            int64_t s = x->filter_base + t % x->taps * x->filter_step;
            mn_region region = {group * terms, (r * S + s) * g->columns + first, terms,
                                mn_min(width, g->columns - first)};
            mn_pack_straight(g->kernels, &w, &region, dst, 0);
        }
    }
}

/* Phases that share strips. Planes take one at a time. */
static bool together(const mn_call *call)
{
    const mn_conv2d_attributes *a = attributes_of(call);
    return a->stride[0] <= MN_PHASES && a->stride[1] <= MN_PHASES &&
           (a->groups > 1 || call->in[1].shape[3] > MN_PLANES_COLUMNS);
}

/* As many points as the first phase has, seen through whatever taps there are. */
static mn_conv_axis cover(mn_conv_axis *phase, int64_t phases)
{
    mn_conv_axis all = phase[0];
    int64_t low = INT64_MAX, high = INT64_MIN;
    for (int64_t i = 0; i < phases; i++) {
        phase[i].points = all.points;
        if (phase[i].taps == 0)
            continue;
        low = mn_min(low, mn_conv_low(&phase[i]));
        high = mn_max(high, mn_conv_low(&phase[i]) + mn_conv_extent(&phase[i], 1));
    }
    if (phases > 1 && low < high) {
        all.base = low;
        all.delta = 1;
        all.taps = high - low;
    }
    return all;
}

/* Calls of the gathering convolution. */
static int64_t phase_count(const mn_call *call)
{
    const mn_conv2d_attributes *a = attributes_of(call);
    /* Phases beyond the image are empty. */
    return together(call) ? 1
                          : mn_min(a->stride[0], a->extent[0]) * mn_min(a->stride[1], a->extent[1]);
}

static mn_conv_gather backward_phase(const mn_call *call, int64_t phase)
{
    const mn_conv2d_attributes *a = attributes_of(call);
    const mn_view *g = &call->in[0], *w = &call->in[1];
    const int64_t across = mn_min(a->stride[1], a->extent[1]);
    const int64_t first[] = {phase / mn_max(across, 1), phase % mn_max(across, 1)};
    mn_conv_gather gather = {.call = call,
                             .weights = w,
                             .strips = {.image = image_of(call, g),
                                        .images = g->shape[0],
                                        .channels = g->shape[3],
                                        .group_channels = g->shape[3] / a->groups},
                             .groups = a->groups,
                             .columns = w->shape[3],
                             .pack = pack_phases};
    for (int axis = 0; axis < 2; axis++) {
        gather.phases[axis] = together(call) ? a->stride[axis] : 1;
        for (int64_t i = 0; i < gather.phases[axis]; i++)
            gather.phase[axis][i] =
                phase_axis(a, axis, first[axis] + i, g->shape[1 + axis], w->shape[1 + axis]);
    }
    gather.strips.y = cover(gather.phase[0], gather.phases[0]);
    gather.strips.x = cover(gather.phase[1], gather.phases[1]);
    return gather;
}

/* ---- entry ----------------------------------------------------------------------------------- */

/* Phases run one after the other and share the workspace. */
static mn_status prepare(const mn_call *call, int64_t phases,
                         mn_conv_gather (*gather_of)(const mn_call *call, int64_t phase),
                         size_t *bytes)
{
    *bytes = 0;
    for (int64_t phase = 0; phase < phases; phase++) {
        mn_conv_gather gather = gather_of(call, phase);
        MN_TRY(mn_gather_plan(&gather));
        *bytes = gather.workspace_bytes > *bytes ? gather.workspace_bytes : *bytes;
    }
    return MN_OK;
}

static void run(const mn_call *call, int64_t phases,
                mn_conv_gather (*gather_of)(const mn_call *call, int64_t phase))
{
    for (int64_t phase = 0; phase < phases; phase++) {
        mn_conv_gather gather = gather_of(call, phase);
        if (mn_gather_plan(&gather) != MN_OK)
            continue;
        mn_gather_run(&gather);
        double *moments = gather.moments.call ? call->out[1].data : NULL;
        if (moments)
            mn_moments_merge(&gather.moments, moments, moments + gather.moments.channels);
    }
}

mn_status mn_cpu_conv2d_prepare(const mn_call *call, mn_plan *plan, size_t *workspace_bytes)
{
    (void)plan;
    return prepare(call, 1, forward, workspace_bytes);
}

void mn_cpu_conv2d(const mn_call *call)
{
    run(call, 1, forward);
}

mn_status mn_cpu_conv2d_backward_input_prepare(const mn_call *call, mn_plan *plan,
                                               size_t *workspace_bytes)
{
    (void)plan;
    return prepare(call, phase_count(call), backward_phase, workspace_bytes);
}

void mn_cpu_conv2d_backward_input(const mn_call *call)
{
    run(call, phase_count(call), backward_phase);
}
