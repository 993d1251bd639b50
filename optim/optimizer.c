/* What all optimizers share: stages, checks of gradients, step, clipping, statistics. */
#include "optim/optim.h"

/* ---- stages ---------------------------------------------------------------------------------- */

void mn_optimizer_ready(mn_optimizer *optimizer)
{
    mn_optimizer **at = optimizer->stage_list;
    while (at && *at != optimizer)
        at = &(*at)->stage_next;
    if (at)
        *at = optimizer->stage_next;
    optimizer->stage_list = NULL;
    optimizer->broken_off = false;
    optimizer->stage = MN_STAGE_READY;
}

void mn_optimizer_enter(mn_optimizer *optimizer, mn_optimizer_stage stage, mn_optimizer **list)
{
    mn_optimizer_ready(optimizer);
    optimizer->stage_list = list;
    optimizer->stage_next = *list;
    *list = optimizer;
    optimizer->stage = stage;
    optimizer->stage_errors = optimizer->context->errors_cleared;
}

/* ---- gradients ------------------------------------------------------------------------------- */

mn_status mn_optimizer_check(const mn_optimizer *optimizer)
{
    return optimizer ? optimizer->context->error.status : MN_ERR_ARGUMENT;
}

/* Why a gradient is not in the wanted state. */
static const char *objection(const mn_leaf *leaf, mn_grad_state wanted)
{
    switch (leaf->state) {
    case MN_GRAD_SCALED:
        return wanted == MN_GRAD_UNSCALED ? "is still scaled: no backward between unscale and step"
                                          : "is still scaled: step through the grad scaler";
    case MN_GRAD_UNSCALED:
        return leaf->consumed ? "is left over from a finished step: call mn_optimizer_zero_grad "
                                "after each step, then run a new backward"
                              : "is unscaled already: call mn_optimizer_zero_grad, then run a new "
                                "backward";
    default:
        return "is not scaled: run backward through mn_grad_scaler_backward";
    }
}

static mn_status no_gradient(mn_optimizer *optimizer)
{
    return mn_fail(optimizer->context, MN_ERR_NO_GRADIENT,
                   "0 of %d parameters have a gradient: is the loss connected to them?",
                   optimizer->count);
}

static mn_status check_gradient(const mn_optimizer *optimizer, int index, mn_grad_state wanted)
{
    const mn_tensor *p = optimizer->parameters[index];
    mn_grad_state state = mn_grad_state_get(p);
    if (state == MN_GRAD_NONE || state == wanted)
        return MN_OK;
    return mn_fail(optimizer->context, MN_ERR_STATE, "gradient of parameter %d (%s) %s", index,
                   mn_tensor_name(p), objection(p->leaf, wanted));
}

mn_status mn_optimizer_check_gradients(mn_optimizer *optimizer, mn_grad_state wanted)
{
    bool any = false;
    for (int i = 0; i < optimizer->count; i++) {
        MN_TRY(check_gradient(optimizer, i, wanted));
        any = any || mn_grad_state_get(optimizer->parameters[i]) == wanted;
    }
    return any ? MN_OK : no_gradient(optimizer);
}

mn_status mn_optimizer_refresh(mn_optimizer *optimizer)
{
    if (optimizer->stale)
        MN_TRY(mn_optimizer_forget_step(optimizer));
    optimizer->stale = false;
    return MN_OK;
}

/* MN_OK if there are gradients and none is scaled. `advice` completes the error. */
static mn_status check_unscaled(mn_optimizer *optimizer, const char *advice)
{
    bool any = false;
    MN_TRY(mn_optimizer_refresh(optimizer));
    for (int i = 0; i < optimizer->count; i++) {
        mn_grad_state state = mn_grad_state_get(optimizer->parameters[i]);
        any = any || state != MN_GRAD_NONE;
        if (state == MN_GRAD_SCALED)
            return mn_fail(optimizer->context, MN_ERR_STATE, "gradients are still scaled: %s (%s)",
                           advice, mn_tensor_name(optimizer->parameters[i]));
    }
    return any ? MN_OK : no_gradient(optimizer);
}

mn_status mn_optimizer_zero_grad(mn_optimizer *optimizer)
{
    MN_TRY(mn_optimizer_check(optimizer));
    for (int i = 0; i < optimizer->count; i++)
        MN_TRY(mn_zero_grad(optimizer->parameters[i]));
    /* Starting again after an error: the scaler then settles what it had begun. */
    if (optimizer->stage != MN_STAGE_READY &&
        optimizer->stage_errors != optimizer->context->errors_cleared)
        optimizer->broken_off = true;
    return MN_OK;
}

mn_status mn_optimizer_step(mn_optimizer *optimizer)
{
    MN_TRY(mn_optimizer_check(optimizer));
    if (optimizer->stage == MN_STAGE_STEPPED)
        return mn_fail(optimizer->context, MN_ERR_STATE,
                       "step was already called since the last update: call "
                       "mn_grad_scaler_update once per step");
    MN_TRY(check_unscaled(optimizer, "step through the grad scaler"));
    /* What a scaler found in them, or that they were used, is known in its stages only. */
    for (int i = 0; i < optimizer->count && optimizer->stage == MN_STAGE_READY; i++)
        MN_TRY(check_gradient(optimizer, i, MN_GRAD_PLAIN));
    MN_TRY(mn_optimizer_apply(optimizer));
    if (optimizer->stage == MN_STAGE_UNSCALED)
        optimizer->stage = MN_STAGE_STEPPED;
    return MN_OK;
}

