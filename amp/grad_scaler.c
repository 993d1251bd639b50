/* Dynamic loss scaling. All that a step changes lies in records on the device; the host only keeps
 * the order of calls, in the optimizers' stages. */
#include "amp/internal.h"

#include "core/math.h"

#include <float.h>

mn_grad_scaler_options mn_grad_scaler_options_default(void)
{
    return (mn_grad_scaler_options){
        .size = sizeof(mn_grad_scaler_options),
        .enabled = true,
        .init_scale = 65536,
        .growth_factor = 2,
        .backoff_factor = 0.5,
        .growth_interval = 2000,
        .min_scale = 0,
        .max_scale = (double)FLT_MAX,
    };
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* As f32 holds it, in whatever floating-point mode the caller is. */
static double as_f32(double scale)
{
    float narrow;
    double wide;
    mn_convert_elements(MN_F64, MN_F32, 1, &scale, &narrow);
    mn_convert_elements(MN_F32, MN_F64, 1, &narrow, &wide);
    return wide;
}

/* Here and below finiteness goes by bits, which stays true under -ffast-math. */
static mn_status check_scale(mn_context *context, const mn_grad_scaler_options *options,
                             double scale)
{
    if (!mn_isfinite_f64(scale) || scale > (double)FLT_MAX || !(as_f32(scale) > 0))
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "grad scaler: scale is %g, must be positive and finite in f32", scale);
    if (scale < options->min_scale || scale > options->max_scale)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "grad scaler: scale is %g, must be in [min_scale, max_scale] = [%g, %g]",
                       scale, options->min_scale, options->max_scale);
    return MN_OK;
}

static mn_status check_interval(mn_context *context, int64_t interval)
{
    if (interval < 1)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "grad scaler: growth_interval is %lld, must be at least 1",
                       (long long)interval);
    return MN_OK;
}

mn_status mn_grad_scaler_check_options(mn_context *context, const mn_grad_scaler_options *options)
{
    if (!(options->growth_factor > 1) || !mn_isfinite_f64(options->growth_factor))
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "grad scaler: growth_factor is %g, must be finite and greater than 1",
                       options->growth_factor);
    if (!mn_isfinite_f64(options->backoff_factor) ||
        !(options->backoff_factor > 0 && options->backoff_factor < 1))
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "grad scaler: backoff_factor is %g, must be in (0, 1)",
                       options->backoff_factor);
    MN_TRY(check_interval(context, options->growth_interval));
    if (!mn_isfinite_f64(options->min_scale) || !mn_isfinite_f64(options->max_scale) ||
        !(options->min_scale >= 0 && options->min_scale <= options->max_scale) ||
        !(options->max_scale <= (double)FLT_MAX))
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "grad scaler: min_scale %g and max_scale %g, must be 0 <= min_scale <= "
                       "max_scale <= %g",
                       options->min_scale, options->max_scale, (double)FLT_MAX);
    return MN_OK;
}

mn_status mn_grad_scaler_check(const mn_grad_scaler *scaler)
{
    return scaler ? scaler->context->error.status : MN_ERR_ARGUMENT;
}

/* Settles steps that an error broke off (see mn_optimizer_zero_grad) before the scale is used
 * again: what was found for one that cannot happen any more is forgotten, and the update is made up
 * for after one that did. */
static mn_status settle(mn_grad_scaler *scaler)
{
    for (mn_optimizer *o = scaler->touched, *next; o; o = next) {
        next = o->stage_next;
        if (!o->broken_off)
            continue;
        if (o->stage == MN_STAGE_STEPPED)
            return mn_grad_scaler_update(scaler);
        MN_TRY(mn_optimizer_forget_step(o));
        if (scaler->checks == 1)
            MN_TRY(mn_record_set(scaler->record, MN_SCALER_FOUND_INF, 1, 0));
        mn_optimizer_ready(o);
        scaler->checks--;
    }
    return MN_OK;
}

mn_status mn_grad_scaler_idle(mn_grad_scaler *scaler, const char *caller)
{
    MN_TRY(settle(scaler));
    if (scaler->checks == 0)
        return MN_OK;
    return mn_fail(scaler->context, MN_ERR_STATE,
                   "%s: only between steps: call mn_grad_scaler_update first", caller);
}

