/* A chain of layers. */
#include "models/module.h"

#include <string.h>

/* Runs one child in a scope of its own, so that only its result lives on. */
static mn_tensor *run_child(mn_child *child, mn_tensor *x, bool last)
{
    mn_context *context = child->module->context;
    mn_name_push(context, child->name);
    mn_scope scope = mn_scope_begin(context);
    mn_tensor *y = mn_module_forward(child->module, x);
    if (last)
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
    if (module->child_count == 0) {
        mn_fail(module->context, MN_ERR_STATE, "sequential: it has no layers");
        return NULL;
    }
    mn_tensor *held = NULL;
    for (int i = 0; i < module->child_count; i++) {
        bool last = i == module->child_count - 1;
        mn_tensor *y = run_child(&module->children[i], held != NULL ? held : x, last);
        mn_release(held);
        if (y == NULL || last)
            return y;
        held = y;
    }
    return NULL;
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
    for (int i = 0; i < sequential->child_count; i++)
        if (strcmp(sequential->children[i].name, name) == 0)
            return mn_fail(context, MN_ERR_ARGUMENT,
                           "mn_sequential_add: there is a layer \"%s\" already", name);
    return MN_OK;
}

static mn_status grow(mn_module *sequential)
{
    if (sequential->child_count < sequential->child_capacity)
        return MN_OK;
    mn_context *context = sequential->context;
    int capacity = sequential->child_capacity * 2 + 8;
    mn_child *children = mn_host_calloc(context, (size_t)capacity, sizeof *children);
    if (children == NULL)
        return mn_error_status(context);
    if (sequential->child_count > 0)
        memcpy(children, sequential->children, (size_t)sequential->child_count * sizeof *children);
    mn_host_free(context, sequential->children,
                 (size_t)sequential->child_capacity * sizeof *children);
    sequential->children = children;
    sequential->child_capacity = capacity;
    return MN_OK;
}

/* Nobody owns the child, and it is not a chain around the sequential: the tree stays a tree. */
static bool is_free(const mn_module *sequential, const mn_module *child)
{
    const mn_module *root = sequential;
    while (root != NULL && root->parent != NULL)
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
    MN_TRY(grow(sequential));
    char *copy = mn_host_strdup(context, name);
    if (copy == NULL)
        return mn_error_status(context);
    sequential->children[sequential->child_count++] = (mn_child){copy, child};
    child->parent = sequential;
    return MN_OK;
}

mn_status mn_sequential_add(mn_module *sequential, const char *name, mn_module *child)
{
    mn_status status = sequential != NULL ? add_child(sequential, name, child) : MN_ERR_ARGUMENT;
    if (status != MN_OK && child != NULL && is_free(sequential, child))
        mn_module_free(child);
    return status;
}
