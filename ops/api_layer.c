/* ops/api_layer.c: public functions of convolution, pooling and normalization. */
#include "ops/internal.h"

/* ---- convolution ----------------------------------------------------------------------------- */

mn_conv2d_options mn_conv2d_options_default(void)
{
    return (mn_conv2d_options){
        .size = sizeof(mn_conv2d_options), .stride = {1, 1}, .dilation = {1, 1}, .groups = 1};
}

/* Output 0; and output 1 into moments, if they are wanted. */
static mn_tensor *apply_conv2d(mn_op_id id, mn_tensor *x, mn_tensor *w, mn_tensor *b,
                               const mn_conv2d_options *options, mn_tensor **moments)
{
    mn_tensor *outputs[MN_MAX_OUTPUTS] = {NULL};
    mn_tensor *const inputs[3] = {x, w, b};
    mn_conv2d_options known = mn_conv2d_options_default();
    mn_conv2d_attributes conv = {.groups = 0};
    mn_context *context = mn_enter(id, inputs, 3, 2);
    if (!context ||
        mn_options_copy(&context->error, "mn_conv2d", &known, sizeof known, options) != MN_OK)
        return NULL;
    for (int i = 0; i < 2; i++) {
        conv.stride[i] = known.stride[i];
        conv.padding[i] = known.padding[i];
        conv.dilation[i] = known.dilation[i];
    }
    conv.groups = known.groups;
    if (mn_apply(context, &mn_ops[id], inputs, 3, &conv, outputs) != MN_OK)
        return NULL;
    if (moments)
        *moments = outputs[1];
    return outputs[0];
}

mn_tensor *mn_conv2d(mn_tensor *x, mn_tensor *w, mn_tensor *b, const mn_conv2d_options *options)
{
    return apply_conv2d(MN_OP_conv2d, x, w, b, options, NULL);
}

mn_tensor *mn_conv2d_relu(mn_tensor *x, mn_tensor *w, mn_tensor *b,
                          const mn_conv2d_options *options)
{
    return apply_conv2d(MN_OP_conv2d_relu, x, w, b, options, NULL);
}

mn_tensor *mn_conv2d_moments(mn_tensor *x, mn_tensor *w, mn_tensor *b,
                             const mn_conv2d_options *options, mn_tensor **moments)
{
    return apply_conv2d(MN_OP_conv2d_moments, x, w, b, options, moments);
}

/* ---- pooling --------------------------------------------------------------------------------- */

mn_pool2d_options mn_pool2d_options_default(void)
{
    return (mn_pool2d_options){.size = sizeof(mn_pool2d_options), .kernel = {2, 2}};
}

static mn_tensor *apply_pool(mn_op_id id, mn_tensor *x, const mn_pool2d_options *options)
{
    mn_pool2d_options known = mn_pool2d_options_default();
    mn_pool2d_attributes pool = {.kernel = {0}};
    mn_context *context = mn_enter(id, &x, 1, 1);
    if (!context ||
        mn_options_copy(&context->error, "mn_pool2d", &known, sizeof known, options) != MN_OK)
        return NULL;
    for (int i = 0; i < 2; i++) {
        pool.kernel[i] = known.kernel[i];
        pool.stride[i] = known.stride[i] ? known.stride[i] : known.kernel[i];
        pool.padding[i] = known.padding[i];
    }
    pool.exclude_padding = id == MN_OP_avg_pool2d && known.exclude_padding;
    return mn_apply1(id, &x, 1, &pool);
}

mn_tensor *mn_max_pool2d(mn_tensor *x, const mn_pool2d_options *options)
{
    return apply_pool(MN_OP_max_pool2d, x, options);
}

mn_tensor *mn_avg_pool2d(mn_tensor *x, const mn_pool2d_options *options)
{
    return apply_pool(MN_OP_avg_pool2d, x, options);
}

mn_tensor *mn_global_avg_pool2d(mn_tensor *x)
{
    static const int height_and_width[2] = {1, 2};
    mn_context *context = mn_enter(MN_OP_mean, &x, 1, 1);
    if (!context)
        return NULL;
    if (x->ndim != 4 || x->shape[1] == 0 || x->shape[2] == 0) {
        mn_fail(context, MN_ERR_SHAPE,
                "global_avg_pool2d: the input is %s, must be images with pixels",
                mn_shape_text(x->ndim, x->shape, (mn_shape_buffer){0}));
        return NULL;
    }
    return mn_mean(x, 2, height_and_width, false);
}

