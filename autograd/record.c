/* Applying ops and recording them: the tape, and how its nodes live and die. */
#include "autograd/node.h"

#include <string.h>

/* ---- state ----------------------------------------------------------------------------------- */

static void state_destroy(mn_context *context, void *state)
{
    mn_autograd *autograd = state;
    mn_sections_scope_end(context, &autograd->no_grad, -1);
    mn_host_free(context, autograd, sizeof *autograd);
}

static void state_scope_end(mn_context *context, void *state, int depth)
{
    mn_autograd *autograd = state;
    mn_sections_scope_end(context, &autograd->no_grad, depth);
    context->no_grad = mn_sections_top(autograd->no_grad) != NULL;
}

mn_autograd *mn_autograd_state(mn_context *context)
{
    mn_slot *slot = &context->slots[MN_SLOT_AUTOGRAD];
    if (slot->state || context->closed)
        return slot->state;
    mn_autograd *autograd = mn_host_calloc(context, 1, sizeof *autograd);
    if (!autograd)
        return NULL;
    *slot = (mn_slot){autograd, state_destroy, state_scope_end};
    context->release_node = mn_node_release;
    return autograd;
}

bool mn_is_recording(const mn_context *context)
{
    return !context->no_grad && (!context->in_backward || context->create_graph);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

/* Takes one reference away and puts the node on the list if it was the last. */
static mn_node *unref(mn_node *node, mn_node *list)
{
    if (!node || --node->references > 0)
        return list;
    node->next = list;
    return node;
}

/* Drops what the node holds; producers that nobody holds any more join the list. */
static mn_node *strip(mn_node *node, mn_node *list)
{
    for (int i = 0; i < node->input_count; i++) {
        mn_node_input *input = &node->inputs[i];
        mn_release(input->saved.tensor);
        mn_release(input->leaf);
        list = unref(input->producer, list);
        input->saved.tensor = input->leaf = NULL;
        input->producer = NULL;
    }
    for (int i = 0; i < node->op->outputs; i++) {
        mn_node_output *output = &node->outputs[i];
        mn_release(output->saved.tensor);
        mn_release(output->grad);
        output->saved.tensor = output->grad = NULL;
    }
    return list;
}

/* A list instead of recursion: chains may be longer than the stack is deep. */
static void free_list(mn_context *context, mn_node *list)
{
    while (list) {
        mn_node *node = list;
        list = strip(node, node->next);
        mn_host_strfree(context, node->path);
        mn_host_free(context, node, node->bytes);
    }
}

void mn_node_release(mn_context *context, mn_node *node)
{
    free_list(context, unref(node, NULL));
}

void mn_node_drop(mn_context *context, mn_node *node)
{
    node->used = true;
    free_list(context, strip(node, NULL));
}

/* Keeps a tensor of the op if its bit is set. */
static bool save(mn_saved *saved, const mn_tensor *tensor, uint32_t kept, int index)
{
    if (!tensor || !(kept >> index & 1u))
        return true;
    saved->version = tensor->storage->version;
    if (saved->again)
        return true;
    saved->tensor = mn_tensor_view_unscoped(tensor->storage, tensor->offset, tensor->dtype,
                                            tensor->ndim, tensor->shape);
    return saved->tensor != NULL;
}

static bool wants_gradient(const mn_op *op, int index, const mn_tensor *tensor)
{
    return tensor && tensor->requires_grad && (op->differentiable >> index & 1u);
}

/* An empty node with one reference for the caller. Sizes cannot overflow: counts are limited. */
static mn_node *node_create(mn_context *context, const mn_op *op, int input_count,
                            const void *attributes)
{
    mn_autograd *autograd = mn_autograd_state(context);
    size_t inputs = (size_t)input_count * sizeof(mn_node_input);
    size_t outputs = (size_t)op->outputs * sizeof(mn_node_output);
    size_t bytes = sizeof(mn_node) + inputs + outputs + op->attribute_bytes;
    mn_node *node = autograd ? mn_host_calloc(context, 1, bytes) : NULL;
    if (!node)
        return NULL;
    node->context = context;
    node->op = op;
    node->bytes = bytes;
    node->references = 1;
    node->sequence = ++autograd->sequence;
    node->input_count = input_count;
    node->inputs = (mn_node_input *)(node + 1);
    node->outputs = (mn_node_output *)(node->inputs + input_count);
    node->attributes = node->outputs + op->outputs;
    if (attributes)
        memcpy(node->attributes, attributes, op->attribute_bytes);
    const char *path = mn_name_path(context);
    if (path[0] != '\0')
        node->path = mn_host_strdup(context, path);
    return node;
}

static void fill_input(mn_node *node, int index, mn_tensor *tensor)
{
    mn_node_input *input = &node->inputs[index];
    input->view = mn_tensor_as_view(tensor);
    input->view.data = NULL;
    if (wants_gradient(node->op, index, tensor)) {
        input->producer = tensor->node;
        input->output = tensor->node_output;
        if (input->producer)
            input->producer->references++;
        else
            input->leaf = mn_retain(tensor);
    }
}

static bool fill_node(mn_node *node, mn_tensor *const *inputs, mn_tensor *const *outputs)
{
    bool filled = mn_ok(node->context);
    for (int i = 0; i < node->input_count; i++)
        fill_input(node, i, inputs[i]);
    mn_spare(node, inputs);
    for (int i = 0; i < node->input_count && filled; i++)
        filled = save(&node->inputs[i].saved, inputs[i], node->op->saves_inputs, i);
    for (int i = 0; i < node->op->outputs && filled; i++)
        filled = save(&node->outputs[i].saved, outputs[i], node->op->saves_outputs, i);
    return filled;
}

static void attach_outputs(mn_node *node, mn_tensor *const *outputs)
{
    for (int i = 0; i < node->op->outputs; i++) {
        if (!outputs[i] || !mn_dtype_is_float(outputs[i]->dtype))
            continue;
        outputs[i]->requires_grad = true;
        outputs[i]->node = node;
        outputs[i]->node_output = i;
        node->references++;
    }
}

/* In a backward that is recorded, an op that no gradient flows through would make what comes of it
 * wrong without a word. */
static mn_status check_twice(mn_context *context, const mn_op *op, mn_tensor *const *inputs,
                             int input_count, mn_tensor *const *outputs)
{
    bool floating = false, refused = false;
    for (int i = 0; i < op->outputs; i++)
        floating = floating || (outputs[i] && mn_dtype_is_float(outputs[i]->dtype));
    for (int i = 0; i < input_count; i++)
        refused =
            refused || (inputs[i] && inputs[i]->requires_grad && !(op->differentiable >> i & 1u));
    if (!context->in_backward || !floating || !refused)
        return MN_OK;
    return mn_fail(context, MN_ERR_UNSUPPORTED, "the backward of %s cannot be differentiated",
                   context->backward_of->name);
}

mn_status mn_record(mn_context *context, const mn_op *op, mn_tensor *const *inputs, int input_count,
                    const void *attributes, mn_tensor *const *outputs)
{
    MN_TRY(mn_error_status(context));
    bool wanted = false;
    if (!mn_is_recording(context))
        return MN_OK;
    MN_TRY(check_twice(context, op, inputs, input_count, outputs));
    for (int i = 0; i < input_count; i++)
        wanted = wanted || wants_gradient(op, i, inputs[i]);
    if (!wanted || !op->backward)
        return MN_OK;
    mn_node *node = node_create(context, op, input_count, attributes);
    if (!node)
        return context->error.status;
    if (fill_node(node, inputs, outputs))
        attach_outputs(node, outputs);
    mn_node_release(context, node);
    return context->error.status;
}

void mn_mark_scaled(mn_tensor *loss, uint64_t scaling)
{
    if (loss->node)
        loss->node->scaling = scaling;
}

/* ---- apply ----------------------------------------------------------------------------------- */

static mn_status check_call(mn_context *context, const mn_op *op, mn_tensor *const *inputs,
                            int input_count, mn_tensor *const *outputs)
{
    if (input_count < op->min_inputs || input_count > op->max_inputs || input_count > MN_MAX_INPUTS)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: takes %d to %d inputs, not %d", op->name,
                       op->min_inputs, op->max_inputs, input_count);
    if ((input_count > 0 && !inputs) || (op->outputs > 0 && !outputs))
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: %s is NULL", op->name,
                       outputs ? "inputs" : "outputs");
    for (int i = 0; i < input_count; i++) {
        bool mutated = op->mutates >> i & 1u;
        if (mutated && inputs[i] && inputs[i]->node)
            return mn_fail(context, MN_ERR_STATE,
                           "%s: argument %d is part of a graph and cannot be written in place: use "
                           "mn_detach",
                           op->name, i + 1);
    }
    return MN_OK;
}

