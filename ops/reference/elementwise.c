/* Reference kernels of ops that work element by element, rearrange, repeat or gather elements. */
#include "ops/reference/reference.h"

#include <math.h>

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

/* Brings both inputs to the elements of y and applies f to them. */
static void combine(const mn_call *call, double *const in[], double *y,
                    double (*f)(int64_t kind, double a, double b), int64_t kind)
{
    const mn_view *view = &call->out[0];
    int64_t a_step[MN_MAX_DIMS], b_step[MN_MAX_DIMS];
    mn_steps(&call->in[0], view->ndim, a_step);
    mn_steps(&call->in[1], view->ndim, b_step);
    for (int64_t i = 0; i < view->numel; i++) {
        const double a = in[0][mn_offset(i, view->ndim, view->shape, a_step)];
        const double b = in[1][mn_offset(i, view->ndim, view->shape, b_step)];
        y[i] = f(kind, a, b);
    }
}

static double arithmetic(int64_t op, double a, double b)
{
    switch (op) {
    case MN_OP_add:
        return a + b;
    case MN_OP_sub:
        return a - b;
    case MN_OP_mul:
        return a * b;
    case MN_OP_div:
        return a / b;
    case MN_OP_minimum:
        return a < b || a != a ? a : b;
    case MN_OP_maximum:
        return a > b || a != a ? a : b;
    default:
        return pow(a, b);
    }
}

void mn_ref_binary(const mn_call *call, double *const in[], double *const out[])
{
    combine(call, in, out[0], arithmetic, mn_op_id_of(call->op));
}

static double comparison(int64_t kind, double a, double b)
{
    switch (kind) {
    case MN_EQ:
        return a == b;
    case MN_NE:
        return a != b;
    case MN_LT:
        return a < b;
    case MN_LE:
        return a <= b;
    case MN_GT:
        return a > b;
    default:
        return a >= b;
    }
}

void mn_ref_compare(const mn_call *call, double *const in[], double *const out[])
{
    const mn_compare_attributes *a = (const void *)call->attributes.bytes;
    combine(call, in, out[0], comparison, a->comparison);
}

/* y = c ? a : b   (inputs c, a, b); a or b may be missing, which is 0. */
void mn_ref_where(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *y = &call->out[0];
    int64_t step[3][MN_MAX_DIMS];
    for (int k = 0; k < 3; k++)
        mn_steps(&call->in[k], y->ndim, step[k]);
    for (int64_t i = 0; i < y->numel; i++) {
        const int k = in[0][mn_offset(i, y->ndim, y->shape, step[0])] != 0 ? 1 : 2;
        out[0][i] = in[k] ? in[k][mn_offset(i, y->ndim, y->shape, step[k])] : 0;
    }
}

/* dx = y <= 0 ? 0 : g   (inputs g, y): where y is NaN the gradient passes. relu is this of x and x.
 */
void mn_ref_relu_backward(const mn_call *call, double *const in[], double *const out[])
{
    const double *y = in[call->input_count - 1];
    for (int64_t i = 0; i < call->out[0].numel; i++)
        out[0][i] = y[i] <= 0 ? 0 : in[0][i];
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
