/* Backward: walks the recorded graph from a root in decreasing order of recording, without
 * recursion, and frees it on the way. Everything that can be refused is refused before the first
 * gradient is touched. */
#include "autograd/node.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- finding --------------------------------------------------------------------------------- */

static void push_path(mn_context *context, const mn_node *node)
{
    char name[256];
    if (node->path)
        snprintf(name, sizeof name, "backward of %s", node->path);
    mn_name_push(context, node->path ? name : "backward");
}

static mn_status check_saved(const mn_node *node, const char *what, int index,
                             const mn_saved *saved)
{
    if (!saved->tensor || saved->tensor->storage->version == saved->version)
        return MN_OK;
    push_path(node->context, node);
    mn_status status = mn_fail(
        node->context, MN_ERR_VERSION,
        "%s: %s %d was changed in place after it was saved for backward (version %llu, saved %llu)",
        node->op->name, what, index, (unsigned long long)saved->tensor->storage->version,
        (unsigned long long)saved->version);
    mn_name_pop(node->context);
    return status;
}

static mn_status check_node(const mn_node *node, mn_grad_state state)
{
    if (node->used)
        return mn_fail(node->context, MN_ERR_STATE,
                       "second backward through a graph that the first one has freed (at %s%s%s): "
                       "run the forward pass again, or add the losses before one backward",
                       node->path ? node->path : "", node->path ? ": " : "", node->op->name);
    for (int i = 0; i < node->input_count; i++) {
        MN_TRY(check_saved(node, "input", i, &node->inputs[i].saved));
        if (node->inputs[i].leaf && node->inputs[i].leaf->requires_grad)
            MN_TRY(mn_leaf_admits(node->inputs[i].leaf, state));
    }
    for (int i = 0; i < node->op->outputs; i++)
        MN_TRY(check_saved(node, "output", i, &node->outputs[i].saved));
    return MN_OK;
}

static mn_status found_grow(mn_context *context, mn_autograd *autograd)
{
    size_t capacity = 64, bytes;
    if (autograd->found_capacity > 0 && !mn_size_mul(autograd->found_capacity, 2, &capacity))
        return mn_fail(context, MN_ERR_MEMORY, "the graph is too large");
    if (!mn_size_mul(capacity, sizeof(mn_node *), &bytes))
        return mn_fail(context, MN_ERR_MEMORY, "the graph is too large");
    mn_node **found = mn_host_alloc(context, bytes);
    if (!found)
        return context->error.status;
    if (autograd->found_count > 0)
        memcpy(found, autograd->found, autograd->found_count * sizeof *found);
    mn_host_free(context, autograd->found, autograd->found_capacity * sizeof *found);
    autograd->found = found;
    autograd->found_capacity = capacity;
    return MN_OK;
}

/* Adds a node that this pass has not met yet, with a reference. */
static mn_status found_add(mn_context *context, mn_autograd *autograd, mn_node *node)
{
    if (!node || node->pass == autograd->pass)
        return MN_OK;
    if (autograd->found_count == autograd->found_capacity)
        MN_TRY(found_grow(context, autograd));
    node->pass = autograd->pass;
    node->references++;
    autograd->found[autograd->found_count++] = node;
    return MN_OK;
}

/* All nodes that root depends on, checked. The list is its own work list. */
static mn_status find(mn_context *context, mn_autograd *autograd, mn_node *root,
                      mn_grad_state state)
{
    autograd->pass++;
    MN_TRY(found_add(context, autograd, root));
    for (size_t i = 0; i < autograd->found_count; i++) {
        mn_node *node = autograd->found[i];
        MN_TRY(check_node(node, state));
        for (int k = 0; k < node->input_count; k++)
            MN_TRY(found_add(context, autograd, node->inputs[k].producer));
    }
    return MN_OK;
}

/* ---- order: the list as a heap with the largest sequence number first -------------------------
 */

static void sift_down(mn_node **heap, size_t count, size_t index)
{
    mn_node *node = heap[index];
    for (size_t child = 2 * index + 1; child < count; child = 2 * index + 1) {
        if (child + 1 < count && heap[child + 1]->sequence > heap[child]->sequence)
            child++;
        if (heap[child]->sequence <= node->sequence)
            break;
        heap[index] = heap[child];
        index = child;
    }
    heap[index] = node;
}

static void heapify(mn_autograd *autograd)
{
    for (size_t i = autograd->found_count / 2; i-- > 0;)
        sift_down(autograd->found, autograd->found_count, i);
}

static mn_node *pop(mn_autograd *autograd)
{
    mn_node *node = autograd->found[0];
    autograd->found[0] = autograd->found[--autograd->found_count];
    if (autograd->found_count > 0)
        sift_down(autograd->found, autograd->found_count, 0);
    return node;
}

/* ---- running --------------------------------------------------------------------------------- */

static bool same_kind(const mn_view *view, const mn_tensor *tensor)
{
    return view->dtype == tensor->dtype && view->ndim == tensor->ndim &&
           memcmp(view->shape, tensor->shape, (size_t)view->ndim * sizeof view->shape[0]) == 0;
}

/* Adds gradient to the sum of a producer's output, in the tensor's own dtype. */
static mn_status add_gradient(mn_context *context, mn_node_output *output, mn_tensor *gradient)
{
    if (output->grad) {
        mn_tensor *inputs[2] = {output->grad, gradient};
        gradient = mn_dispatch1(context, MN_OP_add, inputs, 2, NULL);
        if (!gradient)
            return context->error.status;
    }
    mn_retain(gradient);
    mn_release(output->grad);
    output->grad = gradient;
    return MN_OK;
}

