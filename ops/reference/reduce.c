/* Reference kernels of reductions. */
#include "ops/reference/reference.h"

/* y[j] = sum of x[i] over all i that broadcasting y to x's shape would take from j */
static void sum_to(const mn_view *x, const mn_view *y, const double *in, double *out)
{
    int64_t step[MN_MAX_DIMS];
    mn_steps(y, x->ndim, step);
    for (int64_t i = 0; i < x->numel; i++)
        out[mn_offset(i, x->ndim, x->shape, step)] += in[i];
}

void mn_ref_reduce_to(const mn_call *call, double *const in[], double *const out[])
{
    sum_to(&call->in[0], &call->out[0], in[0], out[0]);
}

/* y = sum of x over the axes */
void mn_ref_sum(const mn_call *call, double *const in[], double *const out[])
{
    const mn_reduce_attributes *a = (const void *)call->attributes.bytes;
    mn_view y = call->in[0];
    for (int d = 0; d < y.ndim; d++)
        y.shape[d] = a->axes >> d & 1 ? 1 : y.shape[d];
    sum_to(&call->in[0], &y, in[0], out[0]);
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

/* ---- extremes, norms, variance --------------------------------------------------------------- */

static const mn_reduce_attributes *attributes_of(const mn_call *call)
{
    return (const void *)call->attributes.bytes;
}

/* How many elements of x are reduced to one, and where the j-th of y's i-th is. */
static int64_t count_of(const mn_call *call, const mn_view *x)
{
    return (int64_t)mn_extent_of(x, attributes_of(call)->axes);
}

static int64_t element(const mn_call *call, const mn_view *x, int64_t i, int64_t j)
{
    int64_t offset = 0, step = 1;
    for (int d = x->ndim - 1; d >= 0; d--) {
        int64_t *from = attributes_of(call)->axes >> d & 1 ? &j : &i;
        offset += *from % x->shape[d] * step;
        *from /= x->shape[d];
        step *= x->shape[d];
    }
    return offset;
}

/* The larger one; NaN wins. */
static double larger(double a, double b)
{
    return mn_isnan_f64(a) || a >= b ? a : b;
}

/* y = largest element over the axes; amin: smallest, the largest of -x */
void mn_ref_amax(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *x = &call->in[0];
    const double sign = call->op == &mn_ops[MN_OP_amin] ? -1 : 1;
    for (int64_t i = 0; i < call->out[0].numel; i++) {
        double best = -(double)INFINITY;
        for (int64_t j = 0; j < count_of(call, x); j++)
            best = larger(best, sign * in[0][element(call, x, i, j)]);
        out[0][i] = sign * best;
    }
}

/* y = sum |x|, sqrt(sum x^2) or max |x| */
void mn_ref_norm(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *view = &call->in[0];
    const double p = attributes_of(call)->p;
    for (int64_t i = 0; i < call->out[0].numel; i++) {
        double y = 0;
        for (int64_t j = 0; j < count_of(call, view); j++) {
            const double x = fabs(in[0][element(call, view, i, j)]);
            y = p == 1 ? y + x : p == 2 ? y + x * x : larger(y, x);
        }
        out[0][i] = p == 2 ? sqrt(y) : y;
    }
}

/* Whether x is as large as y: |x| for the norm of p = inf, x for p = 0. */
static bool is_chosen(double p, double x, double y)
{
    return (p > 0 ? fabs(x) : x) == y || (mn_isnan_f64(x) && mn_isnan_f64(y));
}

static double sign_of(double x)
{
    return x > 0 ? 1 : x < 0 ? -1 : x;
}

/* The factor of g for x, with n elements chosen. */
static double slope(double p, double x, double y, double n)
{
    if (p == 1)
        return sign_of(x);
    if (p == 2)
        return y == 0 ? 0 * x : x / y;
    return is_chosen(p, x, y) ? (p > 0 ? sign_of(x) : 1) / n : 0;
}

/* p = 1: dx = g sign(x);  p = 2: dx = g x / y, 0 for y = 0;  p = inf: dx = g sign(x) / n for the n
 * elements with |x| = y, else 0;  p = 0: dx = g / n for the n elements equal to y, else 0   (inputs
 * g, x, y) */
void mn_ref_norm_backward(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *view = &call->in[1];
    const double p = attributes_of(call)->p;
    for (int64_t i = 0; i < call->in[0].numel; i++) {
        const double y = in[2][i];
        int64_t n = 0;
        for (int64_t j = 0; j < count_of(call, view); j++)
            n += is_chosen(p, in[1][element(call, view, i, j)], y);
        for (int64_t j = 0; j < count_of(call, view); j++) {
            const int64_t at = element(call, view, i, j);
            out[0][at] = in[0][i] * slope(p, in[1][at], y, (double)n);
        }
    }
}

/* y = sum (x - mean)^2 / max(0, n - correction) */
void mn_ref_var(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *x = &call->in[0];
    const int64_t n = count_of(call, x);
    const double left = (double)n - attributes_of(call)->p;
    for (int64_t i = 0; i < call->out[0].numel; i++) {
        double mean = 0, squares = 0;
        for (int64_t j = 0; j < n; j++)
            mean += in[0][element(call, x, i, j)] / (double)n;
        for (int64_t j = 0; j < n; j++)
            squares += pow(in[0][element(call, x, i, j)] - mean, 2);
        out[0][i] = squares / (left > 0 ? left : 0);
    }
}
