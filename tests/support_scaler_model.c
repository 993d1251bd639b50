/* The model of grad scaler and optimizers. */
#include "tests/support_scaler_model.h"

#include "core/cpu.h"
#include "core/half.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- numbers --------------------------------------------------------------------------------- */

/* Rounded to f32, whatever the compiler and the floating-point mode make of casts. */
static double f32(double x)
{
    const unsigned mode = mn_fp_enter();
    volatile float narrow = (float)x;
    volatile double wide = (double)narrow;
    mn_fp_restore(mode);
    return wide;
}

static mn_model_number number(double x)
{
    if (fabs(x) > (double)FLT_MAX)
        return (mn_model_number){MN_INFINITE, x > 0 ? 1 : -1};
    return (mn_model_number){MN_FINITE, f32(x)};
}

static mn_model_number nan_number(void)
{
    return (mn_model_number){MN_NOT_A_NUMBER, 0};
}

static mn_model_number times(mn_model_number a, double factor)
{
    if (a.kind == MN_FINITE)
        return number(a.value * factor);
    if (a.kind == MN_NOT_A_NUMBER || factor == 0)
        return nan_number();
    return number(factor > 0 ? a.value * DBL_MAX : -a.value * DBL_MAX);
}

static mn_model_number plus(mn_model_number a, mn_model_number b)
{
    if (a.kind == MN_FINITE && b.kind == MN_FINITE)
        return number(a.value + b.value);
    if (a.kind == MN_NOT_A_NUMBER || b.kind == MN_NOT_A_NUMBER)
        return nan_number();
    if (a.kind == MN_INFINITE && b.kind == MN_INFINITE && a.value != b.value)
        return nan_number();
    return a.kind == MN_INFINITE ? a : b;
}

double mn_model_value(mn_model_number x)
{
    if (x.kind == MN_FINITE)
        return x.value;
    const uint32_t bits = x.kind == MN_NOT_A_NUMBER ? 0x7FC00000U
                          : x.value > 0             ? 0x7F800000U
                                                    : 0xFF800000U;
    return (double)mn_f32_from_bits(bits);
}

bool mn_model_same(mn_model_number wanted, double got, double reach)
{
    uint64_t bits;
    memcpy(&bits, &got, sizeof bits);
    const bool finite = (bits >> 52 & 0x7FF) != 0x7FF;
    if (wanted.kind == MN_FINITE)
        return finite && fabs(wanted.value - got) <= 1e-5 * reach;
    const bool infinite = !finite && bits << 12 == 0;
    return wanted.kind == MN_INFINITE ? infinite && (wanted.value < 0) == (bits >> 63)
                                      : !finite && !infinite;
}

/* ---- errors ---------------------------------------------------------------------------------- */

mn_status mn_model_fail(mn_model *m, mn_status status)
{
    if (m->pending == MN_OK)
        m->pending = status;
    return m->pending;
}

void mn_model_clear_error(mn_model *m)
{
    m->errors += m->pending != MN_OK;
    m->pending = MN_OK;
}

void mn_model_begin(mn_model *m, const mn_grad_scaler_options *options)
{
    *m = (mn_model){.scaler = {.options = *options, .scaling = 1}, .scalings = 1};
    m->scaler.scale = options->enabled ? f32(options->init_scale) : 1;
    m->optimizer[0].end = m->optimizer[1].first = 2;
    m->optimizer[1].end = MN_MODEL_LEAVES;
    m->optimizer[1].adam = true;
    for (int i = 0; i < MN_MODEL_LEAVES; i++) {
        for (int k = 0; k < MN_MODEL_ELEMENTS; k++)
            m->leaf[i].p[k] = number(0.5);
        m->leaf[i].reach = 1;
    }
}

/* ---- between steps --------------------------------------------------------------------------- */

static void forget(mn_model_optimizer *o)
{
    o->found = o->bad_norm = false;
}

static void ready(mn_model_optimizer *o)
{
    o->stage = MN_READY;
    o->broken_off = false;
}

static void enter(mn_model *m, mn_model_optimizer *o, mn_model_stage stage)
{
    o->stage = stage;
    o->broken_off = false;
    o->errors = m->errors;
}

static void change_scale(mn_model_scaler *s)
{
    const mn_grad_scaler_options *o = &s->options;
    const double before = s->scale;
    if (!s->found) {
        if (++s->tracker < o->growth_interval)
            return;
        s->tracker = 0;
        if (before * o->growth_factor <= (double)FLT_MAX)
            s->scale = fmin(f32(before * o->growth_factor), o->max_scale);
        return;
    }
    s->scale = fmax(f32(before * o->backoff_factor), o->min_scale);
    s->tracker = 0;
    s->backoffs++;
    if (s->scale >= before || s->scale <= 0x1p-128)
        s->collapsed = true;
}

