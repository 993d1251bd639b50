/* ops/backward_math.c: gradients of ops that move elements, elementwise ops and matrix products,
 * composed of other ops. */
#include "ops/internal.h"

/* ---- helpers --------------------------------------------------------------------------------- */

static mn_shape_attributes shape_attributes(int ndim, const int64_t *shape, double scale)
{
    mn_shape_attributes to = {.ndim = ndim, .scale = scale};
    for (int i = 0; i < ndim; i++)
        to.shape[i] = shape[i];
    return to;
}

mn_tensor *mn_reshape_to(mn_tensor *x, int ndim, const int64_t *shape)
{
    const mn_shape_attributes to = shape_attributes(ndim, shape, 0);
    return mn_apply1(MN_OP_reshape, &x, 1, &to);
}

mn_tensor *mn_expand_to(mn_tensor *x, const mn_view *like, double scale)
{
    const mn_shape_attributes to = shape_attributes(like->ndim, like->shape, scale);
    return mn_apply1(MN_OP_expand, &x, 1, &to);
}

static mn_tensor *cast_to(mn_tensor *x, mn_dtype dtype)
{
    return !x || x->dtype == dtype ? x : mn_cast(x, dtype);
}

mn_tensor *mn_widen(mn_tensor *x)
{
    return x && mn_is_16_bit(x->dtype) ? mn_cast(x, MN_F32) : x;
}

/* x summed over the axes that broadcasting stretched from the view's shape. */
static mn_tensor *reduce_to(mn_tensor *x, const mn_view *like)
{
    const mn_view is = mn_tensor_as_view(x);
    if (!x || mn_same_shape(&is, like))
        return x;
    const mn_shape_attributes to = shape_attributes(like->ndim, like->shape, 0);
    return mn_apply1(MN_OP_reduce_to, &x, 1, &to);
}

mn_status mn_give_result(mn_backward_call *call, int input, mn_op_id id, mn_tensor *const *inputs,
                         int count, const void *attributes)
{
    return mn_give_gradient(call, input, mn_apply1(id, inputs, count, attributes));
}

mn_status mn_give_gradient(mn_backward_call *call, int input, mn_tensor *gradient)
{
    const mn_view *like = &call->in_view[input];
    gradient = cast_to(reduce_to(gradient, like), like->dtype);
    call->grad_in[input] = gradient;
    return gradient ? MN_OK : mn_error_status(call->context);
}

/* The gradient is a binary op of g and another tensor. */
static mn_status give_binary(mn_backward_call *call, int input, mn_op_id id, mn_tensor *b)
{
    mn_tensor *const inputs[2] = {call->grad_out[0], b};
    return mn_give_result(call, input, id, inputs, 2, NULL);
}

/* ---- moving elements ------------------------------------------------------------------------- */

mn_status mn_backward_reshape(mn_backward_call *call)
{
    const mn_view *x = &call->in_view[0];
    return mn_give_gradient(call, 0, mn_reshape_to(call->grad_out[0], x->ndim, x->shape));
}

mn_status mn_backward_copy(mn_backward_call *call)
{
    return mn_give_gradient(call, 0, call->grad_out[0]);
}

mn_status mn_backward_permute(mn_backward_call *call)
{
    const mn_permute_attributes *forward = call->attributes;
    mn_permute_attributes inverse = {.axes = {0}};
    for (int i = 0; i < call->in_view[0].ndim; i++)
        inverse.axes[forward->axes[i]] = i;
    return mn_give_result(call, 0, MN_OP_permute, call->grad_out, 1, &inverse);
}

mn_status mn_backward_expand(mn_backward_call *call)
{
    const mn_shape_attributes *forward = call->attributes;
    const mn_view *x = &call->in_view[0];
    mn_tensor *g = reduce_to(call->grad_out[0], x);
    if (g && forward->scale != 1)
        g = mn_expand_to(g, x, forward->scale);
    return mn_give_gradient(call, 0, g);
}

mn_status mn_backward_reduce_to(mn_backward_call *call)
{
    return mn_give_gradient(call, 0, mn_expand_to(call->grad_out[0], &call->in_view[0], 1));
}

/* ---- elementwise ----------------------------------------------------------------------------- */

/* Also of sub. */
mn_status mn_backward_add(mn_backward_call *call)
{
    mn_tensor *g = call->grad_out[0];
    if (call->needs[0])
        MN_TRY(mn_give_gradient(call, 0, g));
    if (!call->needs[1])
        return MN_OK;
    return mn_give_gradient(call, 1, call->op == &mn_ops[MN_OP_sub] ? mn_neg(g) : g);
}

