/* Reference kernels of sums, means, dot product and argmax. */
#include "ops/reference/reference.h"

#include <math.h>

/* Adds every x[i] to the y that keeps i's indices except those of the summed axes. Returns how many
 * elements each y takes in. */
static double add_over_axes(const mn_call *call, const double *x, double *y)
{
    const mn_reduce_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *view = &call->in[0];
    int64_t index[MN_MAX_DIMS];
    for (int64_t i = 0; i < view->numel; i++) {
        int64_t to = 0;
        mn_ref_unravel(i, view->ndim, view->shape, index);
        for (int d = 0; d < view->ndim; d++)
            if (!(a->axes >> d & 1))
                to = to * view->shape[d] + index[d];
        y[to] += x[i];
    }
    double count = 1;
    for (int d = 0; d < view->ndim; d++)
        count *= a->axes >> d & 1 ? (double)view->shape[d] : 1;
    return count;
}

/* y = sum of x over the axes */
void mn_ref_sum(const mn_call *call, double *const in[], double *const out[])
{
    add_over_axes(call, in[0], out[0]);
}

/* y = sum of x over the axes / number of elements summed */
void mn_ref_mean(const mn_call *call, double *const in[], double *const out[])
{
    const double count = add_over_axes(call, in[0], out[0]);
    for (int64_t i = 0; i < call->out[0].numel; i++)
        out[0][i] /= count;
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
    const mn_ref_axis split = mn_ref_split(&call->in[0], a->axis);
    for (int64_t o = 0; o < split.outer; o++)
        for (int64_t i = 0; i < split.inner; i++) {
            const double *x = in[0] + o * split.size * split.inner + i;
            int64_t best = 0;
            for (int64_t j = 1; j < split.size; j++) {
                const double value = x[j * split.inner], largest = x[best * split.inner];
                if (!isnan(largest) && (isnan(value) || value > largest))
                    best = j;
            }
            out[0][o * split.inner + i] = (double)best;
        }
}
