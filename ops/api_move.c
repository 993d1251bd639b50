/* ops/api_move.c: public functions that cut, join, index and drop elements. */
#include "core/philox.h"
#include "ops/internal.h"

#include <math.h>

/* ---- slice and pad --------------------------------------------------------------------------- */

/* A position of a Python slice as one in [0, extent]. */
static int64_t clamp_position(int64_t position, int64_t extent)
{
    if (position < 0)
        return position < -extent ? 0 : position + extent;
    return position > extent ? extent : position;
}

mn_tensor *mn_slice(mn_tensor *x, int axis, int64_t start, int64_t end)
{
    mn_pad_attributes cut = {.value = 0};
    mn_context *context = mn_enter(MN_OP_pad, &x, 1, 1);
    int64_t at = 0;
    if (!context || mn_normalize_axis(context, "slice", axis, x->ndim, &at) != MN_OK)
        return NULL;
    const int64_t extent = x->shape[at], first = clamp_position(start, extent);
    const int64_t last = clamp_position(end, extent);
    cut.before[at] = -first;
    cut.after[at] = (last > first ? last : first) - extent;
    mn_name_push(context, "slice");
    mn_tensor *y = mn_apply1(MN_OP_pad, &x, 1, &cut);
    mn_name_pop(context);
    return y;
}

mn_tensor *mn_pad(mn_tensor *x, const int64_t *before, const int64_t *after, double value)
{
    mn_pad_attributes attributes = {.value = value};
    mn_context *context = mn_enter(MN_OP_pad, &x, 1, 1);
    if (!context || mn_value_check(context, "pad", x->dtype, value) != MN_OK)
        return NULL;
    for (int i = 0; i < x->ndim; i++) {
        attributes.before[i] = before ? before[i] : 0;
        attributes.after[i] = after ? after[i] : 0;
    }
    return mn_apply1(MN_OP_pad, &x, 1, &attributes);
}

/* ---- concat ---------------------------------------------------------------------------------- */

mn_status mn_promote_inputs(mn_tensor **inputs, int count)
{
    mn_view met = mn_tensor_as_view(inputs[0]);
    for (int i = 1; i < count; i++) {
        const mn_view next = mn_tensor_as_view(inputs[i]);
        met.dtype = mn_promote(&met, &next);
        met.ndim = next.ndim > met.ndim ? next.ndim : met.ndim;
    }
    for (int i = 0; i < count; i++) {
        mn_context *context = inputs[i]->context;
        if (inputs[i]->dtype != met.dtype)
            inputs[i] = mn_cast(inputs[i], met.dtype);
        if (!inputs[i])
            return mn_error_status(context);
    }
    return MN_OK;
}

mn_tensor *mn_concat(mn_tensor *const *tensors, int count, int axis)
{
    mn_tensor *inputs[MN_MAX_INPUTS] = {NULL};
    mn_axis_attributes attributes = {.axis = 0};
    const bool fits = tensors && count >= 1 && count <= MN_MAX_INPUTS;
    /* An array of nothing has no context to report into. */
    mn_context *context =
        tensors && count > 0 ? mn_enter(MN_OP_concat, tensors, fits ? count : 1, 1) : NULL;
    if (!context)
        return NULL;
    if (!fits) {
        mn_fail(context, MN_ERR_ARGUMENT, "concat: %d tensors, must be 1 to %d", count,
                MN_MAX_INPUTS);
        return NULL;
    }
    for (int i = 0; i < count; i++)
        inputs[i] = tensors[i];
    if (!mn_enter(MN_OP_concat, inputs, count, count) ||
        mn_normalize_axis(context, "concat", axis, inputs[0]->ndim, &attributes.axis) != MN_OK ||
        mn_promote_inputs(inputs, count) != MN_OK)
        return NULL;
    return mn_apply1(MN_OP_concat, inputs, count, &attributes);
}

/* ---- indices --------------------------------------------------------------------------------- */

