/* Reference kernels of ops that rearrange, repeat or gather elements. */
#include "ops/reference/reference.h"

/* y[i_axes[0], i_axes[1], ...] = x[i_0, i_1, ...] */
void mn_ref_permute(const mn_call *call, double *const in[], double *const out[])
{
    const mn_permute_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *x = &call->in[0], *y = &call->out[0];
    int64_t from[MN_MAX_DIMS] = {0}, to[MN_MAX_DIMS];
    for (int64_t i = 0; i < y->numel; i++) {
        mn_ref_unravel(i, y->ndim, y->shape, to);
        for (int d = 0; d < y->ndim; d++)
            from[a->axes[d]] = to[d];
        out[0][i] = in[0][mn_ref_broadcast(x, x->ndim, from)];
    }
}

/* y[i] = scale x[i], x broadcast to y's shape */
void mn_ref_expand(const mn_call *call, double *const in[], double *const out[])
{
    const mn_shape_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *y = &call->out[0];
    int64_t index[MN_MAX_DIMS];
    for (int64_t i = 0; i < y->numel; i++) {
        mn_ref_unravel(i, y->ndim, y->shape, index);
        out[0][i] = a->scale * in[0][mn_ref_broadcast(&call->in[0], y->ndim, index)];
    }
}

/* y[j] = sum of x[i] over all i that broadcasting y to x's shape would take from j */
void mn_ref_reduce_to(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *x = &call->in[0];
    int64_t index[MN_MAX_DIMS];
    for (int64_t i = 0; i < x->numel; i++) {
        mn_ref_unravel(i, x->ndim, x->shape, index);
        out[0][mn_ref_broadcast(&call->out[0], x->ndim, index)] += in[0][i];
    }
}
