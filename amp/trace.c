/* Traces: a record of every call of an op. */
#include "amp/internal.h"

#include <string.h>

mn_trace_options mn_trace_options_default(void)
{
    return (mn_trace_options){.size = sizeof(mn_trace_options), .limit = 100000};
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void block_free(const mn_trace *trace, mn_trace_block *block)
{
    if (block)
        mn_host_free(trace->context, block, block->bytes);
}

static void drop_spare(mn_trace *trace)
{
    while (trace->spare) {
        mn_trace_block *block = trace->spare;
        trace->spare = block->next;
        block_free(trace, block);
    }
    trace->spare_count = 0;
}

/* The place in the list of the first spare block of this size, or the list's end. */
static mn_trace_block **find_spare(mn_trace *trace, size_t bytes)
{
    mn_trace_block **at = &trace->spare;
    while (*at && (*at)->bytes != bytes)
        at = &(*at)->next;
    return at;
}

static const char *name_of(const mn_tensor *tensor)
{
    return tensor ? mn_tensor_name(tensor) : "";
}

static size_t bytes_of(const mn_observed *call)
{
    size_t bytes = sizeof(mn_trace_block) + strlen(call->layer) + 1;
    bytes += (size_t)(call->input_count + call->op->outputs) * sizeof(mn_trace_tensor);
    for (int i = 0; i < call->input_count; i++)
        bytes += strlen(name_of(call->inputs[i])) + 1;
    return bytes;
}

/* A block with nothing in it but its size, with a place in the list; NULL records an error. */
static mn_trace_block *block_new(mn_trace *trace, size_t bytes)
{
    if (!mn_list_reserve(&trace->blocks, (size_t)trace->spare_count + 1)) {
        mn_fail(trace->context, MN_ERR_MEMORY, "trace: no memory for one more call");
        return NULL;
    }
    mn_trace_block *block = mn_host_alloc(trace->context, bytes);
    if (block)
        block->bytes = bytes;
    return block;
}

/* ---- recording ------------------------------------------------------------------------------- */

static void fill_tensor(mn_trace_tensor *to, const mn_tensor *tensor, bool written)
{
    *to = (mn_trace_tensor){.parameter = ""};
    if (!tensor)
        return;
    to->present = true;
    to->written = written;
    to->dtype = tensor->dtype;
    to->ndim = tensor->ndim;
    memcpy(to->shape, tensor->shape, sizeof to->shape);
    to->storage = tensor->storage->serial;
}

static void fill_block(mn_trace_block *block, const mn_observed *call)
{
    const mn_op *op = call->op;
    char *text = (char *)(block->tensors + call->input_count + op->outputs);
    block->entry = (mn_trace_entry){
        .op = op->name,
        .layer = mn_text_pack(&text, call->layer),
        .direction = call->direction,
        .backward_of = call->backward_of ? call->backward_of->name : "",
        .in_region = call->cast.active,
        .region = call->cast.active ? call->cast.region : MN_F32,
        .rule = call->cast.rule,
        .overridden = call->cast.overridden,
        .is_cast = call->cast.is_cast,
        .served = call->served,
        .input_count = call->input_count,
        .output_count = op->outputs,
        .inputs = block->tensors,
        .outputs = block->tensors + call->input_count,
    };
    for (int i = 0; i < call->input_count; i++) {
        fill_tensor(&block->tensors[i], call->inputs[i], op->mutates >> i & 1u);
        block->tensors[i].parameter = mn_text_pack(&text, name_of(call->inputs[i]));
    }
}

/* A rehearsal leaves a block for the call itself, which comes when it is too late to fail. */
static mn_status before(mn_observer *observer, mn_context *context, mn_observed *call)
{
    mn_trace *trace = (mn_trace *)observer;
    const size_t bytes = bytes_of(call);
    if (call->rehearsing && !trace->rehearsed)
        drop_spare(trace); /* of rehearsals that no step came of */
    trace->rehearsed = call->rehearsing;
    block_free(trace, trace->pending); /* of a call that failed */
    trace->pending = NULL;
    mn_trace_block **spare = find_spare(trace, bytes), *block = *spare;
    bool reuse = block && !call->rehearsing;
    if (reuse) {
        *spare = block->next;
        trace->spare_count--;
    } else if (trace->blocks.count + trace->spare_count >= trace->options.limit) {
        trace->full = true;
        return MN_OK;
    } else if (!(block = block_new(trace, bytes))) {
        return mn_error_status(context);
    }
    if (!call->rehearsing) {
        fill_block(block, call);
        trace->pending = block;
        return MN_OK;
    }
    block->next = NULL;
    *find_spare(trace, 0) = block; /* none has that size: at the end */
    trace->spare_count++;
    return MN_OK;
}

static void after(mn_observer *observer, mn_context *context, const mn_observed *call)
{
    mn_trace *trace = (mn_trace *)observer;
    mn_trace_block *block = trace->pending;
    (void)context;
    if (!block) {
        trace->lost += trace->full; /* else it was opened during the call */
        return;
    }
    for (int i = 0; i < call->op->outputs; i++)
        fill_tensor(&block->tensors[call->input_count + i], call->outputs[i], true);
    mn_list_append(&trace->blocks, &block, 1); /* there is room */
    trace->pending = NULL;
}

/* ---- traces ---------------------------------------------------------------------------------- */

mn_trace *mn_trace_begin(mn_context *context, const mn_trace_options *options)
{
    mn_trace_options o = mn_trace_options_default();
    if (!context || mn_error_status(context) != MN_OK ||
        mn_options_copy(&context->error, "mn_trace", &o, sizeof o, options) != MN_OK)
        return NULL;
    if (o.limit < 0) {
        mn_fail(context, MN_ERR_ARGUMENT, "trace_begin: limit is negative");
        return NULL;
    }
    mn_trace *trace = mn_host_calloc(context, 1, sizeof *trace);
    if (!trace)
        return NULL;
    *trace = (mn_trace){.observer = {.before = before, .after = after},
                        .context = context,
                        .options = o,
                        .blocks = mn_list_new(&context->allocator, sizeof(mn_trace_block *))};
    mn_observer_add(context, &trace->observer);
    return trace;
}

void mn_trace_end(mn_trace *trace)
{
    if (!trace)
        return;
    mn_observer_remove(trace->context, &trace->observer);
    drop_spare(trace);
    block_free(trace, trace->pending);
    trace->pending = NULL;
}

static mn_trace_block *block_at(const mn_trace *trace, int64_t index)
{
    return ((mn_trace_block **)trace->blocks.items)[index];
}

void mn_trace_free(mn_trace *trace)
{
    if (!trace)
        return;
    mn_trace_end(trace);
    for (int64_t i = 0; i < trace->blocks.count; i++)
        block_free(trace, block_at(trace, i));
    mn_list_free(&trace->blocks);
    mn_host_free(trace->context, trace, sizeof *trace);
}

int64_t mn_trace_count(const mn_trace *trace)
{
    return trace ? trace->blocks.count : 0;
}

int64_t mn_trace_lost(const mn_trace *trace)
{
    return trace ? trace->lost : 0;
}

bool mn_trace_get(const mn_trace *trace, int64_t index, mn_trace_entry *entry)
{
    if (!entry || index < 0 || index >= mn_trace_count(trace))
        return false;
    *entry = block_at(trace, index)->entry;
    return true;
}
