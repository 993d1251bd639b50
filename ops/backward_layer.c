/* ops/backward_layer.c: gradients of layers and reductions, composed of other ops. */
#include "ops/internal.h"

#include <string.h>

/* ---- convolution and pooling ----------------------------------------------------------------- */

/* One of the two gradients: g with the other operand, told the extents of the one wanted. */
static mn_status give_convolution(mn_backward_call *call, mn_op_id id, int wanted)
{
    mn_conv2d_attributes attributes;
    mn_tensor *const inputs[2] = {call->grad_out[0], call->in[1 - wanted]};
    memcpy(&attributes, call->attributes, sizeof attributes);
    attributes.extent[0] = call->in_view[wanted].shape[1];
    attributes.extent[1] = call->in_view[wanted].shape[2];
    return mn_give_result(call, wanted, id, inputs, 2, &attributes);
}

mn_status mn_backward_conv2d(mn_backward_call *call)
{
    const mn_reduce_attributes positions = {.axes = 0x7}; /* n, p, q */
    if (call->needs[0])
        MN_TRY(give_convolution(call, MN_OP_conv2d_backward_input, 0));
    if (call->needs[1])
        MN_TRY(give_convolution(call, MN_OP_conv2d_backward_weight, 1));
    if (!call->needs[2])
        return MN_OK;
    return mn_give_result(call, 2, MN_OP_sum, call->grad_out, 1, &positions);
}

mn_status mn_backward_conv2d_moments(mn_backward_call *call)
{
    return call->grad_out[0] ? mn_backward_conv2d(call) : MN_OK; /* moments: as batch norm's */
}

mn_status mn_backward_conv2d_relu(mn_backward_call *call)
{
    MN_TRY(mn_mask_gradient(call));
    return mn_backward_conv2d(call);
}

/* Both gradients are linear in g and in the other operand: that of g is the convolution itself,
 * that of the other operand the other gradient. */
mn_status mn_backward_conv2d_backward(mn_backward_call *call)
{
    const bool of_input = call->op == &mn_ops[MN_OP_conv2d_backward_input];
    const mn_op_id other = of_input ? MN_OP_conv2d_backward_weight : MN_OP_conv2d_backward_input;
    mn_tensor *const x = of_input ? call->grad_out[0] : call->in[1];
    mn_tensor *const w = of_input ? call->in[1] : call->grad_out[0];
    mn_tensor *const forward[2] = {x, w}, *const adjoint[2] = {call->in[0], call->grad_out[0]};
    mn_conv2d_attributes attributes;
    memcpy(&attributes, call->attributes, sizeof attributes);
    memset(attributes.extent, 0, sizeof attributes.extent);
    if (call->needs[0])
        MN_TRY(mn_give_result(call, 0, MN_OP_conv2d, forward, 2, &attributes));
    attributes.extent[0] = call->in_view[1].shape[1];
    attributes.extent[1] = call->in_view[1].shape[2];
    return call->needs[1] ? mn_give_result(call, 1, other, adjoint, 2, &attributes) : MN_OK;
}

mn_status mn_backward_max_pool2d(mn_backward_call *call)
{
    mn_tensor *const inputs[2] = {call->grad_out[0], call->in[0]};
    return mn_give_result(call, 0, MN_OP_max_pool2d_backward, inputs, 2, call->attributes);
}

/* A linear op's gradient is its adjoint, whose gradient is the op itself: `forward` and `adjoint`,
 * of which call->op is one. Attributes that tell the adjoint x's extents mean nothing to forward.
 */
static mn_status give_adjoint(mn_backward_call *call, mn_op_id forward, mn_op_id adjoint,
                              const void *attributes)
{
    const mn_op_id id = call->op == &mn_ops[forward] ? adjoint : forward;
    return mn_give_result(call, 0, id, call->grad_out, 1, attributes);
}

mn_status mn_backward_avg_pool2d(mn_backward_call *call)
{
    mn_pool2d_attributes pool;
    memcpy(&pool, call->attributes, sizeof pool);
    pool.extent[0] = call->in_view[0].shape[1];
    pool.extent[1] = call->in_view[0].shape[2];
    return give_adjoint(call, MN_OP_avg_pool2d, MN_OP_avg_pool2d_backward, &pool);
}

mn_status mn_backward_upsample2d(mn_backward_call *call)
{
    mn_resize_attributes resize;
    memcpy(&resize, call->attributes, sizeof resize);
    resize.extent[0] = call->in_view[0].shape[1];
    resize.extent[1] = call->in_view[0].shape[2];
    return give_adjoint(call, MN_OP_upsample2d, MN_OP_upsample2d_backward, &resize);
}

/* ---- normalization --------------------------------------------------------------------------- */

/* dx, dw and db, and dresidual of an op with a residual, the input of that number. */
static mn_status give_all(mn_backward_call *call, mn_op_id id, mn_tensor *const *inputs, int count,
                          int residual)
{
    mn_tensor *gradients[MN_MAX_OUTPUTS] = {NULL};
    MN_TRY(mn_apply(call->context, &mn_ops[id], inputs, count, call->attributes, gradients));
    for (int i = 0; i < 3; i++) {
        if (call->needs[i])
            MN_TRY(mn_give_gradient(call, i, gradients[i]));
    }
    return residual && call->needs[residual] ? mn_give_gradient(call, residual, gradients[3])
                                             : MN_OK;
}

