/* Sections that begin and end in pairs (no-grad, autocast) and end with the scope that they were
 * begun in.
 *
 * A begin that fails, or comes while an error is pending, pushes a phantom: it has no effect but
 * keeps the pairs balanced until the error is cleared. */
#ifndef MN_AUTOGRAD_SECTION_H
#define MN_AUTOGRAD_SECTION_H

#include "core/core.h"

typedef struct mn_section {
    struct mn_section *outer;
    int depth; /* of scopes when it began */
    mn_dtype dtype;
    bool phantom;
} mn_section;
typedef mn_section *mn_sections; /* the innermost one; NULL: none */

mn_status mn_sections_push(mn_context *context, mn_sections *sections, mn_dtype dtype);
/* False if there is none to end. */
bool mn_sections_pop(mn_context *context, mn_sections *sections);
/* Ends what was begun in scopes deeper than depth; -1: all. */
void mn_sections_scope_end(mn_context *context, mn_sections *sections, int depth);
/* The innermost section that is no phantom, or NULL. */
const mn_section *mn_sections_top(const mn_section *sections);

#endif
