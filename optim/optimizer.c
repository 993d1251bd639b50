/* What all optimizers share: stages, checks of gradients, step, clipping, statistics. */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

/* ---- stages ---------------------------------------------------------------------------------- */

void mn_optimizer_ready(mn_optimizer *optimizer)
{
    if (optimizer->stage_link) {
        *optimizer->stage_link = optimizer->stage_next;
        if (optimizer->stage_next)
            optimizer->stage_next->stage_link = optimizer->stage_link;
    }
    optimizer->stage_next = NULL;
    optimizer->stage_link = NULL;
    optimizer->stage_owner = NULL;
    optimizer->broken_off = false;
    optimizer->stage = MN_STAGE_READY;
}

void mn_optimizer_enter(mn_optimizer *optimizer, mn_optimizer_stage stage, void *owner,
                        mn_optimizer **head)
{
    mn_optimizer_ready(optimizer);
    optimizer->stage_next = *head;
    optimizer->stage_link = head;
    if (*head)
        (*head)->stage_link = &optimizer->stage_next;
    *head = optimizer;
    optimizer->stage = stage;
    optimizer->stage_owner = owner;
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

mn_status mn_optimizer_gradients(mn_optimizer *optimizer, mn_grad_state wanted, int *count)
{
    *count = 0;
    for (int i = 0; i < optimizer->count; i++) {
        const mn_tensor *p = optimizer->parameters[i];
        mn_grad_state state = mn_grad_state_get(p);
        if (state == MN_GRAD_NONE)
            continue;
        if (wanted != MN_GRAD_NONE && state != wanted)
            return mn_fail(optimizer->context, MN_ERR_STATE, "gradient of parameter %d (%s) %s", i,
                           mn_tensor_name(p), objection(p->leaf, wanted));
        (*count)++;
    }
    return MN_OK;
}

mn_status mn_optimizer_no_gradient(mn_optimizer *optimizer)
{
    return mn_fail(optimizer->context, MN_ERR_NO_GRADIENT,
                   "0 of %d parameters have a gradient: is the loss connected to them?",
                   optimizer->count);
}

/* MN_OK if there are gradients and none is scaled. `advice` completes the error. */
static mn_status check_unscaled(mn_optimizer *optimizer, const char *advice)
{
    bool any = false;
    for (int i = 0; i < optimizer->count; i++) {
        mn_grad_state state = mn_grad_state_get(optimizer->parameters[i]);
        any = any || state != MN_GRAD_NONE;
        if (state == MN_GRAD_SCALED)
            return mn_fail(optimizer->context, MN_ERR_STATE, "gradients are still scaled: %s (%s)",
                           advice, mn_tensor_name(optimizer->parameters[i]));
    }
    return any ? MN_OK : mn_optimizer_no_gradient(optimizer);
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
    MN_TRY(mn_optimizer_apply(optimizer));
    if (optimizer->stage == MN_STAGE_UNSCALED)
        optimizer->stage = MN_STAGE_STEPPED;
    return MN_OK;
}

/* ---- clipping -------------------------------------------------------------------------------- */

static mn_status measure_norm(mn_optimizer *optimizer, double max_norm)
{
    mn_norm_attributes attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.first = 1;
    attributes.max_norm = max_norm;
    mn_tensor *inputs[2] = {NULL, optimizer->record};
    int count, seen = 0;
    MN_TRY(mn_optimizer_gradients(optimizer, MN_GRAD_NONE, &count));
    for (int i = 0; i < optimizer->count; i++) {
        inputs[0] = mn_grad(optimizer->parameters[i]);
        if (!inputs[0])
            continue;
        attributes.last = ++seen == count;
        MN_TRY(mn_dispatch(optimizer->context, &mn_ops[MN_OP_grad_norm], inputs, 2, &attributes,
                           false, NULL));
        attributes.first = 0;
    }
    return MN_OK;
}

static mn_status clip(mn_optimizer *optimizer)
{
    mn_tensor *inputs[2] = {NULL, optimizer->record};
    for (int i = 0; i < optimizer->count; i++) {
        inputs[0] = mn_grad(optimizer->parameters[i]);
        if (inputs[0])
            MN_TRY(mn_dispatch(optimizer->context, &mn_ops[MN_OP_grad_clip], inputs, 2, NULL, false,
                               NULL));
    }
    return MN_OK;
}

mn_status mn_clip_grad_norm(mn_optimizer *optimizer, double max_norm, double *norm)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_optimizer_check(optimizer));
    if (!(max_norm > 0))
        return mn_fail(optimizer->context, MN_ERR_ARGUMENT,
                       "clip_grad_norm: max_norm is %g, must be positive (INFINITY measures only)",
                       max_norm);
    MN_TRY(check_unscaled(optimizer, "call mn_grad_scaler_unscale before clipping"));
    MN_TRY(measure_norm(optimizer, max_norm));
    if (!isinf(max_norm))
        MN_TRY(clip(optimizer));
    if (!norm)
        return MN_OK;
    MN_TRY(mn_optimizer_read_record(optimizer, record));
    *norm = record[MN_OPT_NORM];
    return MN_OK;
}

/* ---- record ---------------------------------------------------------------------------------- */

mn_status mn_optimizer_read_record(mn_optimizer *optimizer, double record[MN_RECORD_SIZE])
{
    return mn_tensor_read(optimizer->record, record, MN_RECORD_SIZE * sizeof *record);
}

mn_status mn_optimizer_forget_step(mn_optimizer *optimizer)
{
    static const int64_t shape[1] = {2};
    _Static_assert(MN_OPT_BAD_NORM == MN_OPT_FOUND_INF + 1, "the two flags lie side by side");
    mn_scope scope = mn_scope_begin(optimizer->context);
    mn_tensor *flags = mn_tensor_view(optimizer->record->storage,
                                      optimizer->record->offset + MN_OPT_FOUND_INF * sizeof(double),
                                      MN_F64, 1, shape);
    mn_status status = flags ? mn_tensor_fill(flags, 0) : mn_error_status(optimizer->context);
    mn_scope_end(optimizer->context, scope);
    return status;
}

mn_status mn_optimizer_stats_get(mn_optimizer *optimizer, mn_optimizer_stats *stats)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_optimizer_check(optimizer));
    if (!stats)
        return mn_fail(optimizer->context, MN_ERR_ARGUMENT, "optimizer_stats_get: stats is NULL");
    MN_TRY(mn_optimizer_read_record(optimizer, record));
    *stats = (mn_optimizer_stats){
        .applied = (int64_t)record[MN_OPT_APPLIED],
        .skipped = (int64_t)record[MN_OPT_SKIPPED],
        .nonfinite = (int64_t)record[MN_OPT_NONFINITE],
        .lr = record[MN_OPT_LR],
        .grad_norm = record[MN_OPT_NORM],
    };
    return MN_OK;
}
