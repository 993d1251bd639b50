/* Chains of layers, and chains with a shortcut around them. */
#include "models/module.h"

#include <string.h>

static mn_tensor *run_chain(mn_module *module, mn_tensor *x, bool given, const mn_module *stop,
                            mn_tensor **moments);

static mn_tensor *sequential_forward(mn_module *module, mn_tensor *x)
{
    return run_chain(module, x, false, NULL, NULL);
}

static const mn_module_class sequential_class = {"sequential", sequential_forward};

/* How a child runs. */
typedef struct manner {
    bool given; /* a reference to x is released */
    bool held;  /* the result lives by a reference of the caller's; else in the scope */
    mn_fused fused;
} manner;

/* Runs one child in a scope of its own, so that only its result lives on. */
static mn_tensor *run_child(mn_module *child, mn_tensor *x, manner how)
{
    mn_context *context = child->context;
    bool chain = child->class == &sequential_class;
    mn_name_push(context, child->name);
    mn_scope scope = mn_scope_begin(context);
    const bool fused = how.fused.relu || how.fused.give || how.fused.moments;
    mn_tensor *y = chain   ? run_chain(child, x, how.given, NULL, NULL)
                   : fused ? mn_module_forward_fused(child, x, &how.fused)
                           : mn_module_forward(child, x);
    if (!chain && y != NULL && y == x) /* the result has a life of its own */
        y = mn_reshape(x, mn_tensor_ndim(x), mn_tensor_shape(x));
    if (how.held)
        mn_retain(y);
    else
        mn_scope_keep(y);
    mn_scope_end(context, scope);
    mn_name_pop(context);
    if (how.given && !chain)
        mn_release(x);
    return y;
}

/* The child itself or the next one in the main chain. */
static mn_module *in_chain(const mn_module *module, mn_module *child)
{
    return child != NULL && child == module->shortcut ? child->next : child;
}

/* Whether the layer gives moments to the one after it, which reads nothing else. */
static bool gives(const mn_module *module, const mn_module *child)
{
    const mn_module *next = in_chain(module, child->next);
    return next != NULL && mn_module_gives_moments(child, next);
}

/* Between two layers the activation is held by a reference of ours, given to the next layer and
 * released as soon as it has run, also inside a chain in the chain: under no-grad at most two
 * activations are alive. The chain ends before `stop`, for which moments are left, if it takes
 * some. */
static mn_tensor *run_chain(mn_module *module, mn_tensor *x, bool given, const mn_module *stop,
                            mn_tensor **moments)
{
    mn_module *child = in_chain(module, module->children), *next;
    if (child == NULL) {
        mn_fail(module->context, MN_ERR_STATE, "%s: it has no layers", module->class->kind);
        if (given)
            mn_release(x);
        return NULL;
    }
    mn_tensor *taken = NULL;
    for (; child != stop && x != NULL; child = next) {
        next = in_chain(module, child->next);
        mn_tensor *found = NULL;
        mn_fused fused = {.relu = next != NULL && mn_module_fuses(child, next), .moments = taken};
        if (fused.relu) {
            next = in_chain(module, next->next);
            fused.pool = next != NULL && mn_module_fuses_pool(child, next, x);
            next = fused.pool ? in_chain(module, next->next) : next;
        } else if (gives(module, child))
            fused.give = &found;
        x = run_child(child, x, (manner){.given = given, .held = next != stop, .fused = fused});
        mn_release(taken);
        taken = found;
        given = true;
    }
    if (moments)
        *moments = taken;
    else
        mn_release(taken);
    return x;
}

static mn_module *last_of(const mn_module *module)
{
    mn_module *last = NULL;
    for (mn_module *c = in_chain(module, module->children); c != NULL;
         c = in_chain(module, c->next))
        last = c;
    return last;
}

