/* ops/backward_move.c: gradients of the ops that cut, join, index and drop elements. */
#include "ops/internal.h"

mn_status mn_backward_pad(mn_backward_call *call)
{
    const mn_pad_attributes *forward = call->attributes;
    mn_pad_attributes undo = {.value = 0};
    for (int i = 0; i < MN_MAX_DIMS; i++) {
        undo.before[i] = -forward->before[i];
        undo.after[i] = -forward->after[i];
    }
    return mn_give_result(call, 0, MN_OP_pad, call->grad_out, 1, &undo);
}

mn_status mn_backward_concat(mn_backward_call *call)
{
    const int64_t axis = ((const mn_axis_attributes *)call->attributes)->axis;
    const int64_t total = mn_tensor_shape(call->grad_out[0])[axis];
    int64_t start = 0;
    for (int i = 0; i < MN_MAX_INPUTS && call->in_view[i].present; i++) {
        const int64_t end = start + call->in_view[i].shape[axis];
        mn_pad_attributes part = {.value = 0};
        part.before[axis] = -start;
        part.after[axis] = end - total;
        if (call->needs[i])
            MN_TRY(mn_give_result(call, i, MN_OP_pad, call->grad_out, 1, &part));
        start = end;
    }
    return MN_OK;
}

mn_status mn_backward_gather(mn_backward_call *call)
{
    const mn_view *x = &call->in_view[0];
    mn_tensor *g = call->grad_out[0];
    mn_tensor *zeros = mn_full(call->context, mn_tensor_dtype(g), x->ndim, x->shape, 0);
    mn_tensor *const inputs[3] = {zeros, g, call->in[1]};
    return mn_give_result(call, 0, MN_OP_scatter_add, inputs, 3, call->attributes);
}

mn_status mn_backward_scatter_add(mn_backward_call *call)
{
    mn_tensor *const inputs[2] = {call->grad_out[0], call->in[2]};
    if (call->needs[0])
        MN_TRY(mn_give_gradient(call, 0, call->grad_out[0]));
    if (!call->needs[1])
        return MN_OK;
    return mn_give_result(call, 1, MN_OP_gather, inputs, 2, call->attributes);
}

/* The same words are drawn again. */
mn_status mn_backward_dropout(mn_backward_call *call)
{
    return mn_give_result(call, 0, MN_OP_dropout, call->grad_out, 1, call->attributes);
}
