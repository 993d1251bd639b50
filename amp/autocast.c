/* Autocast: regions and the cast hook. */
#include "amp/internal.h"

/* ---- state ----------------------------------------------------------------------------------- */

static void state_destroy(mn_context *context, void *state)
{
    mn_autocast *autocast = state;
    mn_sections_scope_end(context, &autocast->regions, -1);
    mn_host_free(context, autocast, sizeof *autocast);
}

static void state_scope_end(mn_context *context, void *state, int depth)
{
    mn_autocast *autocast = state;
    mn_sections_scope_end(context, &autocast->regions, depth);
}

mn_autocast *mn_autocast_state(mn_context *context)
{
    mn_slot *slot = &context->slots[MN_SLOT_AMP];
    if (slot->state || context->closed)
        return slot->state;
    mn_autocast *autocast = mn_host_calloc(context, 1, sizeof *autocast);
    if (!autocast)
        return NULL;
    *slot = (mn_slot){autocast, state_destroy, state_scope_end};
    context->cast_hook = mn_autocast_inputs;
    return autocast;
}

/* ---- regions --------------------------------------------------------------------------------- */

mn_status mn_autocast_begin(mn_context *context, mn_dtype dtype)
{
    mn_autocast *autocast = context ? mn_autocast_state(context) : NULL;
    if (!autocast)
        return mn_error_status(context);
    if (!mn_is_16_bit(dtype) && dtype != MN_F32)
        mn_fail(context, MN_ERR_DTYPE,
                "autocast_begin: dtype is %s, must be f16, bf16, or f32 for no casts",
                mn_dtype_name(dtype));
    return mn_sections_push(context, &autocast->regions, dtype);
}

mn_status mn_autocast_end(mn_context *context)
{
    mn_autocast *autocast = context ? mn_autocast_state(context) : NULL;
    if (!autocast)
        return mn_error_status(context);
    if (!mn_sections_pop(context, &autocast->regions))
        mn_fail(
            context, MN_ERR_STATE,
            "autocast_end without autocast_begin: the end of a scope ends what was begun in it");
    return context->error.status;
}

mn_dtype mn_autocast_dtype(const mn_context *context)
{
    const mn_autocast *autocast = context ? context->slots[MN_SLOT_AMP].state : NULL;
    const mn_section *top = autocast ? mn_sections_top(autocast->regions) : NULL;
    return top ? top->dtype : MN_F32;
}

/* ---- casts ----------------------------------------------------------------------------------- */

static bool is_parameter(const mn_tensor *x)
{
    return !x->node && x->leaf && (x->requires_grad || x->leaf->name[0] != '\0');
}

/* The parameter in a 16-bit dtype, on its shadow's storage. A shadow made from an older version is
 * replaced, not rewritten: the tape may still hold it. */
static mn_tensor *from_shadow(mn_tensor *x, mn_dtype dtype)
{
    const mn_cast_attributes attributes = {dtype};
    mn_shadow *shadow = &x->leaf->shadow[dtype == MN_BF16];
    if (shadow->storage && shadow->version == x->storage->version) {
        mn_tensor *view = mn_tensor_view(shadow->storage, 0, dtype, x->ndim, x->shape);
        return view && mn_observe_shadow(x, view) == MN_OK ? view : NULL;
    }
    x->context->pool.lasting = true;
    mn_tensor *made = mn_dispatch1(x->context, MN_OP_cast, &x, 1, &attributes);
    x->context->pool.lasting = false;
    if (!made)
        return NULL;
    made->storage->references++;
    mn_storage_release(shadow->storage);
    *shadow = (mn_shadow){made->storage, x->storage->version};
    return made;
}

/* One recorded cast per use, so that gradients of several uses meet in the source's dtype. What a
 * view shows the caller may write to, so that it is no shadow. */
static mn_tensor *cast(const mn_op *op, mn_tensor *x, mn_dtype dtype)
{
    const mn_cast_attributes attributes = {dtype};
    mn_context *context = x->context;
    mn_tensor *y = mn_is_16_bit(dtype) && is_parameter(x) && !(op->flags & MN_OP_VIEW)
                       ? from_shadow(x, dtype)
                       : mn_dispatch1(context, MN_OP_cast, &x, 1, &attributes);
    if (!y || mn_record(context, &mn_ops[MN_OP_cast], &x, 1, &attributes, &y) != MN_OK)
        return NULL;
    return y;
}

static bool is_eligible(const mn_tensor *x)
{
    return x && mn_dtype_is_float(x->dtype) && x->dtype != MN_F64;
}

/* The widest of the eligible inputs; f16 with bf16 gives f32. */
static mn_dtype widest(mn_tensor *const *inputs, int count)
{
    mn_dtype dtype = MN_F32;
    bool any = false;
    for (int i = 0; i < count; i++) {
        if (!is_eligible(inputs[i]))
            continue;
        dtype = any && inputs[i]->dtype != dtype ? MN_F32 : inputs[i]->dtype;
        any = true;
    }
    return dtype;
}

mn_cast_rule mn_autocast_rule(const mn_context *context, const mn_op *op, bool *overridden)
{
    const mn_autocast *autocast = context->slots[MN_SLOT_AMP].state;
    *overridden =
        autocast && op >= mn_ops && op < mn_ops + MN_OP_COUNT && autocast->overridden[op - mn_ops];
    return *overridden ? autocast->rules[op - mn_ops] : op->rule[context->device->type];
}

static mn_cast_choice choose(const mn_context *context, const mn_op *op, mn_dtype region)
{
    mn_cast_choice choice = {.active = true, .region = region};
    choice.rule = mn_autocast_rule(context, op, &choice.overridden);
    return choice;
}

/* Inputs written in place are left alone: a cast of them would be written instead; and so are all
 * of an op that does nothing else, as PyTorch's in-place ops. So are those of another context,
 * which dispatch refuses. */
static mn_status cast_all(mn_context *context, const mn_op *op, mn_tensor **inputs, int count,
                          mn_dtype dtype)
{
    for (int i = 0; i < count; i++) {
        bool mutated = op->mutates >> i & 1u;
        if (mutated || op->outputs == 0 || !is_eligible(inputs[i]) || inputs[i]->dtype == dtype ||
            inputs[i]->context != context)
            continue;
        inputs[i] = cast(op, inputs[i], dtype);
        if (!inputs[i])
            return context->error.status;
    }
    return MN_OK;
}

mn_status mn_autocast_inputs(mn_context *context, const mn_op *op, mn_tensor **inputs, int count,
                             mn_cast_choice *choice)
{
    const mn_dtype dtype = mn_autocast_dtype(context);
    if (dtype == MN_F32)
        return MN_OK;
    context->cast = *choice = choose(context, op, dtype);
    context->cast.is_cast = true; /* of what is dispatched until the op itself is */
    switch (choice->rule) {
    case MN_CAST_LOWER:
        return cast_all(context, op, inputs, count, dtype);
    case MN_CAST_FP32:
        return cast_all(context, op, inputs, count, MN_F32);
    case MN_CAST_PROMOTE:
        return cast_all(context, op, inputs, count, widest(inputs, count));
    case MN_CAST_FP32_OUT:
        choice->f32_output = count > 0 && inputs[0] && mn_is_16_bit(inputs[0]->dtype);
        return MN_OK;
    case MN_CAST_REFUSE:
        return mn_fail(context, MN_ERR_UNSUPPORTED, "%s is unsafe inside an autocast region: %s%s",
                       op->name, op->refuse_hint ? "use " : "",
                       op->refuse_hint ? op->refuse_hint : "open a disabled one (f32) around it");
    default:
        return MN_OK;
    }
}
