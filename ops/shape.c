/* ops/shape.c: promotion, broadcasting, and the checks that shape rules are made of. */
#include "ops/internal.h"

#include <stdio.h>

/* ---- dtypes ---------------------------------------------------------------------------------- */

/* Where two dtypes meet, as torch.promote_types; U8 stands for uint8. */
static const mn_dtype meeting[MN_DTYPE_COUNT][MN_DTYPE_COUNT] = {
    [MN_F64] = {MN_F64, MN_F64, MN_F64, MN_F64, MN_F64, MN_F64, MN_F64},
    [MN_F32] = {MN_F64, MN_F32, MN_F32, MN_F32, MN_F32, MN_F32, MN_F32},
    [MN_F16] = {MN_F64, MN_F32, MN_F16, MN_F32, MN_F16, MN_F16, MN_F16},
    [MN_BF16] = {MN_F64, MN_F32, MN_F32, MN_BF16, MN_BF16, MN_BF16, MN_BF16},
    [MN_I64] = {MN_F64, MN_F32, MN_F16, MN_BF16, MN_I64, MN_I64, MN_I64},
    [MN_I32] = {MN_F64, MN_F32, MN_F16, MN_BF16, MN_I64, MN_I32, MN_I32},
    [MN_U8] = {MN_F64, MN_F32, MN_F16, MN_BF16, MN_I64, MN_I32, MN_U8},
};

mn_dtype mn_promote(const mn_view *a, const mn_view *b)
{
    /* A scalar yields to a tensor unless it alone is floating. */
    bool a_float = mn_dtype_is_float(a->dtype);
    bool b_float = mn_dtype_is_float(b->dtype);
    if (a->ndim > 0 && b->ndim == 0 && (a_float || !b_float))
        return a->dtype;
    if (b->ndim > 0 && a->ndim == 0 && (b_float || !a_float))
        return b->dtype;
    return meeting[a->dtype][b->dtype];
}

mn_dtype mn_wide_dtype(mn_dtype dtype)
{
    return dtype == MN_F64 ? MN_F64 : MN_F32;
}

bool mn_is_16_bit(mn_dtype dtype)
{
    return dtype == MN_F16 || dtype == MN_BF16;
}

mn_dtype mn_result_dtype(const mn_infer *infer, mn_dtype dtype)
{
    return infer->f32_output && mn_is_16_bit(dtype) ? MN_F32 : dtype;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

bool mn_broadcast(const mn_view *a, const mn_view *b, int *ndim, int64_t *shape)
{
    *ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
    for (int i = 0; i < *ndim; i++) {
        int64_t left = i < a->ndim ? a->shape[a->ndim - 1 - i] : 1;
        int64_t right = i < b->ndim ? b->shape[b->ndim - 1 - i] : 1;
        if (left != right && left != 1 && right != 1)
            return false;
        shape[*ndim - 1 - i] = left == 1 ? right : left;
    }
    return true;
}

bool mn_broadcasts_to(const mn_view *x, const mn_view *y)
{
    mn_view met;
    return x->ndim <= y->ndim && mn_broadcast(x, y, &met.ndim, met.shape) && mn_same_shape(&met, y);
}

bool mn_same_shape(const mn_view *a, const mn_view *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++) {
        if (a->shape[i] != b->shape[i])
            return false;
    }
    return true;
}

void mn_steps(const mn_view *x, int ndim, int64_t *step)
{
    int64_t size = 1;
    for (int i = ndim - 1, j = x->ndim - 1; i >= 0; i--, j--) {
        const int64_t extent = j < 0 ? 1 : x->shape[j];
        step[i] = extent == 1 ? 0 : size;
        size *= extent;
    }
}

int64_t mn_offset(int64_t index, int ndim, const int64_t *shape, const int64_t *step)
{
    int64_t offset = 0;
    for (int i = ndim - 1; i >= 0; i--) {
        offset += index % shape[i] * step[i];
        index /= shape[i];
    }
    return offset;
}

bool mn_index_check(const mn_call *call, int64_t index, int64_t bound)
{
    if (index >= 0 && index < bound)
        return true;
    mn_call_fault(call, MN_ERR_ARGUMENT, "index %lld is not in [0, %lld)", index, bound);
    return false;
}

void mn_gather_steps(const mn_view *x, const mn_view *index, int64_t axis, int64_t *step)
{
    mn_steps(x, index->ndim, step);
    step[axis] = 0;
}

mn_split mn_split_at(const mn_view *view, int64_t axis)
{
    mn_split split = {1, view->shape[axis], 1};
    for (int i = 0; i < view->ndim; i++) {
        if (i < axis)
            split.outer *= view->shape[i];
        else if (i > axis)
            split.inner *= view->shape[i];
    }
    return split;
}

double mn_extent_of(const mn_view *view, int64_t axes)
{
    double extent = 1;
    for (int i = 0; i < view->ndim; i++)
        extent *= axes >> i & 1 ? (double)view->shape[i] : 1;
    return extent;
}

bool mn_has_input(const mn_call *call, int input)
{
    return input < call->input_count && call->in[input].present;
}

bool mn_shape_numel(int64_t ndim, const int64_t *shape, int64_t *numel)
{
    if (ndim < 0 || ndim > MN_MAX_DIMS)
        return false;
    bool empty = false;
    for (int64_t i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return false;
        empty = empty || shape[i] == 0;
    }
    int64_t product = 1;
    for (int64_t i = 0; i < ndim && !empty; i++) {
        if (product > INT64_MAX / shape[i])
            return false;
        product *= shape[i];
    }
    *numel = empty ? 0 : product;
    return true;
}

