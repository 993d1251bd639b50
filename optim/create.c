/* Making and freeing optimizers, and their groups of parameters. */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

/* ---- checks ---------------------------------------------------------------------------------- */

mn_status mn_check_amount(mn_context *context, const char *kind, const char *name, double value)
{
    if (value >= 0 && mn_isfinite_f64(value))
        return MN_OK;
    return mn_fail(context, MN_ERR_ARGUMENT, "%s: %s is %g, must be finite and at least 0", kind,
                   name, value);
}

static mn_status check_schedule(mn_context *context, const char *kind, const mn_schedule *s)
{
    const bool cosine = s->kind == MN_SCHEDULE_COSINE, cycle = s->kind == MN_SCHEDULE_ONE_CYCLE;
    if (s->kind < MN_SCHEDULE_CONSTANT || s->kind > MN_SCHEDULE_ONE_CYCLE)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: there is no schedule %d", kind, (int)s->kind);
    if (s->warmup_steps < 0 || (cycle && s->warmup_steps > 0))
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: warmup_steps is %lld, must be %s", kind,
                       (long long)s->warmup_steps,
                       cycle ? "0 for one-cycle, which warms up itself" : "at least 0");
    if ((cosine || cycle) && s->total_steps <= s->warmup_steps)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "%s: the %s schedule needs total_steps > %lld, not %lld", kind,
                       cosine ? "cosine" : "one-cycle", (long long)s->warmup_steps,
                       (long long)s->total_steps);
    if (s->kind != MN_SCHEDULE_STEP)
        return MN_OK;
    if (s->step_size <= 0)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "%s: the step schedule needs step_size > 0, not %lld", kind,
                       (long long)s->step_size);
    return mn_check_amount(context, kind, "gamma of the schedule", s->gamma);
}

mn_status mn_check_parameters(mn_context *context, const char *what, mn_tensor *const *parameters,
                              int count)
{
    if (!parameters || count <= 0)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: there are no parameters", what);
    for (int i = 0; i < count; i++) {
        const mn_tensor *p = parameters[i];
        if (!p)
            return mn_fail(context, MN_ERR_ARGUMENT, "%s: parameter %d is NULL", what, i);
        MN_TRY(mn_tensor_check(context, p, what));
        if (!mn_dtype_is_float(p->dtype))
            return mn_fail(context, MN_ERR_DTYPE, "%s: parameter %d (%s) is %s, not floating", what,
                           i, mn_tensor_name(p), mn_dtype_name(p->dtype));
        if (p->node)
            return mn_fail(context, MN_ERR_ARGUMENT,
                           "%s: parameter %d is the result of an op, not a leaf", what, i);
        for (int j = 0; j < i; j++) {
            if (parameters[j] == p)
                return mn_fail(context, MN_ERR_ARGUMENT,
                               "%s: parameters %d and %d are the same (%s)", what, j, i,
                               mn_tensor_name(p));
        }
    }
    return MN_OK;
}

/* The group that parameter `index` is in. */
static int group_of(const mn_optimizer *optimizer, int index)
{
    int group = 0;
    while (index >= optimizer->groups[group].end)
        group++;
    return group;
}

/* None of a new group's parameters is in one before. */
static mn_status check_new(const mn_optimizer *optimizer, mn_tensor *const *parameters, int count)
{
    for (int i = 0; i < count; i++)
        for (int j = 0; j < optimizer->count; j++) {
            if (optimizer->parameters[j] == parameters[i])
                return mn_fail(optimizer->context, MN_ERR_ARGUMENT,
                               "%s: parameter %d (%s) of group %d is in group %d already",
                               optimizer->recipe.kind->name, i, mn_tensor_name(parameters[i]),
                               optimizer->group_count, group_of(optimizer, j));
        }
    return MN_OK;
}

/* ---- arrays ---------------------------------------------------------------------------------- */

mn_tensor *mn_state_like(const mn_tensor *parameter)
{
    mn_tensor *state =
        mn_tensor_new_unscoped(parameter->context, parameter->dtype == MN_F64 ? MN_F64 : MN_F32,
                               parameter->ndim, parameter->shape);
    if (!state || mn_tensor_fill(state, 0) == MN_OK)
        return state;
    mn_release(state);
    return NULL;
}

