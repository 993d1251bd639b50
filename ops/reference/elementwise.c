/* Reference kernels of ops that work element by element, rearrange, repeat or gather elements. */
#include "ops/reference/reference.h"

/* y = x; the caller's narrowing is the cast. */
void mn_ref_cast(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->out[0].numel; i++)
        out[0][i] = in[0][i];
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

/* y[i_axes[0], i_axes[1], ...] = x[i_0, i_1, ...] */
void mn_ref_permute(const mn_call *call, double *const in[], double *const out[])
{
    const mn_permute_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *y = &call->out[0];
    int64_t of_x[MN_MAX_DIMS], step[MN_MAX_DIMS];
    mn_steps(&call->in[0], y->ndim, of_x);
    for (int d = 0; d < y->ndim; d++)
        step[d] = of_x[a->axes[d]];
    for (int64_t i = 0; i < y->numel; i++)
        out[0][i] = in[0][mn_offset(i, y->ndim, y->shape, step)];
}

/* y[i] = scale x[i], x broadcast to y's shape */
void mn_ref_expand(const mn_call *call, double *const in[], double *const out[])
{
    const mn_shape_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *y = &call->out[0];
    int64_t step[MN_MAX_DIMS];
    mn_steps(&call->in[0], y->ndim, step);
    for (int64_t i = 0; i < y->numel; i++)
        out[0][i] = a->scale * in[0][mn_offset(i, y->ndim, y->shape, step)];
}

/* y[j] = sum of x[i] over all i that broadcasting y to x's shape would take from j */
void mn_ref_reduce_to(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *x = &call->in[0];
    int64_t step[MN_MAX_DIMS];
    mn_steps(&call->out[0], x->ndim, step);
    for (int64_t i = 0; i < x->numel; i++)
        out[0][mn_offset(i, x->ndim, x->shape, step)] += in[0][i];
}

/* Brings both inputs to the elements of y: y[i] = a[i] b[i] for product, else a[i] + b[i]. */
static void combine(const mn_call *call, double *const in[], double *y, bool product)
{
    const mn_view *view = &call->out[0];
    int64_t a_step[MN_MAX_DIMS], b_step[MN_MAX_DIMS];
    mn_steps(&call->in[0], view->ndim, a_step);
    mn_steps(&call->in[1], view->ndim, b_step);
    for (int64_t i = 0; i < view->numel; i++) {
        const double a = in[0][mn_offset(i, view->ndim, view->shape, a_step)];
        const double b = in[1][mn_offset(i, view->ndim, view->shape, b_step)];
        y[i] = product ? a * b : a + b;
    }
}

void mn_ref_add(const mn_call *call, double *const in[], double *const out[])
{
    combine(call, in, out[0], false);
}

void mn_ref_mul(const mn_call *call, double *const in[], double *const out[])
{
    combine(call, in, out[0], true);
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

/* dst[i] = a dst[i] + b src[i]; nothing if the record says that the last step was skipped.
 * (inputs dst, src, optimizer record or none) */
void mn_ref_blend(const mn_call *call, double *const in[], double *const out[])
{
    const mn_blend_attributes *a = (const void *)call->attributes.bytes;
    const bool skip = call->in[2].present && in[2][MN_OPT_OUTCOME] == MN_STEP_SKIPPED;
    (void)out;
    for (int64_t i = 0; i < call->in[0].numel && !skip; i++)
        in[0][i] = a->a * in[0][i] + a->b * in[1][i];
}

/* x[i] = min(max(scale x[i] + shift, low), high), NaN staying */
void mn_ref_adjust(const mn_call *call, double *const in[], double *const out[])
{
    const mn_adjust_attributes *a = (const void *)call->attributes.bytes;
    (void)out;
    for (int64_t i = 0; i < call->in[0].numel; i++) {
        double x = a->scale * in[0][i] + a->shift;
        x = x < a->low ? a->low : x;
        in[0][i] = x > a->high ? a->high : x;
    }
}