mn_status mn_model_update(mn_model *m)
{
    if (m->pending != MN_OK || !m->scaler.options.enabled)
        return m->pending;
    if (m->scaler.checks == 0)
        return mn_model_fail(m, MN_ERR_STATE);
    for (int i = 0; i < MN_MODEL_OPTIMIZERS; i++) {
        if (m->optimizer[i].stage == MN_DIVIDED)
            forget(&m->optimizer[i]);
        ready(&m->optimizer[i]);
    }
    change_scale(&m->scaler);
    m->scaler.updates++;
    m->scaler.found = false;
    m->scaler.checks = 0;
    m->scaler.scaling = ++m->scalings;
    return MN_OK;
}

/* After an error and zero_grad, what was begun is ended. */
static void settle(mn_model *m)
{
    for (int i = 0; i < MN_MODEL_OPTIMIZERS; i++) {
        mn_model_optimizer *o = &m->optimizer[i];
        if (o->broken_off && o->stage == MN_STEPPED)
            mn_model_update(m);
    }
    for (int i = 0; i < MN_MODEL_OPTIMIZERS; i++) {
        mn_model_optimizer *o = &m->optimizer[i];
        if (!o->broken_off || o->stage != MN_DIVIDED)
            continue;
        forget(o);
        ready(o);
        if (--m->scaler.checks == 0)
            m->scaler.found = false;
    }
}

mn_status mn_model_idle(mn_model *m)
{
    if (m->pending != MN_OK)
        return m->pending;
    settle(m);
    return m->scaler.checks == 0 ? MN_OK : mn_model_fail(m, MN_ERR_STATE);
}

mn_status mn_model_set_scale(mn_model *m, double scale, bool finite)
{
    const mn_grad_scaler_options *o = &m->scaler.options;
    if (mn_model_idle(m) != MN_OK)
        return m->pending;
    if (!finite || scale <= 0 || scale < o->min_scale || scale > o->max_scale)
        return mn_model_fail(m, MN_ERR_ARGUMENT);
    m->scaler.scaling = ++m->scalings;
    if (o->enabled)
        m->scaler.scale = f32(scale);
    return MN_OK;
}

mn_status mn_model_set_interval(mn_model *m, int64_t interval)
{
    if (mn_model_idle(m) != MN_OK)
        return m->pending;
    if (interval < 1)
        return mn_model_fail(m, MN_ERR_ARGUMENT);
    m->scaler.options.growth_interval = interval;
    return MN_OK;
}

void mn_model_load_scaler(mn_model *m, const mn_model_scaler *saved)
{
    m->scaler = *saved;
    m->scaler.scaling = ++m->scalings;
    m->scaler.checks = 0;
    m->scaler.found = false;
}

mn_status mn_model_load_optimizer(mn_model *m, int optimizer, const mn_model *saved)
{
    mn_model_optimizer *o = &m->optimizer[optimizer];
    const mn_model_optimizer *from = &saved->optimizer[optimizer];
    if (m->pending != MN_OK)
        return m->pending;
    if (o->stage != MN_READY)
        return mn_model_fail(m, MN_ERR_STATE);
    o->applied = from->applied;
    o->skipped = from->skipped;
    o->nonfinite = from->nonfinite;
    o->norm = number(0);
    forget(o);
    for (int i = o->first; i < o->end; i++)
        for (int k = 0; k < 2 * MN_MODEL_ELEMENTS; k++)
            m->leaf[i].state[k / 2][k % 2] = saved->leaf[i].state[k / 2][k % 2];
    return MN_OK;
}

/* ---- backward -------------------------------------------------------------------------------- */

mn_status mn_model_scale(mn_model *m, mn_model_loss *loss, double weight, bool finite_weight)
{
    if (m->pending != MN_OK)
        return m->pending;
    settle(m);
    if (!finite_weight)
        return mn_model_fail(m, MN_ERR_ARGUMENT);
    loss->factor = f32(m->scaler.scale * weight);
    loss->scaling = m->scaler.options.enabled ? m->scaler.scaling : 0;
    return MN_OK;
}

/* Whether gradients of the loss may be added to what the leaf has. */
static bool admits(const mn_model_leaf *leaf, const mn_model_loss *loss)
{
    if (leaf->gradient == MN_NONE)
        return true;
    if (loss->scaling == 0)
        return leaf->gradient == MN_PLAIN;
    return leaf->gradient == MN_SCALED && leaf->scaling == loss->scaling;
}

