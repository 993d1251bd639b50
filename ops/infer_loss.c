/* ops/infer_loss.c: shape rules of the losses. */
#include "ops/internal.h"

static mn_status check_reduction(mn_infer *infer, int64_t reduction)
{
    if (reduction >= MN_REDUCTION_MEAN && reduction <= MN_REDUCTION_NONE)
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_ARGUMENT, "unknown reduction %lld", (long long)reduction);
}

/* ---- classes --------------------------------------------------------------------------------- */

static mn_status check_class_options(mn_infer *infer, int target)
{
    const mn_class_loss_attributes *a = infer->attributes;
    const bool soft = infer->in[target].dtype != MN_I64;
    MN_TRY(check_reduction(infer, a->reduction));
    if (!mn_is_within(a->smoothing, 0, 1))
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "label_smoothing is %g, must be in [0, 1]",
                              a->smoothing);
    if (a->is_log && a->smoothing != 0)
        return mn_infer_error(infer, MN_ERR_ARGUMENT,
                              "label_smoothing needs logits: use mn_cross_entropy");
    if (soft && a->ignore_index >= 0)
        return mn_infer_error(infer, MN_ERR_ARGUMENT,
                              "ignore_index is for labels, not for probabilities");
    return MN_OK;
}

/* Logits [N, classes]; labels i64 [N] or probabilities of the logits' shape; weight [classes]. */
static mn_status check_classes(mn_infer *infer, int logits, int weight)
{
    const mn_class_loss_attributes *a = infer->attributes;
    const mn_view *x = &infer->in[logits];
    const int target = logits + 1;
    MN_TRY(mn_need_ndim(infer, logits, "the logits", 2));
    MN_TRY(mn_need_float(infer, logits, "the logits"));
    if (x->shape[1] < 1)
        return mn_infer_error(infer, MN_ERR_SHAPE, "the logits have no classes");
    if (!a->is_log && mn_dtype_is_float(infer->in[target].dtype)) {
        MN_TRY(mn_need_same_shape(infer, target, "the probabilities", logits, "the logits"));
    } else {
        MN_TRY(mn_need_like(infer, target, "the labels", MN_I64, 1, x->shape));
    }
    if (infer->in[weight].present)
        MN_TRY(mn_need_like(infer, weight, "the class weights", mn_wide_dtype(x->dtype), 1,
                            x->shape + 1));
    return check_class_options(infer, target);
}

mn_status mn_infer_cross_entropy(mn_infer *infer)
{
    const mn_class_loss_attributes *a = infer->attributes;
    const mn_view *x = &infer->in[0];
    MN_TRY(check_classes(infer, 0, 2));
    mn_output(infer, 0, mn_wide_dtype(x->dtype), a->reduction == MN_REDUCTION_NONE, x->shape);
    mn_output(infer, 1, mn_wide_dtype(x->dtype), 1, x->shape);
    return MN_OK;
}

mn_status mn_infer_cross_entropy_backward(mn_infer *infer)
{
    const mn_class_loss_attributes *a = infer->attributes;
    const mn_view *x = &infer->in[1];
    const mn_dtype wide = mn_wide_dtype(x->dtype);
    MN_TRY(check_classes(infer, 1, 4));
    MN_TRY(
        mn_need_like(infer, 0, "the gradient", wide, a->reduction == MN_REDUCTION_NONE, x->shape));
    MN_TRY(mn_need_like(infer, 3, "lse", wide, 1, x->shape));
    mn_output_like(infer, 0, 1);
    return MN_OK;
}

/* ---- element by element ---------------------------------------------------------------------- */

/* Input and target, from input `first` on. */
static mn_status check_pair(mn_infer *infer, int first)
{
    const mn_pointwise_loss_attributes *a = infer->attributes;
    MN_TRY(mn_need_float(infer, first, "the input"));
    MN_TRY(mn_need_same_dtype(infer, first + 1, first));
    MN_TRY(mn_need_same_shape(infer, first + 1, "the target", first, "the input"));
    MN_TRY(check_reduction(infer, a->reduction));
    if (a->kind == MN_LOSS_HUBER && (mn_isnan_f64(a->delta) || a->delta <= 0))
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "delta is %g, must be above 0", a->delta);
    return MN_OK;
}

mn_status mn_infer_pointwise_loss(mn_infer *infer)
{
    const mn_pointwise_loss_attributes *a = infer->attributes;
    const mn_view *x = &infer->in[0];
    MN_TRY(check_pair(infer, 0));
    mn_output(infer, 0, mn_wide_dtype(x->dtype), a->reduction == MN_REDUCTION_NONE ? x->ndim : 0,
              x->shape);
    return MN_OK;
}

mn_status mn_infer_pointwise_loss_backward(mn_infer *infer)
{
    const mn_pointwise_loss_attributes *a = infer->attributes;
    const mn_view *x = &infer->in[1];
    MN_TRY(check_pair(infer, 1));
    MN_TRY(mn_need_like(infer, 0, "the gradient", mn_wide_dtype(x->dtype),
                        a->reduction == MN_REDUCTION_NONE ? x->ndim : 0, x->shape));
    mn_output_like(infer, 0, 1);
    return MN_OK;
}
