/* Stacks of sections that are tied to scopes. */
#include "autograd/section.h"

static void drop(mn_context *context, mn_section **at)
{
    mn_section *section = *at;
    *at = section->outer;
    mn_host_free(context, section, sizeof *section);
}

/* Phantoms belong to an error; once it was cleared nobody will end them. */
static void drop_phantoms(mn_context *context, mn_sections *sections)
{
    for (mn_section **at = sections; *at && mn_ok(context);) {
        if ((*at)->phantom)
            drop(context, at);
        else
            at = &(*at)->outer;
    }
}

mn_status mn_sections_push(mn_context *context, mn_sections *sections, mn_dtype dtype)
{
    drop_phantoms(context, sections);
    mn_section *section = mn_host_alloc(context, sizeof *section);
    if (section) {
        *section = (mn_section){*sections, context->scope_depth, dtype, !mn_ok(context)};
        *sections = section;
    }
    return context->error.status;
}

bool mn_sections_pop(mn_context *context, mn_sections *sections)
{
    drop_phantoms(context, sections);
    if (!*sections)
        return false;
    drop(context, sections);
    return true;
}

void mn_sections_scope_end(mn_context *context, mn_sections *sections, int depth)
{
    while (*sections && (*sections)->depth > depth)
        drop(context, sections);
}

const mn_section *mn_sections_top(const mn_section *sections)
{
    while (sections && sections->phantom)
        sections = sections->outer;
    return sections;
}
