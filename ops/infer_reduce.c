/* ops/infer_reduce.c: shape rules of softmax and reductions. */
#include "core/math.h"
#include "ops/internal.h"

#include <math.h>

mn_status mn_infer_softmax(mn_infer *infer)
{
    const mn_axis_attributes *attributes = infer->attributes;
    const mn_view *x = &infer->in[0];
    MN_TRY(mn_need_float(infer, 0, "the input"));
    MN_TRY(mn_need_axis(infer, attributes->axis));
    mn_output(infer, 0, mn_result_dtype(infer, x->dtype), x->ndim, x->shape);
    return MN_OK;
}

mn_status mn_infer_softmax_backward(mn_infer *infer)
{
    const mn_axis_attributes *attributes = infer->attributes;
    MN_TRY(mn_infer_relu_backward(infer));
    return mn_need_axis(infer, attributes->axis);
}

/* The shape that is left of x by the call's axes; returns its number of axes. */
static int reduced_shape(const mn_infer *infer, const mn_view *x, int64_t *shape)
{
    const mn_reduce_attributes *reduce = infer->attributes;
    int ndim = 0;
    for (int i = 0; i < x->ndim; i++) {
        bool reduced = reduce->axes >> i & 1;
        if (!reduced || reduce->keep)
            shape[ndim++] = reduced ? 1 : x->shape[i];
    }
    return ndim;
}

static mn_status infer_reduction(mn_infer *infer, mn_dtype dtype)
{
    const mn_reduce_attributes *reduce = infer->attributes;
    const mn_view *x = &infer->in[0];
    int64_t shape[MN_MAX_DIMS];
    if (reduce->axes < 0 || reduce->axes >> x->ndim != 0)
        return mn_infer_error(infer, MN_ERR_SHAPE, "axes 0x%llx are out of range for %d axes",
                              (unsigned long long)reduce->axes, x->ndim);
    mn_output(infer, 0, dtype, reduced_shape(infer, x, shape), shape);
    return MN_OK;
}

mn_status mn_infer_sum(mn_infer *infer)
{
    mn_dtype dtype = infer->in[0].dtype;
    return infer_reduction(infer,
                           mn_dtype_is_float(dtype) ? mn_result_dtype(infer, dtype) : MN_I64);
}

mn_status mn_infer_mean(mn_infer *infer)
{
    MN_TRY(mn_need_float(infer, 0, "the input"));
    return infer_reduction(infer, infer->in[0].dtype);
}

mn_status mn_infer_var(mn_infer *infer)
{
    const double correction = ((const mn_reduce_attributes *)infer->attributes)->p;
    if (!mn_isfinite_f64(correction))
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "the correction is %g", correction);
    return mn_infer_mean(infer);
}

static mn_status need_elements(mn_infer *infer)
{
    const mn_reduce_attributes *reduce = infer->attributes;
    for (int i = 0; i < infer->in[0].ndim; i++) {
        if (reduce->axes >> i & 1 && infer->in[0].shape[i] == 0)
            return mn_infer_error(infer, MN_ERR_SHAPE,
                                  "axis %d is empty, so it has no largest or smallest element", i);
    }
    return MN_OK;
}

/* Also of amin. */
mn_status mn_infer_amax(mn_infer *infer)
{
    MN_TRY(need_elements(infer));
    return infer_reduction(infer, infer->in[0].dtype);
}

mn_status mn_infer_norm(mn_infer *infer)
{
    const double p = ((const mn_reduce_attributes *)infer->attributes)->p;
    const bool largest = !mn_isfinite_f64(p) && p > 0;
    MN_TRY(mn_need_float(infer, 0, "the input"));
    if (mn_isnan_f64(p) || (p != 1 && p != 2 && !largest))
        return mn_infer_error(infer, MN_ERR_ARGUMENT, "p is %g, must be 1, 2 or INFINITY", p);
    if (largest)
        MN_TRY(need_elements(infer));
    return infer_reduction(infer, mn_result_dtype(infer, infer->in[0].dtype));
}

mn_status mn_infer_norm_backward(mn_infer *infer)
{
    const mn_view *x = &infer->in[1];
    int64_t shape[MN_MAX_DIMS];
    const int ndim = reduced_shape(infer, x, shape);
    MN_TRY(mn_need_float(infer, 0, "the gradient"));
    MN_TRY(mn_need_float(infer, 1, "the input"));
    MN_TRY(mn_need_same_dtype(infer, 2, 0));
    MN_TRY(mn_need_shape(infer, 0, "the gradient", ndim, shape));
    MN_TRY(mn_need_shape(infer, 2, "the result", ndim, shape));
    mn_output_like(infer, 0, 1);
    return MN_OK;
}

mn_status mn_infer_argmax(mn_infer *infer)
{
    const mn_axis_attributes *attributes = infer->attributes;
    const mn_view *x = &infer->in[0];
    int64_t shape[MN_MAX_DIMS];
    int ndim = 0;
    MN_TRY(mn_need_axis(infer, attributes->axis));
    if (x->shape[attributes->axis] == 0)
        return mn_infer_error(infer, MN_ERR_SHAPE,
                              "axis %lld is empty, so it has no largest element",
                              (long long)attributes->axis);
    for (int i = 0; i < x->ndim; i++) {
        if (i != attributes->axis)
            shape[ndim++] = x->shape[i];
    }
    mn_output(infer, 0, MN_I64, ndim, shape);
    return MN_OK;
}
