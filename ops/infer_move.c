/* ops/infer_move.c: shape rules of the ops that cut, join, index and drop elements. */
#include "ops/internal.h"

mn_status mn_infer_pad(mn_infer *infer)
{
    const mn_pad_attributes *a = infer->attributes;
    const int64_t limit = INT64_C(1) << 48; /* far above any tensor; sums do not overflow */
    const mn_view *x = &infer->in[0];
    int64_t shape[MN_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) {
        const int64_t before = a->before[i], after = a->after[i];
        const bool sane = before > -limit && before < limit && after > -limit && after < limit;
        shape[i] = sane ? x->shape[i] + before + after : -1;
        if (shape[i] < 0)
            return mn_infer_error(infer, MN_ERR_SHAPE,
                                  "%lld elements before and %lld after axis %d do not give an axis",
                                  (long long)before, (long long)after, i);
    }
    mn_output(infer, 0, x->dtype, x->ndim, shape);
    return MN_OK;
}

/* Whether input i has the extents of input 0 but along the axis. */
static bool fits_beside(const mn_infer *infer, int i, int64_t axis)
{
    mn_view view = infer->in[i];
    if (!view.present || view.ndim != infer->in[0].ndim)
        return false;
    view.shape[axis] = infer->in[0].shape[axis];
    return mn_same_shape(&view, &infer->in[0]);
}

mn_status mn_infer_concat(mn_infer *infer)
{
    const int64_t axis = ((const mn_axis_attributes *)infer->attributes)->axis;
    MN_TRY(mn_need_axis(infer, axis));
    mn_output_like(infer, 0, 0);
    for (int i = 1; i < infer->input_count; i++) {
        if (!fits_beside(infer, i, axis))
            return mn_infer_error(infer, MN_ERR_SHAPE,
                                  "tensor %d does not fit tensor 0: shapes may differ only along "
                                  "axis %lld",
                                  i, (long long)axis);
        MN_TRY(mn_need_same_dtype(infer, i, 0));
        infer->out[0].shape[axis] += infer->in[i].shape[axis];
    }
    return MN_OK;
}

static mn_status need_index(mn_infer *infer, int index)
{
    const int64_t axis = ((const mn_axis_attributes *)infer->attributes)->axis;
    const mn_view *x = &infer->in[0], *view = &infer->in[index];
    MN_TRY(mn_need_axis(infer, axis));
    MN_TRY(mn_need_dtype(infer, index, "the index", MN_I64));
    MN_TRY(mn_need_ndim(infer, index, "the index", x->ndim));
    for (int i = 0; i < x->ndim; i++) {
        if (i != axis && view->shape[i] > x->shape[i])
            return mn_infer_error(infer, MN_ERR_SHAPE,
                                  "the index is longer than the input along axis %d: %lld > %lld",
                                  i, (long long)view->shape[i], (long long)x->shape[i]);
    }
    return MN_OK;
}

mn_status mn_infer_gather(mn_infer *infer)
{
    MN_TRY(need_index(infer, 1));
    mn_output(infer, 0, infer->in[0].dtype, infer->in[1].ndim, infer->in[1].shape);
    return MN_OK;
}

mn_status mn_infer_scatter_add(mn_infer *infer)
{
    MN_TRY(need_index(infer, 2));
    MN_TRY(mn_need_same_dtype(infer, 1, 0));
    MN_TRY(mn_need_same_shape(infer, 1, "the source", 2, "the index"));
    mn_output_like(infer, 0, 0);
    return MN_OK;
}

mn_status mn_infer_dropout(mn_infer *infer)
{
    MN_TRY(mn_need_float(infer, 0, "the input"));
    if (infer->in[0].numel >> 34 != 0) /* 2^32 blocks of 4 words */
        return mn_infer_error(infer, MN_ERR_UNSUPPORTED, "more than 2^34 elements");
    mn_output_like(infer, 0, 0);
    return MN_OK;
}
