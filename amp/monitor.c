/* The numerics monitor: looks on at calls of ops and has the device keep statistics. */
#include "amp/monitor.h"

#include <stdio.h>
#include <string.h>

/* ---- places ---------------------------------------------------------------------------------- */

/* Device counts of `count` zeros. */
static mn_tensor *make_counts(mn_context *context, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof(int64_t);
    mn_tensor *tensor = mn_tensor_new_unscoped(context, MN_I64, 1, &count);
    void *zeros = tensor ? mn_host_calloc(context, 1, bytes) : NULL;
    if (zeros && mn_tensor_write(tensor, zeros, bytes) != MN_OK) {
        mn_host_free(context, zeros, bytes);
        zeros = NULL;
    }
    if (!zeros) {
        mn_release(tensor);
        return NULL;
    }
    mn_host_free(context, zeros, bytes);
    return tensor;
}

static void free_place(mn_context *context, mn_place *place)
{
    for (size_t i = 0; i < sizeof place->texts / sizeof *place->texts; i++)
        mn_host_strfree(context, place->texts[i]);
    mn_release(place->counts);
    mn_release(place->copy);
    mn_host_free(context, place, sizeof *place);
}

/* The floating inputs that the values of a call come from: not what it writes, nor records. */
static int sources_of(const mn_observed *call, mn_tensor *sources[MN_PLACE_INPUTS])
{
    int count = 0;
    for (int i = 0; i < call->input_count && count < MN_PLACE_INPUTS; i++) {
        mn_tensor *x = call->inputs[i];
        if (x && mn_dtype_is_float(x->dtype) && !(call->op->mutates >> i & 1u) &&
            call->direction != MN_UPDATE)
            sources[count++] = x;
    }
    return count;
}

static bool is_same(const mn_place_key *a, const mn_place_key *b)
{
    return a->op == b->op && a->backward_of == b->backward_of && a->direction == b->direction &&
           a->dtype == b->dtype && a->output == b->output && a->is_cast == b->is_cast &&
           a->numel == b->numel && strcmp(a->layer, b->layer) == 0 &&
           strcmp(a->parameter, b->parameter) == 0;
}

/* NULL on failure. */
static mn_place *add_place(mn_monitor *monitor, const mn_place_key *key, const mn_observed *call)
{
    mn_context *context = monitor->context;
    mn_tensor *sources[MN_PLACE_INPUTS];
    const int count = sources_of(call, sources);
    mn_place *place = mn_host_calloc(context, 1, sizeof *place);
    if (!place)
        return NULL;
    place->key = *key;
    place->key.layer = place->texts[0] = mn_host_strdup(context, key->layer);
    place->key.parameter = place->texts[1] = mn_host_strdup(context, key->parameter);
    for (int i = 0; i < count; i++)
        place->texts[2 + i] = mn_host_strdup(context, mn_tensor_name(sources[i]));
    if (mn_ok(context))
        place->counts = make_counts(context, MN_INSPECT_SIZE);
    if (!mn_ok(context)) {
        free_place(context, place);
        return NULL;
    }
    place->number = monitor->places++;
    *(monitor->last ? &monitor->last->next : &monitor->first) = place;
    return monitor->last = place;
}

/* Steps repeat, so that what follows the place found last is often the next one. */
static mn_place *find_place(mn_monitor *monitor, const mn_place_key *key, const mn_observed *call)
{
    mn_place *at = monitor->found;
    for (int64_t i = 0; i < monitor->places; i++) {
        at = at && at->next ? at->next : monitor->first;
        if (is_same(&at->key, key))
            return monitor->found = at;
    }
    return monitor->found = add_place(monitor, key, call);
}

/* ---- which place a call belongs to ----------------------------------------------------------- */

static bool is_step(const mn_op *op)
{
    return op == &mn_ops[MN_OP_sgd_step] || op == &mn_ops[MN_OP_adam_step] ||
           op == &mn_ops[MN_OP_rmsprop_step];
}

/* Views and copies make no values, constants are nobody's fault, and records hold none of a model.
 */
static bool is_ignored(const mn_op *op)
{
    return op->flags & MN_OP_VIEW || op == &mn_ops[MN_OP_fill] || op == &mn_ops[MN_OP_copy] ||
           op == &mn_ops[MN_OP_optimizer_finish] || op == &mn_ops[MN_OP_scaler_update] ||
           op == &mn_ops[MN_OP_report_loss] || op == &mn_ops[MN_OP_report_step];
}