static bool is_alike(const mn_tensor *a, const mn_tensor *b)
{
    return a != NULL && b != NULL && a->dtype == b->dtype && a->ndim == b->ndim &&
           memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

/* A batch norm at the chain's end waits for the shortcut, to add it and apply ReLU by itself. Not
 * one that is the chain: backward would then add up x's gradient in another order. */
static mn_tensor *residual_forward(mn_module *module, mn_tensor *x)
{
    mn_module *last = last_of(module);
    const bool waits = last != in_chain(module, module->children) && mn_module_fuses(last, NULL);
    mn_module *norm = waits ? last : NULL;
    mn_scope scope = mn_scope_begin(module->context);
    mn_tensor *moments = NULL;
    mn_tensor *y = run_chain(module, x, false, norm, &moments);
    mn_tensor *around =
        module->shortcut != NULL ? run_child(module->shortcut, x, (manner){.held = false}) : x;
    const bool fused = norm != NULL && is_alike(y, around);
    if (norm != NULL && y != NULL)
        y = run_child(
            norm, y,
            (manner){
                .fused = {.relu = fused, .residual = fused ? around : NULL, .moments = moments}});
    mn_release(moments);
    if (!fused)
        y = mn_add(y, around);
    mn_scope_keep(y);
    mn_scope_end(module->context, scope);
    return fused ? y : mn_relu(y); /* both branches are gone */
}

static const mn_module_class residual_class = {"residual", residual_forward};

mn_module *mn_sequential(mn_context *context)
{
    return mn_module_new(context, &sequential_class);
}

mn_module *mn_residual(mn_context *context)
{
    return mn_module_new(context, &residual_class);
}

static mn_status check_name(const mn_module *parent, const char *name, const char *call)
{
    mn_context *context = parent->context;
    if (name == NULL || *name == '\0' || strchr(name, '.') != NULL)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "%s: a layer's name must not be empty or hold a dot", call);
    for (const mn_module *child = parent->children; child != NULL; child = child->next)
        if (strcmp(child->name, name) == 0)
            return mn_fail(context, MN_ERR_ARGUMENT, "%s: there is a layer \"%s\" already", call,
                           name);
    return MN_OK;
}

/* Nobody owns the child, and it is not a chain around the parent: the tree stays a tree. */
static bool is_free(const mn_module *parent, const mn_module *child)
{
    const mn_module *root = parent;
    while (root->parent != NULL)
        root = root->parent;
    return child->parent == NULL && child != root;
}

static mn_status append(mn_module *parent, const char *name, mn_module *child, const char *call)
{
    mn_context *context = parent->context;
    MN_TRY(mn_error_status(context));
    if (child == NULL)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: layer is NULL", call);
    if (child->context != context)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s: layer belongs to another context", call);
    if (!is_free(parent, child))
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "%s: layer is in a chain already, or holds this one", call);
    MN_TRY(check_name(parent, name, call));
    child->name = mn_host_strdup(context, name);
    if (child->name == NULL)
        return mn_error_status(context);
    child->parent = parent;
    *parent->children_end = child;
    parent->children_end = &child->next;
    return MN_OK;
}

/* What nobody owns after a failure is freed: the caller has given it away. */
static mn_status settle(mn_status status, const mn_module *parent, mn_module *child)
{
    if (status != MN_OK && child != NULL && (parent == NULL || is_free(parent, child)))
        mn_module_free(child);
    return status;
}

static mn_status add_layer(mn_module *chain, const char *name, mn_module *child)
{
    if (chain == NULL)
        return MN_ERR_ARGUMENT;
    if (chain->class != &sequential_class && chain->class != &residual_class)
        return mn_fail(chain->context, MN_ERR_ARGUMENT,
                       "mn_sequential_add: not a sequential or residual module");
    return append(chain, name, child, "mn_sequential_add");
}

mn_status mn_sequential_add(mn_module *sequential, const char *name, mn_module *child)
{
    return settle(add_layer(sequential, name, child), sequential, child);
}

static mn_status add_shortcut(mn_module *residual, const char *name, mn_module *child)
{
    if (residual == NULL)
        return MN_ERR_ARGUMENT;
    if (residual->class != &residual_class || residual->shortcut != NULL)
        return mn_fail(residual->context, MN_ERR_ARGUMENT, "mn_residual_shortcut: %s",
                       residual->shortcut != NULL ? "there is a shortcut already"
                                                  : "not a residual module");
    MN_TRY(append(residual, name, child, "mn_residual_shortcut"));
    residual->shortcut = child;
    return MN_OK;
}

mn_status mn_residual_shortcut(mn_module *residual, const char *name, mn_module *child)
{
    return settle(add_shortcut(residual, name, child), residual, child);
}
