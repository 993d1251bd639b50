/* core/names.c: the stack of layer names, each with the path that it ends. */
#include "core/parts.h"

#include <string.h>

struct mn_name {
    struct mn_name *below;
    size_t bytes;
    char path[]; /* names joined by dots */
};

const char *mn_name_path(const mn_context *context)
{
    return context->name ? context->name->path : "";
}

static bool push(mn_context *context, const char *name)
{
    const char *path = mn_name_path(context);
    size_t length = strlen(path), added = strlen(name);
    size_t bytes = sizeof(struct mn_name) + length + added + 2;
    struct mn_name *top = mn_host_alloc(context, bytes);
    if (!top)
        return false;
    *top = (struct mn_name){context->name, bytes};
    memcpy(top->path, path, length);
    if (length > 0)
        top->path[length++] = '.';
    memcpy(top->path + length, name, added + 1);
    context->name = top;
    return true;
}

void mn_name_push(mn_context *context, const char *name)
{
    if (!context || context->closed)
        return;
    if (!name)
        mn_fail(context, MN_ERR_ARGUMENT, "name_push: the name is NULL");
    if (!name || context->names_lost > 0 || !push(context, name))
        context->names_lost++;
    context->names++;
}

void mn_names_restore(mn_context *context, size_t depth)
{
    for (; context->names > depth; context->names--) {
        struct mn_name *top = context->name;
        if (context->names_lost > 0) {
            context->names_lost--;
            continue;
        }
        context->name = top->below;
        mn_host_free(context, top, top->bytes);
    }
}

void mn_name_pop(mn_context *context)
{
    if (!context || context->closed)
        return;
    if (context->names == 0)
        mn_fail(context, MN_ERR_STATE, "name_pop: no name has been pushed");
    else
        mn_names_restore(context, context->names - 1);
}