/* All that grows with a group. */
typedef struct arrays {
    mn_tensor **tensors[2 + MN_OPTIMIZER_STATES]; /* parameters, then states, then masters */
    mn_param_group *groups;
} arrays;

static void free_tensors(mn_context *context, mn_tensor **tensors, int from, int count)
{
    for (int i = from; i < count && tensors; i++)
        mn_release(tensors[i]);
    mn_host_free(context, tensors, (size_t)count * sizeof *tensors);
}

static void free_arrays(mn_context *context, arrays *a, int from, int count, int groups)
{
    for (int k = 0; k <= 1 + MN_MASTER; k++)
        free_tensors(context, a->tensors[k], from, count);
    mn_host_free(context, a->groups, (size_t)groups * sizeof *a->groups);
}

static arrays arrays_of(const mn_optimizer *optimizer)
{
    mn_tensor **const *states = optimizer->states;
    return (arrays){{optimizer->parameters, states[0], states[1], states[MN_MASTER]},
                    optimizer->groups};
}

/* An f32 copy of a 16-bit parameter, which others need not; NULL also on failure. */
static mn_tensor *new_master(mn_tensor *parameter)
{
    mn_tensor *master = mn_is_16_bit(parameter->dtype) ? mn_state_like(parameter) : NULL;
    mn_tensor *const inputs[2] = {master, parameter};
    if (master)
        mn_dispatch1(parameter->context, MN_OP_assign, inputs, 2, NULL);
    return master;
}

static bool keeps(const mn_recipe *recipe, int array)
{
    return array <= recipe->states ||
           (array == 1 + MN_MASTER && recipe->rounding == MN_ROUNDING_MASTER);
}

/* Arrays with room for more: the old content, the new parameters and zeros as their states. */
static mn_status grow(const mn_optimizer *optimizer, mn_tensor *const *parameters, int count,
                      arrays *new)
{
    mn_context *context = optimizer->context;
    const arrays old = arrays_of(optimizer);
    const int before = optimizer->count, groups = optimizer->group_count;
    new->groups = mn_host_calloc(context, (size_t)groups + 1, sizeof *new->groups);
    if (new->groups && groups > 0)
        memcpy(new->groups, old.groups, (size_t)groups * sizeof *old.groups);
    for (int k = 0; k <= 1 + MN_MASTER; k++) {
        if (!keeps(&optimizer->recipe, k))
            continue;
        mn_tensor **tensors = mn_host_calloc(context, (size_t)(before + count), sizeof *tensors);
        new->tensors[k] = tensors;
        if (tensors && before > 0)
            memcpy(tensors, old.tensors[k], (size_t)before * sizeof *tensors);
        for (int i = 0; i < count && mn_ok(context); i++)
            tensors[before + i] = k == 0               ? mn_retain(parameters[i])
                                  : k == 1 + MN_MASTER ? new_master(parameters[i])
                                                       : mn_state_like(parameters[i]);
    }
    return context->error.status;
}

static mn_status check_rounding(mn_context *context, const mn_recipe *recipe,
                                mn_tensor *const *parameters, int count)
{
    const char *name = recipe->kind->name;
    if ((unsigned)recipe->rounding > MN_ROUNDING_STOCHASTIC)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: there is no rounding %d", name,
                       (int)recipe->rounding);
    for (int i = 0; i < count && recipe->rounding == MN_ROUNDING_STOCHASTIC; i++) {
        if (parameters[i]->dtype == MN_F16)
            return mn_fail(context, MN_ERR_DTYPE,
                           "%s: parameter %d (%s) is f16; stochastic rounding is for bf16", name, i,
                           mn_tensor_name(parameters[i]));
    }
    return MN_OK;
}

static mn_status add_group(mn_optimizer *optimizer, mn_tensor *const *parameters, int count,
                           double lr, double weight_decay)
{
    mn_context *context = optimizer->context;
    arrays new = {{NULL}, NULL}, old = arrays_of(optimizer);
    const int before = optimizer->count, all = before + count;
    MN_TRY(check_rounding(context, &optimizer->recipe, parameters, count));
    if (grow(optimizer, parameters, count, &new) != MN_OK) {
        free_arrays(context, &new, before, all, optimizer->group_count + 1);
        return context->error.status;
    }
    free_arrays(context, &old, before, before, optimizer->group_count);
    new.groups[optimizer->group_count++] = (mn_param_group){all, lr, weight_decay};
    optimizer->groups = new.groups;
    optimizer->parameters = new.tensors[0];
    memcpy(optimizer->states, new.tensors + 1, sizeof optimizer->states);
    optimizer->count = all;
    return MN_OK;
}

