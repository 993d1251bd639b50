/* ops/api_shape.c: public functions of the ops that move elements, and what all public functions
 * begin with. */
#include "ops/internal.h"

#include <math.h>

/* ---- helpers --------------------------------------------------------------------------------- */

mn_context *mn_enter(mn_op_id id, mn_tensor *const *inputs, int count, int required)
{
    mn_context *context = NULL;
    for (int i = 0; i < count && !context; i++)
        context = mn_tensor_context(inputs[i]);
    if (!context || !mn_ok(context))
        return NULL;
    for (int i = 0; i < required; i++) {
        if (!inputs[i]) {
            mn_fail(context, MN_ERR_ARGUMENT, "%s: argument %d is NULL", mn_ops[id].name, i + 1);
            return NULL;
        }
    }
    return context;
}

/* ---- copies ---------------------------------------------------------------------------------- */

mn_tensor *mn_cast(mn_tensor *x, mn_dtype dtype)
{
    const mn_cast_attributes attributes = {.dtype = dtype};
    return mn_apply1(MN_OP_cast, &x, 1, &attributes);
}

mn_tensor *mn_clone(mn_tensor *x)
{
    mn_name_push(mn_tensor_context(x), "clone");
    mn_tensor *y = mn_apply1(MN_OP_copy, &x, 1, NULL);
    mn_name_pop(mn_tensor_context(x));
    return y;
}

static mn_status write_inputs(mn_op_id op, mn_tensor *const *inputs, const void *attributes)
{
    const int count = mn_ops[op].min_inputs;
    const mn_tensor *dst = inputs[0];
    mn_context *context = mn_enter(op, inputs, count, count);
    if (!context)
        return mn_error_status(mn_tensor_context(dst ? dst : inputs[1]));
    bool recording = !context->no_grad && !context->in_backward;
    if (dst->node || (dst->requires_grad && recording))
        return mn_fail(context, MN_ERR_STATE,
                       "the destination is part of the graph being recorded; write to it "
                       "inside mn_no_grad_begin and mn_no_grad_end, or detach it");
    return mn_dispatch(context, &mn_ops[op], inputs, count, attributes, false, NULL);
}

/* Runs an op that writes dst, and may read src. */
static mn_status write_tensor(mn_op_id op, const char *name, mn_tensor *dst, const mn_tensor *src,
                              const void *attributes)
{
    /* The op only reads its second input. */
    mn_tensor *const inputs[2] = {dst, (mn_tensor *)(uintptr_t)src};
    mn_context *context = mn_tensor_context(dst ? dst : src);
    mn_name_push(context, name);
    mn_status status = write_inputs(op, inputs, attributes);
    mn_name_pop(context);
    return status;
}

mn_status mn_tensor_copy(mn_tensor *dst, const mn_tensor *src)
{
    return write_tensor(MN_OP_assign, "tensor_copy", dst, src, NULL);
}

/* ---- arithmetic in place --------------------------------------------------------------------- */

mn_status mn_tensor_add(mn_tensor *dst, const mn_tensor *src, double alpha)
{
    const mn_blend_attributes attributes = {.a = 1, .b = alpha};
    if (dst)
        MN_TRY(mn_value_check(dst->context, "tensor_add", mn_wide_dtype(dst->dtype), alpha));
    return write_tensor(MN_OP_blend, "tensor_add", dst, src, &attributes);
}

mn_status mn_tensor_scale(mn_tensor *tensor, double factor, double shift)
{
    const mn_adjust_attributes attributes = {factor, shift, -(double)INFINITY, (double)INFINITY};
    const double values[2] = {factor, shift};
    for (int i = 0; i < 2 && tensor; i++)
        MN_TRY(mn_value_check(tensor->context, "tensor_scale", mn_wide_dtype(tensor->dtype),
                              values[i]));
    return write_tensor(MN_OP_adjust, "tensor_scale", tensor, NULL, &attributes);
}

