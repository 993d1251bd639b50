/* ops/infer_conv.c: shape rules of convolution, pooling and resizing. */
#include "ops/internal.h"

static const char *const axis_names[2] = {"height", "width"};

static mn_status need_images(mn_infer *infer, int input, const char *name)
{
    MN_TRY(mn_need_ndim(infer, input, name, 4));
    return mn_need_float(infer, input, name);
}

static mn_status need_pixels(mn_infer *infer, int input)
{
    for (int i = 0; i < 2; i++) {
        if (infer->in[input].shape[1 + i] == 0)
            return mn_infer_error(infer, MN_ERR_SHAPE, "the image has no %s", axis_names[i]);
    }
    return MN_OK;
}

static mn_status need_extents(mn_infer *infer, const char *name, const int64_t extent[2])
{
    if (extent[0] >= 1 && extent[1] >= 1)
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_ARGUMENT, "%s is %lld by %lld", name, (long long)extent[0],
                          (long long)extent[1]);
}

/* Result extents [P, Q] of windows over an image's height and width. */
static mn_status window_counts(mn_infer *infer, const mn_conv2d_attributes *conv,
                               const int64_t image[2], const int64_t kernel[2], int64_t count[2])
{
    const int64_t *stride = conv->stride, *padding = conv->padding, *dilation = conv->dilation;
    for (int i = 0; i < 2; i++) {
        if (stride[i] < 1 || padding[i] < 0 || dilation[i] < 1 || kernel[i] < 1)
            return mn_infer_error(infer, MN_ERR_ARGUMENT,
                                  "%s: kernel %lld, stride %lld and dilation %lld must be at least "
                                  "1, padding %lld at least 0",
                                  axis_names[i], (long long)kernel[i], (long long)stride[i],
                                  (long long)dilation[i], (long long)padding[i]);
        if (!mn_window_count(image[i], kernel[i], stride[i], padding[i], dilation[i], &count[i]))
            return mn_infer_error(infer, MN_ERR_SHAPE,
                                  "%s: a kernel of %lld (dilation %lld) does not fit an image of "
                                  "%lld with padding %lld",
                                  axis_names[i], (long long)kernel[i], (long long)dilation[i],
                                  (long long)image[i], (long long)padding[i]);
    }
    return MN_OK;
}

static mn_status check_groups(mn_infer *infer, int64_t channels, const char *what)
{
    const mn_conv2d_attributes *conv = infer->attributes;
    if (conv->groups < 1)
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "groups is %lld, must be at least 1",
                              (long long)conv->groups);
    if (channels < 1 || channels % conv->groups != 0)
        return mn_infer_error(infer, MN_ERR_SHAPE,
                              "%lld %s channels do not divide into %lld groups",
                              (long long)channels, what, (long long)conv->groups);
    return MN_OK;
}

/* x [N,H,W,C] and w [K,R,S,C/groups] fit each other. */
static mn_status check_filter(mn_infer *infer)
{
    const mn_conv2d_attributes *conv = infer->attributes;
    const mn_view *x = &infer->in[0], *w = &infer->in[1];
    MN_TRY(need_images(infer, 0, "the input"));
    MN_TRY(mn_need_ndim(infer, 1, "the weight", 4));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    MN_TRY(check_groups(infer, x->shape[3], "input"));
    MN_TRY(check_groups(infer, w->shape[0], "output"));
    if (w->shape[3] == x->shape[3] / conv->groups)
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_SHAPE,
                          "weight %s expects %lld input channels per group, the input has %lld "
                          "(groups %lld)",
                          mn_shape_text(4, w->shape, (mn_shape_buffer){0}), (long long)w->shape[3],
                          (long long)(x->shape[3] / conv->groups), (long long)conv->groups);
}

mn_status mn_infer_conv2d(mn_infer *infer)
{
    const mn_view *x = &infer->in[0], *w = &infer->in[1];
    int64_t shape[4];
    MN_TRY(check_filter(infer));
    MN_TRY(window_counts(infer, infer->attributes, x->shape + 1, w->shape + 1, shape + 1));
    MN_TRY(mn_need_bias(infer));
    shape[0] = x->shape[0];
    shape[3] = w->shape[0];
    mn_output(infer, 0, x->dtype, 4, shape);
    return MN_OK;
}

