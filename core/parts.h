/* core/parts.h: the pieces that context.c puts together and takes apart: host memory, pool, names
 * and scopes. For this folder only. */
#ifndef MN_CORE_PARTS_H
#define MN_CORE_PARTS_H

#include "core/core.h"

#include <stdarg.h>

/* Each fills its member of the context; false after recording an error. destroy accepts a part that
 * was never made. */
bool mn_host_cache_create(mn_context *context);
void mn_host_cache_destroy(mn_context *context);
/* Gives the free lists back to the allocator. */
void mn_host_cache_trim(mn_context *context);
/* Blocks that mn_host_alloc has given out and that have not come back. */
size_t mn_host_cache_live(const mn_context *context);

bool mn_pool_create(mn_context *context, uint64_t limit);
void mn_pool_destroy(mn_context *context);
/* Waits for the device, then gives all cached blocks back. */
void mn_pool_flush(mn_context *context);
void mn_pool_reset_peak(mn_context *context);
mn_memory_stats mn_pool_stats(const mn_context *context);

bool mn_names_create(mn_context *context);
void mn_names_destroy(mn_context *context);
/* Names pushed and not popped; restore pops down to such a count. */
size_t mn_names_depth(const mn_context *context);
void mn_names_restore(mn_context *context, size_t depth);

bool mn_scopes_create(mn_context *context);
/* Ends all scopes, the root scope included. */
void mn_scopes_destroy(mn_context *context);
/* Gives the innermost scope the caller's reference. */
void mn_scope_adopt(mn_context *context, mn_tensor *tensor);
/* Drops one reference, whoever holds it. */
void mn_tensor_unreference(mn_tensor *tensor);

/* What is left to do once a freed context has lost its last object. */
void mn_context_destroy(mn_context *context);

/* "prefix: text" as one line into the error, whatever it held before. */
void mn_error_format(mn_error *error, mn_status status, const char *prefix, const char *format,
                     va_list arguments) __attribute__((format(printf, 4, 0)));

#endif