static mn_status check_pair(mn_grad_scaler *scaler, const mn_optimizer *optimizer)
{
    MN_TRY(mn_grad_scaler_check(scaler));
    if (!optimizer)
        return mn_fail(scaler->context, MN_ERR_ARGUMENT, "grad scaler: the optimizer is NULL");
    if (optimizer->context != scaler->context)
        return mn_fail(scaler->context, MN_ERR_ARGUMENT,
                       "grad scaler: the optimizer belongs to another context");
    if (optimizer->stage_list && optimizer->stage_list != &scaler->touched)
        return mn_fail(
            scaler->context, MN_ERR_STATE,
            "grad scaler: the optimizer is between unscale and update of another scaler: update "
            "that one, and use one scaler");
    return MN_OK;
}

/* ---- making ---------------------------------------------------------------------------------- */

mn_grad_scaler *mn_grad_scaler_create(mn_context *context, const mn_grad_scaler_options *options)
{
    mn_grad_scaler_options known = mn_grad_scaler_options_default();
    if (!context || !mn_ok(context) ||
        mn_options_copy(&context->error, "mn_grad_scaler", &known, sizeof known, options) !=
            MN_OK ||
        mn_grad_scaler_check_options(context, &known) != MN_OK ||
        check_scale(context, &known, known.init_scale) != MN_OK)
        return NULL;
    mn_grad_scaler *scaler = mn_host_calloc(context, 1, sizeof *scaler);
    if (!scaler)
        return NULL;
    scaler->context = context;
    scaler->options = known;
    scaler->scaling = ++context->last_scaling;
    double scale = known.enabled ? as_f32(known.init_scale) : 1;
    scaler->record = mn_record_create(
        context,
        (const double[MN_RECORD_SIZE]){[MN_SCALER_SCALE] = scale, [MN_SCALER_SCALE_USED] = scale});
    if (scaler->record)
        return scaler;
    mn_grad_scaler_free(scaler);
    return NULL;
}

void mn_grad_scaler_free(mn_grad_scaler *scaler)
{
    if (!scaler)
        return;
    while (scaler->touched) {
        scaler->touched->stale |= scaler->touched->stage == MN_STAGE_UNSCALED;
        mn_optimizer_ready(scaler->touched);
    }
    mn_release(scaler->record);
    mn_host_free(scaler->context, scaler, sizeof *scaler);
}

mn_tensor *mn_grad_scaler_record(mn_grad_scaler *scaler)
{
    return scaler ? scaler->record : NULL;
}