/* What both gradients of a convolution ask of their inputs. */
static mn_status check_gradient(mn_infer *infer, const char *second)
{
    MN_TRY(need_images(infer, 0, "the gradient"));
    MN_TRY(mn_need_ndim(infer, 1, second, 4));
    return mn_need_same_dtype(infer, 1, 0);
}

mn_status mn_infer_conv2d_moments(mn_infer *infer)
{
    MN_TRY(mn_infer_conv2d(infer));
    const int64_t shape[2] = {2, infer->in[1].shape[0]};
    mn_output(infer, 1, MN_F64, 2, shape);
    return MN_OK;
}

mn_status mn_infer_conv2d_backward_input(mn_infer *infer)
{
    const mn_conv2d_attributes *conv = infer->attributes;
    const mn_view *g = &infer->in[0], *w = &infer->in[1];
    MN_TRY(check_gradient(infer, "the weight"));
    MN_TRY(check_groups(infer, w->shape[0], "output"));
    if (w->shape[3] < 1 || w->shape[3] > INT64_MAX / conv->groups)
        return mn_infer_error(infer, MN_ERR_SHAPE, "the weight has %lld channels per group",
                              (long long)w->shape[3]);
    int64_t result[4] = {g->shape[0], 0, 0, w->shape[0]};
    MN_TRY(window_counts(infer, conv, conv->extent, w->shape + 1, result + 1));
    MN_TRY(mn_need_shape(infer, 0, "the gradient", 4, result));
    const int64_t shape[4] = {g->shape[0], conv->extent[0], conv->extent[1],
                              w->shape[3] * conv->groups};
    mn_output(infer, 0, g->dtype, 4, shape);
    return MN_OK;
}

mn_status mn_infer_conv2d_backward_weight(mn_infer *infer)
{
    const mn_conv2d_attributes *conv = infer->attributes;
    const mn_view *g = &infer->in[0], *x = &infer->in[1];
    MN_TRY(check_gradient(infer, "the input"));
    MN_TRY(check_groups(infer, g->shape[3], "output"));
    MN_TRY(check_groups(infer, x->shape[3], "input"));
    int64_t result[4] = {x->shape[0], 0, 0, g->shape[3]};
    MN_TRY(window_counts(infer, conv, x->shape + 1, conv->extent, result + 1));
    MN_TRY(mn_need_shape(infer, 0, "the gradient", 4, result));
    const int64_t shape[4] = {g->shape[3], conv->extent[0], conv->extent[1],
                              x->shape[3] / conv->groups};
    mn_output(infer, 0, g->dtype, 4, shape);
    return MN_OK;
}

/* Result extents [P, Q] of pooling an image of these extents. */
static mn_status pooled_extents(mn_infer *infer, const int64_t image[2], int64_t count[2])
{
    const mn_pool2d_attributes *pool = infer->attributes;
    mn_conv2d_attributes windows = {.dilation = {1, 1}};
    for (int i = 0; i < 2; i++) {
        if (pool->padding[i] > pool->kernel[i] / 2)
            return mn_infer_error(
                infer, MN_ERR_ARGUMENT, "%s: padding %lld is more than half the kernel of %lld",
                axis_names[i], (long long)pool->padding[i], (long long)pool->kernel[i]);
        windows.stride[i] = pool->stride[i];
        windows.padding[i] = pool->padding[i];
    }
    return window_counts(infer, &windows, image, pool->kernel, count);
}

/* Shape of pooling's result for input `input`. */
static mn_status pooled_shape(mn_infer *infer, int input, int64_t shape[4])
{
    const mn_view *x = &infer->in[input];
    MN_TRY(need_images(infer, input, "the input"));
    MN_TRY(need_pixels(infer, input));
    shape[0] = x->shape[0];
    shape[3] = x->shape[3];
    return pooled_extents(infer, x->shape + 1, shape + 1);
}

