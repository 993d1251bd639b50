/* ops/observe.c: telling those that look on (traces, monitors) what runs. */
#include "ops/internal.h"

void mn_observer_add(mn_context *context, mn_observer *observer)
{
    observer->next = context->observers;
    context->observers = observer;
}

void mn_observer_remove(mn_context *context, mn_observer *observer)
{
    if (context->observer == observer)
        context->observer = observer->next;
    for (mn_observer **at = &context->observers; *at; at = &(*at)->next) {
        if (*at == observer) {
            *at = observer->next;
            return;
        }
    }
}

/* The last section of ops.def, but for what the graph of a loss is made of. */
static bool is_update(const mn_op *op)
{
    return op >= &mn_ops[MN_OP_grad_unscale] && op < mn_ops + MN_OP_COUNT &&
           op->differentiable == 0;
}

static mn_observed describe(const mn_context *context, const mn_call *call,
                            mn_tensor *const *inputs, mn_tensor *const *outputs)
{
    const bool backward = context->in_backward;
    mn_dtype dtype = mn_kernel_dtype(call);
    return (mn_observed){
        .op = call->op,
        .attributes = call->attributes.bytes,
        .inputs = inputs,
        .input_count = call->input_count,
        .outputs = outputs,
        .results = call->out,
        .direction = is_update(call->op) ? MN_UPDATE
                     : backward          ? MN_BACKWARD
                                         : MN_FORWARD,
        .layer = context->backward_layer ? context->backward_layer : mn_name_path(context),
        .backward_of = context->backward_of,
        .gradient_of = context->gradient_of,
        .cast = context->cast,
        .served = call->op->flags & MN_OP_VIEW ? MN_SERVED_VIEW
                                               : mn_op_served_by(context, call->op, dtype),
        .rehearsing = context->rehearsing,
    };
}

static mn_status tell_before(mn_context *context, mn_observed *call)
{
    mn_status status = MN_OK;
    context->observing = true;
    for (mn_observer *at = context->observers; at && status == MN_OK; at = context->observer) {
        context->observer = at->next;
        if (at->before)
            status = at->before(at, context, call);
    }
    return status;
}

/* Of a call that was served; ends the telling in any case. */
static void tell_after(mn_context *context, const mn_observed *call, mn_status served)
{
    bool ran = served == MN_OK && !call->rehearsing;
    for (mn_observer *at = ran ? context->observers : NULL; at; at = context->observer) {
        context->observer = at->next;
        if (at->after)
            at->after(at, context, call);
    }
    context->observer = NULL;
    context->observing = false;
}

mn_status mn_observe(mn_context *context, mn_call *call, mn_tensor *const *inputs,
                     mn_tensor **outputs, mn_serve_fn serve)
{
    mn_observed seen = describe(context, call, inputs, outputs);
    mn_status status = tell_before(context, &seen);
    if (status == MN_OK) {
        context->stores = call->stores = seen.stores;
        status = serve(context, call, inputs, outputs);
        context->stores = NULL;
    }
    tell_after(context, &seen, status);
    return status;
}

mn_status mn_observe_shadow(mn_tensor *parameter, mn_tensor *shadow)
{
    mn_context *context = parameter->context;
    const mn_cast_attributes attributes = {shadow->dtype};
    const mn_view result = mn_tensor_as_view(shadow);
    mn_tensor *output = NULL;
    mn_observed seen = {.op = &mn_ops[MN_OP_cast],
                        .attributes = &attributes,
                        .inputs = &parameter,
                        .input_count = 1,
                        .outputs = &output,
                        .results = &result,
                        .layer = mn_name_path(context),
                        .cast = context->cast,
                        .served = MN_SERVED_SHADOW};
    if (!context->observers || context->observing)
        return MN_OK;
    mn_status status = tell_before(context, &seen);
    output = shadow;
    tell_after(context, &seen, status);
    return status;
}
