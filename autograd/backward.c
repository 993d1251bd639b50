/* Backward: walks the recorded graph from a root in decreasing order of recording, without
 * recursion or memory of its own, and frees it on the way. Everything that can be refused is
 * refused before the first gradient is touched. */
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

static mn_status check_node(const mn_node *node)
{
    if (node->used)
        return mn_fail(node->context, MN_ERR_STATE,
                       "second backward through a graph that the first one has freed (at %s%s%s): "
                       "run the forward pass again, or add the losses before one backward",
                       node->path ? node->path : "", node->path ? ": " : "", node->op->name);
    for (int i = 0; i < node->input_count; i++)
        MN_TRY(check_saved(node, "input", i, &node->inputs[i].saved));
    for (int i = 0; i < node->op->outputs; i++)
        MN_TRY(check_saved(node, "output", i, &node->outputs[i].saved));
    return MN_OK;
}

/* What the pass gives is scaled if any of it comes through a scaled loss. */
static mn_status join_scaling(mn_pass *pass, const mn_node *node)
{
    if (node->scaling == 0 || node->scaling == pass->scaling)
        return MN_OK;
    if (pass->scaling != 0)
        return mn_fail(node->context, MN_ERR_STATE,
                       "backward through losses of two scales: use one scaler, and run backward "
                       "before mn_grad_scaler_update");
    pass->scaling = node->scaling;
    pass->state = MN_GRAD_SCALED;
    return MN_OK;
}

/* Appends a node that this pass has not met yet, with a reference; returns the list's new end. */
static mn_node *append(mn_pass *pass, mn_node *last, mn_node *node)
{
    if (!node || node->pass == pass->number)
        return last;
    node->pass = pass->number;
    node->references++;
    node->next = NULL;
    if (last)
        last->next = node;
    return node;
}

/* Lists all nodes that root depends on and checks them; the list is its own work list. */
static mn_status find(mn_pass *pass, mn_node *root)
{
    mn_node *last = pass->nodes = append(pass, NULL, root);
    mn_status status = MN_OK;
    for (mn_node *node = root; node && status == MN_OK; node = node->next) {
        status = check_node(node);
        if (status == MN_OK)
            status = join_scaling(pass, node);
        for (int i = 0; i < node->input_count; i++)
            last = append(pass, last, node->inputs[i].producer);
    }
    for (mn_node *node = root; node && status == MN_OK; node = node->next)
        for (int i = 0; i < node->input_count && status == MN_OK; i++)
            if (node->inputs[i].leaf && node->inputs[i].leaf->requires_grad)
                status = mn_leaf_admits(node->inputs[i].leaf, pass);
    return status;
}

/* Sorts `count` nodes from *list on by falling sequence numbers; *list then is what follows them.
 * No recursion deeper than the logarithm of their number. */
static mn_node *sort(mn_node **list, size_t count)
{
    mn_node *sorted = *list, **end = &sorted;
    if (count <= 1) {
        *list = sorted->next;
        sorted->next = NULL;
        return sorted;
    }
    mn_node *a = sort(list, count / 2), *b = sort(list, count - count / 2);
    for (; a && b; end = &(*end)->next) {
        mn_node **larger = a->sequence > b->sequence ? &a : &b;
        *end = *larger;
        *larger = (*larger)->next;
    }
    *end = a ? a : b;
    return sorted;
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
                         const mn_pass *pass)
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
        return mn_leaf_accumulate(input->leaf, gradient, pass);
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

static void run_backward(mn_node *node, const mn_pass *pass)
{
    mn_context *context = node->context;
    mn_backward_call call;
    if (!fill_call(&call, node))
        return;
    mn_status status = node->op->backward(&call);
    if (status != MN_OK)
        mn_fail(context, status, "%s: backward failed", node->op->name);
    for (int i = 0; i < node->input_count && mn_ok(context); i++) {
        if (call.needs[i] && call.grad_in[i])
            deliver(context, node, i, call.grad_in[i], pass);
    }
}

/* A node's backward in its own scope and layer path; what the node held is dropped. */
static void run_node(mn_node *node, const mn_pass *pass)
{
    mn_context *context = node->context;
    mn_scope scope = mn_scope_begin(context);
    push_path(context, node);
    if (mn_ok(context))
        run_backward(node, pass);
    mn_name_pop(context);
    mn_scope_end(context, scope);
    mn_node_drop(context, node);
}

/* Takes all nodes off the list; after a failure only to forget the sums and references. */
static mn_status run(mn_context *context, mn_pass *pass)
{
    context->in_backward = true;
    for (mn_node *node = pass->nodes, *next; node; node = next) {
        next = node->next;
        if (mn_ok(context))
            run_node(node, pass);
        for (int i = 0; i < node->op->outputs; i++) {
            mn_release(node->outputs[i].grad);
            node->outputs[i].grad = NULL;
        }
        mn_node_release(context, node);
    }
    context->in_backward = false;
    return context->error.status;
}

static mn_status backward_graph(mn_tensor *root, mn_tensor *seed, mn_grad_state state)
{
    mn_context *context = root->context;
    mn_autograd *autograd = mn_autograd_state(context);
    if (!autograd)
        return context->error.status;
    mn_pass pass = {.number = ++autograd->passes, .state = state};
    if (find(&pass, root->node) == MN_OK) {
        size_t count = 0;
        for (const mn_node *node = pass.nodes; node; node = node->next)
            count++;
        mn_node *list = pass.nodes;
        pass.nodes = sort(&list, count);
        root->node->outputs[root->node_output].grad = mn_retain(seed);
    }
    return run(context, &pass);
}

static mn_status check_root(mn_tensor *root)
{
    if (!root)
        return MN_ERR_ARGUMENT;
    mn_context *context = root->context;
    MN_TRY(mn_error_status(context));
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
    MN_TRY(check_root(root));
    mn_context *context = root->context;
    MN_TRY(mn_tensor_check(context, seed, "seed"));
    mn_view view = mn_tensor_as_view(root);
    if (!same_kind(&view, seed))
        return mn_fail(context, MN_ERR_SHAPE, "the seed's shape or dtype is not the root's");
    if (root->node)
        return backward_graph(root, seed, state);
    const mn_pass pass = {.state = state};
    MN_TRY(mn_leaf_admits(root, &pass));
    return mn_leaf_accumulate(root, seed, &pass);
}

mn_status mn_backward(mn_tensor *root, double weight)
{
    MN_TRY(check_root(root));
    mn_context *context = root->context;
    if (!isfinite(weight))
        return mn_fail(context, MN_ERR_ARGUMENT, "weight of backward is not finite");
    mn_scope scope = mn_scope_begin(context);
    mn_tensor *seed = mn_full(context, root->dtype, root->ndim, root->shape, weight);
    mn_status status = seed ? mn_backward_from(root, seed, MN_GRAD_PLAIN) : context->error.status;
    mn_scope_end(context, scope);
    return status;
}