/* The outputs, or what is written in place by an op without any: its first input. */
static int parts_of(const mn_observed *call)
{
    const bool in_place = call->op->mutates & 1u && call->input_count > 0 && call->inputs[0];
    if (is_ignored(call->op))
        return 0;
    return call->op->outputs > 0 ? call->op->outputs : in_place;
}

static mn_tensor *part_of(const mn_observed *call, int part)
{
    return call->op->outputs > 0 ? call->outputs[part] : call->inputs[0];
}

/* Its dtype; the tensor is not there before the call. */
static mn_dtype dtype_of(const mn_observed *call, int part)
{
    const mn_tensor *tensor = part_of(call, part);
    return tensor ? tensor->dtype : call->results[part].dtype;
}

/* The leaf that a call casts, writes, or adds to the gradient of; NULL: none. */
static const mn_tensor *leaf_of(const mn_observed *call)
{
    const bool is_about = call->op->outputs == 0 || call->op == &mn_ops[MN_OP_cast];
    const mn_tensor *x = call->input_count > 0 ? call->inputs[0] : NULL;
    if (call->gradient_of || is_step(call->op))
        return call->gradient_of ? call->gradient_of : x;
    return is_about && x && mn_tensor_name(x)[0] ? x : NULL;
}

/* The parameter that a call is about; "#N", in buffer, if it has no name. A gradient is known by
 * where it was summed. */
static const char *parameter_of(const mn_monitor *monitor, const mn_observed *call, char buffer[32])
{
    const mn_tensor *leaf = leaf_of(call);
    const mn_place *at = !leaf && call->op->outputs == 0 ? monitor->first : NULL;
    while (at && at->gradient != call->inputs[0]->storage->serial)
        at = at->next;
    if (!leaf)
        return at ? at->key.parameter : "";
    if (mn_tensor_name(leaf)[0])
        return mn_tensor_name(leaf);
    snprintf(buffer, 32, "#%llu", (unsigned long long)leaf->storage->serial);
    return buffer;
}

/* NULL on failure. */
static mn_place *place_of(mn_monitor *monitor, const mn_observed *call, int part)
{
    char buffer[32];
    const mn_place_key key = {.op = call->op,
                              .backward_of = call->backward_of,
                              .direction = call->direction,
                              .dtype = dtype_of(call, part),
                              .output = part,
                              .is_cast = call->cast.is_cast,
                              .numel = is_step(call->op) ? call->inputs[0]->numel : 0,
                              .layer = call->layer,
                              .parameter = parameter_of(monitor, call, buffer)};
    mn_place *place = find_place(monitor, &key, call);
    if (place && call->gradient_of)
        place->gradient = call->inputs[0]->storage->serial; /* another one in each step */
    return place;
}

/* ---- looking on ------------------------------------------------------------------------------ */

/* Before a step keeps what the parameter is, or its f32 master, after it counts what has not
 * changed. Stochastic rounding loses nothing in the mean. sgd's momentum and adam's mean are its
 * first state, rmsprop's momentum the second. */
static mn_status watch(mn_monitor *monitor, mn_place *place, const mn_observed *call, bool after)
{
    enum { P, G, STATE, RECORD = 4, MASTER = 7 };
    const mn_watch_attributes attributes = {after};
    const bool is_second = call->op == &mn_ops[MN_OP_rmsprop_step];
    const mn_step_attributes *step = call->attributes;
    mn_tensor *const *in = call->inputs;
    if (!monitor->options.updates || !is_step(call->op) || step->stochastic)
        return MN_OK;
    mn_tensor *p = call->input_count > MASTER && in[MASTER] ? in[MASTER] : in[P];
    if (!place->copy)
        place->copy = mn_tensor_new_unscoped(monitor->context, p->dtype, 1, &p->numel);
    if (!place->copy || call->rehearsing)
        return mn_error_status(monitor->context);
    mn_tensor *const inputs[6] = {place->counts, place->copy, p,
                                  in[G],         in[RECORD],  in[STATE + is_second]};
    return mn_dispatch(monitor->context, &mn_watch_op, inputs, 6, &attributes, false, NULL);
}

