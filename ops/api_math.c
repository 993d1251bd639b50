/* ops/api_math.c: public functions of elementwise ops, products and reductions. */
#include "ops/internal.h"

#include <math.h>

/* ---- elementwise ----------------------------------------------------------------------------- */

static mn_tensor *binary(mn_op_id id, mn_tensor *a, mn_tensor *b, const void *attributes)
{
    mn_tensor *inputs[2] = {a, b};
    if (!mn_enter(id, inputs, 2, 2) || mn_promote_inputs(inputs, 2) != MN_OK)
        return NULL;
    return mn_apply1(id, inputs, 2, attributes);
}

/* Errors name the function too, as of all ops that serve several. */
static mn_tensor *compare(const char *name, mn_tensor *a, mn_tensor *b, mn_comparison comparison)
{
    const mn_compare_attributes attributes = {.comparison = comparison};
    mn_context *context = mn_tensor_context(a ? a : b);
    mn_name_push(context, name);
    mn_tensor *y = binary(MN_OP_compare, a, b, &attributes);
    mn_name_pop(context);
    return y;
}

static mn_tensor *function(mn_op_id id, mn_tensor *x, double a, double b)
{
    const mn_function_attributes attributes = {.function = id, .a = a, .b = b};
    return mn_apply1(id, &x, 1, &attributes);
}

mn_tensor *mn_add(mn_tensor *a, mn_tensor *b)
{
    return binary(MN_OP_add, a, b, NULL);
}

mn_tensor *mn_sub(mn_tensor *a, mn_tensor *b)
{
    return binary(MN_OP_sub, a, b, NULL);
}

mn_tensor *mn_mul(mn_tensor *a, mn_tensor *b)
{
    return binary(MN_OP_mul, a, b, NULL);
}

mn_tensor *mn_div(mn_tensor *a, mn_tensor *b)
{
    return binary(MN_OP_div, a, b, NULL);
}

mn_tensor *mn_pow(mn_tensor *a, mn_tensor *b)
{
    return binary(MN_OP_pow, a, b, NULL);
}

mn_tensor *mn_minimum(mn_tensor *a, mn_tensor *b)
{
    return binary(MN_OP_minimum, a, b, NULL);
}

mn_tensor *mn_maximum(mn_tensor *a, mn_tensor *b)
{
    return binary(MN_OP_maximum, a, b, NULL);
}

mn_tensor *mn_eq(mn_tensor *a, mn_tensor *b)
{
    return compare("eq", a, b, MN_EQ);
}

mn_tensor *mn_ne(mn_tensor *a, mn_tensor *b)
{
    return compare("ne", a, b, MN_NE);
}

mn_tensor *mn_lt(mn_tensor *a, mn_tensor *b)
{
    return compare("lt", a, b, MN_LT);
}

mn_tensor *mn_le(mn_tensor *a, mn_tensor *b)
{
    return compare("le", a, b, MN_LE);
}

mn_tensor *mn_gt(mn_tensor *a, mn_tensor *b)
{
    return compare("gt", a, b, MN_GT);
}

mn_tensor *mn_ge(mn_tensor *a, mn_tensor *b)
{
    return compare("ge", a, b, MN_GE);
}

mn_tensor *mn_where(mn_tensor *condition, mn_tensor *a, mn_tensor *b)
{
    mn_tensor *inputs[3] = {condition, a, b};
    if (!mn_enter(MN_OP_where, inputs, 3, 3) || mn_promote_inputs(inputs + 1, 2) != MN_OK)
        return NULL;
    return mn_apply1(MN_OP_where, inputs, 3, NULL);
}

mn_tensor *mn_relu(mn_tensor *x)
{
    return mn_apply1(MN_OP_relu, &x, 1, NULL);
}

mn_tensor *mn_abs(mn_tensor *x)
{
    return function(MN_OP_abs, x, 0, 0);
}

mn_tensor *mn_exp(mn_tensor *x)
{
    return function(MN_OP_exp, x, 0, 0);
}

mn_tensor *mn_log(mn_tensor *x)
{
    return function(MN_OP_log, x, 0, 0);
}

mn_tensor *mn_sqrt(mn_tensor *x)
{
    return function(MN_OP_sqrt, x, 0, 0);
}

mn_tensor *mn_rsqrt(mn_tensor *x)
{
    return function(MN_OP_rsqrt, x, 0, 0);
}

mn_tensor *mn_tanh(mn_tensor *x)
{
    return function(MN_OP_tanh, x, 0, 0);
}

mn_tensor *mn_sigmoid(mn_tensor *x)
{
    return function(MN_OP_sigmoid, x, 0, 0);
}

mn_tensor *mn_silu(mn_tensor *x)
{
    return function(MN_OP_silu, x, 0, 0);
}

mn_tensor *mn_gelu(mn_tensor *x)
{
    return function(MN_OP_gelu, x, 0, 0);
}

mn_tensor *mn_leaky_relu(mn_tensor *x, double slope)
{
    return function(MN_OP_leaky_relu, x, slope, 0);
}

mn_tensor *mn_clamp(mn_tensor *x, double low, double high)
{
    mn_context *context = mn_enter(MN_OP_clamp, &x, 1, 1);
    if (context && (mn_isnan_f64(low) || mn_isnan_f64(high)))
        mn_fail(context, MN_ERR_ARGUMENT, "clamp: a bound is NaN");
    return function(MN_OP_clamp, x, low, high);
}

mn_tensor *mn_pow_scalar(mn_tensor *x, double exponent)
{
    return function(MN_OP_pow_scalar, x, exponent, 0);
}

