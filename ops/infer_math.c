/* ops/infer_math.c: shape rules of elementwise ops and matrix products. */
#include "ops/internal.h"

/* The shape that a and b broadcast to, in *y. */
static mn_status meet(mn_infer *infer, const mn_view *a, const mn_view *b, mn_view *y)
{
    if (mn_broadcast(a, b, &y->ndim, y->shape))
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_SHAPE,
                          "shapes %s and %s do not broadcast: counted from the last axis, extents "
                          "must be equal or 1",
                          mn_shape_text(a->ndim, a->shape, (mn_shape_buffer){0}),
                          mn_shape_text(b->ndim, b->shape, (mn_shape_buffer){0}));
}

static mn_status binary(mn_infer *infer, mn_dtype dtype)
{
    mn_view y;
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    MN_TRY(meet(infer, &infer->in[0], &infer->in[1], &y));
    mn_output(infer, 0, dtype, y.ndim, y.shape);
    return MN_OK;
}

mn_status mn_infer_binary(mn_infer *infer)
{
    return binary(infer, infer->in[0].dtype);
}

mn_status mn_infer_binary_float(mn_infer *infer)
{
    MN_TRY(mn_need_float(infer, 0, "a"));
    return binary(infer, infer->in[0].dtype);
}

mn_status mn_infer_compare(mn_infer *infer)
{
    return binary(infer, MN_U8);
}

mn_status mn_infer_where(mn_infer *infer)
{
    const mn_view *a = &infer->in[1], *b = &infer->in[2];
    mn_view y = infer->in[0];
    MN_TRY(mn_need_dtype(infer, 0, "the condition", MN_U8));
    if (!a->present && !b->present)
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "neither a nor b is given");
    if (a->present && b->present)
        MN_TRY(mn_need_same_dtype(infer, 2, 1));
    for (int i = 1; i < 3; i++) {
        const mn_view condition = y;
        if (infer->in[i].present)
            MN_TRY(meet(infer, &condition, &infer->in[i], &y));
    }
    mn_output(infer, 0, a->present ? a->dtype : b->dtype, y.ndim, y.shape);
    return MN_OK;
}

/* Of the unary functions. */
mn_status mn_infer_function(mn_infer *infer)
{
    MN_TRY(mn_need_float(infer, 0, "the input"));
    mn_output_like(infer, 0, 0);
    return MN_OK;
}

/* Of a gradient and the result that it is of. */
mn_status mn_infer_relu_backward(mn_infer *infer)
{
    MN_TRY(mn_need_float(infer, 0, "the gradient"));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    MN_TRY(mn_need_same_shape(infer, 0, "the gradient", 1, "the result"));
    mn_output_like(infer, 0, 0);
    return MN_OK;
}

mn_status mn_infer_matmul(mn_infer *infer)
{
    const mn_matmul_attributes *attributes = infer->attributes;
    const mn_view *a = &infer->in[0], *b = &infer->in[1];
    const bool ta = attributes->transpose_a != 0, tb = attributes->transpose_b != 0;
    mn_view a_leading = *a, b_leading = *b;
    int64_t shape[MN_MAX_DIMS], m, k, n, k_of_b;
    int ndim;
    if (a->ndim < 2 || b->ndim < 2)
        return mn_infer_error(infer, MN_ERR_SHAPE, "both inputs must have at least 2 axes");
    MN_TRY(mn_need_float(infer, 0, "a"));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    m = a->shape[a->ndim - (ta ? 1 : 2)];
    k = a->shape[a->ndim - (ta ? 2 : 1)];
    k_of_b = b->shape[b->ndim - (tb ? 1 : 2)];
    n = b->shape[b->ndim - (tb ? 2 : 1)];
    if (k != k_of_b)
        return mn_infer_error(infer, MN_ERR_SHAPE,
                              "a [%lld,%lld] times b [%lld,%lld]: the inner extents %lld and %lld "
                              "must be equal",
                              (long long)m, (long long)k, (long long)k_of_b, (long long)n,
                              (long long)k, (long long)k_of_b);
    a_leading.ndim -= 2;
    b_leading.ndim -= 2;
    if (!mn_broadcast(&a_leading, &b_leading, &ndim, shape))
        return mn_infer_error(infer, MN_ERR_SHAPE, "the axes before the last two do not broadcast");
    shape[ndim] = m;
    shape[ndim + 1] = n;
    mn_output(infer, 0, a->dtype, ndim + 2, shape);
    return MN_OK;
}

mn_status mn_infer_linear(mn_infer *infer)
{
    const mn_view *x = &infer->in[0], *w = &infer->in[1];
    if (x->ndim < 1)
        return mn_infer_error(infer, MN_ERR_SHAPE, "the input must have at least 1 axis");
    MN_TRY(mn_need_float(infer, 0, "the input"));
    MN_TRY(mn_need_ndim(infer, 1, "the weight", 2));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    int64_t features = x->shape[x->ndim - 1];
    if (w->shape[1] != features)
        return mn_infer_error(infer, MN_ERR_SHAPE,
                              "weight [%lld,%lld] expects %lld input features, the input has %lld",
                              (long long)w->shape[0], (long long)w->shape[1],
                              (long long)w->shape[1], (long long)features);
    MN_TRY(mn_need_bias(infer));
    mn_output_like(infer, 0, 0);
    infer->out[0].shape[x->ndim - 1] = w->shape[0];
    return MN_OK;
}

mn_status mn_infer_dot(mn_infer *infer)
{
    MN_TRY(mn_need_float(infer, 0, "a"));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    MN_TRY(mn_need_ndim(infer, 0, "a", 1));
    MN_TRY(mn_need_same_shape(infer, 1, "b", 0, "a"));
    mn_output(infer, 0, infer->in[0].dtype, 0, NULL);
    return MN_OK;
}
