/* A chain of layers. */
#include "models/module.h"

#include <string.h>

/* Runs one child in a scope of its own, so that only its result lives on. */
static mn_tensor *run_child(mn_module *child, mn_tensor *x)
{
    mn_context *context = child->context;
    mn_name_push(context, child->name);
    mn_scope scope = mn_scope_begin(context);
    mn_tensor *y = mn_module_forward(child, x);
    if (child->next == NULL)
        mn_scope_keep(y);
    else
        mn_retain(y);
    mn_scope_end(context, scope);
    mn_name_pop(context);
    return y;
}

/* Between two layers the activation is held by a reference of ours, released as soon as the next
 * layer has run: under no-grad at most two activations are alive. */
static mn_tensor *sequential_forward(mn_module *module, mn_tensor *x)
{
    if (module->children == NULL)
        mn_fail(module->context, MN_ERR_STATE, "sequential: it has no layers");
    mn_tensor *held = NULL, *y = NULL;
    for (mn_module *child = module->children; child != NULL; child = child->next) {
        y = run_child(child, held != NULL ? held : x);
        mn_release(held);
        held = y;
        if (y == NULL)
            break;
    }
    return y;
}

static const mn_module_class sequential_class = {"sequential", sequential_forward};

mn_module *mn_sequential(mn_context *context)
{
    return mn_module_new(context, &sequential_class);
}

static mn_status check_name(const mn_module *sequential, const char *name)
{
    mn_context *context = sequential->context;
    if (name == NULL || *name == '\0' || strchr(name, '.') != NULL)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "mn_sequential_add: a layer's name must not be empty or hold a dot");
    for (const mn_module *child = sequential->children; child != NULL; child = child->next)
        if (strcmp(child->name, name) == 0)
            return mn_fail(context, MN_ERR_ARGUMENT,
                           "mn_sequential_add: there is a layer \"%s\" already", name);
    return MN_OK;
}

/* Nobody owns the child, and it is not a chain around the sequential: the tree stays a tree. */
static bool is_free(const mn_module *sequential, const mn_module *child)
{
    const mn_module *root = sequential;
    while (root->parent != NULL)
        root = root->parent;
    return child->parent == NULL && child != root;
}

static mn_status add_child(mn_module *sequential, const char *name, mn_module *child)
{
    mn_context *context = sequential->context;
    MN_TRY(mn_error_status(context));
    if (sequential->class != &sequential_class)
        return mn_fail(context, MN_ERR_ARGUMENT, "mn_sequential_add: not a sequential module");
    if (child == NULL)
        return mn_fail(context, MN_ERR_ARGUMENT, "mn_sequential_add: layer is NULL");
    if (child->context != context)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "mn_sequential_add: layer belongs to another context");
    if (!is_free(sequential, child))
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "mn_sequential_add: layer is in a chain already, or holds this one");
    MN_TRY(check_name(sequential, name));
    child->name = mn_host_strdup(context, name);
    if (child->name == NULL)
        return mn_error_status(context);
    child->parent = sequential;
    *sequential->children_end = child;
    sequential->children_end = &child->next;
    return MN_OK;
}

mn_status mn_sequential_add(mn_module *sequential, const char *name, mn_module *child)
{
    mn_status status = sequential != NULL ? add_child(sequential, name, child) : MN_ERR_ARGUMENT;
    if (status != MN_OK && child != NULL && (sequential == NULL || is_free(sequential, child)))
        mn_module_free(child);
    return status;
}