mn_tensor *mn_gather(mn_tensor *x, int axis, mn_tensor *index)
{
    mn_tensor *const inputs[2] = {x, index};
    mn_axis_attributes attributes = {.axis = 0};
    mn_context *context = mn_enter(MN_OP_gather, inputs, 2, 2);
    if (!context || mn_normalize_axis(context, "gather", axis, x->ndim, &attributes.axis) != MN_OK)
        return NULL;
    return mn_apply1(MN_OP_gather, inputs, 2, &attributes);
}

mn_tensor *mn_scatter_add(mn_tensor *x, int axis, mn_tensor *index, mn_tensor *src)
{
    mn_tensor *inputs[3] = {x, src, index}, *const as_called[3] = {x, index, src};
    mn_axis_attributes attributes = {.axis = 0};
    mn_context *context = mn_enter(MN_OP_scatter_add, as_called, 3, 3);
    if (!context ||
        mn_normalize_axis(context, "scatter_add", axis, x->ndim, &attributes.axis) != MN_OK ||
        mn_promote_inputs(inputs, 2) != MN_OK)
        return NULL;
    return mn_apply1(MN_OP_scatter_add, inputs, 3, &attributes);
}

/* Ones added to zeros where the labels say. */
mn_tensor *mn_one_hot(mn_tensor *labels, int64_t classes, mn_dtype dtype)
{
    mn_context *context = mn_enter(MN_OP_scatter_add, &labels, 1, 1);
    int64_t shape[MN_MAX_DIMS] = {0};
    const int last = context ? labels->ndim : 0;
    if (!context)
        return NULL;
    if (last == MN_MAX_DIMS || classes < 1) {
        mn_fail(context, last == MN_MAX_DIMS ? MN_ERR_SHAPE : MN_ERR_ARGUMENT,
                "one_hot: %d axes of labels (at most %d), %lld classes (at least 1)", last,
                MN_MAX_DIMS - 1, (long long)classes);
        return NULL;
    }
    for (int i = 0; i < last; i++)
        shape[i] = labels->shape[i];
    mn_name_push(context, "one_hot");
    shape[last] = classes;
    mn_tensor *zeros = mn_full(context, dtype, last + 1, shape, 0);
    shape[last] = 1;
    mn_tensor *ones = mn_full(context, dtype, last + 1, shape, 1);
    mn_tensor *y = mn_scatter_add(zeros, last, mn_reshape(labels, last + 1, shape), ones);
    mn_name_pop(context);
    return y;
}

/* ---- dropout --------------------------------------------------------------------------------- */

uint32_t mn_dropout_threshold(double p)
{
    return p < 1 ? (uint32_t)(p * 0x1p32) : UINT32_MAX; /* for p = 1 the factor is 0 */
}

void mn_dropout_words(const mn_dropout_attributes *attributes, int64_t block, uint32_t words[4])
{
    const mn_dropout_attributes *a = attributes;
    const uint32_t key[2] = {(uint32_t)a->key[0], (uint32_t)a->key[1]};
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)a->call, (uint32_t)a->position,
                                 (uint32_t)((uint64_t)a->position >> 32)};
    mn_philox4x32(key, counter, words);
}

mn_tensor *mn_dropout(mn_tensor *x, double p, bool training)
{
    mn_context *context = mn_enter(MN_OP_dropout, &x, 1, 1);
    if (!context)
        return NULL;
    if (!mn_is_within(p, 0, 1)) {
        mn_fail(context, MN_ERR_ARGUMENT, "dropout: p is %g, must be in [0, 1]", p);
        return NULL;
    }
    if (!training || p == 0)
        return mn_reshape(x, x->ndim, x->shape);
    const mn_stream stream = mn_stream_open(context->seed, MN_STREAM_DROPOUT, mn_name_path(context),
                                            context->random_position);
    const mn_dropout_attributes attributes = {.p = p,
                                              .key = {stream.key[0], stream.key[1]},
                                              .position = (int64_t)context->random_position,
                                              .call = context->dropout_calls++};
    return mn_apply1(MN_OP_dropout, &x, 1, &attributes);
}
