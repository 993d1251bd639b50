/* Stacks of sections that are tied to scopes. */
#include "autograd/section.h"

#include <string.h>

static bool grow(mn_context *context, mn_sections *sections)
{
    if (sections->count < sections->capacity)
        return true;
    size_t capacity = sections->capacity > 0 ? (size_t)sections->capacity * 2 : 8;
    size_t bytes;
    if (capacity > INT32_MAX || !mn_size_mul(capacity, sizeof(mn_section), &bytes)) {
        mn_fail(context, MN_ERR_MEMORY, "too many nested sections");
        return false;
    }
    mn_section *entries = mn_host_alloc(context, bytes);
    if (!entries)
        return false;
    if (sections->count > 0)
        memcpy(entries, sections->entries, (size_t)sections->count * sizeof *entries);
    mn_sections_free(context, sections);
    sections->entries = entries;
    sections->capacity = (int)capacity;
    return true;
}

/* Phantoms belong to an error; once it was cleared nobody will end them. */
static void drop_phantoms(const mn_context *context, mn_sections *sections)
{
    if (!mn_ok(context))
        return;
    int kept = 0;
    for (int i = 0; i < sections->count; i++) {
        if (!sections->entries[i].phantom)
            sections->entries[kept++] = sections->entries[i];
    }
    sections->count = kept;
}

mn_status mn_sections_push(mn_context *context, mn_sections *sections, mn_dtype dtype)
{
    drop_phantoms(context, sections);
    if (grow(context, sections))
        sections->entries[sections->count++] =
            (mn_section){context->scope_depth, dtype, !mn_ok(context)};
    return context->error.status;
}

bool mn_sections_pop(mn_context *context, mn_sections *sections)
{
    drop_phantoms(context, sections);
    if (sections->count == 0)
        return false;
    sections->count--;
    return true;
}

void mn_sections_scope_end(mn_sections *sections, int depth)
{
    while (sections->count > 0 && sections->entries[sections->count - 1].depth > depth)
        sections->count--;
}

int mn_sections_live(const mn_sections *sections)
{
    int live = 0;
    for (int i = 0; i < sections->count; i++)
        live += !sections->entries[i].phantom;
    return live;
}

const mn_section *mn_sections_top(const mn_sections *sections)
{
    for (int i = sections->count - 1; i >= 0; i--) {
        if (!sections->entries[i].phantom)
            return &sections->entries[i];
    }
    return NULL;
}

void mn_sections_free(mn_context *context, mn_sections *sections)
{
    mn_host_free(context, sections->entries, (size_t)sections->capacity * sizeof(mn_section));
    sections->entries = NULL;
    sections->capacity = 0;
}