mn_status mn_infer_max_pool2d(mn_infer *infer)
{
    int64_t shape[4];
    MN_TRY(pooled_shape(infer, 0, shape));
    mn_output(infer, 0, infer->in[0].dtype, 4, shape);
    return MN_OK;
}

mn_status mn_infer_max_pool2d_backward(mn_infer *infer)
{
    int64_t shape[4];
    MN_TRY(pooled_shape(infer, 1, shape));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    MN_TRY(mn_need_shape(infer, 0, "the gradient", 4, shape));
    mn_output_like(infer, 0, 1);
    return MN_OK;
}

/* Output 0: images like input 0 with other extents. */
static mn_status give_images(mn_infer *infer, const int64_t extent[2])
{
    const mn_view *x = &infer->in[0];
    const int64_t shape[4] = {x->shape[0], extent[0], extent[1], x->shape[3]};
    mn_output(infer, 0, x->dtype, 4, shape);
    return MN_OK;
}

mn_status mn_infer_avg_pool2d_backward(mn_infer *infer)
{
    const mn_pool2d_attributes *pool = infer->attributes;
    const mn_view *g = &infer->in[0];
    int64_t shape[4] = {g->shape[0], 0, 0, g->shape[3]};
    MN_TRY(need_images(infer, 0, "the gradient"));
    MN_TRY(need_extents(infer, "the image", pool->extent));
    MN_TRY(pooled_extents(infer, pool->extent, shape + 1));
    MN_TRY(mn_need_shape(infer, 0, "the gradient", 4, shape));
    return give_images(infer, pool->extent);
}

/* ---- resizing -------------------------------------------------------------------------------- */

mn_taps mn_resize_taps(const mn_resize_attributes *attributes, int axis, int64_t extent, int64_t at)
{
    const double in = (double)extent, out = (double)attributes->size[axis];
    double place = ((double)at + 0.5) * in / out - 0.5;
    if (attributes->mode == MN_UPSAMPLE_NEAREST)
        place = (double)((float)at * ((float)extent / (float)attributes->size[axis]));
    else if (attributes->align_corners)
        place = out > 1 ? (double)at * (in - 1) / (out - 1) : 0;
    const int64_t first = place > 0 ? (int64_t)place : 0;
    const double rest = place - (double)first;
    if (attributes->mode == MN_UPSAMPLE_NEAREST || first >= extent - 1 || rest <= 0)
        return (mn_taps){1, {first < extent ? first : extent - 1}, {1}};
    return (mn_taps){2, {first, first + 1}, {1 - rest, rest}};
}

static mn_status check_resize(mn_infer *infer)
{
    const mn_resize_attributes *resize = infer->attributes;
    if (resize->mode != MN_UPSAMPLE_NEAREST && resize->mode != MN_UPSAMPLE_BILINEAR)
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "there is no mode %lld",
                              (long long)resize->mode);
    if (resize->align_corners && resize->mode != MN_UPSAMPLE_BILINEAR)
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "align_corners is for bilinear only");
    return need_extents(infer, "the result", resize->size);
}

mn_status mn_infer_upsample2d(mn_infer *infer)
{
    const mn_resize_attributes *resize = infer->attributes;
    MN_TRY(need_images(infer, 0, "the input"));
    MN_TRY(need_pixels(infer, 0));
    MN_TRY(check_resize(infer));
    return give_images(infer, resize->size);
}

mn_status mn_infer_upsample2d_backward(mn_infer *infer)
{
    const mn_resize_attributes *resize = infer->attributes;
    const mn_view *g = &infer->in[0];
    const int64_t shape[4] = {g->shape[0], resize->size[0], resize->size[1], g->shape[3]};
    MN_TRY(need_images(infer, 0, "the gradient"));
    MN_TRY(check_resize(infer));
    MN_TRY(need_extents(infer, "the image", resize->extent));
    MN_TRY(mn_need_shape(infer, 0, "the gradient", 4, shape));
    return give_images(infer, resize->extent);
}