bool mn_grad_scaler_is_enabled(const mn_grad_scaler *scaler)
{
    return scaler && scaler->options.enabled;
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The record changes with every use, so the graph keeps a copy of it. */
mn_tensor *mn_grad_scaler_scale(mn_grad_scaler *scaler, mn_tensor *loss, double weight)
{
    if (mn_grad_scaler_check(scaler) != MN_OK || settle(scaler) != MN_OK)
        return NULL;
    mn_context *context = scaler->context;
    if (mn_tensor_check(context, loss, "grad scaler: the loss") != MN_OK)
        return NULL;
    if (!mn_isfinite_f64(weight)) {
        mn_fail(context, MN_ERR_ARGUMENT,
                "grad scaler: the weight of the loss is %g, must be finite", weight);
        return NULL;
    }
    const mn_weight_attributes attributes = {weight};
    mn_tensor *inputs[2] = {loss, scaler->record};
    mn_tensor *scaled = mn_dispatch1(context, MN_OP_scaler_scale, inputs, 2, &attributes);
    if (!scaled || !loss->requires_grad || !mn_is_recording(context))
        return scaled;
    inputs[1] = mn_dispatch1(context, MN_OP_copy, &scaler->record, 1, NULL);
    if (!inputs[1] ||
        mn_record(context, &mn_ops[MN_OP_scaler_scale], inputs, 2, &attributes, &scaled) != MN_OK)
        return NULL;
    if (scaler->options.enabled)
        mn_mark_scaled(scaled, scaler->scaling);
    return scaled;
}

mn_status mn_grad_scaler_backward(mn_grad_scaler *scaler, mn_tensor *loss, double weight)
{
    MN_TRY(mn_grad_scaler_check(scaler));
    mn_context *context = scaler->context;
    mn_scope scope = mn_scope_begin(context);
    mn_backward(mn_grad_scaler_scale(scaler, loss, weight), 1);
    mn_scope_end(context, scope);
    return mn_error_status(context);
}

/* 1 / scale is made as for the optimizer's gradients, of a one on the device. */
mn_tensor *mn_grad_scaler_unscale_tensor(mn_grad_scaler *scaler, mn_tensor *tensor)
{
    static const int64_t size[1] = {MN_RECORD_SIZE};
    if (mn_grad_scaler_check(scaler) != MN_OK || settle(scaler) != MN_OK)
        return NULL;
    mn_context *context = scaler->context;
    if (mn_tensor_check(context, tensor, "grad scaler: the tensor") != MN_OK)
        return NULL;
    if (!mn_dtype_is_float(tensor->dtype)) {
        mn_fail(context, MN_ERR_DTYPE,
                "grad scaler: a tensor of %s cannot be unscaled, only floating ones",
                mn_dtype_name(tensor->dtype));
        return NULL;
    }
    if (!scaler->options.enabled)
        return tensor;
    mn_tensor *one = mn_full(context, tensor->dtype == MN_F64 ? MN_F64 : MN_F32, 0, NULL, 1);
    mn_tensor *const inputs[3] = {one, scaler->record, mn_full(context, MN_F64, 1, size, 0)};
    if (mn_dispatch(context, &mn_ops[MN_OP_grad_unscale], inputs, 3, NULL, false, NULL) != MN_OK)
        return NULL;
    return mn_mul(one->dtype == tensor->dtype ? tensor : mn_cast(tensor, one->dtype), one);
}

/* ---- unscale, step, update ------------------------------------------------------------------- */

static mn_status check_unscale(mn_grad_scaler *scaler, mn_optimizer *optimizer)
{
    if (optimizer->stage == MN_STAGE_UNSCALED)
        return mn_fail(scaler->context, MN_ERR_STATE,
                       "unscale was already called on this optimizer since the last update: call "
                       "update() once per step, even when you skip the step");
    if (optimizer->stage == MN_STAGE_STEPPED)
        return mn_fail(scaler->context, MN_ERR_STATE,
                       "unscale after step: call update() once per step before the next one");
    for (int i = 0; i < optimizer->count; i++) {
        const mn_tensor *p = optimizer->parameters[i];
        if (p->dtype == MN_F16)
            return mn_fail(scaler->context, MN_ERR_DTYPE,
                           "parameter %d (%s) is f16: the grad scaler takes f32 and bf16; keep "
                           "them in f32 and let autocast lower them",
                           i, mn_tensor_name(p));
        if (mn_grad_state_get(p) == MN_GRAD_SCALED && p->leaf->scaling != 0 &&
            p->leaf->scaling != scaler->scaling)
            return mn_fail(scaler->context, MN_ERR_STATE,
                           "gradient of parameter %d (%s) was scaled by another scaler, or before "
                           "the scale was changed: call zero_grad, then run a new backward",
                           i, mn_tensor_name(p));
    }
    return mn_optimizer_check_gradients(optimizer, MN_GRAD_SCALED);
}

static mn_status unscale(mn_grad_scaler *scaler, mn_optimizer *optimizer)
{
    MN_TRY(check_unscale(scaler, optimizer));
    MN_TRY(mn_optimizer_refresh(optimizer));
    mn_optimizer_enter(optimizer, MN_STAGE_UNSCALED, &scaler->touched);
    scaler->checks++;
    for (int i = 0; i < optimizer->count; i++) {
        mn_tensor *p = optimizer->parameters[i];
        mn_tensor *inputs[3] = {mn_grad(p), scaler->record, optimizer->record};
        if (!inputs[0])
            continue;
        MN_TRY(mn_dispatch(scaler->context, &mn_ops[MN_OP_grad_unscale], inputs, 3, NULL, false,
                           NULL));
        p->leaf->state = MN_GRAD_UNSCALED;
    }
    return MN_OK;
}

mn_status mn_grad_scaler_unscale(mn_grad_scaler *scaler, mn_optimizer *optimizer)
{
    MN_TRY(check_pair(scaler, optimizer));
    return scaler->options.enabled ? unscale(scaler, optimizer) : MN_OK;
}

static mn_status step(mn_grad_scaler *scaler, mn_optimizer *optimizer)
{
    if (optimizer->stage == MN_STAGE_STEPPED)
        return mn_fail(scaler->context, MN_ERR_STATE,
                       "step was already called on this optimizer since the last update: call "
                       "update() once per step");
    if (optimizer->stage == MN_STAGE_READY)
        MN_TRY(unscale(scaler, optimizer));
    MN_TRY(mn_optimizer_check_gradients(optimizer, MN_GRAD_UNSCALED));
    MN_TRY(mn_optimizer_apply(optimizer));
    mn_optimizer_enter(optimizer, MN_STAGE_STEPPED, &scaler->touched);
    return MN_OK;
}

mn_status mn_grad_scaler_step(mn_grad_scaler *scaler, mn_optimizer *optimizer,
                              mn_step_outcome *outcome)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(check_pair(scaler, optimizer));
    MN_TRY(scaler->options.enabled ? step(scaler, optimizer) : mn_optimizer_step(optimizer));
    if (!outcome)
        return MN_OK;
    MN_TRY(mn_record_read(optimizer->record, record));
    *outcome = record[MN_OPT_OUTCOME] == MN_STEP_APPLIED ? MN_STEP_APPLIED : MN_STEP_SKIPPED;
    return MN_OK;
}