static mn_status deliver(mn_context *context, mn_node *node, int index, mn_tensor *gradient,
                         mn_grad_state state)
{
    mn_node_input *input = &node->inputs[index];
    if (!same_kind(&input->view, gradient)) {
        char wanted[80], given[80];
        mn_view view = mn_tensor_as_view(gradient);
        return mn_fail(context, MN_ERR_SHAPE, "%s: the gradient of input %d is %s, not %s",
                       node->op->name, index, mn_tensor_describe(&view, given, sizeof given),
                       mn_tensor_describe(&input->view, wanted, sizeof wanted));
    }
    if (input->leaf)
        return mn_leaf_accumulate(input->leaf, gradient, state);
    return add_gradient(context, &input->producer->outputs[input->output], gradient);
}

static bool fill_call(mn_backward_call *call, const mn_node *node)
{
    memset(call, 0, sizeof *call);
    call->context = node->context;
    call->op = node->op;
    call->attributes = node->attributes;
    for (int i = 0; i < node->input_count; i++) {
        const mn_node_input *input = &node->inputs[i];
        call->in_view[i] = input->view;
        call->in[i] = input->saved.tensor;
        call->needs[i] = input->producer || (input->leaf && input->leaf->requires_grad);
    }
    bool reached = false;
    for (int i = 0; i < node->op->outputs; i++) {
        call->out[i] = node->outputs[i].saved.tensor;
        call->grad_out[i] = node->outputs[i].grad;
        reached = reached || call->grad_out[i];
    }
    return reached;
}

static mn_status run_backward(mn_node *node, mn_grad_state state)
{
    mn_context *context = node->context;
    mn_backward_call call;
    if (!fill_call(&call, node))
        return MN_OK;
    mn_status status = node->op->backward(&call);
    if (status != MN_OK)
        return mn_fail(context, status, "%s: backward failed", node->op->name);
    for (int i = 0; i < node->input_count && mn_ok(context); i++) {
        if (call.needs[i] && call.grad_in[i])
            deliver(context, node, i, call.grad_in[i], state);
    }
    return context->error.status;
}

/* A node's backward in its own scope and layer path; what the node held is dropped. */
static mn_status run_node(mn_node *node, mn_grad_state state)
{
    mn_context *context = node->context;
    mn_scope scope = mn_scope_begin(context);
    push_path(context, node);
    mn_status status = mn_ok(context) ? run_backward(node, state) : context->error.status;
    mn_name_pop(context);
    mn_scope_end(context, scope);
    mn_node_drop(context, node);
    return status;
}

/* Takes all nodes off the list; after a failure only to forget the sums and references. */
static mn_status run(mn_context *context, mn_autograd *autograd, mn_grad_state state)
{
    context->in_backward = true;
    heapify(autograd);
    while (autograd->found_count > 0) {
        mn_node *node = pop(autograd);
        if (mn_ok(context))
            run_node(node, state);
        for (int i = 0; i < node->op->outputs; i++) {
            mn_release(node->outputs[i].grad);
            node->outputs[i].grad = NULL;
        }
        mn_node_release(context, node);
    }
    context->in_backward = false;
    return context->error.status;
}

static void forget(mn_context *context, mn_autograd *autograd)
{
    while (autograd->found_count > 0)
        mn_node_release(context, autograd->found[--autograd->found_count]);
}

static mn_status backward_graph(mn_tensor *root, mn_tensor *seed, mn_grad_state state)
{
    mn_context *context = root->context;
    mn_autograd *autograd = mn_autograd_state(context);
    if (!autograd)
        return context->error.status;
    mn_status status = find(context, autograd, root->node, state);
    if (status != MN_OK) {
        forget(context, autograd);
        return status;
    }
    root->node->outputs[root->node_output].grad = mn_retain(seed);
    return run(context, autograd, state);
}

static mn_status check_root(mn_tensor *root)
{
    mn_context *context = root->context;
    if (context->in_backward)
        return mn_fail(context, MN_ERR_STATE, "backward inside of a backward function");
    if (!root->requires_grad)
        return mn_fail(context, MN_ERR_NO_GRADIENT,
                       "backward from a tensor that depends on nothing that requires a gradient");
    if (root->numel != 1) {
        char text[80];
        mn_view view = mn_tensor_as_view(root);
        return mn_fail(context, MN_ERR_SHAPE, "backward starts from one element, not from %s",
                       mn_tensor_describe(&view, text, sizeof text));
    }
    return MN_OK;
}

mn_status mn_backward_from(mn_tensor *root, mn_tensor *seed, mn_grad_state state)
{
    if (!root)
        return MN_ERR_ARGUMENT;
    mn_context *context = root->context;
    if (!mn_ok(context))
        return context->error.status;
    MN_TRY(check_root(root));
    MN_TRY(mn_tensor_check(context, seed, "seed"));
    mn_view view = mn_tensor_as_view(root);
    if (!same_kind(&view, seed))
        return mn_fail(context, MN_ERR_SHAPE, "the seed's shape or dtype is not the root's");
    if (root->node)
        return backward_graph(root, seed, state);
    MN_TRY(mn_leaf_admits(root, state));
    return mn_leaf_accumulate(root, seed, state);
}

mn_status mn_backward(mn_tensor *root, double weight)
{
    if (!root)
        return MN_ERR_ARGUMENT;
    mn_context *context = root->context;
    if (!mn_ok(context))
        return context->error.status;
    MN_TRY(check_root(root));
    if (!isfinite(weight))
        return mn_fail(context, MN_ERR_ARGUMENT, "weight of backward is not finite");
    mn_scope scope = mn_scope_begin(context);
    mn_tensor *seed = mn_full(context, root->dtype, root->ndim, root->shape, weight);
    mn_status status = seed ? mn_backward_from(root, seed, MN_GRAD_PLAIN) : context->error.status;
    mn_scope_end(context, scope);
    return status;
}