mn_status mn_tensor_clamp(mn_tensor *tensor, double low, double high)
{
    const mn_adjust_attributes attributes = {1, 0, low, high};
    if (tensor && mn_ok(tensor->context) && (mn_isnan_f64(low) || mn_isnan_f64(high)))
        return mn_fail(tensor->context, MN_ERR_ARGUMENT, "tensor_clamp: a limit is NaN");
    return write_tensor(MN_OP_adjust, "tensor_clamp", tensor, NULL, &attributes);
}

/* ---- fill ------------------------------------------------------------------------------------ */

mn_status mn_tensor_fill(mn_tensor *tensor, double value)
{
    if (!tensor)
        return MN_ERR_ARGUMENT;
    mn_context *context = tensor->context;
    const mn_value_attributes attributes = {.value = value};
    MN_TRY(mn_value_check(context, "tensor_fill", tensor->dtype, value));
    return mn_dispatch(context, &mn_ops[MN_OP_fill], &tensor, 1, &attributes, false, NULL);
}

mn_tensor *mn_full(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape,
                   double value)
{
    if (!context || mn_shape_check(context, dtype, ndim, shape, NULL, NULL) != MN_OK ||
        mn_value_check(context, "full", dtype, value) != MN_OK)
        return NULL;
    mn_tensor *tensor = mn_tensor_new(context, dtype, ndim, shape);
    return mn_tensor_fill(tensor, value) == MN_OK ? tensor : NULL;
}

/* ---- reshape --------------------------------------------------------------------------------- */

/* The shape with its -1, if any, worked out from x's number of elements. */
static mn_status resolve_shape(mn_context *context, const mn_tensor *x, int ndim,
                               const int64_t *shape, mn_shape_attributes *to)
{
    int64_t *unknown = NULL, known;
    if (ndim < 0 || ndim > MN_MAX_DIMS || (ndim > 0 && !shape))
        return mn_fail(context, MN_ERR_ARGUMENT, "reshape: a shape of %d axes (at most %d)%s", ndim,
                       MN_MAX_DIMS, shape ? "" : " is NULL");
    to->ndim = ndim;
    for (int i = 0; i < ndim; i++) {
        to->shape[i] = shape[i];
        if (shape[i] != -1)
            continue;
        if (unknown)
            return mn_fail(context, MN_ERR_ARGUMENT, "reshape: %s has more than one -1",
                           mn_shape_text(ndim, shape, (mn_shape_buffer){0}));
        unknown = &to->shape[i];
        *unknown = 1;
    }
    if (!unknown)
        return MN_OK;
    if (!mn_shape_numel(ndim, to->shape, &known) || known == 0 || x->numel % known != 0)
        return mn_fail(context, MN_ERR_SHAPE, "reshape: %lld elements do not fit %s",
                       (long long)x->numel, mn_shape_text(ndim, shape, (mn_shape_buffer){0}));
    *unknown = x->numel / known;
    return MN_OK;
}

mn_tensor *mn_reshape(mn_tensor *x, int ndim, const int64_t *shape)
{
    mn_shape_attributes to = {.ndim = 0};
    mn_context *context = mn_enter(MN_OP_reshape, &x, 1, 1);
    if (!context || resolve_shape(context, x, ndim, shape, &to) != MN_OK)
        return NULL;
    return mn_apply1(MN_OP_reshape, &x, 1, &to);
}

mn_tensor *mn_permute(mn_tensor *x, int ndim, const int *axes)
{
    mn_permute_attributes attributes = {.axes = {0}};
    mn_context *context = mn_enter(MN_OP_permute, &x, 1, 1);
    if (!context)
        return NULL;
    if (ndim != x->ndim || (ndim > 0 && !axes)) {
        mn_fail(context, MN_ERR_ARGUMENT, "permute: %d axes given, the input has %d", ndim,
                x->ndim);
        return NULL;
    }
    for (int i = 0; i < ndim; i++)
        attributes.axes[i] = axes[i];
    return mn_apply1(MN_OP_permute, &x, 1, &attributes);
}
