/* Reference kernels of sums, means, dot product and argmax. */
#include "ops/reference/reference.h"

/* y = sum of x over the axes: i's indices except those of the summed axes are y's */
void mn_ref_sum(const mn_call *call, double *const in[], double *const out[])
{
    const mn_reduce_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *x = &call->in[0];
    int64_t step[MN_MAX_DIMS];
    mn_view y = *x;
    for (int d = 0; d < x->ndim; d++)
        y.shape[d] = a->axes >> d & 1 ? 1 : x->shape[d];
    mn_steps(&y, y.ndim, step);
    for (int64_t i = 0; i < x->numel; i++)
        out[0][mn_offset(i, x->ndim, x->shape, step)] += in[0][i];
}

/* y = sum of x over the axes / number of elements summed */
void mn_ref_mean(const mn_call *call, double *const in[], double *const out[])
{
    const mn_reduce_attributes *a = (const void *)call->attributes.bytes;
    mn_ref_sum(call, in, out);
    for (int64_t i = 0; i < call->out[0].numel; i++)
        out[0][i] /= mn_extent_of(&call->in[0], a->axes);
}

/* y = sum_i a[i] b[i] */
void mn_ref_dot(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->in[0].numel; i++)
        out[0][0] += in[0][i] * in[1][i];
}

/* y = index of the first NaN along the axis, else of the first largest element */
void mn_ref_argmax(const mn_call *call, double *const in[], double *const out[])
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_split split = mn_split_at(&call->in[0], a->axis);
    for (int64_t i = 0; i < call->out[0].numel; i++) {
        const double *x = in[0] + i / split.inner * split.size * split.inner + i % split.inner;
        out[0][i] = (double)mn_ref_line_argmax(x, split.size, split.inner);
    }
}
