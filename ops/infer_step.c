/* ops/infer_step.c: shape rules of the ops on gradients, parameters and step records. */
#include "ops/internal.h"

static mn_status need_wide(mn_infer *infer, int input, const char *name)
{
    mn_dtype dtype = infer->in[input].dtype;
    if (dtype == MN_F32 || dtype == MN_F64)
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_DTYPE, "dtype of %s is %s, must be f32 or f64", name,
                          mn_dtype_name(dtype));
}

mn_status mn_infer_blend(mn_infer *infer)
{
    MN_TRY(mn_need_float(infer, 0, "the sum"));
    MN_TRY(mn_need_float(infer, 1, "the addend"));
    MN_TRY(mn_need_same_shape(infer, 1, "the addend", 0, "the sum"));
    return infer->in[2].present ? mn_need_record(infer, 2, "the optimizer's record") : MN_OK;
}

mn_status mn_infer_adjust(mn_infer *infer)
{
    return mn_need_float(infer, 0, "the tensor");
}

mn_status mn_infer_grad_unscale(mn_infer *infer)
{
    MN_TRY(need_wide(infer, 0, "the gradient"));
    MN_TRY(mn_need_record(infer, 1, "the scaler's record"));
    return mn_need_record(infer, 2, "the optimizer's record");
}

mn_status mn_infer_grad_clip(mn_infer *infer)
{
    MN_TRY(need_wide(infer, 0, "the gradient"));
    return mn_need_record(infer, 1, "the optimizer's record");
}

/* An operand of a step: absent, or of that dtype and the parameter's shape. */
static mn_status need_like_parameter(mn_infer *infer, int input, const char *name, mn_dtype dtype)
{
    if (!infer->in[input].present)
        return MN_OK;
    MN_TRY(mn_need_dtype(infer, input, name, dtype));
    return mn_need_same_shape(infer, input, name, 0, "the parameter");
}

/* p, g, state 0, state 1, record, f16 shadow, bf16 shadow, master of a 16-bit p; which states there
 * must be is each op's set of optional inputs. */
mn_status mn_infer_step(mn_infer *infer)
{
    mn_dtype wide = mn_wide_dtype(infer->in[0].dtype);
    MN_TRY(mn_need_float(infer, 0, "the parameter"));
    MN_TRY(need_like_parameter(infer, 1, "the gradient", wide));
    MN_TRY(need_like_parameter(infer, 2, "the optimizer's state", wide));
    MN_TRY(need_like_parameter(infer, 3, "the optimizer's state", wide));
    MN_TRY(mn_need_record(infer, 4, "the optimizer's record"));
    MN_TRY(need_like_parameter(infer, 5, "the shadow", MN_F16));
    MN_TRY(need_like_parameter(infer, 6, "the shadow", MN_BF16));
    if (infer->in[7].present && !mn_is_16_bit(infer->in[0].dtype))
        return mn_infer_error(infer, MN_ERR_DTYPE, "a parameter of %s has no master",
                              mn_dtype_name(infer->in[0].dtype));
    return need_like_parameter(infer, 7, "the master", MN_F32);
}

mn_status mn_infer_record(mn_infer *infer)
{
    return mn_need_record(infer, 0, "the record");
}

mn_status mn_infer_scaler_scale(mn_infer *infer)
{
    const mn_view *x = &infer->in[0];
    MN_TRY(mn_need_float(infer, 0, "the loss"));
    MN_TRY(mn_need_record(infer, 1, "the scaler's record"));
    mn_output(infer, 0, mn_wide_dtype(x->dtype), x->ndim, x->shape);
    return MN_OK;
}

/* Input 0 is the ring, f64 [rows, MN_RECORD_SIZE], and the entry is one of its rows. */
static mn_status check_ring(mn_infer *infer)
{
    const mn_report_attributes *report = infer->attributes;
    const mn_view *ring = &infer->in[0];
    const int64_t shape[2] = {ring->shape[0], MN_RECORD_SIZE};
    MN_TRY(mn_need_like(infer, 0, "the ring", MN_F64, 2, shape));
    if (report->entry >= 0 && report->entry < ring->shape[0])
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_ARGUMENT, "entry %lld is out of range for %lld rows",
                          (long long)report->entry, (long long)ring->shape[0]);
}

mn_status mn_infer_report_loss(mn_infer *infer)
{
    const mn_view *logits = &infer->in[2];
    MN_TRY(check_ring(infer));
    MN_TRY(mn_need_float(infer, 1, "the loss"));
    if (infer->in[1].numel != 1)
        return mn_infer_error(infer, MN_ERR_SHAPE, "the loss must have one element");
    MN_TRY(mn_need_float(infer, 2, "the logits"));
    MN_TRY(mn_need_ndim(infer, 2, "the logits", 2));
    return mn_need_like(infer, 3, "the labels", MN_I64, 1, logits->shape);
}

mn_status mn_infer_report_step(mn_infer *infer)
{
    MN_TRY(check_ring(infer));
    MN_TRY(mn_need_record(infer, 1, "the optimizer's record"));
    return mn_need_record(infer, 2, "the scaler's record");
}
