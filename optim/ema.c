/* Exponential moving averages of parameters. */
#include "optim/optim.h"

#include "core/state_dict.h"

struct mn_ema {
    mn_context *context;
    int count;
    mn_tensor **parameters; /* retained; all three arrays are one block */
    mn_tensor **averages;
    mn_tensor **own; /* the parameters' values while swapped, else NULL */
    double decay;
    bool swapped;
};

mn_ema_options mn_ema_options_default(void)
{
    return (mn_ema_options){.size = sizeof(mn_ema_options), .decay = 0.999};
}

static mn_status check(const mn_ema *ema)
{
    return ema ? ema->context->error.status : MN_ERR_ARGUMENT;
}

/* Runs assign or blend on all, or if memory is short on none: the rehearsal asks for it first. */
static mn_status run_all(mn_ema *ema, mn_op_id op, mn_tensor **to, mn_tensor **from,
                         mn_tensor *record)
{
    const mn_blend_attributes blend = {ema->decay, 1 - ema->decay};
    for (int pass = 0; pass < 2; pass++) {
        ema->context->rehearsing = pass == 0;
        for (int i = 0; i < ema->count; i++) {
            mn_tensor *const inputs[3] = {to[i], from[i], record};
            mn_dispatch1(ema->context, op, inputs, op == MN_OP_blend ? 3 : 2,
                         op == MN_OP_blend ? &blend : NULL);
        }
        ema->context->rehearsing = false;
        MN_TRY(ema->context->error.status);
    }
    return MN_OK;
}

mn_status mn_assign_all(mn_context *context, int count, mn_tensor **to, mn_tensor **from)
{
    mn_ema all = {.context = context, .count = count};
    return run_all(&all, MN_OP_assign, to, from, NULL);
}

static mn_status assign_all(mn_ema *ema, mn_tensor **to, mn_tensor **from)
{
    return mn_assign_all(ema->context, ema->count, to, from);
}

/* ---- making ---------------------------------------------------------------------------------- */

static mn_status make_parts(mn_ema *ema, mn_tensor *const *parameters)
{
    mn_context *context = ema->context;
    ema->parameters = mn_host_calloc(context, 3 * (size_t)ema->count, sizeof(mn_tensor *));
    if (!ema->parameters)
        return context->error.status;
    ema->averages = ema->parameters + ema->count;
    ema->own = ema->averages + ema->count;
    for (int i = 0; i < ema->count && mn_ok(context); i++) {
        ema->parameters[i] = mn_retain(parameters[i]);
        mn_tensor_leaf(parameters[i]);
        ema->averages[i] = mn_state_like(parameters[i]);
    }
    MN_TRY(context->error.status);
    return assign_all(ema, ema->averages, ema->parameters);
}

mn_ema *mn_ema_create(mn_context *context, mn_tensor *const *parameters, int count,
                      const mn_ema_options *options)
{
    mn_ema_options o = mn_ema_options_default();
    if (!context || !mn_ok(context) ||
        mn_options_copy(&context->error, "mn_ema", &o, sizeof o, options) != MN_OK)
        return NULL;
    if (!mn_is_within(o.decay, 0, 1)) {
        mn_fail(context, MN_ERR_ARGUMENT, "ema: decay is %g, must be in [0, 1]", o.decay);
        return NULL;
    }
    mn_ema *ema = mn_check_parameters(context, "ema", parameters, count) == MN_OK
                      ? mn_host_calloc(context, 1, sizeof *ema)
                      : NULL;
    if (!ema)
        return NULL;
    *ema = (mn_ema){.context = context, .count = count, .decay = o.decay};
    if (make_parts(ema, parameters) == MN_OK)
        return ema;
    mn_ema_free(ema);
    return NULL;
}

void mn_ema_free(mn_ema *ema)
{
    if (!ema)
        return;
    for (int i = 0; i < ema->count && ema->swapped; i++)
        ema->parameters[i]->leaf->averaged--;
    for (int i = 0; i < 3 * ema->count && ema->parameters; i++)
        mn_release(ema->parameters[i]);
    mn_host_free(ema->context, ema->parameters, 3 * (size_t)ema->count * sizeof(mn_tensor *));
    mn_host_free(ema->context, ema, sizeof *ema);
}

/* ---- use ------------------------------------------------------------------------------------- */

static mn_status refuse_swapped(const mn_ema *ema, const char *what)
{
    if (!ema->swapped)
        return MN_OK;
    return mn_fail(ema->context, MN_ERR_STATE,
                   "%s: the parameters hold the averages: call mn_ema_swap to go back first", what);
}

mn_status mn_ema_update(mn_ema *ema, const mn_optimizer *optimizer)
{
    MN_TRY(check(ema));
    MN_TRY(refuse_swapped(ema, "ema_update"));
    return run_all(ema, MN_OP_blend, ema->averages, ema->parameters,
                   optimizer ? optimizer->record : NULL);
}

/* Tensors for the parameters' values while swapped. */
static mn_status make_own(mn_ema *ema)
{
    for (int i = 0; i < ema->count && mn_ok(ema->context); i++) {
        const mn_tensor *p = ema->parameters[i];
        ema->own[i] = mn_tensor_new_unscoped(ema->context, p->dtype, p->ndim, p->shape);
    }
    return ema->context->error.status;
}

static void release_own(mn_ema *ema)
{
    for (int i = 0; i < ema->count; i++) {
        mn_release(ema->own[i]);
        ema->own[i] = NULL;
    }
}

mn_status mn_ema_swap(mn_ema *ema)
{
    MN_TRY(check(ema));
    if (ema->swapped) {
        MN_TRY(assign_all(ema, ema->parameters, ema->own));
    } else if (make_own(ema) != MN_OK || assign_all(ema, ema->own, ema->parameters) != MN_OK ||
               assign_all(ema, ema->parameters, ema->averages) != MN_OK) {
        release_own(ema);
        return ema->context->error.status;
    }
    if (ema->swapped)
        release_own(ema);
    ema->swapped = !ema->swapped;
    for (int i = 0; i < ema->count; i++)
        ema->parameters[i]->leaf->averaged += ema->swapped ? 1 : -1;
    return MN_OK;
}

/* ---- state ----------------------------------------------------------------------------------- */

mn_status mn_ema_save_state(mn_ema *ema, mn_state_dict *dict)
{
    char name[MN_ENTRY_NAME];
    MN_TRY(check(ema));
    MN_TRY(mn_state_dict_writable(ema->context, dict, "ema_save_state"));
    for (int i = 0; i < ema->count; i++) {
        MN_TRY(mn_entry_name(ema->parameters[i], i, "ema", NULL, name));
        MN_TRY(mn_state_dict_put_tensor(dict, name, ema->averages[i], ema->parameters[i]->layout));
    }
    return MN_OK;
}

mn_status mn_ema_load_state(mn_ema *ema, const mn_state_dict *dict)
{
    char name[MN_ENTRY_NAME];
    MN_TRY(check(ema));
    MN_TRY(mn_state_dict_readable(ema->context, dict, "ema_load_state"));
    MN_TRY(refuse_swapped(ema, "ema_load_state"));
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < ema->count; i++) {
            const mn_tensor *p = ema->parameters[i];
            MN_TRY(mn_entry_name(p, i, "ema", NULL, name));
            MN_TRY(mn_state_dict_get_tensor(dict, name, ema->averages[i], p->layout, pass == 1));
        }
    return MN_OK;
}
