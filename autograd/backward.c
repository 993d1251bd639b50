/* Backward: walks the recorded graph from a root in decreasing order of recording, without
 * recursion or memory of its own, and frees it on the way. Everything that can be refused is
 * refused before the first gradient is touched.
 *
 * A pass with create_graph is itself recorded: it keeps the graph and hands backward functions
 * saved tensors that are connected to it. They are headers of the node's scope, so that the graph
 * itself stays without cycles. */
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
    mn_status status =
        mn_fail(node->context, MN_ERR_VERSION,
                "%s: %s %d was changed in place after it was saved for backward (version %llu, "
                "saved %llu): "
                "write after backward, or to a copy",
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
    node->scaled = false;
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
    for (mn_node *node = root; node && status == MN_OK && !pass->targets; node = node->next)
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

/* ---- what is needed -------------------------------------------------------------------------- */

static bool leads_to(const mn_node_input *edge, const mn_tensor *target)
{
    if (target->node)
        return edge->producer == target->node && edge->output == target->node_output;
    return edge->leaf == target;
}

/* Whether the pass wants the gradient that goes along the edge. */
static bool is_needed(const mn_pass *pass, const mn_node_input *edge)
{
    bool needed = edge->producer && edge->producer->needed;
    if (!pass->targets)
        return needed || (edge->leaf && edge->leaf->requires_grad);
    for (int i = 0; i < pass->target_count && !needed; i++)
        needed = leads_to(edge, pass->targets[i]);
    return needed;
}

static mn_node *reverse(mn_node *list)
{
    mn_node *reversed = NULL;
    for (mn_node *node = list, *next; node; node = next) {
        next = node->next;
        node->next = reversed;
        reversed = node;
    }
    return reversed;
}

/* A loss that was made of a scaled one would leave gradients times the scale twice. Consumers come
 * before producers. */
static mn_status refuse_scaled_twice(const mn_pass *pass)
{
    for (mn_node *node = pass->nodes; node; node = node->next) {
        if (node->scaled && node->scaling != 0)
            return mn_fail(node->context, MN_ERR_STATE,
                           "backward through a loss that was scaled twice: scale it once, and give "
                           "mn_grad_scaler_backward the loss itself");
        for (int i = 0; i < node->input_count && (node->scaled || node->scaling != 0); i++)
            if (node->inputs[i].producer)
                node->inputs[i].producer->scaled = true;
    }
    return MN_OK;
}

/* Marks the nodes that lead to what the pass wants, producers first. */
static void mark_needed(mn_pass *pass)
{
    pass->nodes = reverse(pass->nodes);
    for (mn_node *node = pass->nodes; node; node = node->next) {
        node->needed = !pass->targets;
        for (int i = 0; i < node->input_count && !node->needed; i++)
            node->needed = is_needed(pass, &node->inputs[i]);
    }
    pass->nodes = reverse(pass->nodes);
}

/* ---- running --------------------------------------------------------------------------------- */

static bool same_kind(const mn_view *view, const mn_tensor *tensor)
{
    return view->dtype == tensor->dtype && view->ndim == tensor->ndim &&
           memcmp(view->shape, tensor->shape, (size_t)view->ndim * sizeof view->shape[0]) == 0;
}

/* Adds gradient to a sum, in the tensor's own dtype: in place if nobody else has the sum. Not for
 * the shadow check: it keeps the results of one run, and compares with the same ops of another. */
static mn_status add_gradient(mn_context *context, mn_tensor **sum, mn_tensor *gradient)
{
    static const mn_blend_attributes both = {1, 1};
    mn_tensor *inputs[2] = {*sum, gradient};
    if (*sum && !context->create_graph && !context->keeps_gradients && (*sum)->references == 1 &&
        (*sum)->storage->references == 1) {
        mn_dispatch1(context, MN_OP_blend, inputs, 2, &both);
        return context->error.status;
    }
    if (*sum)
        gradient = mn_apply1(MN_OP_add, inputs, 2, NULL);
    if (!gradient)
        return context->error.status;
    mn_retain(gradient);
    mn_release(*sum);
    *sum = gradient;
    return MN_OK;
}

static mn_status deliver_to_leaf(mn_tensor *leaf, mn_tensor *gradient, bool sole,
                                 const mn_pass *pass)
{
    if (!pass->targets)
        return mn_leaf_accumulate(leaf, gradient, sole, pass);
    for (int i = 0; i < pass->target_count; i++) {
        if (pass->targets[i] == leaf)
            MN_TRY(add_gradient(leaf->context, &pass->gradients[i], gradient));
    }
    return MN_OK;
}

/* Takes the sums of a node's outputs that the pass wants. */
static void collect(const mn_node *node, const mn_pass *pass)
{
    for (int i = 0; i < pass->target_count; i++) {
        const mn_tensor *target = pass->targets[i];
        if (target->node == node)
            pass->gradients[i] = mn_retain(node->outputs[target->node_output].grad);
    }
}

static mn_status deliver(mn_node *node, int index, const mn_backward_call *call,
                         const mn_pass *pass)
{
    mn_context *context = node->context;
    mn_node_input *input = &node->inputs[index];
    mn_tensor *gradient = call->grad_in[index];
    int uses = 0;
    for (int i = 0; i < node->input_count; i++)
        uses += call->grad_in[i] == gradient;
    if (!same_kind(&input->view, gradient)) {
        char wanted[80], given[80];
        mn_view view = mn_tensor_as_view(gradient);
        return mn_fail(context, MN_ERR_SHAPE, "%s: the gradient of input %d is %s, not %s",
                       node->op->name, index, mn_tensor_describe(&view, given, sizeof given),
                       mn_tensor_describe(&input->view, wanted, sizeof wanted));
    }
    if (input->leaf)
        return deliver_to_leaf(input->leaf, gradient, uses == 1, pass);
    return add_gradient(context, &input->producer->outputs[input->output].grad, gradient);
}

/* A saved tensor as the output of a node, in the scope. */
static mn_tensor *connected(const mn_tensor *saved, mn_node *node, int output)
{
    mn_tensor *tensor =
        mn_tensor_view(saved->storage, saved->offset, saved->dtype, saved->ndim, saved->shape);
    if (!tensor || !mn_dtype_is_float(saved->dtype))
        return tensor;
    tensor->requires_grad = true;
    tensor->node = node;
    tensor->node_output = output;
    node->references++;
    return tensor;
}

/* Replaces saved tensors by ones that are part of the graph. */
static void connect_call(mn_backward_call *call, mn_node *node)
{
    for (int i = 0; i < node->input_count; i++) {
        const mn_node_input *input = &node->inputs[i];
        if (call->in[i] && input->leaf)
            call->in[i] = input->leaf;
        else if (call->in[i] && input->producer)
            call->in[i] = connected(call->in[i], input->producer, input->output);
    }
    for (int i = 0; i < node->op->outputs; i++) {
        if (call->out[i])
            call->out[i] = connected(call->out[i], node, i);
    }
}

static bool fill_call(mn_backward_call *call, const mn_node *node, const mn_pass *pass)
{
    memset(call, 0, sizeof *call);
    call->context = node->context;
    call->op = node->op;
    call->attributes = node->attributes;
    for (int i = 0; i < node->input_count; i++) {
        const mn_node_input *input = &node->inputs[i];
        call->in_view[i] = input->view;
        call->in[i] = input->saved.tensor;
        call->needs[i] = is_needed(pass, input);
    }
    bool reached = false;
    for (int i = 0; i < node->op->outputs; i++) {
        call->out[i] = node->outputs[i].saved.tensor;
        call->grad_out[i] = node->outputs[i].grad;
        reached = reached || call->grad_out[i];
    }
    return reached;
}

static mn_status run_op(mn_backward_call *call, mn_node *node, const mn_pass *pass)
{
    if (pass->create_graph)
        connect_call(call, node);
    return mn_ok(node->context) ? node->op->backward(call) : node->context->error.status;
}

/* The weight's gradient alone: the image that is made again for it is gone before the rest is
 * made. */
static mn_status run_made_again(mn_backward_call *call, mn_node *node, const mn_pass *pass)
{
    mn_backward_call weight = *call;
    memset(weight.needs, 0, sizeof weight.needs);
    weight.needs[1] = true;
    mn_scope scope = mn_scope_begin(node->context);
    weight.in[0] = mn_make_again(&node->inputs[0]);
    mn_status status = run_op(&weight, node, pass);
    call->grad_in[1] = mn_scope_keep(weight.grad_in[1]);
    mn_scope_end(node->context, scope);
    return status;
}

static void run_backward(mn_node *node, const mn_pass *pass)
{
    mn_context *context = node->context;
    mn_backward_call call;
    if (!fill_call(&call, node, pass))
        return;
    const bool again = node->inputs[0].saved.again && call.needs[1];
    mn_status status = again ? run_made_again(&call, node, pass) : MN_OK;
    call.needs[1] = call.needs[1] && !again;
    if (status == MN_OK)
        status = run_op(&call, node, pass);
    call.needs[1] = call.needs[1] || again;
    if (status != MN_OK)
        mn_fail(context, status, "%s: backward failed", node->op->name);
    for (int i = 0; i < node->input_count && mn_ok(context); i++) {
        if (call.needs[i] && call.grad_in[i])
            deliver(node, i, &call, pass);
    }
}

/* A node's backward in its own scope and layer path; what the node held is dropped, unless the
 * graph is kept. */
static void run_node(mn_node *node, const mn_pass *pass)
{
    mn_context *context = node->context;
    collect(node, pass);
    if (!node->needed)
        return;
    mn_scope scope = mn_scope_begin(context);
    push_path(context, node);
    context->backward_of = node->op;
    context->backward_layer = node->path ? node->path : "";
    if (mn_ok(context))
        run_backward(node, pass);
    context->backward_of = NULL;
    context->backward_layer = NULL;
    mn_name_pop(context);
    mn_scope_end(context, scope);
    if (!pass->create_graph)
        mn_node_drop(context, node);
}

/* Takes all nodes off the list; after a failure only to forget the sums and references. */
static mn_status run(mn_context *context, mn_pass *pass)
{
    context->in_backward = true;
    context->create_graph = pass->create_graph;
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
    context->in_backward = context->create_graph = false;
    return context->error.status;
}

/* Small gradients of f16 values are lost without a loss scale: somebody may have forgotten it. */
static void warn_of_unscaled(mn_context *context, const mn_pass *pass)
{
    void (*warn)(void *user, const char *message) = context->warn;
    for (const mn_node *node = pass->nodes; node && context->warn; node = node->next) {
        const mn_cast_attributes *cast = node->attributes;
        if (node->op == &mn_ops[MN_OP_cast] && cast->dtype == MN_F16)
            context->warn = NULL;
    }
    if (warn && !context->warn)
        warn(context->warn_user,
             "backward through f16 values from a loss that no grad scaler has scaled: gradients "
             "below 2^-25 become 0; run it by mn_grad_scaler_backward (said once)");
}

/* MN_OK if root, or something that the pass has found, depends on the target. */
static mn_status check_target(const mn_pass *pass, const mn_tensor *root, int index)
{
    const mn_tensor *target = pass->targets[index];
    bool found = target == root || (target->node && target->node->pass == pass->number);
    for (const mn_node *node = pass->nodes; node && !found; node = node->next)
        for (int i = 0; i < node->input_count && !found; i++)
            found = leads_to(&node->inputs[i], target);
    if (found)
        return MN_OK;
    return mn_fail(root->context, MN_ERR_NO_GRADIENT,
                   "gradients: the root does not depend on input %d", index);
}

static mn_status backward_graph(mn_pass *pass, mn_tensor *root, mn_tensor *seed)
{
    mn_context *context = root->context;
    mn_autograd *autograd = mn_autograd_state(context);
    if (!autograd)
        return context->error.status;
    pass->number = ++autograd->passes;
    mn_status status = find(pass, root->node);
    for (int i = 0; i < pass->target_count && status == MN_OK; i++)
        status = check_target(pass, root, i);
    if (status == MN_OK) {
        size_t count = 0;
        for (const mn_node *node = pass->nodes; node; node = node->next)
            count++;
        mn_node *list = pass->nodes;
        pass->nodes = sort(&list, count);
        status = refuse_scaled_twice(pass);
    }
    if (status == MN_OK) {
        if (pass->state == MN_GRAD_PLAIN && !pass->targets)
            warn_of_unscaled(context, pass);
        mark_needed(pass);
        root->node->outputs[root->node_output].grad = mn_retain(seed);
    }
    return run(context, pass);
}

static mn_status check_root(mn_tensor *root)
{
    if (!root)
        return MN_ERR_ARGUMENT;
    mn_context *context = root->context;
    MN_TRY(mn_error_status(context));
    if (context->in_backward)
        return mn_fail(context, MN_ERR_STATE,
                       "backward inside of a backward function, which may only apply ops");
    if (!root->requires_grad)
        return mn_fail(context, MN_ERR_NO_GRADIENT,
                       "backward from a tensor that depends on nothing that requires a gradient: "
                       "is forward inside of a no-grad section, or a leaf not marked?");
    if (root->numel != 1) {
        char text[80];
        mn_view view = mn_tensor_as_view(root);
        return mn_fail(context, MN_ERR_SHAPE,
                       "backward starts from one element, not from %s: use mn_sum or mn_mean",
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
    mn_pass pass = {.state = state};
    if (root->node)
        return backward_graph(&pass, root, seed);
    MN_TRY(mn_leaf_admits(root, &pass));
    return mn_leaf_accumulate(root, seed, false, &pass);
}

mn_status mn_backward(mn_tensor *root, double weight)
{
    MN_TRY(check_root(root));
    mn_context *context = root->context;
    if (!mn_isfinite_f64(weight))
        return mn_fail(context, MN_ERR_ARGUMENT, "weight of backward is %g, must be finite",
                       weight);
    mn_scope scope = mn_scope_begin(context);
    mn_tensor *seed = mn_full(context, root->dtype, root->ndim, root->shape, weight);
    mn_status status = seed ? mn_backward_from(root, seed, MN_GRAD_PLAIN) : context->error.status;
    mn_scope_end(context, scope);
    return status;
}

/* ---- gradients of chosen tensors ------------------------------------------------------------- */

static mn_status check_targets(mn_tensor *root, mn_tensor *const *inputs, int count)
{
    mn_context *context = root->context;
    for (int i = 0; i < count; i++) {
        MN_TRY(mn_tensor_check(context, inputs[i], "gradients: an input"));
        if (!inputs[i]->requires_grad)
            return mn_fail(context, MN_ERR_NO_GRADIENT,
                           "gradients: input %d does not require a gradient", i);
    }
    return MN_OK;
}

/* Runs the pass from root with gradient 1; leaves its sums in pass->gradients. */
static mn_status run_targets(mn_pass *pass, mn_tensor *root)
{
    mn_context *context = root->context;
    mn_tensor *seed = mn_full(context, root->dtype, root->ndim, root->shape, 1);
    MN_TRY(mn_error_status(context));
    if (root->node)
        return backward_graph(pass, root, seed);
    for (int i = 0; i < pass->target_count; i++) {
        MN_TRY(check_target(pass, root, i));
        pass->gradients[i] = mn_retain(seed);
    }
    return MN_OK;
}

/* A sum as a tensor of the scope: a header of its own, because backward functions may give one
 * tensor twice, or one of the graph; zeros if no gradient arrived. */
static mn_tensor *finish(const mn_tensor *input, mn_tensor *sum)
{
    if (!mn_ok(input->context))
        return NULL;
    return sum ? mn_reshape(sum, sum->ndim, sum->shape)
               : mn_full(input->context, input->dtype, input->ndim, input->shape, 0);
}

mn_status mn_gradients(mn_tensor *root, mn_tensor *const *inputs, int count, bool create_graph,
                       mn_tensor **gradients)
{
    for (int i = 0; i < count && gradients; i++)
        gradients[i] = NULL;
    MN_TRY(check_root(root));
    mn_context *context = root->context;
    if (!inputs || !gradients || count < 1)
        return mn_fail(context, MN_ERR_ARGUMENT, "gradients: %s",
                       count < 1 ? "of no inputs" : "inputs or gradients are NULL");
    MN_TRY(check_targets(root, inputs, count));
    if (create_graph && context->no_grad)
        return mn_fail(context, MN_ERR_STATE,
                       "gradients: nothing is recorded inside of a no-grad section, so that "
                       "create_graph must be false");
    mn_pass pass = {.targets = inputs,
                    .gradients = gradients,
                    .target_count = count,
                    .create_graph = create_graph};
    mn_scope scope = mn_scope_begin(context);
    run_targets(&pass, root);
    mn_scope_end(context, scope);
    for (int i = 0; i < count; i++) {
        mn_tensor *sum = gradients[i];
        gradients[i] = finish(inputs[i], sum);
        mn_release(sum);
    }
    for (int i = 0; i < count && !mn_ok(context); i++)
        gradients[i] = NULL;
    return context->error.status;
}
