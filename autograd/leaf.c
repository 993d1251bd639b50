/* Leaves: which want gradients, what their gradients hold; detaching and no-grad sections. */
#include "autograd/node.h"

bool mn_requires_grad(const mn_tensor *tensor)
{
    return tensor && tensor->requires_grad;
}

mn_status mn_set_requires_grad(mn_tensor *tensor, bool value)
{
    if (!tensor)
        return MN_ERR_ARGUMENT;
    mn_context *context = tensor->context;
    MN_TRY(mn_error_status(context));
    if (tensor->node)
        return mn_fail(context, MN_ERR_STATE,
                       "requires_grad is of leaves only; mn_detach gives one from a result");
    if (value && !mn_dtype_is_float(tensor->dtype))
        return mn_fail(context, MN_ERR_DTYPE, "a tensor of %s cannot require a gradient",
                       mn_dtype_name(tensor->dtype));
    if (value && !mn_tensor_leaf(tensor))
        return context->error.status;
    tensor->requires_grad = value;
    return MN_OK;
}

mn_tensor *mn_grad(const mn_tensor *tensor)
{
    return mn_grad_state_get(tensor) != MN_GRAD_NONE ? tensor->leaf->grad : NULL;
}

mn_grad_state mn_grad_state_get(const mn_tensor *tensor)
{
    return tensor && tensor->leaf ? tensor->leaf->state : MN_GRAD_NONE;
}

void mn_leaf_forget(mn_leaf *leaf)
{
    /* Between steps the pool has better use for it: a step's peak is where its graph is largest. */
    mn_release(leaf->grad);
    leaf->grad = NULL;
    leaf->state = MN_GRAD_NONE;
    leaf->consumed = false;
}

mn_status mn_zero_grad(mn_tensor *tensor)
{
    if (!tensor)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_error_status(tensor->context));
    if (tensor->leaf)
        mn_leaf_forget(tensor->leaf);
    return MN_OK;
}

mn_tensor *mn_detach(mn_tensor *x)
{
    if (!x || !mn_ok(x->context))
        return NULL;
    mn_tensor *view = mn_tensor_view(x->storage, x->offset, x->dtype, x->ndim, x->shape);
    if (view)
        view->layout = x->layout;
    return view;
}

void mn_no_grad_begin(mn_context *context)
{
    mn_autograd *autograd = context ? mn_autograd_state(context) : NULL;
    if (!autograd)
        return;
    mn_sections_push(context, &autograd->no_grad, MN_F32);
    context->no_grad = mn_sections_top(autograd->no_grad) != NULL;
}

void mn_no_grad_end(mn_context *context)
{
    mn_autograd *autograd = context ? mn_autograd_state(context) : NULL;
    if (!autograd)
        return;
    if (!mn_sections_pop(context, &autograd->no_grad))
        mn_fail(context, MN_ERR_STATE,
                "mn_no_grad_end without mn_no_grad_begin: the end of a scope ends what was begun "
                "in it");
    context->no_grad = mn_sections_top(autograd->no_grad) != NULL;
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* Why a gradient of the pass cannot be added to what the leaf has; NULL if it can. */
static const char *objection(const mn_leaf *leaf, const mn_pass *pass)
{
    bool scaled = pass->state == MN_GRAD_SCALED;
    if (leaf->state == MN_GRAD_NONE)
        return NULL;
    if (scaled && leaf->consumed)
        return "scaled backward into gradients left over from a finished step: call "
               "mn_optimizer_zero_grad after each step";
    if (scaled && leaf->state == MN_GRAD_SCALED && leaf->scaling != pass->scaling)
        return "scaled backward into gradients of another scale: call zero_grad after "
               "mn_grad_scaler_update, and use one scaler";
    if (leaf->state == pass->state)
        return NULL;
    if (leaf->state == MN_GRAD_UNSCALED)
        return scaled ? "scaled backward into unscaled gradients: unscale only after the last "
                        "micro-batch, then step, update and zero_grad"
                      : "plain backward into unscaled gradients: use mn_grad_scaler_backward, "
                        "after step, update and zero_grad";
    return scaled ? "scaled backward into plain gradients: use mn_grad_scaler_backward throughout, "
                    "or call zero_grad first"
                  : "plain backward into scaled gradients: use mn_grad_scaler_backward throughout, "
                    "or call zero_grad first";
}

mn_status mn_leaf_admits(mn_tensor *tensor, const mn_pass *pass)
{
    const char *text =
        tensor->leaf && !tensor->context->keeps_gradients ? objection(tensor->leaf, pass) : NULL;
    if (!text)
        return MN_OK;
    const char *name = mn_tensor_name(tensor);
    return mn_fail(tensor->context, MN_ERR_STATE, "%s (%s)", text, name[0] ? name : "unnamed leaf");
}

/* Only the scope of the backward that runs has what the gradient holds, and it is as the leaf's own
 * would be. A custom op may give what it or its caller keeps. Observers want to see the leaf's
 * gradient written. */
static bool can_take(const mn_tensor *leaf, const mn_tensor *gradient)
{
    return gradient->scope == leaf->context->scope && gradient->references == 1 &&
           gradient->storage->references == 1 && !gradient->node &&
           gradient->storage->bytes == mn_tensor_bytes(gradient) && !leaf->context->observers &&
           gradient->dtype == (leaf->dtype == MN_F64 ? MN_F64 : MN_F32);
}

mn_status mn_leaf_accumulate(mn_tensor *tensor, mn_tensor *gradient, bool sole, const mn_pass *pass)
{
    mn_context *context = tensor->context;
    if (context->keeps_gradients)
        return MN_OK;
    mn_leaf *leaf = mn_tensor_leaf(tensor);
    const bool taken = leaf && !leaf->grad && sole && can_take(tensor, gradient);
    if (taken)
        leaf->grad = mn_retain(gradient);
    else if (leaf && !leaf->grad)
        leaf->grad = mn_tensor_new_unscoped(context, tensor->dtype == MN_F64 ? MN_F64 : MN_F32,
                                            tensor->ndim, tensor->shape);
    if (!leaf || !leaf->grad)
        return context->error.status;
    static const mn_blend_attributes sum = {1, 1};
    mn_tensor *inputs[2] = {leaf->grad, gradient};
    context->gradient_of = tensor;
    if (leaf->state == MN_GRAD_NONE && !taken)
        mn_dispatch1(context, MN_OP_assign, inputs, 2, NULL);
    else if (!taken)
        mn_dispatch1(context, MN_OP_blend, inputs, 2, &sum);
    context->gradient_of = NULL;
    MN_TRY(mn_error_status(context));
    leaf->state = pass->state;
    leaf->scaling = pass->scaling;
    return MN_OK;
}