bool mn_window_count(int64_t extent, int64_t kernel, int64_t stride, int64_t padding,
                     int64_t dilation, int64_t *count)
{
    /* Limits far above any tensor, below which nothing here overflows. */
    const int64_t limit = INT64_C(1) << 31;
    if (extent < 0 || kernel < 1 || stride < 1 || padding < 0 || dilation < 1)
        return false;
    if (extent > limit || kernel > limit || stride > limit || padding > limit || dilation > limit)
        return false;
    int64_t room = extent + 2 * padding - dilation * (kernel - 1) - 1;
    if (room < 0)
        return false;
    *count = room / stride + 1;
    return true;
}

const char *mn_shape_text(int64_t ndim, const int64_t *shape, mn_shape_buffer text)
{
    const size_t size = sizeof(mn_shape_buffer);
    int used = snprintf(text, size, "[");
    if (ndim < 0 || ndim > MN_MAX_DIMS) {
        snprintf(text, size, "(%lld axes)", (long long)ndim);
        return text;
    }
    for (int64_t i = 0; i < ndim; i++)
        used +=
            snprintf(text + used, size - (size_t)used, "%s%lld", i ? "," : "", (long long)shape[i]);
    snprintf(text + used, size - (size_t)used, "]");
    return text;
}

/* ---- checks of shape rules ------------------------------------------------------------------- */

mn_status mn_need_float(mn_infer *infer, int input, const char *name)
{
    mn_dtype dtype = infer->in[input].dtype;
    if (mn_dtype_is_float(dtype))
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_DTYPE, "dtype of %s is %s, must be floating: cast it first",
                          name, mn_dtype_name(dtype));
}

mn_status mn_need_dtype(mn_infer *infer, int input, const char *name, mn_dtype dtype)
{
    if (infer->in[input].dtype == dtype)
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_DTYPE, "dtype of %s is %s, must be %s", name,
                          mn_dtype_name(infer->in[input].dtype), mn_dtype_name(dtype));
}

mn_status mn_need_ndim(mn_infer *infer, int input, const char *name, int ndim)
{
    if (infer->in[input].ndim == ndim)
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_SHAPE, "%s must have %d axes, not %d", name, ndim,
                          infer->in[input].ndim);
}

mn_status mn_need_shape(mn_infer *infer, int input, const char *name, int ndim,
                        const int64_t *shape)
{
    const mn_view *view = &infer->in[input];
    mn_view must = {.ndim = ndim};
    for (int i = 0; i < ndim; i++)
        must.shape[i] = shape[i];
    if (mn_same_shape(view, &must))
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_SHAPE, "shape of %s is %s, must be %s", name,
                          mn_shape_text(view->ndim, view->shape, (mn_shape_buffer){0}),
                          mn_shape_text(ndim, shape, (mn_shape_buffer){0}));
}

mn_status mn_need_like(mn_infer *infer, int input, const char *name, mn_dtype dtype, int ndim,
                       const int64_t *shape)
{
    MN_TRY(mn_need_dtype(infer, input, name, dtype));
    return mn_need_shape(infer, input, name, ndim, shape);
}

mn_status mn_need_same_shape(mn_infer *infer, int input, const char *name, int other,
                             const char *other_name)
{
    const mn_view *a = &infer->in[input], *b = &infer->in[other];
    if (mn_same_shape(a, b))
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_SHAPE, "shape of %s is %s, that of %s %s", name,
                          mn_shape_text(a->ndim, a->shape, (mn_shape_buffer){0}), other_name,
                          mn_shape_text(b->ndim, b->shape, (mn_shape_buffer){0}));
}

mn_status mn_need_same_dtype(mn_infer *infer, int input, int other)
{
    mn_dtype a = infer->in[other].dtype, b = infer->in[input].dtype;
    if (a == b)
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_DTYPE,
                          "inputs have different dtypes %s and %s: cast one, or run inside an "
                          "autocast region",
                          mn_dtype_name(a), mn_dtype_name(b));
}

mn_status mn_need_bias(mn_infer *infer)
{
    if (!infer->in[2].present)
        return MN_OK;
    MN_TRY(mn_need_same_dtype(infer, 2, 0));
    return mn_need_shape(infer, 2, "the bias", 1, infer->in[1].shape);
}

mn_status mn_need_record(mn_infer *infer, int input, const char *name)
{
    const int64_t shape[1] = {MN_RECORD_SIZE};
    return mn_need_like(infer, input, name, MN_F64, 1, shape);
}

mn_status mn_need_axis(mn_infer *infer, int64_t axis)
{
    int ndim = infer->in[0].ndim;
    if (axis >= 0 && axis < ndim)
        return MN_OK;
    return mn_infer_error(infer, MN_ERR_SHAPE, "axis %lld is out of range for %d axes",
                          (long long)axis, ndim);
}

void mn_output(mn_infer *infer, int output, mn_dtype dtype, int ndim, const int64_t *shape)
{
    mn_view *view = &infer->out[output];
    view->present = true;
    view->dtype = dtype;
    view->ndim = ndim;
    for (int i = 0; i < ndim; i++)
        view->shape[i] = shape[i];
}

void mn_output_like(mn_infer *infer, int output, int input)
{
    const mn_view *view = &infer->in[input];
    mn_output(infer, output, view->dtype, view->ndim, view->shape);
}