mn_status mn_grad_scaler_update(mn_grad_scaler *scaler)
{
    MN_TRY(mn_grad_scaler_check(scaler));
    const mn_grad_scaler_options *o = &scaler->options;
    const mn_scaler_attributes attributes = {o->growth_factor, o->backoff_factor, o->min_scale,
                                             o->max_scale, o->growth_interval};
    if (!o->enabled)
        return MN_OK;
    if (scaler->checks == 0)
        return mn_fail(scaler->context, MN_ERR_STATE,
                       "update: no gradients were checked since the last one: call "
                       "mn_grad_scaler_step (or unscale) first");
    for (mn_optimizer *at = scaler->touched; at; at = at->stage_next) {
        if (at->stage == MN_STAGE_UNSCALED)
            MN_TRY(mn_optimizer_forget_step(at));
    }
    MN_TRY(mn_dispatch(scaler->context, &mn_ops[MN_OP_scaler_update], &scaler->record, 1,
                       &attributes, false, NULL));
    while (scaler->touched)
        mn_optimizer_ready(scaler->touched);
    scaler->checks = 0;
    scaler->scaling = ++scaler->context->last_scaling;
    return MN_OK;
}

/* ---- setters --------------------------------------------------------------------------------- */

mn_status mn_grad_scaler_set_scale(mn_grad_scaler *scaler, double scale)
{
    MN_TRY(mn_grad_scaler_check(scaler));
    MN_TRY(mn_grad_scaler_idle(scaler, "grad_scaler_set_scale"));
    MN_TRY(check_scale(scaler->context, &scaler->options, scale));
    scaler->scaling = ++scaler->context->last_scaling;
    return scaler->options.enabled
               ? mn_record_set(scaler->record, MN_SCALER_SCALE, 1, as_f32(scale))
               : MN_OK;
}

mn_status mn_grad_scaler_set_growth_interval(mn_grad_scaler *scaler, int64_t interval)
{
    MN_TRY(mn_grad_scaler_check(scaler));
    MN_TRY(mn_grad_scaler_idle(scaler, "grad_scaler_set_growth_interval"));
    MN_TRY(check_interval(scaler->context, interval));
    scaler->options.growth_interval = interval;
    return MN_OK;
}
