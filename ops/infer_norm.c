/* ops/infer_norm.c: shape rules of batch normalization. */
#include "ops/internal.h"

/* x [..., C], and vectors [C] in the dtype that statistics over x have. */
static mn_status check_channels(mn_infer *infer, int x, const char *const names[], int first,
                                int last)
{
    const mn_view *view = &infer->in[x];
    MN_TRY(mn_need_float(infer, x, "the input"));
    if (view->ndim < 2)
        return mn_infer_error(infer, MN_ERR_SHAPE, "the input has %d axes, must have at least 2",
                              view->ndim);
    for (int i = first; i <= last; i++) {
        if (!infer->in[i].present)
            return mn_infer_error(infer, MN_ERR_ARGUMENT, "%s is missing", names[i - first]);
        MN_TRY(mn_need_dtype(infer, i, names[i - first], mn_wide_dtype(view->dtype)));
        MN_TRY(mn_need_shape(infer, i, names[i - first], 1, &view->shape[view->ndim - 1]));
    }
    return MN_OK;
}

static mn_status check_eps(mn_infer *infer)
{
    const mn_batch_norm_attributes *attributes = infer->attributes;
    if (attributes->eps >= 0 && attributes->momentum >= 0 && attributes->momentum <= 1)
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_ARGUMENT,
                          "eps %g must be at least 0, momentum %g in [0, 1]", attributes->eps,
                          attributes->momentum);
}

static const char *const parameter_names[] = {"the weight", "the bias", "running mean",
                                              "running var"};

mn_status mn_infer_batch_norm(mn_infer *infer)
{
    const mn_view *x = &infer->in[0];
    MN_TRY(check_eps(infer));
    MN_TRY(check_channels(infer, 0, parameter_names, 1, 4));
    if (infer->in[5].present) {
        MN_TRY(mn_need_dtype(infer, 5, "the count", MN_I64));
        MN_TRY(mn_need_ndim(infer, 5, "the count", 0));
    }
    const int64_t *channels = &x->shape[x->ndim - 1];
    if (*channels > 0 && x->numel == *channels)
        return mn_infer_error(infer, MN_ERR_SHAPE,
                              "training needs more than 1 value per channel to normalize over");
    mn_output_like(infer, 0, 0);
    mn_output(infer, 1, mn_wide_dtype(x->dtype), 1, channels);
    mn_output(infer, 2, mn_wide_dtype(x->dtype), 1, channels);
    return MN_OK;
}

mn_status mn_infer_batch_norm_inference(mn_infer *infer)
{
    MN_TRY(check_eps(infer));
    MN_TRY(check_channels(infer, 0, parameter_names, 1, 4));
    mn_output_like(infer, 0, 0);
    return MN_OK;
}

/* Inputs g, x, w and two statistics; outputs dx, dw, db. */
mn_status mn_infer_batch_norm_backward(mn_infer *infer)
{
    static const char *const names[] = {"the weight", "the mean", "the second statistic"};
    MN_TRY(check_eps(infer));
    MN_TRY(check_channels(infer, 1, names, 2, 4));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    MN_TRY(mn_need_same_shape(infer, 0, "the gradient", 1, "the input"));
    mn_output_like(infer, 0, 1);
    mn_output_like(infer, 1, 2);
    mn_output_like(infer, 2, 2);
    return MN_OK;
}
