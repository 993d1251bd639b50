/* ops/infer_shape.c: shape rules of the ops that move or broadcast elements. */
#include "ops/internal.h"

mn_status mn_infer_reshape(mn_infer *infer)
{
    const mn_shape_attributes *to = infer->attributes;
    mn_shape_buffer text;
    int64_t numel;
    mn_shape_text(to->ndim, to->shape, text);
    if (!mn_shape_numel(to->ndim, to->shape, &numel))
        return mn_infer_error(infer, MN_ERR_SHAPE, "%s is not a shape", text);
    if (numel != infer->in[0].numel)
        return mn_infer_error(infer, MN_ERR_SHAPE, "%s holds %lld elements, the input has %lld",
                              text, (long long)numel, (long long)infer->in[0].numel);
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

/* The output is as input 0. */
mn_status mn_infer_like(mn_infer *infer)
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
        if (axis < 0 || axis >= x->ndim || seen >> axis & 1u)
            return mn_infer_error(infer, MN_ERR_ARGUMENT, "%s is not a permutation of %d axes",
                                  mn_shape_text(x->ndim, attributes->axes, (mn_shape_buffer){0}),
                                  x->ndim);
        seen |= 1u << axis;
        shape[i] = x->shape[axis];
    }
    mn_output(infer, 0, x->dtype, x->ndim, shape);
    return MN_OK;
}

/* The attributes' shape as a view; absent if it is none. */
static mn_view target(const mn_infer *infer)
{
    const mn_shape_attributes *to = infer->attributes;
    mn_view view = {.present = mn_shape_numel(to->ndim, to->shape, &(int64_t){0})};
    view.ndim = (int)to->ndim;
    for (int i = 0; i < view.ndim && view.present; i++)
        view.shape[i] = to->shape[i];
    return view;
}

mn_status mn_infer_expand(mn_infer *infer)
{
    const mn_shape_attributes *to = infer->attributes;
    const mn_view y = target(infer);
    if (!y.present || !mn_broadcasts_to(&infer->in[0], &y))
        return mn_infer_error(infer, MN_ERR_SHAPE, "the input does not broadcast to %s",
                              mn_shape_text(to->ndim, to->shape, (mn_shape_buffer){0}));
    mn_output(infer, 0, infer->in[0].dtype, y.ndim, y.shape);
    return MN_OK;
}

mn_status mn_infer_reduce_to(mn_infer *infer)
{
    const mn_shape_attributes *to = infer->attributes;
    const mn_view y = target(infer);
    if (!y.present || !mn_broadcasts_to(&y, &infer->in[0]))
        return mn_infer_error(infer, MN_ERR_SHAPE, "%s does not broadcast to the input's shape",
                              mn_shape_text(to->ndim, to->shape, (mn_shape_buffer){0}));
    mn_output(infer, 0, infer->in[0].dtype, y.ndim, y.shape);
    return MN_OK;
}
