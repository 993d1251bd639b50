/* Index arithmetic shared by the reference kernels. */
#include "ops/reference/reference.h"

void mn_ref_unravel(int64_t linear, int ndim, const int64_t *shape, int64_t *index)
{
    for (int i = ndim - 1; i >= 0; i--) {
        index[i] = linear % shape[i];
        linear /= shape[i];
    }
}

int64_t mn_ref_broadcast(const mn_view *view, int ndim, const int64_t *index)
{
    int64_t linear = 0;
    for (int i = 0; i < view->ndim; i++) {
        int64_t at = index[ndim - view->ndim + i];
        linear = linear * view->shape[i] + (view->shape[i] == 1 ? 0 : at);
    }
    return linear;
}

mn_ref_axis mn_ref_split(const mn_view *view, int64_t axis)
{
    mn_ref_axis split = {1, 1, 1};
    for (int i = 0; i < view->ndim; i++) {
        if (i < axis)
            split.outer *= view->shape[i];
        else if (i == axis)
            split.size = view->shape[i];
        else
            split.inner *= view->shape[i];
    }
    return split;
}

double mn_ref_round(mn_dtype dtype, double value)
{
    switch (dtype) {
    case MN_F32:
        return (double)(float)value;
    case MN_F16:
        return (double)mn_f16_to_f32(mn_f16_from_f64(value));
    case MN_BF16:
        return (double)mn_bf16_to_f32(mn_bf16_from_f64(value));
    default:
        return value;
    }
}

bool mn_ref_label(const mn_call *call, double label, int64_t classes)
{
    if (label >= 0 && label < (double)classes)
        return true;
    /* The largest i64, widened, is one too many for the way back. */
    long long shown = label >= 0x1p63 ? INT64_MAX : (long long)label;
    mn_call_fault(call, MN_ERR_ARGUMENT, "label %lld is not in [0, %lld)", shown, classes);
    return false;
}