/* Also of dot, where g broadcasts. */
mn_status mn_backward_mul(mn_backward_call *call)
{
    for (int i = 0; i < 2; i++) {
        if (call->needs[i])
            MN_TRY(give_binary(call, i, MN_OP_mul, call->in[1 - i]));
    }
    return MN_OK;
}

static bool is_watched(const mn_context *context)
{
    const mn_observer *at = context->observers;
    while (at && at->blind)
        at = at->next;
    return at != NULL;
}

void mn_spend_gradient(mn_backward_call *call)
{
    const mn_context *context = call->context;
    mn_tensor *g = call->grad_out[0];
    g->spent = !context->create_graph && !context->keeps_gradients && !is_watched(context) &&
               g->references == 1 && g->storage->references == 1;
}

/* Also of relu_backward, which is linear in g with the same mask; that does not change with y. */
mn_status mn_backward_relu(mn_backward_call *call)
{
    mn_tensor *y = call->out[0] ? call->out[0] : call->in[1];
    mn_spend_gradient(call);
    return call->needs[0] ? give_binary(call, 0, MN_OP_relu_backward, y) : MN_OK;
}

mn_status mn_mask_gradient(mn_backward_call *call)
{
    mn_tensor *const pair[2] = {call->grad_out[0], call->out[0]};
    mn_spend_gradient(call);
    call->grad_out[0] = mn_apply1(MN_OP_relu_backward, pair, 2, NULL);
    return call->grad_out[0] ? MN_OK : mn_error_status(call->context);
}

/* ---- products -------------------------------------------------------------------------------- */

static mn_tensor *matmul(mn_tensor *a, bool transpose_a, mn_tensor *b, bool transpose_b)
{
    mn_tensor *const inputs[2] = {a, b};
    const mn_matmul_attributes attributes = {.transpose_a = transpose_a,
                                             .transpose_b = transpose_b};
    return mn_apply1(MN_OP_matmul, inputs, 2, &attributes);
}

/* With A and B the operands as they enter the product: dA = g B^T, dB = A^T g. The gradient of an
 * operand that was transposed is the transpose of that. */
mn_status mn_backward_matmul(mn_backward_call *call)
{
    const mn_matmul_attributes *forward = call->attributes;
    mn_tensor *g = call->grad_out[0], *a = call->in[0], *b = call->in[1];
    bool ta = forward->transpose_a != 0, tb = forward->transpose_b != 0;
    if (call->needs[0]) {
        mn_tensor *da = ta ? matmul(b, tb, g, true) : matmul(g, false, b, !tb);
        MN_TRY(mn_give_gradient(call, 0, da));
    }
    if (call->needs[1]) {
        mn_tensor *db = tb ? matmul(g, true, a, ta) : matmul(a, !ta, g, false);
        MN_TRY(mn_give_gradient(call, 1, db));
    }
    return MN_OK;
}

/* x [..., columns] as a matrix. */
static mn_tensor *as_matrix(mn_tensor *x, int64_t rows, int64_t columns)
{
    const int64_t shape[2] = {rows, columns};
    return mn_reshape_to(x, 2, shape);
}

static mn_tensor *sum_rows(mn_tensor *matrix)
{
    const mn_reduce_attributes rows = {.axes = 1};
    return mn_apply1(MN_OP_sum, &matrix, 1, &rows);
}

mn_status mn_backward_linear(mn_backward_call *call)
{
    const mn_view *x = &call->in_view[0], *w = &call->in_view[1];
    int64_t rows;
    if (!mn_shape_numel(x->ndim - 1, x->shape, &rows))
        return mn_fail(call->context, MN_ERR_SHAPE, "linear: too many rows");
    mn_tensor *g = as_matrix(call->grad_out[0], rows, w->shape[0]);
    if (call->needs[0]) {
        mn_tensor *dx = matmul(g, false, call->in[1], false);
        MN_TRY(mn_give_gradient(call, 0, mn_reshape_to(dx, x->ndim, x->shape)));
    }
    if (call->needs[1]) {
        mn_tensor *matrix = as_matrix(call->in[0], rows, w->shape[1]);
        MN_TRY(mn_give_gradient(call, 1, matmul(g, true, matrix, false)));
    }
    return call->needs[2] ? mn_give_gradient(call, 2, sum_rows(g)) : MN_OK;
}

mn_status mn_backward_linear_relu(mn_backward_call *call)
{
    MN_TRY(mn_mask_gradient(call));
    return mn_backward_linear(call);
}
