/* Stochastic gradient descent: making and freeing the optimizer, and its step. */
#include "optim/optim.h"

#include <math.h>

mn_sgd_options mn_sgd_options_default(void)
{
    return (mn_sgd_options){.size = sizeof(mn_sgd_options), .lr = 0.01};
}

/* ---- making ---------------------------------------------------------------------------------- */

static mn_status check_options(mn_context *context, const mn_sgd_options *options)
{
    const mn_schedule *schedule = &options->schedule;
    if (!(options->lr >= 0) || !isfinite(options->lr))
        return mn_fail(context, MN_ERR_ARGUMENT, "sgd: lr is %g, must be finite and at least 0",
                       options->lr);
    if (!(options->momentum >= 0 && options->momentum < 1))
        return mn_fail(context, MN_ERR_ARGUMENT, "sgd: momentum is %g, must be in [0, 1)",
                       options->momentum);
    if (!(options->weight_decay >= 0) || !isfinite(options->weight_decay))
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "sgd: weight_decay is %g, must be finite and at least 0",
                       options->weight_decay);
    if (options->nesterov && !(options->momentum > 0))
        return mn_fail(context, MN_ERR_ARGUMENT, "sgd: nesterov needs momentum > 0");
    if (schedule->kind != MN_SCHEDULE_CONSTANT && schedule->kind != MN_SCHEDULE_COSINE)
        return mn_fail(context, MN_ERR_ARGUMENT, "sgd: there is no schedule %d",
                       (int)schedule->kind);
    if (schedule->kind == MN_SCHEDULE_COSINE && schedule->total_steps <= 0)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "sgd: the cosine schedule needs total_steps > 0, not %lld",
                       (long long)schedule->total_steps);
    return MN_OK;
}

static mn_status check_parameters(mn_context *context, mn_tensor *const *parameters, int count)
{
    if (!parameters || count <= 0)
        return mn_fail(context, MN_ERR_ARGUMENT, "sgd: there are no parameters");
    for (int i = 0; i < count; i++) {
        const mn_tensor *p = parameters[i];
        if (!p)
            return mn_fail(context, MN_ERR_ARGUMENT, "sgd: parameter %d is NULL", i);
        MN_TRY(mn_tensor_check(context, p, "sgd: a parameter"));
        if (!mn_dtype_is_float(p->dtype))
            return mn_fail(context, MN_ERR_DTYPE, "sgd: parameter %d (%s) is %s, not floating", i,
                           mn_tensor_name(p), mn_dtype_name(p->dtype));
        if (p->node)
            return mn_fail(context, MN_ERR_ARGUMENT,
                           "sgd: parameter %d is the result of an op, not a leaf", i);
        for (int j = 0; j < i; j++) {
            if (parameters[j] == p)
                return mn_fail(context, MN_ERR_ARGUMENT,
                               "sgd: parameters %d and %d are the same (%s)", j, i,
                               mn_tensor_name(p));
        }
    }
    return MN_OK;
}

static mn_tensor **tensor_array(mn_optimizer *optimizer)
{
    return mn_host_calloc(optimizer->context, (size_t)optimizer->count, sizeof(mn_tensor *));
}

static mn_status make_momenta(mn_optimizer *optimizer)
{
    mn_context *context = optimizer->context;
    if (optimizer->options.momentum == 0)
        return MN_OK;
    optimizer->momenta = tensor_array(optimizer);
    for (int i = 0; i < optimizer->count && optimizer->momenta; i++) {
        const mn_tensor *p = optimizer->parameters[i];
        mn_dtype dtype = p->dtype == MN_F64 ? MN_F64 : MN_F32;
        mn_tensor *momentum = mn_tensor_new_unscoped(context, dtype, p->ndim, p->shape);
        optimizer->momenta[i] = momentum;
        if (!momentum || mn_tensor_fill(momentum, 0) != MN_OK)
            break;
    }
    return context->error.status;
}

static mn_status make_parts(mn_optimizer *optimizer, mn_tensor *const *parameters)
{
    const double record[MN_RECORD_SIZE] = {[MN_OPT_LR] = optimizer->options.lr, [MN_OPT_CLIP] = 1};
    mn_context *context = optimizer->context;
    optimizer->parameters = tensor_array(optimizer);
    if (!optimizer->parameters)
        return context->error.status;
    for (int i = 0; i < optimizer->count; i++)
        optimizer->parameters[i] = mn_retain(parameters[i]);
    MN_TRY(make_momenta(optimizer));
    optimizer->record = mn_record_create(context, record);
    return context->error.status;
}

