/* The kinds of optimizers: their options, and what of them the machinery of all needs. */
#include "optim/optim.h"

/* ---- options --------------------------------------------------------------------------------- */

mn_sgd_options mn_sgd_options_default(void)
{
    return (mn_sgd_options){.size = sizeof(mn_sgd_options), .lr = 0.01};
}

mn_adam_options mn_adam_options_default(void)
{
    return (mn_adam_options){
        .size = sizeof(mn_adam_options), .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
}

mn_adam_options mn_adamw_options_default(void)
{
    mn_adam_options options = mn_adam_options_default();
    options.weight_decay = 1e-2;
    options.decoupled = true;
    return options;
}

mn_rmsprop_options mn_rmsprop_options_default(void)
{
    return (mn_rmsprop_options){
        .size = sizeof(mn_rmsprop_options), .lr = 0.01, .alpha = 0.99, .eps = 1e-8};
}

/* ---- checks ---------------------------------------------------------------------------------- */

/* A share of the past that lasts. */
static mn_status check_rate(mn_context *context, const char *name, double value)
{
    if (mn_is_within(value, 0, 1) && value < 1)
        return MN_OK;
    return mn_fail(context, MN_ERR_ARGUMENT, "%s is %g, must be in [0, 1)", name, value);
}

/* ---- making ---------------------------------------------------------------------------------- */

mn_optimizer *mn_sgd_create(mn_context *context, mn_tensor *const *parameters, int count,
                            const mn_sgd_options *options)
{
    static const mn_optimizer_kind kind = {"sgd", MN_OP_sgd_step, {"momentum_buffer", NULL}};
    mn_sgd_options o = mn_sgd_options_default();
    if (!context || !mn_ok(context) ||
        mn_options_copy(&context->error, "mn_sgd", &o, sizeof o, options) != MN_OK ||
        check_rate(context, "sgd: momentum", o.momentum) != MN_OK)
        return NULL;
    if (o.nesterov && o.momentum == 0) {
        mn_fail(context, MN_ERR_ARGUMENT, "sgd: nesterov needs momentum > 0");
        return NULL;
    }
    const mn_recipe recipe = {
        &kind,
        o.momentum > 0,
        {.lr = o.lr, .weight_decay = o.weight_decay, .rate = {o.momentum}, .variant = o.nesterov},
        o.schedule,
        o.rounding};
    return mn_optimizer_create(context, &recipe, parameters, count);
}

mn_optimizer *mn_adam_create(mn_context *context, mn_tensor *const *parameters, int count,
                             const mn_adam_options *options)
{
    static const mn_optimizer_kind kind = {"adam", MN_OP_adam_step, {"exp_avg", "exp_avg_sq"}};
    mn_adam_options o = mn_adam_options_default();
    if (!context || !mn_ok(context) ||
        mn_options_copy(&context->error, "mn_adam", &o, sizeof o, options) != MN_OK ||
        check_rate(context, "adam: beta1", o.beta1) != MN_OK ||
        check_rate(context, "adam: beta2", o.beta2) != MN_OK ||
        mn_check_amount(context, "adam", "eps", o.eps) != MN_OK)
        return NULL;
    const mn_recipe recipe = {&kind,
                              2,
                              {.lr = o.lr,
                               .weight_decay = o.weight_decay,
                               .rate = {o.beta1, o.beta2},
                               .eps = o.eps,
                               .variant = o.decoupled},
                              o.schedule,
                              o.rounding};
    return mn_optimizer_create(context, &recipe, parameters, count);
}

mn_optimizer *mn_rmsprop_create(mn_context *context, mn_tensor *const *parameters, int count,
                                const mn_rmsprop_options *options)
{
    static const mn_optimizer_kind kind = {
        "rmsprop", MN_OP_rmsprop_step, {"square_avg", "momentum_buffer"}};
    mn_rmsprop_options o = mn_rmsprop_options_default();
    if (!context || !mn_ok(context) ||
        mn_options_copy(&context->error, "mn_rmsprop", &o, sizeof o, options) != MN_OK ||
        check_rate(context, "rmsprop: alpha", o.alpha) != MN_OK ||
        check_rate(context, "rmsprop: momentum", o.momentum) != MN_OK ||
        mn_check_amount(context, "rmsprop", "eps", o.eps) != MN_OK)
        return NULL;
    const mn_recipe recipe = {
        &kind,
        o.momentum > 0 ? 2 : 1,
        {.lr = o.lr, .weight_decay = o.weight_decay, .rate = {o.alpha, o.momentum}, .eps = o.eps},
        o.schedule,
        o.rounding};
    return mn_optimizer_create(context, &recipe, parameters, count);
}
