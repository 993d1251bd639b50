/* core/names.c: the stack of layer names and the path it spells. */
#include "core/parts.h"

#include <string.h>

struct mn_names {
    char *path;   /* names joined by dots */
    size_t *ends; /* length of the path below each name */
    size_t path_capacity, ends_capacity;
    size_t depth;
    size_t lost; /* pushed after an error, so not in the path, but still to be popped */
};

bool mn_names_create(mn_context *context)
{
    context->names = mn_host_calloc(context, 1, sizeof *context->names);
    return context->names != NULL;
}

void mn_names_destroy(mn_context *context)
{
    struct mn_names *names = context->names;
    if (!names)
        return;
    context->names = NULL;
    mn_host_free(context, names->path, names->path_capacity);
    mn_host_free(context, names->ends, names->ends_capacity * sizeof *names->ends);
    mn_host_free(context, names, sizeof *names);
}

const char *mn_name_path(const mn_context *context)
{
    const struct mn_names *names = context->names;
    return names && names->path ? names->path : "";
}

/* Room for `bytes` at *memory, which holds `used`; false after recording an error. */
static bool grow(mn_context *context, void **memory, size_t *capacity, size_t used, size_t bytes)
{
    if (bytes <= *capacity)
        return true;
    size_t larger = 64;
    while (larger < bytes && larger <= SIZE_MAX / 2)
        larger *= 2;
    if (larger < bytes)
        larger = bytes;
    void *copy = mn_host_alloc(context, larger);
    if (!copy)
        return false;
    if (*memory)
        memcpy(copy, *memory, used);
    mn_host_free(context, *memory, *capacity);
    *memory = copy;
    *capacity = larger;
    return true;
}

static bool push(mn_context *context, struct mn_names *names, const char *name)
{
    size_t length = names->path ? strlen(names->path) : 0;
    size_t added = strlen(name);
    size_t ends_bytes = names->ends_capacity * sizeof *names->ends;
    void *path = names->path;
    void *ends = names->ends;
    if (!grow(context, &path, &names->path_capacity, length + 1, length + added + 2))
        return false;
    if (!names->path)
        *(char *)path = '\0';
    names->path = path;
    bool fits = grow(context, &ends, &ends_bytes, names->depth * sizeof *names->ends,
                     (names->depth + 1) * sizeof *names->ends);
    names->ends = ends;
    names->ends_capacity = ends_bytes / sizeof *names->ends;
    if (!fits)
        return false;
    names->ends[names->depth++] = length;
    if (length > 0)
        names->path[length++] = '.';
    memcpy(names->path + length, name, added + 1);
    return true;
}

static void pop(struct mn_names *names)
{
    if (names->lost > 0)
        names->lost--;
    else
        names->path[names->ends[--names->depth]] = '\0';
}

void mn_name_push(mn_context *context, const char *name)
{
    if (!context || !context->names)
        return;
    struct mn_names *names = context->names;
    if (!name)
        mn_fail(context, MN_ERR_ARGUMENT, "name_push: the name is NULL");
    if (!name || names->lost > 0 || !push(context, names, name))
        names->lost++;
}

void mn_name_pop(mn_context *context)
{
    if (!context || !context->names)
        return;
    if (context->names->depth + context->names->lost == 0)
        mn_fail(context, MN_ERR_STATE, "name_pop: no name has been pushed");
    else
        pop(context->names);
}

size_t mn_names_depth(const mn_context *context)
{
    return context->names->depth + context->names->lost;
}

void mn_names_restore(mn_context *context, size_t depth)
{
    while (mn_names_depth(context) > depth)
        pop(context->names);
}
