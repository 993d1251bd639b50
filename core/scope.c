/* core/scope.c: scopes, each with the list of tensors that it owns a reference of. */
#include "core/parts.h"

struct mn_scope_frame {
    struct mn_scope_frame *parent;
    mn_tensor *first;
    uint64_t id;
    size_t names; /* names pushed when it began */
};

/* What begin returns when it failed; end of it has nothing to do. */
static const uint64_t failed_id = UINT64_MAX;

bool mn_scope_push(mn_context *context)
{
    struct mn_scope_frame *frame = mn_host_calloc(context, 1, sizeof *frame);
    if (!frame)
        return false;
    frame->parent = context->scope;
    frame->id = ++context->next_scope_id;
    frame->names = context->names;
    context->scope = frame;
    return true;
}

static void attach(struct mn_scope_frame *frame, mn_tensor *tensor)
{
    tensor->scope = frame;
    tensor->scope_previous = NULL;
    tensor->scope_next = frame->first;
    if (frame->first)
        frame->first->scope_previous = tensor;
    frame->first = tensor;
}

static void detach(mn_tensor *tensor)
{
    if (tensor->scope_previous)
        tensor->scope_previous->scope_next = tensor->scope_next;
    else
        tensor->scope->first = tensor->scope_next;
    if (tensor->scope_next)
        tensor->scope_next->scope_previous = tensor->scope_previous;
    tensor->scope = NULL;
    tensor->scope_next = tensor->scope_previous = NULL;
}

static void pop_frame(mn_context *context)
{
    struct mn_scope_frame *frame = context->scope;
    while (frame->first) {
        mn_tensor *tensor = frame->first;
        detach(tensor);
        mn_tensor_unreference(tensor);
    }
    mn_names_restore(context, frame->names);
    context->scope = frame->parent;
    mn_host_free(context, frame, sizeof *frame);
}

void mn_scopes_destroy(mn_context *context)
{
    while (context->scope)
        pop_frame(context);
    context->scope_depth = 0;
}

mn_scope mn_scope_begin(mn_context *context)
{
    if (!context || context->closed)
        return (mn_scope){failed_id};
    /* Also while an error is pending, so that begin and end keep matching. */
    if (!mn_scope_push(context))
        return (mn_scope){failed_id};
    context->scope_depth++;
    return (mn_scope){context->scope->id};
}

static bool is_open(const mn_context *context, uint64_t id)
{
    const struct mn_scope_frame *frame = context->scope;
    while (frame->parent && frame->id != id)
        frame = frame->parent;
    return frame->parent != NULL; /* the root scope cannot be ended */
}

void mn_scope_end(mn_context *context, mn_scope scope)
{
    if (!context || context->closed || scope.id == failed_id)
        return;
    if (!is_open(context, scope.id)) {
        mn_fail(context, MN_ERR_STATE, "scope_end: scope %llu is not open (ended already?)",
                (unsigned long long)scope.id);
        return;
    }
    bool last;
    do {
        last = context->scope->id == scope.id;
        pop_frame(context);
        context->scope_depth--;
    } while (!last);
    for (int i = 0; i < MN_SLOT_COUNT; i++) {
        mn_slot *slot = &context->slots[i];
        if (slot->scope_end)
            slot->scope_end(context, slot->state, context->scope_depth);
    }
}

void mn_scope_adopt(mn_context *context, mn_tensor *tensor)
{
    attach(context->scope, tensor);
}

mn_tensor *mn_scope_keep(mn_tensor *tensor)
{
    /* One of an outer scope or of none outlives the innermost scope anyway. */
    if (!tensor || !tensor->scope || tensor->scope != tensor->context->scope ||
        !tensor->scope->parent)
        return tensor;
    struct mn_scope_frame *parent = tensor->scope->parent;
    detach(tensor);
    attach(parent, tensor);
    return tensor;
}
