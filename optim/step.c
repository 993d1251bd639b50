/* The step of all optimizers: parameters, states and 16-bit shadows in one go. */
#include "optim/optim.h"

#include "core/philox.h"

#include <string.h>

/* Gives a shadow that something else still reads (the tape) new storage to be rewritten in. Until
 * then its version matches no other. */
static mn_status renew_shadow(mn_context *context, mn_shadow *shadow)
{
    if (!shadow->storage || shadow->storage->references == 1)
        return MN_OK;
    mn_storage *storage = mn_storage_create(context, shadow->storage->bytes);
    if (!storage)
        return context->error.status;
    mn_storage_release(shadow->storage);
    *shadow = (mn_shadow){storage, UINT64_MAX};
    return MN_OK;
}

static bool has_gradient(const mn_optimizer *optimizer, int index)
{
    return mn_grad_state_get(optimizer->parameters[index]) != MN_GRAD_NONE;
}

/* The random stream of a parameter: by its name, or its number. */
static mn_status draw_key(const mn_optimizer *optimizer, int index, mn_step_attributes *attributes)
{
    char name[MN_ENTRY_NAME];
    MN_TRY(mn_entry_name(optimizer->parameters[index], index, "optimizer", NULL, name));
    const mn_stream stream = mn_stream_open(optimizer->context->seed, MN_STREAM_ROUNDING, name, 0);
    attributes->stochastic = 1;
    memcpy(attributes->key, stream.key, sizeof attributes->key);
    return MN_OK;
}

static mn_status step_parameter(mn_optimizer *optimizer, int index, const mn_param_group *group)
{
    static const mn_dtype dtypes[2] = {MN_F16, MN_BF16};
    enum { RECORD = 4, SHADOW, MASTER = 7 };
    mn_tensor *p = optimizer->parameters[index];
    mn_shadow *shadow = p->leaf->shadow;
    mn_tensor *inputs[8] = {p, p->leaf->grad, [RECORD] = optimizer->record};
    int count = SHADOW;
    mn_step_attributes attributes = optimizer->recipe.step;
    attributes.lr = group->lr;
    attributes.weight_decay = group->weight_decay;
    for (int k = 0; k < optimizer->recipe.states; k++)
        inputs[2 + k] = optimizer->states[k][index];
    for (int k = 0; k < 2; k++) {
        if (!shadow[k].storage)
            continue;
        inputs[SHADOW + k] = mn_tensor_view(shadow[k].storage, 0, dtypes[k], p->ndim, p->shape);
        count = SHADOW + k + 1;
    }
    if (optimizer->states[MN_MASTER] &&
        (inputs[MASTER] = optimizer->states[MN_MASTER][index]) != NULL)
        count = MASTER + 1;
    if (optimizer->recipe.rounding == MN_ROUNDING_STOCHASTIC && p->dtype == MN_BF16)
        MN_TRY(draw_key(optimizer, index, &attributes));
    return mn_dispatch(optimizer->context, &mn_ops[optimizer->recipe.kind->op], inputs, count,
                       &attributes, false, NULL);
}

mn_status mn_optimizer_finish(mn_optimizer *optimizer, mn_tensor *record)
{
    const mn_schedule *s = &optimizer->recipe.schedule;
    const mn_schedule_attributes attributes = {.kind = s->kind,
                                               .total_steps = s->total_steps,
                                               .step_size = s->step_size,
                                               .warmup_steps = s->warmup_steps,
                                               .gamma = s->gamma == 0 ? 0.1 : s->gamma,
                                               .base_lr = optimizer->groups[0].lr};
    return mn_dispatch(optimizer->context, &mn_ops[MN_OP_optimizer_finish], &record, 1, &attributes,
                       false, NULL);
}

static mn_status run_ops(mn_optimizer *optimizer, bool rehearse)
{
    mn_context *context = optimizer->context;
    const mn_param_group *group = optimizer->groups;
    mn_scope scope = mn_scope_begin(context);
    context->rehearsing = rehearse;
    for (int i = 0; i < optimizer->count && mn_ok(context); i++) {
        while (i >= group->end)
            group++;
        if (has_gradient(optimizer, i))
            step_parameter(optimizer, i, group);
    }
    mn_optimizer_finish(optimizer, optimizer->record);
    context->rehearsing = false;
    mn_scope_end(context, scope);
    return mn_error_status(context);
}

static void mark_used(mn_optimizer *optimizer)
{
    for (int i = 0; i < optimizer->count; i++) {
        mn_tensor *p = optimizer->parameters[i];
        if (!has_gradient(optimizer, i))
            continue;
        p->leaf->consumed = true;
        for (int k = 0; k < 2; k++)
            p->leaf->shadow[k].version = p->storage->version;
    }
}

static mn_status refuse_averages(const mn_optimizer *optimizer)
{
    for (int i = 0; i < optimizer->count; i++) {
        const mn_leaf *leaf = optimizer->parameters[i]->leaf;
        if (leaf && leaf->averaged)
            return mn_fail(optimizer->context, MN_ERR_STATE,
                           "step: parameter %d (%s) holds its average: call mn_ema_swap to go back "
                           "first",
                           i, leaf->name);
    }
    return MN_OK;
}

/* A step is applied whole or not at all: the rehearsal meets what can run out of memory before the
 * first parameter changes, and leaves in the caches what the step is about to ask for. */
mn_status mn_optimizer_apply(mn_optimizer *optimizer)
{
    MN_TRY(refuse_averages(optimizer));
    for (int i = 0; i < optimizer->count; i++)
        for (int k = 0; k < 2 && has_gradient(optimizer, i); k++)
            MN_TRY(renew_shadow(optimizer->context, &optimizer->parameters[i]->leaf->shadow[k]));
    MN_TRY(run_ops(optimizer, true));
    MN_TRY(run_ops(optimizer, false));
    mark_used(optimizer);
    optimizer->begun = true;
    return MN_OK;
}