/* Makes the places, so that what comes after the call needs no memory. */
static mn_status before(mn_observer *observer, mn_context *context, mn_observed *call)
{
    mn_monitor *monitor = (mn_monitor *)observer;
    mn_place *counted = NULL;
    for (int i = 0; i < parts_of(call); i++) {
        const mn_dtype dtype = dtype_of(call, i);
        monitor->now[i] = mn_dtype_is_float(dtype) ? place_of(monitor, call, i) : NULL;
        MN_TRY(mn_error_status(context));
        if (monitor->now[i] &&
            (!counted || (mn_is_16_bit(dtype) && !mn_is_16_bit(counted->key.dtype))))
            counted = monitor->now[i];
    }
    if (!counted)
        return MN_OK;
    call->stores =
        (mn_store_counts *)((int64_t *)mn_tensor_address(counted->counts) + MN_INSPECT_STORES);
    return watch(monitor, counted, call, false);
}

static void after(mn_observer *observer, mn_context *context, const mn_observed *call)
{
    mn_monitor *monitor = (mn_monitor *)observer;
    mn_tensor *inputs[3 + MN_PLACE_INPUTS] = {NULL, monitor->ring};
    const int sources = sources_of(call, inputs + 3);
    for (int i = 0; i < parts_of(call) && mn_ok(context); i++) {
        mn_place *place = monitor->now[i];
        if (!place)
            continue;
        const mn_inspect_attributes attributes = {monitor->key, monitor->step, place->number};
        inputs[0] = place->counts;
        inputs[2] = part_of(call, i);
        mn_dispatch(context, &mn_inspect_op, inputs, 3 + sources, &attributes, false, NULL);
        watch(monitor, place, call, true);
    }
}

/* ---- making and switching -------------------------------------------------------------------- */

mn_monitor_options mn_monitor_options_default(void)
{
    return (mn_monitor_options){.size = sizeof(mn_monitor_options), .updates = true};
}

mn_monitor *mn_monitor_create(mn_context *context, const mn_monitor_options *options)
{
    mn_monitor_options o = mn_monitor_options_default();
    if (!context || !mn_ok(context) ||
        mn_options_copy(&context->error, "mn_monitor", &o, sizeof o, options) != MN_OK)
        return NULL;
    mn_monitor *monitor = mn_host_calloc(context, 1, sizeof *monitor);
    if (!monitor)
        return NULL;
    monitor->observer = (mn_observer){.before = before, .after = after};
    monitor->context = context;
    monitor->options = o;
    monitor->key = 1;
    monitor->ring = make_counts(context, (1 + MN_EVENTS) * MN_EVENT_SIZE);
    if (monitor->ring && mn_monitor_enable(monitor, true) == MN_OK)
        return monitor;
    mn_monitor_free(monitor);
    return NULL;
}

void mn_monitor_free(mn_monitor *monitor)
{
    if (!monitor)
        return;
    mn_context *context = monitor->context;
    mn_observer_remove(context, &monitor->observer);
    for (mn_place *at = monitor->first, *next; at; at = next) {
        next = at->next;
        free_place(context, at);
    }
    mn_release(monitor->ring);
    mn_host_free(context, monitor->rows, (size_t)monitor->shown_capacity * sizeof *monitor->rows);
    mn_host_free(context, monitor, sizeof *monitor);
}

static mn_status check(const mn_monitor *monitor)
{
    return monitor ? mn_error_status(monitor->context) : MN_ERR_ARGUMENT;
}

mn_status mn_monitor_step(mn_monitor *monitor, int64_t step)
{
    MN_TRY(check(monitor));
    monitor->key++;
    monitor->step = step;
    return MN_OK;
}

mn_status mn_monitor_enable(mn_monitor *monitor, bool enabled)
{
    MN_TRY(check(monitor));
    mn_observer_remove(monitor->context, &monitor->observer);
    for (const mn_observer *at = monitor->context->observers; at && enabled; at = at->next)
        if (at->before == before)
            return mn_fail(monitor->context, MN_ERR_STATE,
                           "another monitor looks on at this context: disable it first");
    if (enabled)
        mn_observer_add(monitor->context, &monitor->observer);
    return MN_OK;
}
