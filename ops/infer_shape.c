/* ops/infer_shape.c: shape rules of the ops that move or broadcast elements. */
#include "ops/internal.h"

mn_status mn_infer_reshape(mn_infer *infer)
{
    const mn_shape_attributes *to = infer->attributes;
    char shape[MN_SHAPE_TEXT];
    int64_t numel;
    if (!mn_shape_numel(to->ndim, to->shape, &numel))
        return mn_infer_error(infer, MN_ERR_SHAPE, "%s is not a shape",
                              mn_shape_text(to->ndim, to->shape, shape, sizeof shape));
    if (numel != infer->in[0].numel)
        return mn_infer_error(infer, MN_ERR_SHAPE, "%s holds %lld elements, the input has %lld",
                              mn_shape_text(to->ndim, to->shape, shape, sizeof shape),
                              (long long)numel, (long long)infer->in[0].numel);
    mn_output(infer, 0, infer->in[0].dtype, (int)to->ndim, to->shape);
    return MN_OK;
}

mn_status mn_infer_cast(mn_infer *infer)
{
    const mn_cast_attributes *to = infer->attributes;
    const mn_view *x = &infer->in[0];
    if (to->dtype < 0 || to->dtype >= MN_DTYPE_COUNT)
        return mn_infer_error(infer, MN_ERR_DTYPE, "there is no dtype %lld", (long long)to->dtype);
    mn_output(infer, 0, (mn_dtype)to->dtype, x->ndim, x->shape);
    return MN_OK;
}

mn_status mn_infer_copy(mn_infer *infer)
{
    mn_output_like(infer, 0, 0);
    return MN_OK;
}

mn_status mn_infer_fill(mn_infer *infer)
{
    (void)infer; /* takes every tensor, makes none */
    return MN_OK;
}

mn_status mn_infer_assign(mn_infer *infer)
{
    return mn_need_same_shape(infer, 1, "the source", 0, "the destination");
}

mn_status mn_infer_permute(mn_infer *infer)
{
    const mn_permute_attributes *attributes = infer->attributes;
    const mn_view *x = &infer->in[0];
    int64_t shape[MN_MAX_DIMS];
    unsigned seen = 0;
    for (int i = 0; i < x->ndim; i++) {
        int64_t axis = attributes->axes[i];
        if (axis < 0 || axis >= x->ndim || seen >> axis & 1u) {
            char axes[MN_SHAPE_TEXT];
            return mn_infer_error(infer, MN_ERR_ARGUMENT, "%s is not a permutation of %d axes",
                                  mn_shape_text(x->ndim, attributes->axes, axes, sizeof axes),
                                  x->ndim);
        }
        seen |= 1u << axis;
        shape[i] = x->shape[axis];
    }
    mn_output(infer, 0, x->dtype, x->ndim, shape);
    return MN_OK;
}

mn_status mn_infer_expand(mn_infer *infer)
{
    const mn_shape_attributes *to = infer->attributes;
    int64_t numel;
    if (!mn_shape_numel(to->ndim, to->shape, &numel) ||
        !mn_broadcasts_to(&infer->in[0], to->ndim, to->shape)) {
        char shape[MN_SHAPE_TEXT];
        return mn_infer_error(infer, MN_ERR_SHAPE, "the input does not broadcast to %s",
                              mn_shape_text(to->ndim, to->shape, shape, sizeof shape));
    }
    mn_output(infer, 0, infer->in[0].dtype, (int)to->ndim, to->shape);
    return MN_OK;
}

mn_status mn_infer_reduce_to(mn_infer *infer)
{
    const mn_shape_attributes *to = infer->attributes;
    const mn_view *x = &infer->in[0];
    mn_view small = {.present = true};
    int64_t numel;
    bool fits = mn_shape_numel(to->ndim, to->shape, &numel);
    if (fits) {
        small.ndim = (int)to->ndim;
        for (int i = 0; i < small.ndim; i++)
            small.shape[i] = to->shape[i];
        fits = mn_broadcasts_to(&small, x->ndim, x->shape);
    }
    if (!fits) {
        char shape[MN_SHAPE_TEXT];
        return mn_infer_error(infer, MN_ERR_SHAPE, "%s does not broadcast to the input's shape",
                              mn_shape_text(to->ndim, to->shape, shape, sizeof shape));
    }
    mn_output(infer, 0, x->dtype, small.ndim, small.shape);
    return MN_OK;
}
