/* core/parts.h: the pieces that context.c puts together and takes apart: host memory, pool, names
 * and scopes. For this folder only. */
#ifndef MN_CORE_PARTS_H
#define MN_CORE_PARTS_H

#include "core/core.h"

/* Gives the free lists of host memory back to the allocator. */
void mn_host_trim(mn_context *context);

void mn_pool_destroy(mn_context *context);
/* Waits for the device, then gives all cached blocks back. */
void mn_pool_flush(mn_context *context);

/* Pops names down to such a count. */
void mn_names_restore(mn_context *context, size_t depth);

/* Opens a scope; the first one is the root. */
bool mn_scope_push(mn_context *context);
/* Ends all scopes, the root scope included. */
void mn_scopes_destroy(mn_context *context);
/* Gives the innermost scope the caller's reference. */
void mn_scope_adopt(mn_context *context, mn_tensor *tensor);
/* Drops one reference, whoever holds it. */
void mn_tensor_unreference(mn_tensor *tensor);

/* What is left to do once a freed context has lost its last object. */
void mn_context_destroy(mn_context *context);

#endif