static mn_status apply(mn_context *context, const mn_op *op, mn_tensor **inputs, int input_count,
                       const void *attributes, mn_tensor **outputs)
{
    static const mn_cast_choice none;
    mn_cast_choice choice = none;
    mn_status status = MN_OK;
    if (context->cast_hook && !context->in_backward)
        status = context->cast_hook(context, op, inputs, input_count, &choice);
    context->cast = choice;
    if (status == MN_OK)
        status =
            mn_dispatch(context, op, inputs, input_count, attributes, choice.f32_output, outputs);
    context->cast = none;
    MN_TRY(status);
    return mn_record(context, op, inputs, input_count, attributes, outputs);
}

mn_status mn_apply(mn_context *context, const mn_op *op, mn_tensor *const *inputs, int input_count,
                   const void *attributes, mn_tensor **outputs)
{
    /* Nothing in a descriptor of another size can be relied on. */
    bool readable = op && op->size == sizeof *op && outputs && op->outputs <= MN_MAX_OUTPUTS;
    int output_count = readable ? op->outputs : 0;
    for (int i = 0; i < output_count; i++)
        outputs[i] = NULL;
    MN_TRY(mn_op_validate(context, op));
    MN_TRY(check_call(context, op, inputs, input_count, outputs));
    mn_tensor *cast[MN_MAX_INPUTS] = {NULL};
    for (int i = 0; i < input_count; i++)
        cast[i] = inputs[i];
    mn_status status = apply(context, op, cast, input_count, attributes, outputs);
    for (int i = 0; i < output_count && status != MN_OK; i++)
        outputs[i] = NULL;
    return status;
}
