/* ops/backward_loss.c: gradients of softmax and losses, composed of other ops. */
#include "ops/internal.h"

/* ---- softmax --------------------------------------------------------------------------------- */

/* Also of log_softmax. */
mn_status mn_backward_softmax(mn_backward_call *call)
{
    const bool is_log = call->op == &mn_ops[MN_OP_log_softmax];
    mn_tensor *const inputs[2] = {call->grad_out[0], call->out[0]};
    return mn_give_result(call, 0, is_log ? MN_OP_log_softmax_backward : MN_OP_softmax_backward,
                          inputs, 2, call->attributes);
}

/* -a sum(b) along the axis */
static mn_tensor *minus_sum(mn_tensor *a, mn_tensor *b, int64_t axis)
{
    const int over[1] = {(int)axis};
    mn_tensor *sum = mn_sum(b, 1, over, true);
    const mn_view like = mn_tensor_as_view(sum);
    sum = sum ? mn_expand_to(sum, &like, -1) : NULL;
    return a ? mn_mul(a, sum) : sum;
}

/* With h the gradient of dx and the sums along the axis. log_softmax: dx = g - exp(y) sum(g), so
 * h - sum(h exp(y)) for g and -h exp(y) sum(g) for y, where exp(y) is softmax(y), as y has been
 * normalized. softmax: dx = y (g - sum(g y)), so y (h - sum(h y)) for g, which is the op itself,
 * and h (g - sum(g y)) - g sum(h y) for y. */
mn_status mn_backward_softmax_backward(mn_backward_call *call)
{
    const int64_t axis = ((const mn_axis_attributes *)call->attributes)->axis;
    const bool is_log = call->op == &mn_ops[MN_OP_log_softmax_backward];
    mn_tensor *const inputs[2] = {call->grad_out[0], call->in[1]};
    mn_tensor *h = mn_widen(call->grad_out[0]), *g = mn_widen(call->in[0]);
    mn_tensor *p = mn_widen(call->in[1]);
    if (is_log)
        p = mn_softmax(p, (int)axis);
    mn_tensor *hp = mn_mul(h, p);
    if (call->needs[0] && is_log)
        MN_TRY(mn_give_gradient(call, 0, mn_add(h, minus_sum(NULL, hp, axis))));
    if (call->needs[0] && !is_log)
        MN_TRY(mn_give_result(call, 0, MN_OP_softmax_backward, inputs, 2, call->attributes));
    if (!call->needs[1])
        return MN_OK;
    if (is_log)
        return mn_give_gradient(call, 1, minus_sum(hp, g, axis));
    mn_tensor *centered = mn_add(g, minus_sum(NULL, mn_mul(g, p), axis));
    return mn_give_gradient(call, 1, mn_add(mn_mul(h, centered), minus_sum(g, hp, axis)));
}

/* ---- losses ---------------------------------------------------------------------------------- */

/* Also of nll_loss. */
mn_status mn_backward_cross_entropy(mn_backward_call *call)
{
    mn_tensor *const inputs[5] = {call->grad_out[0], call->in[0], call->in[1], call->out[1],
                                  call->in[2]};
    if (!call->grad_out[0])
        return MN_OK; /* only lse was used, and nothing flows through it */
    return mn_give_result(call, 0, MN_OP_cross_entropy_backward, inputs, 5, call->attributes);
}

/* A target that takes a gradient takes it as the input would: those losses are even in x - t. */
mn_status mn_backward_pointwise_loss(mn_backward_call *call)
{
    for (int i = 0; i < 2; i++) {
        mn_tensor *const inputs[3] = {call->grad_out[0], call->in[i], call->in[1 - i]};
        if (call->needs[i])
            MN_TRY(mn_give_result(call, i, MN_OP_pointwise_loss_backward, inputs, 3,
                                  call->attributes));
    }
    return MN_OK;
}
