/* ops/backward_elementwise.c: gradients of elementwise ops of one and two operands, composed of
 * other ops. What takes more than one of them is done in f32 and rounded once. */
#include "ops/internal.h"

/* ---- helpers --------------------------------------------------------------------------------- */

static mn_tensor *binary(mn_op_id id, mn_tensor *a, mn_tensor *b)
{
    mn_tensor *const inputs[2] = {a, b};
    return mn_apply1(id, inputs, 2, NULL);
}

/* x where the comparison of a and b holds, else y; one of them may be NULL, for 0. */
static mn_tensor *choose(mn_tensor *a, mn_comparison comparison, mn_tensor *b, mn_tensor *x,
                         mn_tensor *y)
{
    const mn_compare_attributes attributes = {.comparison = comparison};
    mn_tensor *const operands[2] = {a, b};
    mn_tensor *const inputs[3] = {mn_apply1(MN_OP_compare, operands, 2, &attributes), x, y};
    return mn_apply1(MN_OP_where, inputs, 3, NULL);
}

/* ---- two operands ---------------------------------------------------------------------------- */

/* da = g / b;  db = -g (a / b) / b */
mn_status mn_backward_div(mn_backward_call *call)
{
    mn_tensor *g = mn_widen(call->grad_out[0]), *a = mn_widen(call->in[0]),
              *b = mn_widen(call->in[1]);
    if (call->needs[0])
        MN_TRY(mn_give_gradient(call, 0, binary(MN_OP_div, g, b)));
    if (!call->needs[1])
        return MN_OK;
    mn_tensor *slope = binary(MN_OP_div, binary(MN_OP_div, a, b), b);
    return mn_give_gradient(call, 1, mn_neg(binary(MN_OP_mul, g, slope)));
}

/* da = b = 0 ? 0 : g b a^(b - 1);  db = a = 0 and b >= 0 ? 0 : g a^b log(a) */
mn_status mn_backward_pow(mn_backward_call *call)
{
    mn_tensor *g = mn_widen(call->grad_out[0]), *a = mn_widen(call->in[0]),
              *b = mn_widen(call->in[1]);
    mn_tensor *zero = a ? mn_full(call->context, a->dtype, 0, NULL, 0) : NULL;
    if (call->needs[0]) {
        mn_tensor *slope = binary(MN_OP_mul, b, binary(MN_OP_pow, a, mn_add_scalar(b, -1)));
        mn_tensor *da = choose(b, MN_EQ, zero, NULL, binary(MN_OP_mul, g, slope));
        MN_TRY(mn_give_gradient(call, 0, da));
    }
    if (!call->needs[1])
        return MN_OK;
    mn_tensor *slope = binary(MN_OP_mul, binary(MN_OP_pow, a, b), mn_log(a));
    mn_tensor *db = binary(MN_OP_mul, g, slope);
    db = choose(a, MN_EQ, zero, choose(b, MN_GE, zero, NULL, db), db);
    return mn_give_gradient(call, 1, db);
}

/* All of g to the operand that was taken, half of it to each where they are equal. Also of minimum.
 */
mn_status mn_backward_maximum(mn_backward_call *call)
{
    const mn_comparison loses = call->op == &mn_ops[MN_OP_minimum] ? MN_GT : MN_LT;
    mn_tensor *g = call->grad_out[0];
    for (int i = 0; i < 2; i++) {
        mn_tensor *mine = call->in[i], *other = call->in[1 - i];
        if (!call->needs[i])
            continue;
        mn_tensor *shared = choose(mine, MN_EQ, other, mn_mul_scalar(g, 0.5), g);
        MN_TRY(mn_give_gradient(call, i, choose(mine, loses, other, NULL, shared)));
    }
    return MN_OK;
}

mn_status mn_backward_where(mn_backward_call *call)
{
    for (int i = 1; i < 3; i++) {
        mn_tensor *inputs[3] = {call->in[0], NULL, NULL};
        inputs[i] = call->grad_out[0];
        if (call->needs[i])
            MN_TRY(mn_give_result(call, i, MN_OP_where, inputs, 3, NULL));
    }
    return MN_OK;
}

/* ---- one operand ----------------------------------------------------------------------------- */

mn_status mn_backward_affine(mn_backward_call *call)
{
    const mn_function_attributes *forward = call->attributes;
    return mn_give_gradient(call, 0, mn_mul_scalar(call->grad_out[0], forward->a));
}

/* g times the derivative of some order, in what was saved. */
static mn_tensor *derivative(const mn_backward_call *call, int64_t order, mn_tensor *g,
                             mn_tensor *saved)
{
    mn_function_attributes attributes = *(const mn_function_attributes *)call->attributes;
    mn_tensor *const inputs[2] = {g, saved};
    attributes.order = order;
    return mn_apply1(MN_OP_unary_backward, inputs, 2, &attributes);
}

mn_status mn_backward_function(mn_backward_call *call)
{
    mn_tensor *saved = call->in[0] ? call->in[0] : call->out[0];
    return mn_give_gradient(call, 0, derivative(call, 1, call->grad_out[0], saved));
}

/* Linear in its first input. The derivative of a bent line does not change. */
mn_status mn_backward_unary_backward(mn_backward_call *call)
{
    const mn_function_attributes *forward = call->attributes;
    const int64_t function = forward->function;
    mn_tensor *h = call->grad_out[0], *g = call->in[0], *saved = call->in[1];
    if (call->needs[0])
        MN_TRY(mn_give_gradient(call, 0, derivative(call, forward->order, h, saved)));
    if (!call->needs[1] || function == MN_OP_abs || function == MN_OP_leaky_relu ||
        function == MN_OP_clamp)
        return MN_OK;
    if (forward->order > 1)
        return mn_fail(call->context, MN_ERR_UNSUPPORTED, "%s has no derivatives beyond the second",
                       mn_ops[function].name);
    mn_tensor *product = binary(MN_OP_mul, mn_widen(h), mn_widen(g));
    return mn_give_gradient(call, 1, derivative(call, 2, product, mn_widen(saved)));
}