/* ---- clipping -------------------------------------------------------------------------------- */

/* Runs grad_norm, which sums up from the first gradient to the last, or grad_clip over all. */
static mn_status run_over_gradients(mn_optimizer *optimizer, mn_op_id op, double max_norm)
{
    mn_norm_attributes attributes = {.first = 1, .max_norm = max_norm};
    int last = optimizer->count - 1;
    while (!mn_grad(optimizer->parameters[last]))
        last--; /* there is one: it was checked */
    for (int i = 0; i <= last; i++) {
        mn_tensor *inputs[2] = {mn_grad(optimizer->parameters[i]), optimizer->record};
        if (!inputs[0])
            continue;
        attributes.last = i == last;
        MN_TRY(mn_dispatch(optimizer->context, &mn_ops[op], inputs, 2,
                           op == MN_OP_grad_norm ? &attributes : NULL, false, NULL));
        attributes.first = 0;
    }
    return MN_OK;
}

mn_status mn_clip_grad_norm(mn_optimizer *optimizer, double max_norm, double *norm)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_optimizer_check(optimizer));
    if (mn_isnan_f64(max_norm) || max_norm <= 0)
        return mn_fail(optimizer->context, MN_ERR_ARGUMENT,
                       "clip_grad_norm: max_norm is %g, must be positive (INFINITY measures only)",
                       max_norm);
    MN_TRY(check_unscaled(optimizer, "call mn_grad_scaler_unscale before clipping"));
    MN_TRY(run_over_gradients(optimizer, MN_OP_grad_norm, max_norm));
    if (mn_isfinite_f64(max_norm))
        MN_TRY(run_over_gradients(optimizer, MN_OP_grad_clip, max_norm));
    if (!norm)
        return MN_OK;
    MN_TRY(mn_record_read(optimizer->record, record));
    *norm = record[MN_OPT_NORM];
    return MN_OK;
}

mn_status mn_clip_grad_value(mn_optimizer *optimizer, double limit)
{
    const mn_adjust_attributes attributes = {.scale = 1, .low = -limit, .high = limit};
    MN_TRY(mn_optimizer_check(optimizer));
    if (mn_isnan_f64(limit) || limit <= 0)
        return mn_fail(optimizer->context, MN_ERR_ARGUMENT,
                       "clip_grad_value: limit is %g, must be positive", limit);
    MN_TRY(check_unscaled(optimizer, "call mn_grad_scaler_unscale before clipping"));
    for (int i = 0; i < optimizer->count; i++) {
        mn_tensor *gradient = mn_grad(optimizer->parameters[i]);
        if (gradient)
            MN_TRY(mn_dispatch(optimizer->context, &mn_ops[MN_OP_adjust], &gradient, 1, &attributes,
                               false, NULL));
    }
    return MN_OK;
}

/* ---- records --------------------------------------------------------------------------------- */

mn_tensor *mn_record_create(mn_context *context, const double values[MN_RECORD_SIZE])
{
    static const int64_t shape[1] = {MN_RECORD_SIZE};
    mn_tensor *record = mn_tensor_new_unscoped(context, MN_F64, 1, shape);
    if (record && mn_tensor_write(record, values, MN_RECORD_SIZE * sizeof *values) == MN_OK)
        return record;
    mn_release(record);
    return NULL;
}

mn_status mn_record_read(const mn_tensor *record, double values[MN_RECORD_SIZE])
{
    return mn_tensor_read(record, values, MN_RECORD_SIZE * sizeof *values);
}

mn_status mn_record_set(mn_tensor *record, int slot, int count, double value)
{
    const int64_t shape[1] = {count};
    mn_context *context = record->context;
    mn_scope scope = mn_scope_begin(context);
    mn_tensor *entries = mn_tensor_view(
        record->storage, record->offset + (size_t)slot * sizeof(double), MN_F64, 1, shape);
    mn_status status = entries ? mn_tensor_fill(entries, value) : mn_error_status(context);
    mn_scope_end(context, scope);
    return status;
}

mn_status mn_optimizer_forget_step(mn_optimizer *optimizer)
{
    _Static_assert(MN_OPT_BAD_NORM == MN_OPT_FOUND_INF + 1, "the two flags lie side by side");
    return mn_record_set(optimizer->record, MN_OPT_FOUND_INF, 2, 0);
}

mn_status mn_optimizer_stats_get(mn_optimizer *optimizer, mn_optimizer_stats *stats)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_optimizer_check(optimizer));
    if (!stats)
        return mn_fail(optimizer->context, MN_ERR_ARGUMENT, "optimizer_stats_get: stats is NULL");
    MN_TRY(mn_record_read(optimizer->record, record));
    *stats = (mn_optimizer_stats){
        .applied = (int64_t)record[MN_OPT_APPLIED],
        .skipped = (int64_t)record[MN_OPT_SKIPPED],
        .nonfinite = (int64_t)record[MN_OPT_NONFINITE],
        .lr = optimizer->groups[0].lr * record[MN_OPT_FACTOR],
        .grad_norm = record[MN_OPT_NORM],
    };
    return MN_OK;
}