/* ---- resizing -------------------------------------------------------------------------------- */

mn_upsample2d_options mn_upsample2d_options_default(void)
{
    return (mn_upsample2d_options){.size = sizeof(mn_upsample2d_options)};
}

mn_tensor *mn_upsample2d(mn_tensor *x, const mn_upsample2d_options *options)
{
    mn_upsample2d_options known = mn_upsample2d_options_default();
    mn_context *context = mn_enter(MN_OP_upsample2d, &x, 1, 1);
    if (!context ||
        mn_options_copy(&context->error, "mn_upsample2d", &known, sizeof known, options) != MN_OK)
        return NULL;
    const mn_resize_attributes resize = {.size = {known.height, known.width},
                                         .mode = known.mode,
                                         .align_corners = known.align_corners};
    return mn_apply1(MN_OP_upsample2d, &x, 1, &resize);
}

/* ---- normalization -------------------------------------------------------------------------- */

mn_batch_norm_options mn_batch_norm_options_default(void)
{
    return (mn_batch_norm_options){
        .size = sizeof(mn_batch_norm_options), .eps = 1e-5, .momentum = 0.1};
}

mn_tensor *mn_batch_norm_of(mn_tensor *x, mn_tensor *weight, mn_tensor *bias,
                            mn_tensor *const running[3], mn_tensor *residual, mn_tensor *moments,
                            mn_norm_then then, const mn_batch_norm_options *options)
{
    static mn_tensor *const none[3] = {NULL};
    static const mn_op_id ids[][2] = {
        [MN_NORM_ALONE] = {MN_OP_batch_norm_inference, MN_OP_batch_norm},
        [MN_NORM_RELU] = {MN_OP_batch_norm_inference_relu, MN_OP_batch_norm_relu},
        [MN_NORM_RELU_POOL] = {MN_OP_batch_norm_inference_relu_pool, MN_OP_batch_norm_relu_pool}};
    mn_tensor *const *statistics = running ? running : none;
    mn_tensor *inputs[8] = {x,        weight, bias, statistics[0], statistics[1], statistics[2],
                            residual, moments};
    mn_batch_norm_options known = mn_batch_norm_options_default();
    mn_context *context = mn_enter(ids[then][1], inputs, 8, 5);
    if (!context ||
        mn_options_copy(&context->error, "mn_batch_norm", &known, sizeof known, options) != MN_OK)
        return NULL;
    const mn_batch_norm_attributes norm = {.eps = known.eps, .momentum = known.momentum};
    int count = moments ? 8 : residual ? 7 : 6;
    if (!known.training) {
        inputs[5] = residual;
        count = residual ? 6 : 5;
    }
    return mn_apply1(ids[then][known.training], inputs, count, &norm);
}

mn_tensor *mn_batch_norm(mn_tensor *x, mn_tensor *weight, mn_tensor *bias,
                         mn_tensor *const running[3], const mn_batch_norm_options *options)
{
    return mn_batch_norm_of(x, weight, bias, running, NULL, NULL, MN_NORM_ALONE, options);
}

mn_tensor *mn_batch_norm_relu(mn_tensor *x, mn_tensor *weight, mn_tensor *bias,
                              mn_tensor *const running[3], mn_tensor *residual,
                              const mn_batch_norm_options *options)
{
    return mn_batch_norm_of(x, weight, bias, running, residual, NULL, MN_NORM_RELU, options);
}

mn_tensor *mn_layer_norm(mn_tensor *x, int axes, mn_tensor *weight, mn_tensor *bias, double eps)
{
    mn_tensor *const inputs[3] = {x, weight, bias};
    const mn_group_norm_attributes norm = {.eps = eps, .groups = 1, .axes = axes};
    return mn_apply1(MN_OP_layer_norm, inputs, 3, &norm);
}

mn_tensor *mn_group_norm(mn_tensor *x, int groups, mn_tensor *weight, mn_tensor *bias, double eps)
{
    mn_tensor *const inputs[3] = {x, weight, bias};
    const mn_group_norm_attributes norm = {.eps = eps, .groups = groups};
    return mn_apply1(MN_OP_group_norm, inputs, 3, &norm);
}
