/* ops/api_loss.c: public functions of the losses. */
#include "ops/internal.h"

/* ---- classes --------------------------------------------------------------------------------- */

mn_cross_entropy_options mn_cross_entropy_options_default(void)
{
    return (mn_cross_entropy_options){.size = sizeof(mn_cross_entropy_options),
                                      .ignore_index = -100};
}

static mn_tensor *class_loss(mn_op_id id, mn_tensor *x, mn_tensor *target,
                             const mn_cross_entropy_options *options)
{
    mn_tensor *inputs[3] = {x, target, NULL};
    mn_cross_entropy_options known = mn_cross_entropy_options_default();
    mn_context *context = mn_enter(id, inputs, 2, 2);
    if (!context || mn_options_copy(&context->error, "mn_cross_entropy", &known, sizeof known,
                                    options) != MN_OK)
        return NULL;
    const mn_class_loss_attributes attributes = {.reduction = known.reduction,
                                                 .ignore_index = known.ignore_index,
                                                 .is_log = id == MN_OP_nll_loss,
                                                 .smoothing = known.label_smoothing};
    inputs[2] = known.weight;
    return mn_apply1(id, inputs, 3, &attributes);
}

mn_tensor *mn_cross_entropy(mn_tensor *logits, mn_tensor *target,
                            const mn_cross_entropy_options *options)
{
    return class_loss(MN_OP_cross_entropy, logits, target, options);
}

mn_tensor *mn_nll_loss(mn_tensor *log_probabilities, mn_tensor *labels,
                       const mn_cross_entropy_options *options)
{
    return class_loss(MN_OP_nll_loss, log_probabilities, labels, options);
}

/* ---- element by element ---------------------------------------------------------------------- */

static mn_tensor *pointwise_loss(mn_op_id id, mn_tensor *x, mn_tensor *target,
                                 const mn_pointwise_loss_attributes *attributes)
{
    mn_tensor *const inputs[2] = {x, target};
    return mn_enter(id, inputs, 2, 2) ? mn_apply1(id, inputs, 2, attributes) : NULL;
}

mn_tensor *mn_mse_loss(mn_tensor *x, mn_tensor *target, mn_reduction reduction)
{
    const mn_pointwise_loss_attributes a = {.kind = MN_LOSS_MSE, .reduction = reduction};
    return pointwise_loss(MN_OP_mse_loss, x, target, &a);
}

mn_tensor *mn_l1_loss(mn_tensor *x, mn_tensor *target, mn_reduction reduction)
{
    const mn_pointwise_loss_attributes a = {.kind = MN_LOSS_L1, .reduction = reduction};
    return pointwise_loss(MN_OP_l1_loss, x, target, &a);
}

mn_tensor *mn_huber_loss(mn_tensor *x, mn_tensor *target, double delta, mn_reduction reduction)
{
    const mn_pointwise_loss_attributes a = {
        .kind = MN_LOSS_HUBER, .reduction = reduction, .delta = delta};
    return pointwise_loss(MN_OP_huber_loss, x, target, &a);
}

mn_tensor *mn_binary_cross_entropy_with_logits(mn_tensor *x, mn_tensor *target,
                                               mn_reduction reduction)
{
    const mn_pointwise_loss_attributes a = {.kind = MN_LOSS_BCE_WITH_LOGITS,
                                            .reduction = reduction};
    return pointwise_loss(MN_OP_binary_cross_entropy_with_logits, x, target, &a);
}

mn_tensor *mn_binary_cross_entropy(mn_tensor *p, mn_tensor *target, mn_reduction reduction)
{
    const mn_pointwise_loss_attributes a = {.kind = MN_LOSS_BCE, .reduction = reduction};
    return pointwise_loss(MN_OP_binary_cross_entropy, p, target, &a);
}