static mn_tensor *affine(const char *name, mn_tensor *x, double scale, double shift)
{
    mn_name_push(mn_tensor_context(x), name);
    mn_tensor *y = function(MN_OP_affine, x, scale, shift);
    mn_name_pop(mn_tensor_context(x));
    return y;
}

mn_tensor *mn_add_scalar(mn_tensor *x, double s)
{
    return affine("add_scalar", x, 1, s);
}

/* Adding -0 keeps the sign of a zero. */
mn_tensor *mn_mul_scalar(mn_tensor *x, double s)
{
    return affine("mul_scalar", x, s, -0.0);
}

mn_tensor *mn_neg(mn_tensor *x)
{
    return affine("neg", x, -1, -0.0);
}

/* ---- products -------------------------------------------------------------------------------- */

mn_tensor *mn_matmul(mn_tensor *a, mn_tensor *b)
{
    mn_tensor *const inputs[2] = {a, b};
    return mn_apply1(MN_OP_matmul, inputs, 2, NULL);
}

mn_tensor *mn_linear(mn_tensor *x, mn_tensor *w, mn_tensor *b)
{
    mn_tensor *const inputs[3] = {x, w, b};
    return mn_apply1(MN_OP_linear, inputs, 3, NULL);
}

mn_tensor *mn_linear_relu(mn_tensor *x, mn_tensor *w, mn_tensor *b)
{
    mn_tensor *const inputs[3] = {x, w, b};
    return mn_apply1(MN_OP_linear_relu, inputs, 3, NULL);
}

mn_tensor *mn_dot(mn_tensor *a, mn_tensor *b)
{
    mn_tensor *const inputs[2] = {a, b};
    return mn_apply1(MN_OP_dot, inputs, 2, NULL);
}

/* ---- along an axis --------------------------------------------------------------------------- */

mn_status mn_normalize_axis(mn_context *context, const char *op, int axis, int ndim,
                            int64_t *result)
{
    if (axis < -ndim || axis >= ndim)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: axis %d is out of range for %d axes", op,
                       axis, ndim);
    *result = axis < 0 ? axis + ndim : axis;
    return MN_OK;
}

static mn_tensor *along_axis(mn_op_id id, mn_tensor *x, int axis)
{
    mn_axis_attributes attributes = {.axis = 0};
    mn_context *context = mn_enter(id, &x, 1, 1);
    if (!context ||
        mn_normalize_axis(context, mn_ops[id].name, axis, x->ndim, &attributes.axis) != MN_OK)
        return NULL;
    return mn_apply1(id, &x, 1, &attributes);
}

mn_tensor *mn_log_softmax(mn_tensor *x, int axis)
{
    return along_axis(MN_OP_log_softmax, x, axis);
}

mn_tensor *mn_softmax(mn_tensor *x, int axis)
{
    return along_axis(MN_OP_softmax, x, axis);
}

mn_tensor *mn_argmax(mn_tensor *x, int axis)
{
    return along_axis(MN_OP_argmax, x, axis);
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Bit mask of the axes; none given means all. */
static mn_status axis_mask(mn_context *context, mn_op_id id, const mn_tensor *x, int naxes,
                           const int *axes, int64_t *mask)
{
    if (naxes < 0 || naxes > x->ndim || (naxes > 0 && !axes))
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: %d axes given, the input has %d",
                       mn_ops[id].name, naxes, x->ndim);
    *mask = naxes == 0 ? (INT64_C(1) << x->ndim) - 1 : 0;
    for (int i = 0; i < naxes; i++) {
        int64_t axis = 0;
        MN_TRY(mn_normalize_axis(context, mn_ops[id].name, axes[i], x->ndim, &axis));
        if (*mask >> axis & 1)
            return mn_fail(context, MN_ERR_ARGUMENT, "%s: axis %d is given twice", mn_ops[id].name,
                           axes[i]);
        *mask |= INT64_C(1) << axis;
    }
    return MN_OK;
}

static mn_tensor *reduced(mn_op_id id, mn_tensor *x, int naxes, const int *axes,
                          mn_reduce_attributes attributes)
{
    mn_context *context = mn_enter(id, &x, 1, 1);
    if (!context || axis_mask(context, id, x, naxes, axes, &attributes.axes) != MN_OK)
        return NULL;
    return mn_apply1(id, &x, 1, &attributes);
}

mn_tensor *mn_sum(mn_tensor *x, int naxes, const int *axes, bool keep)
{
    return reduced(MN_OP_sum, x, naxes, axes, (mn_reduce_attributes){.keep = keep});
}

mn_tensor *mn_mean(mn_tensor *x, int naxes, const int *axes, bool keep)
{
    return reduced(MN_OP_mean, x, naxes, axes, (mn_reduce_attributes){.keep = keep});
}

mn_tensor *mn_amax(mn_tensor *x, int naxes, const int *axes, bool keep)
{
    return reduced(MN_OP_amax, x, naxes, axes, (mn_reduce_attributes){.keep = keep});
}

mn_tensor *mn_amin(mn_tensor *x, int naxes, const int *axes, bool keep)
{
    return reduced(MN_OP_amin, x, naxes, axes, (mn_reduce_attributes){.keep = keep});
}

mn_tensor *mn_norm(mn_tensor *x, double p, int naxes, const int *axes, bool keep)
{
    return reduced(MN_OP_norm, x, naxes, axes, (mn_reduce_attributes){.keep = keep, .p = p});
}

mn_tensor *mn_var(mn_tensor *x, double correction, int naxes, const int *axes, bool keep)
{
    return reduced(MN_OP_var, x, naxes, axes,
                   (mn_reduce_attributes){.keep = keep, .p = correction});
}
