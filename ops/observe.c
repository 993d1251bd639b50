/* ops/observe.c: telling those that look on (traces, monitors) what runs. */
#include "ops/internal.h"

void mn_observer_add(mn_context *context, mn_observer *observer)
{
    observer->next = context->observers;
    context->observers = observer;
}

void mn_observer_remove(mn_context *context, mn_observer *observer)
{
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
    mn_dtype dtype = call->input_count > 0 ? call->in[0].dtype : call->out[0].dtype;
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
        .served = call->op->flags & MN_OP_VIEW ? MN_SERVED_NONE
                                               : mn_op_served_by(context, call->op, dtype),
        .rehearsing = context->rehearsing,
    };
}

/* Nobody looks on while an observer works. */
static void tell_after(mn_context *context, mn_observer *observers, const mn_observed *call)
{
    context->observers = NULL;
    for (mn_observer *at = observers; at && mn_ok(context); at = at->next)
        if (at->after && !call->rehearsing)
            at->after(at, context, call);
    context->observers = observers;
}

mn_status mn_observe(mn_context *context, mn_call *call, mn_tensor *const *inputs,
                     mn_tensor **outputs, mn_serve_fn serve)
{
    mn_observer *observers = context->observers;
    mn_observed seen = describe(context, call, inputs, outputs);
    mn_status status = MN_OK;
    context->observers = NULL;
    for (mn_observer *at = observers; at && status == MN_OK; at = at->next)
        status = at->before ? at->before(at, context, &seen) : MN_OK;
    if (status == MN_OK) {
        context->stores = call->stores = seen.stores;
        status = serve(context, call, inputs, outputs);
        context->stores = NULL;
    }
    context->observers = observers;
    if (status == MN_OK)
        tell_after(context, observers, &seen);
    return status;
}

void mn_observe_shadow(mn_tensor *parameter, mn_tensor *shadow)
{
    mn_context *context = parameter->context;
    const mn_cast_attributes attributes = {shadow->dtype};
    const mn_observed seen = {.op = &mn_ops[MN_OP_cast],
                              .attributes = &attributes,
                              .inputs = &parameter,
                              .input_count = 1,
                              .outputs = &shadow,
                              .layer = mn_name_path(context),
                              .cast = context->cast};
    if (context->observers)
        tell_after(context, context->observers, &seen);
}