mn_status mn_model_backward(mn_model *m, const mn_model_loss *loss)
{
    if (m->pending != MN_OK)
        return m->pending;
    for (int i = 0; i < MN_MODEL_LEAVES; i++)
        if (loss->with[i] && loss->version[i] != m->leaf[i].version)
            return mn_model_fail(m, MN_ERR_VERSION);
    for (int i = 0; i < MN_MODEL_LEAVES; i++)
        if (loss->with[i] && !admits(&m->leaf[i], loss))
            return mn_model_fail(m, MN_ERR_STATE);
    for (int i = 0; i < MN_MODEL_LEAVES; i++) {
        mn_model_leaf *leaf = &m->leaf[i];
        for (int k = 0; k < MN_MODEL_ELEMENTS && loss->with[i]; k++) {
            const mn_model_number g = times(loss->c[i][k], loss->factor);
            leaf->g[k] = leaf->gradient == MN_NONE ? g : plus(leaf->g[k], g);
        }
        if (loss->with[i]) {
            leaf->gradient = loss->scaling ? MN_SCALED : MN_PLAIN;
            leaf->scaling = loss->scaling;
        }
    }
    return MN_OK;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static int count(const mn_model *m, const mn_model_optimizer *o, mn_model_gradient gradient)
{
    int n = 0;
    for (int i = o->first; i < o->end; i++)
        n += m->leaf[i].gradient == gradient;
    return n;
}

mn_status mn_model_zero_grad(mn_model *m, mn_model_optimizer *o)
{
    if (m->pending != MN_OK)
        return m->pending;
    for (int i = o->first; i < o->end; i++) {
        m->leaf[i].gradient = MN_NONE;
        m->leaf[i].consumed = false;
    }
    if (o->stage != MN_READY && o->errors != m->errors)
        o->broken_off = true;
    return MN_OK;
}

/* Where 1 / scale overflows, nothing is divided. */
static void divide(mn_model *m, mn_model_optimizer *o, mn_model_leaf *leaf)
{
    const bool possible = 1 / m->scaler.scale <= (double)FLT_MAX;
    const double inverse = possible ? f32(1 / m->scaler.scale) : 1;
    bool found = !possible;
    for (int k = 0; k < MN_MODEL_ELEMENTS; k++) {
        leaf->g[k] = times(leaf->g[k], inverse);
        found = found || leaf->g[k].kind != MN_FINITE;
    }
    leaf->gradient = MN_UNSCALED;
    o->found = o->found || found;
    m->scaler.found = m->scaler.found || found;
}

mn_status mn_model_unscale(mn_model *m, mn_model_optimizer *o)
{
    if (m->pending != MN_OK || !m->scaler.options.enabled)
        return m->pending;
    const int any = o->end - o->first - count(m, o, MN_NONE);
    if (o->stage != MN_READY || any != count(m, o, MN_SCALED))
        return mn_model_fail(m, MN_ERR_STATE);
    for (int i = o->first; i < o->end; i++)
        if (m->leaf[i].gradient == MN_SCALED && m->leaf[i].scaling != m->scaler.scaling)
            return mn_model_fail(m, MN_ERR_STATE);
    if (any == 0)
        return mn_model_fail(m, MN_ERR_NO_GRADIENT);
    enter(m, o, MN_DIVIDED);
    m->scaler.checks++;
    for (int i = o->first; i < o->end; i++)
        if (m->leaf[i].gradient == MN_SCALED)
            divide(m, o, &m->leaf[i]);
    return MN_OK;
}

static void step_sgd(mn_model_leaf *leaf, int k)
{
    leaf->state[0][k] = plus(times(leaf->state[0][k], 0.5), leaf->g[k]);
    leaf->p[k] = plus(leaf->p[k], times(leaf->state[0][k], -0.25));
}

static void step_adam(mn_model_leaf *leaf, int k, double t)
{
    mn_model_number *p = &leaf->p[k], *mean = &leaf->state[0][k], *square = &leaf->state[1][k];
    if (mean->kind || leaf->g[k].kind) {
        *p = *mean = *square = nan_number();
        return;
    }
    const double g = leaf->g[k].value;
    mean->value = 0.9 * mean->value + 0.1 * g;
    square->value = 0.999 * square->value + 0.001 * g * g;
    *p = plus(*p, number(-0.125 * mean->value / (1 - pow(0.9, t)) /
                         (sqrt(square->value / (1 - pow(0.999, t))) + 1e-8)));
}

static void apply(mn_model *m, mn_model_optimizer *o)
{
    for (int i = o->first; i < o->end; i++) {
        mn_model_leaf *leaf = &m->leaf[i];
        if (leaf->gradient == MN_NONE)
            continue;
        leaf->version++;
        leaf->consumed = true;
        for (int k = 0; k < MN_MODEL_ELEMENTS && !o->found; k++) {
            if (leaf->g[k].kind == MN_FINITE)
                leaf->reach = fmax(leaf->reach, fabs(leaf->g[k].value));
            o->adam ? step_adam(leaf, k, (double)o->applied + 1) : step_sgd(leaf, k);
        }
    }
    *(o->found ? &o->skipped : &o->applied) += 1;
    o->outcome = o->found ? MN_STEP_SKIPPED : MN_STEP_APPLIED;
    o->nonfinite += o->found || o->bad_norm;
    forget(o);
}

mn_status mn_model_step(mn_model *m, mn_model_optimizer *o)
{
    if (m->pending != MN_OK)
        return m->pending;
    if (!m->scaler.options.enabled)
        return mn_model_plain_step(m, o);
    if (o->stage == MN_STEPPED)
        return mn_model_fail(m, MN_ERR_STATE);
    if (o->stage == MN_READY && mn_model_unscale(m, o) != MN_OK)
        return m->pending;
    if (count(m, o, MN_SCALED) + count(m, o, MN_PLAIN) > 0)
        return mn_model_fail(m, MN_ERR_STATE);
    if (count(m, o, MN_UNSCALED) == 0)
        return mn_model_fail(m, MN_ERR_NO_GRADIENT);
    apply(m, o);
    enter(m, o, MN_STEPPED);
    return MN_OK;
}

/* What the calls without a scaler refuse. */
static mn_status check_plain(mn_model *m, const mn_model_optimizer *o)
{
    if (count(m, o, MN_SCALED) > 0)
        return mn_model_fail(m, MN_ERR_STATE);
    if (count(m, o, MN_NONE) == o->end - o->first)
        return mn_model_fail(m, MN_ERR_NO_GRADIENT);
    return MN_OK;
}

mn_status mn_model_plain_step(mn_model *m, mn_model_optimizer *o)
{
    if (m->pending != MN_OK)
        return m->pending;
    if (o->stage == MN_STEPPED)
        return mn_model_fail(m, MN_ERR_STATE);
    if (check_plain(m, o) != MN_OK)
        return m->pending;
    if (o->stage == MN_READY && count(m, o, MN_UNSCALED) > 0)
        return mn_model_fail(m, MN_ERR_STATE);
    apply(m, o);
    if (o->stage == MN_DIVIDED)
        o->stage = MN_STEPPED;
    return MN_OK;
}

/* ---- clipping -------------------------------------------------------------------------------- */

static mn_model_number norm_of(const mn_model *m, const mn_model_optimizer *o)
{
    double squares = 0;
    mn_model_kind worst = MN_FINITE;
    for (int i = o->first; i < o->end; i++) {
        const mn_model_leaf *leaf = &m->leaf[i];
        for (int k = 0; k < MN_MODEL_ELEMENTS && leaf->gradient != MN_NONE; k++) {
            worst = leaf->g[k].kind > worst ? leaf->g[k].kind : worst;
            squares += leaf->g[k].value * leaf->g[k].value;
        }
    }
    if (worst == MN_FINITE)
        return (mn_model_number){MN_FINITE, sqrt(squares)};
    return worst == MN_INFINITE ? (mn_model_number){MN_INFINITE, 1} : nan_number();
}

mn_status mn_model_clip_norm(mn_model *m, mn_model_optimizer *o, double max_norm)
{
    if (m->pending != MN_OK)
        return m->pending;
    if (max_norm <= 0)
        return mn_model_fail(m, MN_ERR_ARGUMENT);
    if (check_plain(m, o) != MN_OK)
        return m->pending;
    o->norm = norm_of(m, o);
    o->bad_norm = o->norm.kind != MN_FINITE;
    const double clip = o->bad_norm ? 0 : fmin(1, max_norm / (o->norm.value + 1e-6));
    for (int i = o->first; i < o->end; i++) {
        mn_model_leaf *leaf = &m->leaf[i];
        for (int k = 0; k < MN_MODEL_ELEMENTS && leaf->gradient != MN_NONE; k++)
            leaf->g[k] = o->norm.kind == MN_NOT_A_NUMBER ? nan_number() : times(leaf->g[k], clip);
    }
    return MN_OK;
}

mn_status mn_model_clip_value(mn_model *m, mn_model_optimizer *o, double limit)
{
    if (m->pending != MN_OK)
        return m->pending;
    if (limit <= 0)
        return mn_model_fail(m, MN_ERR_ARGUMENT);
    if (check_plain(m, o) != MN_OK)
        return m->pending;
    for (int i = o->first; i < o->end; i++) {
        mn_model_leaf *leaf = &m->leaf[i];
        for (int k = 0; k < MN_MODEL_ELEMENTS && leaf->gradient != MN_NONE; k++) {
            mn_model_number *g = &leaf->g[k];
            if (g->kind == MN_INFINITE)
                *g = number(g->value * limit);
            else if (g->kind == MN_FINITE)
                *g = number(fmax(-limit, fmin(limit, g->value)));
        }
    }
    return MN_OK;
}
