/* ops/infer_norm.c: shape rules of normalization. */
#include "ops/internal.h"

#include <float.h>
#include <string.h>

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
        MN_TRY(mn_need_like(infer, i, names[i - first], mn_wide_dtype(view->dtype), 1,
                            &view->shape[view->ndim - 1]));
    }
    return MN_OK;
}

static mn_status check_eps(mn_infer *infer)
{
    const mn_batch_norm_attributes *attributes = infer->attributes;
    if (mn_is_within(attributes->eps, 0, DBL_MAX) && mn_is_within(attributes->momentum, 0, 1))
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_ARGUMENT,
                          "eps %g must be at least 0 and finite, momentum %g in [0, 1]",
                          attributes->eps, attributes->momentum);
}

static const char *const parameter_names[] = {"the weight", "the bias", "running mean",
                                              "running var"};

mn_status mn_infer_batch_norm(mn_infer *infer)
{
    const mn_view *x = &infer->in[0];
    MN_TRY(check_eps(infer));
    MN_TRY(check_channels(infer, 0, parameter_names, 1, 4));
    if (infer->in[5].present)
        MN_TRY(mn_need_like(infer, 5, "the count", MN_I64, 0, NULL));
    const int64_t *channels = &x->shape[x->ndim - 1], moments[2] = {2, *channels};
    if (infer->in[7].present)
        MN_TRY(mn_need_like(infer, 7, "moments", MN_F64, 2, moments));
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

/* The residual, which is added to x's result and so has x's dtype and shape. */
static mn_status check_residual(mn_infer *infer, int input)
{
    if (!infer->in[input].present)
        return MN_OK;
    MN_TRY(mn_need_same_dtype(infer, input, 0));
    return mn_need_same_shape(infer, input, "the residual", 0, "the input");
}

mn_status mn_infer_batch_norm_relu(mn_infer *infer)
{
    MN_TRY(mn_infer_batch_norm(infer));
    return check_residual(infer, 6);
}

mn_status mn_infer_batch_norm_inference_relu(mn_infer *infer)
{
    MN_TRY(mn_infer_batch_norm_inference(infer));
    return check_residual(infer, 5);
}

/* Shape of the largest of two by two pixels each of input x. */
static mn_status pool_by_two(mn_infer *infer, int x, int64_t shape[4])
{
    MN_TRY(mn_need_ndim(infer, x, "the input", 4));
    memcpy(shape, infer->in[x].shape, 4 * sizeof *shape);
    for (int i = 1; i <= 2; i++) {
        if (shape[i] < 2)
            return mn_infer_error(infer, MN_ERR_SHAPE, "images of %lldx%lld are smaller than 2x2",
                                  (long long)infer->in[x].shape[1],
                                  (long long)infer->in[x].shape[2]);
        shape[i] /= 2;
    }
    return MN_OK;
}

static mn_status give_pooled(mn_infer *infer)
{
    int64_t shape[4];
    MN_TRY(pool_by_two(infer, 0, shape));
    if (infer->in[6].present)
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "takes no residual");
    mn_output(infer, 0, infer->in[0].dtype, 4, shape);
    return MN_OK;
}

mn_status mn_infer_batch_norm_relu_pool(mn_infer *infer)
{
    MN_TRY(mn_infer_batch_norm(infer));
    return give_pooled(infer);
}

mn_status mn_infer_batch_norm_inference_relu_pool(mn_infer *infer)
{
    MN_TRY(mn_infer_batch_norm_inference(infer));
    return give_pooled(infer);
}