static mn_status give_norm(mn_backward_call *call, mn_op_id id, mn_tensor *const *statistics)
{
    mn_tensor *const inputs[5] = {call->grad_out[0], call->in[0], call->in[1], statistics[0],
                                  statistics[1]};
    if (!call->grad_out[0])
        return MN_OK; /* only the statistics were used, and nothing flows through them */
    mn_spend_gradient(call);
    return give_all(call, id, inputs, 5, 0);
}

/* Also of batch_norm_inference. */
mn_status mn_backward_batch_norm(mn_backward_call *call)
{
    const bool training = call->op == &mn_ops[MN_OP_batch_norm];
    const mn_op_id id = training ? MN_OP_batch_norm_backward : MN_OP_batch_norm_inference_backward;
    return give_norm(call, id, training ? &call->out[1] : &call->in[3]);
}

mn_status mn_backward_batch_norm_relu(mn_backward_call *call)
{
    mn_tensor *const bias = call->in_view[6].present ? NULL : call->in[2];
    mn_tensor *const inputs[7] = {call->grad_out[0], call->in[0],  call->in[1], bias,
                                  call->out[1],      call->out[2], call->out[0]};
    if (!call->grad_out[0])
        return MN_OK;
    mn_spend_gradient(call);
    return give_all(call, MN_OP_batch_norm_relu_backward, inputs, call->out[0] ? 7 : 6, 6);
}

/* That of ReLU, then that of the normalisation. */
mn_status mn_backward_batch_norm_inference_relu(mn_backward_call *call)
{
    MN_TRY(mn_mask_gradient(call));
    mn_tensor *const inputs[5] = {call->grad_out[0], call->in[0], call->in[1], call->in[3],
                                  call->in[4]};
    if (call->needs[5])
        MN_TRY(mn_give_gradient(call, 5, call->grad_out[0]));
    return give_all(call, MN_OP_batch_norm_inference_backward, inputs, 5, 0);
}

mn_status mn_backward_batch_norm_relu_pool(mn_backward_call *call)
{
    mn_tensor *const inputs[6] = {call->grad_out[0], call->in[0],  call->in[1],
                                  call->in[2],       call->out[1], call->out[2]};
    return call->grad_out[0] ? give_all(call, MN_OP_batch_norm_relu_pool_backward, inputs, 6, 0)
                             : MN_OK;
}

/* What was pooled is made again; then as the ops alone do. */
mn_status mn_backward_batch_norm_inference_relu_pool(mn_backward_call *call)
{
    static const mn_pool2d_attributes two = {.kernel = {2, 2}, .stride = {2, 2}};
    mn_tensor *y = mn_apply1(MN_OP_batch_norm_inference_relu, call->in, 5, call->attributes);
    mn_tensor *const pooled[2] = {call->grad_out[0], y};
    mn_tensor *const masked[2] = {mn_apply1(MN_OP_max_pool2d_backward, pooled, 2, &two), y};
    mn_tensor *const inputs[5] = {mn_apply1(MN_OP_relu_backward, masked, 2, NULL), call->in[0],
                                  call->in[1], call->in[3], call->in[4]};
    return give_all(call, MN_OP_batch_norm_inference_backward, inputs, 5, 0);
}

/* Also of layer_norm. */
mn_status mn_backward_group_norm(mn_backward_call *call)
{
    return give_norm(call, MN_OP_group_norm_backward, &call->out[1]);
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Also of mean: g, with its reduced axes put back as 1, times scale, broadcast to x. */
mn_status mn_backward_sum(mn_backward_call *call)
{
    const mn_reduce_attributes *reduce = call->attributes;
    const mn_view *x = &call->in_view[0];
    const double count = call->op == &mn_ops[MN_OP_mean] ? mn_extent_of(x, reduce->axes) : 1;
    mn_tensor *g = call->grad_out[0];
    int64_t shape[MN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++)
        shape[i] = reduce->axes >> i & 1 ? 1 : x->shape[i];
    if (mn_tensor_dtype(g) != x->dtype) /* sum's result in f32: cast while it is small */
        g = mn_cast(g, x->dtype);
    if (!reduce->keep)
        g = mn_reshape_to(g, x->ndim, shape);
    return mn_give_gradient(call, 0, mn_expand_to(g, x, count > 0 ? 1 / count : 0));
}

/* ---- loss scaling ---------------------------------------------------------------------------- */

/* The scale that the forward pass used, from the record, without touching the record. */
static mn_tensor *scale_used(const mn_tensor *record, mn_dtype dtype)
{
    size_t offset = record->offset + MN_SCALER_SCALE_USED * sizeof(double);
    return mn_cast(mn_tensor_view(record->storage, offset, MN_F64, 0, NULL), dtype);
}

mn_status mn_backward_scaler_scale(mn_backward_call *call)
{
    const mn_weight_attributes *forward = call->attributes;
    mn_tensor *g = call->grad_out[0];
    mn_tensor *const factors[2] = {g, scale_used(call->in[1], mn_tensor_dtype(g))};
    mn_tensor *scaled = mn_apply1(MN_OP_mul, factors, 2, NULL);
    return mn_give_gradient(call, 0, mn_expand_to(scaled, &call->in_view[0], forward->weight));
}