/* ---- optimizers ------------------------------------------------------------------------------ */

mn_optimizer *mn_optimizer_create(mn_context *context, const mn_recipe *recipe,
                                  mn_tensor *const *parameters, int count)
{
    static const double record[MN_RECORD_SIZE] = {[MN_OPT_APPLIED] = -1, [MN_OPT_CLIP] = 1};
    const char *name = recipe->kind->name;
    if (mn_check_amount(context, name, "lr", recipe->step.lr) != MN_OK ||
        mn_check_amount(context, name, "weight_decay", recipe->step.weight_decay) != MN_OK ||
        check_schedule(context, name, &recipe->schedule) != MN_OK ||
        mn_check_parameters(context, name, parameters, count) != MN_OK)
        return NULL;
    mn_optimizer *optimizer = mn_host_calloc(context, 1, sizeof *optimizer);
    if (!optimizer)
        return NULL;
    optimizer->context = context;
    optimizer->recipe = *recipe;
    /* Finishing "step 0" sets the first learning rate by the device's own rule. */
    if (add_group(optimizer, parameters, count, recipe->step.lr, recipe->step.weight_decay) ==
            MN_OK &&
        (optimizer->record = mn_record_create(context, record)) != NULL &&
        mn_optimizer_finish(optimizer, optimizer->record) == MN_OK)
        return optimizer;
    mn_optimizer_free(optimizer);
    return NULL;
}

void mn_optimizer_free(mn_optimizer *optimizer)
{
    if (!optimizer)
        return;
    arrays all = arrays_of(optimizer);
    mn_optimizer_ready(optimizer);
    free_arrays(optimizer->context, &all, 0, optimizer->count, optimizer->group_count);
    mn_release(optimizer->record);
    mn_host_free(optimizer->context, optimizer, sizeof *optimizer);
}

/* ---- groups ---------------------------------------------------------------------------------- */

mn_param_group_options mn_param_group_options_default(void)
{
    return (mn_param_group_options){
        .size = sizeof(mn_param_group_options), .lr = (double)NAN, .weight_decay = (double)NAN};
}

mn_status mn_optimizer_add_group(mn_optimizer *optimizer, mn_tensor *const *parameters, int count,
                                 const mn_param_group_options *options)
{
    mn_param_group_options o = mn_param_group_options_default();
    MN_TRY(mn_optimizer_check(optimizer));
    mn_context *context = optimizer->context;
    const char *name = optimizer->recipe.kind->name;
    MN_TRY(mn_options_copy(&context->error, "mn_param_group", &o, sizeof o, options));
    if (optimizer->begun || optimizer->stage != MN_STAGE_READY)
        return mn_fail(context, MN_ERR_STATE,
                       "optimizer_add_group: groups are added before the first step");
    const double lr = mn_isnan_f64(o.lr) ? optimizer->recipe.step.lr : o.lr;
    const double decay =
        mn_isnan_f64(o.weight_decay) ? optimizer->recipe.step.weight_decay : o.weight_decay;
    MN_TRY(mn_check_amount(context, name, "lr of a group", lr));
    MN_TRY(mn_check_amount(context, name, "weight_decay of a group", decay));
    MN_TRY(mn_check_parameters(context, name, parameters, count));
    MN_TRY(check_new(optimizer, parameters, count));
    return add_group(optimizer, parameters, count, lr, decay);
}

mn_status mn_optimizer_set_lr(mn_optimizer *optimizer, int group, double lr)
{
    MN_TRY(mn_optimizer_check(optimizer));
    mn_context *context = optimizer->context;
    if (group < 0 || group >= optimizer->group_count)
        return mn_fail(context, MN_ERR_ARGUMENT, "optimizer_set_lr: there is no group %d of %d",
                       group, optimizer->group_count);
    if (optimizer->stage != MN_STAGE_READY)
        return mn_fail(context, MN_ERR_STATE,
                       "optimizer_set_lr: only between steps: call mn_grad_scaler_update first");
    MN_TRY(mn_check_amount(context, optimizer->recipe.kind->name, "lr of a group", lr));
    optimizer->groups[group].lr = lr;
    return MN_OK;
}
