/* Reference kernels of ops that work element by element. */
#include "ops/reference/reference.h"

/* y = x; the caller's narrowing is the cast. */
void mn_ref_cast(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->out[0].numel; i++)
        out[0][i] = in[0][i];
}

void mn_ref_copy(const mn_call *call, double *const in[], double *const out[])
{
    mn_ref_cast(call, in, out);
}

/* x[i] = value */
void mn_ref_fill(const mn_call *call, double *const in[], double *const out[])
{
    const mn_value_attributes *a = (const void *)call->attributes.bytes;
    (void)out;
    for (int64_t i = 0; i < call->in[0].numel; i++)
        in[0][i] = a->value;
}

/* dst[i] = src[i]   (inputs dst, src) */
void mn_ref_assign(const mn_call *call, double *const in[], double *const out[])
{
    (void)out;
    for (int64_t i = 0; i < call->in[0].numel; i++)
        in[0][i] = in[1][i];
}

/* y[i] = a[i] + b[i], both broadcast to y's shape */
void mn_ref_add(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *y = &call->out[0];
    int64_t index[MN_MAX_DIMS];
    for (int64_t i = 0; i < y->numel; i++) {
        mn_ref_unravel(i, y->ndim, y->shape, index);
        out[0][i] = in[0][mn_ref_broadcast(&call->in[0], y->ndim, index)] +
                    in[1][mn_ref_broadcast(&call->in[1], y->ndim, index)];
    }
}

/* y[i] = a[i] b[i], both broadcast to y's shape */
void mn_ref_mul(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *y = &call->out[0];
    int64_t index[MN_MAX_DIMS];
    for (int64_t i = 0; i < y->numel; i++) {
        mn_ref_unravel(i, y->ndim, y->shape, index);
        out[0][i] = in[0][mn_ref_broadcast(&call->in[0], y->ndim, index)] *
                    in[1][mn_ref_broadcast(&call->in[1], y->ndim, index)];
    }
}

/* y = x <= 0 ? 0 : x: a comparison with NaN is false, so NaN stays. */
void mn_ref_relu(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->out[0].numel; i++)
        out[0][i] = in[0][i] <= 0 ? 0 : in[0][i];
}

/* dx = y <= 0 ? 0 : g   (inputs g, y): where y is NaN the gradient passes. */
void mn_ref_relu_backward(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->out[0].numel; i++)
        out[0][i] = in[1][i] <= 0 ? 0 : in[0][i];
}

/* dst[i] += src[i]   (inputs dst, src) */
void mn_ref_accumulate(const mn_call *call, double *const in[], double *const out[])
{
    (void)out;
    for (int64_t i = 0; i < call->in[0].numel; i++)
        in[0][i] += in[1][i];
}