mn_optimizer *mn_sgd_create(mn_context *context, mn_tensor *const *parameters, int count,
                            const mn_sgd_options *options)
{
    mn_sgd_options known = mn_sgd_options_default();
    if (!context || !mn_ok(context) ||
        mn_options_copy(&context->error, "mn_sgd", &known, sizeof known, options) != MN_OK ||
        check_options(context, &known) != MN_OK ||
        check_parameters(context, parameters, count) != MN_OK)
        return NULL;
    mn_optimizer *optimizer = mn_host_calloc(context, 1, sizeof *optimizer);
    if (!optimizer)
        return NULL;
    optimizer->context = context;
    optimizer->count = count;
    optimizer->options = known;
    if (make_parts(optimizer, parameters) != MN_OK) {
        mn_optimizer_free(optimizer);
        return NULL;
    }
    return optimizer;
}

static void free_tensors(mn_optimizer *optimizer, mn_tensor **tensors)
{
    for (int i = 0; i < optimizer->count && tensors; i++)
        mn_release(tensors[i]);
    mn_host_free(optimizer->context, tensors, (size_t)optimizer->count * sizeof *tensors);
}

void mn_optimizer_free(mn_optimizer *optimizer)
{
    if (!optimizer)
        return;
    mn_optimizer_ready(optimizer);
    free_tensors(optimizer, optimizer->parameters);
    free_tensors(optimizer, optimizer->momenta);
    mn_release(optimizer->record);
    mn_host_free(optimizer->context, optimizer, sizeof *optimizer);
}

/* ---- step ------------------------------------------------------------------------------------ */

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

static mn_status step_parameter(mn_optimizer *optimizer, int index)
{
    static const mn_dtype dtypes[2] = {MN_F16, MN_BF16};
    mn_context *context = optimizer->context;
    mn_tensor *p = optimizer->parameters[index];
    mn_shadow *shadow = p->leaf->shadow;
    mn_tensor *inputs[6] = {p, p->leaf->grad, optimizer->momenta ? optimizer->momenta[index] : NULL,
                            optimizer->record};
    int count = 4;
    const mn_sgd_attributes attributes = {
        optimizer->options.momentum, optimizer->options.weight_decay, optimizer->options.nesterov};
    for (int k = 0; k < 2; k++) {
        if (!shadow[k].storage)
            continue;
        inputs[4 + k] = mn_tensor_view(shadow[k].storage, 0, dtypes[k], p->ndim, p->shape);
        count = 5 + k;
    }
    return mn_dispatch(context, &mn_ops[MN_OP_sgd_step], inputs, count, &attributes, false, NULL);
}

mn_schedule_attributes mn_optimizer_schedule(const mn_optimizer *optimizer)
{
    const mn_sgd_options *o = &optimizer->options;
    return (mn_schedule_attributes){o->schedule.kind, o->schedule.total_steps, o->lr};
}

static mn_status run_ops(mn_optimizer *optimizer, bool rehearse)
{
    mn_context *context = optimizer->context;
    const mn_schedule_attributes attributes = mn_optimizer_schedule(optimizer);
    mn_scope scope = mn_scope_begin(context);
    context->rehearsing = rehearse;
    for (int i = 0; i < optimizer->count && mn_ok(context); i++) {
        if (has_gradient(optimizer, i))
            step_parameter(optimizer, i);
    }
    mn_dispatch1(context, MN_OP_optimizer_finish, &optimizer->record, 1, &attributes);
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

/* A step is applied whole or not at all: the rehearsal meets what can run out of memory before the
 * first parameter changes, and leaves in the caches what the step is about to ask for. */
mn_status mn_optimizer_apply(mn_optimizer *optimizer)
{
    for (int i = 0; i < optimizer->count; i++)
        for (int k = 0; k < 2 && has_gradient(optimizer, i); k++)
            MN_TRY(renew_shadow(optimizer->context, &optimizer->parameters[i]->leaf->shadow[k]));
    MN_TRY(run_ops(optimizer, true));
    MN_TRY(run_ops(optimizer, false));
    mark_used(optimizer);
    return MN_OK;
}