/* Inputs g, x, w, b, mean, rstd; outputs dx, dw, db. */
mn_status mn_infer_batch_norm_relu_pool_backward(mn_infer *infer)
{
    static const char *const names[] = {"the weight", "the bias", "the mean", "rstd"};
    int64_t shape[4];
    MN_TRY(check_eps(infer));
    MN_TRY(check_channels(infer, 1, names, 2, 5));
    MN_TRY(pool_by_two(infer, 1, shape));
    MN_TRY(mn_need_like(infer, 0, "the gradient", infer->in[1].dtype, 4, shape));
    mn_output_like(infer, 0, 1);
    mn_output_like(infer, 1, 2);
    mn_output_like(infer, 2, 2);
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

/* Inputs g, x, w, b or none, two statistics, y, which may be missing with b; outputs dx, dw, db,
 * and without b dresidual. */
mn_status mn_infer_batch_norm_relu_backward(mn_infer *infer)
{
    static const char *const names[] = {"the weight", "the bias", "the mean", "rstd"};
    static const int64_t nothing = 0;
    const mn_view *x = &infer->in[1];
    const bool bias = infer->in[3].present;
    MN_TRY(check_eps(infer));
    MN_TRY(check_channels(infer, 1, names, 2, bias ? 5 : 2));
    if (!bias)
        MN_TRY(check_channels(infer, 1, names + 2, 4, 5));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    MN_TRY(mn_need_same_shape(infer, 0, "the gradient", 1, "the input"));
    if (infer->in[6].present || !bias) {
        MN_TRY(mn_need_same_dtype(infer, 6, 0));
        MN_TRY(mn_need_same_shape(infer, 6, "the result", 1, "the input"));
    }
    mn_output_like(infer, 0, 1);
    mn_output_like(infer, 1, 2);
    mn_output_like(infer, 2, 2);
    if (bias)
        mn_output(infer, 3, x->dtype, 1, &nothing);
    else
        mn_output_like(infer, 3, 1);
    return MN_OK;
}

/* ---- layer and group normalization ----------------------------------------------------------- */

mn_grouping mn_grouping_of(const mn_view *x, const mn_group_norm_attributes *attributes)
{
    const bool layer = attributes->axes > 0;
    const int first = x->ndim - (layer ? (int)attributes->axes : 1);
    mn_grouping is = {1, 1, layer ? 1 : attributes->groups, 1};
    for (int i = 0; i < first; i++)
        *(layer || i == 0 ? &is.outer : &is.positions) *= x->shape[i];
    for (int i = first; i < x->ndim; i++)
        is.size *= x->shape[i];
    is.size /= is.groups;
    return is;
}

/* Attributes, and input x; gives the dtype and shape of weight and bias, and of statistics. */
static mn_status check_grouping(mn_infer *infer, int input, mn_view *parameter, mn_view *statistic)
{
    const mn_group_norm_attributes *a = infer->attributes;
    const mn_view *x = &infer->in[input];
    const bool layer = infer->op == &mn_ops[MN_OP_layer_norm] || a->axes > 0;
    MN_TRY(mn_need_float(infer, input, "the input"));
    if (!mn_is_within(a->eps, 0, DBL_MAX))
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "eps %g must be at least 0 and finite",
                              a->eps);
    if (layer ? a->axes < 1 || a->axes > x->ndim : x->ndim < 2)
        return mn_infer_error(infer, MN_ERR_SHAPE,
                              layer ? "the input has %d axes, cannot normalize over the last %lld"
                                    : "the input has %d axes, must have at least 2",
                              x->ndim, (long long)a->axes);
    *parameter = (mn_view){.dtype = mn_wide_dtype(x->dtype), .ndim = layer ? (int)a->axes : 1};
    memcpy(parameter->shape, x->shape + x->ndim - parameter->ndim,
           (size_t)parameter->ndim * sizeof x->shape[0]);
    if (a->groups < 1 || (!layer && parameter->shape[0] % a->groups != 0))
        return mn_infer_error(infer, MN_ERR_ARGUMENT,
                              "%lld channels do not divide into %lld groups",
                              (long long)parameter->shape[0], (long long)a->groups);
    const mn_grouping is = mn_grouping_of(x, a);
    if (is.size == 0 || (is.outer > 0 && is.positions == 0))
        return mn_infer_error(infer, MN_ERR_SHAPE, "there is nothing to normalize over");
    *statistic = (mn_view){.dtype = parameter->dtype, .ndim = 2, .shape = {is.outer, is.groups}};
    return MN_OK;
}

static mn_status check_like(mn_infer *infer, int input, const char *name, const mn_view *like)
{
    if (!infer->in[input].present)
        return MN_OK;
    return mn_need_like(infer, input, name, like->dtype, like->ndim, like->shape);
}

static void give_like(mn_infer *infer, int output, const mn_view *like)
{
    mn_output(infer, output, like->dtype, like->ndim, like->shape);
}

/* Also of layer_norm. Inputs x, w, b; outputs y, mean, rstd. */
mn_status mn_infer_group_norm(mn_infer *infer)
{
    mn_view parameter = {0}, statistic = {0};
    MN_TRY(check_grouping(infer, 0, &parameter, &statistic));
    MN_TRY(check_like(infer, 1, "the weight", &parameter));
    MN_TRY(check_like(infer, 2, "the bias", &parameter));
    mn_output_like(infer, 0, 0);
    give_like(infer, 1, &statistic);
    give_like(infer, 2, &statistic);
    return MN_OK;
}

/* Inputs g, x, w, mean, rstd; outputs dx, dw, db. */
mn_status mn_infer_group_norm_backward(mn_infer *infer)
{
    mn_view parameter = {0}, statistic = {0};
    MN_TRY(check_grouping(infer, 1, &parameter, &statistic));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    MN_TRY(mn_need_same_shape(infer, 0, "the gradient", 1, "the input"));
    MN_TRY(check_like(infer, 2, "the weight", &parameter));
    MN_TRY(check_like(infer, 3, "the mean", &statistic));
    MN_TRY(check_like(infer, 4, "rstd", &statistic));
    mn_output_like(infer, 0, 1);
    give_like(infer, 1, &parameter);
    give_like(infer, 2, &parameter);
    return MN_OK;
}
