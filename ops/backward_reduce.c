/* ops/backward_reduce.c: gradients of norms, extremes and variance. */
#include "ops/internal.h"

static mn_tensor *norm_backward(mn_tensor *g, mn_tensor *x, mn_tensor *y,
                                const mn_reduce_attributes *attributes)
{
    mn_tensor *const inputs[3] = {g, x, y};
    return mn_apply1(MN_OP_norm_backward, inputs, 3, attributes);
}

/* Also of amax and amin. */
mn_status mn_backward_norm(mn_backward_call *call)
{
    return mn_give_gradient(
        call, 0, norm_backward(call->grad_out[0], call->in[0], call->out[0], call->attributes));
}

static mn_tensor *full_like(mn_tensor *x, double value)
{
    if (!x)
        return NULL;
    return mn_full(x->context, x->dtype, x->ndim, x->shape, value);
}

/* dx = g u with u = norm_backward(1, x, y). For an arriving h: dg = sum(h u). u depends on x and y
 * only for p = 2, where it is x / y: the gradient of x is g h / y, that of y is -dg g / y. A norm
 * of nothing, with p = 2, divides by y (and gives 0 where y is 0). */
mn_status mn_backward_norm_backward(mn_backward_call *call)
{
    const mn_reduce_attributes *forward = call->attributes;
    const mn_reduce_attributes over = {.axes = forward->axes, .keep = forward->keep};
    const mn_reduce_attributes divide = {.p = 2};
    mn_tensor *h = call->grad_out[0], *g = call->in[0], *x = call->in[1], *y = call->in[2];
    if (call->needs[0] || call->needs[2]) {
        mn_tensor *product = mn_mul(h, norm_backward(full_like(g, 1), x, y, forward));
        MN_TRY(mn_give_result(call, 0, MN_OP_sum, &product, 1, &over));
    }
    if (forward->p != 2)
        return MN_OK;
    if (call->needs[1])
        MN_TRY(mn_give_gradient(call, 1, norm_backward(g, h, y, forward)));
    if (!call->needs[2])
        return MN_OK;
    mn_tensor *product = mn_mul(call->grad_in[0], g);
    return mn_give_gradient(call, 2, norm_backward(product, full_like(y, -1), y, &divide));
}

/* dx = 2 (x - mean) g / max(0, n - correction), in f32 */
mn_status mn_backward_var(mn_backward_call *call)
{
    const mn_reduce_attributes *forward = call->attributes;
    const mn_reduce_attributes over = {.axes = forward->axes, .keep = 1};
    const mn_view *view = &call->in_view[0];
    const double left = mn_extent_of(view, forward->axes) - forward->p;
    const mn_dtype dtype = mn_wide_dtype(view->dtype);
    mn_tensor *x = mn_cast(call->in[0], dtype), *g = mn_cast(call->grad_out[0], dtype);
    mn_tensor *mean = mn_apply1(MN_OP_mean, &x, 1, &over);
    if (!mean)
        return mn_error_status(call->context);
    mn_tensor *centered = mn_add(x, mn_expand_to(mean, view, -1));
    g = mn_expand_to(mn_reshape_to(g, mean->ndim, mean->shape), view, 2 / (left > 0 ? left : 0));
    return mn_give_gradient(call, 0, mn_mul(centered, g));
}
