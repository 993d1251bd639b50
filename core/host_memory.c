/* core/host_memory.c: checked size arithmetic, the default allocator, and a context's host memory
 * with its free lists. */
#include "core/parts.h"

#include <stdlib.h>
#include <string.h>

enum { CLASS_BYTES = 64, CLASS_COUNT = 32, CACHED_BYTES = CLASS_BYTES * CLASS_COUNT };

typedef struct free_block {
    struct free_block *next;
} free_block;

struct mn_host_cache {
    free_block *free[CLASS_COUNT]; /* entry i: blocks of (i + 1) * CLASS_BYTES */
    size_t live;
};

bool mn_size_mul(size_t a, size_t b, size_t *result)
{
    return !__builtin_mul_overflow(a, b, result);
}

bool mn_size_add(size_t a, size_t b, size_t *result)
{
    return !__builtin_add_overflow(a, b, result);
}

static void *default_alloc(void *user, size_t size, size_t alignment)
{
    void *memory = NULL;
    (void)user;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    return posix_memalign(&memory, alignment, size) == 0 ? memory : NULL;
}

static void default_free(void *user, void *memory, size_t size)
{
    (void)user;
    (void)size;
    free(memory);
}

mn_allocator mn_allocator_or_default(const mn_allocator *allocator)
{
    if (allocator && (allocator->alloc || allocator->free))
        return *allocator;
    return (mn_allocator){default_alloc, default_free, NULL};
}

bool mn_host_cache_create(mn_context *context)
{
    const mn_allocator *allocator = &context->allocator;
    struct mn_host_cache *cache = allocator->alloc(allocator->user, sizeof *cache, CLASS_BYTES);
    if (!cache) {
        mn_fail(context, MN_ERR_MEMORY, "no memory for a context");
        return false;
    }
    memset(cache, 0, sizeof *cache);
    context->host_cache = cache;
    return true;
}

void mn_host_cache_trim(mn_context *context)
{
    const mn_allocator *allocator = &context->allocator;
    for (size_t i = 0; i < CLASS_COUNT; i++) {
        while (context->host_cache->free[i]) {
            free_block *block = context->host_cache->free[i];
            context->host_cache->free[i] = block->next;
            allocator->free(allocator->user, block, (i + 1) * CLASS_BYTES);
        }
    }
}

void mn_host_cache_destroy(mn_context *context)
{
    if (!context->host_cache)
        return;
    mn_host_cache_trim(context);
    context->allocator.free(context->allocator.user, context->host_cache,
                            sizeof *context->host_cache);
    context->host_cache = NULL;
}

size_t mn_host_cache_live(const mn_context *context)
{
    return context->host_cache ? context->host_cache->live : 0;
}

/* The allocator's memory; when there is none, what is cached is given back first. */
static void *ask_allocator(mn_context *context, size_t bytes)
{
    const mn_allocator *allocator = &context->allocator;
    void *memory = allocator->alloc(allocator->user, bytes, CLASS_BYTES);
    if (memory)
        return memory;
    mn_host_cache_trim(context);
    mn_pool_flush(context);
    return allocator->alloc(allocator->user, bytes, CLASS_BYTES);
}

/* Bytes really asked for: whole classes for cached sizes. */
static size_t block_bytes(size_t bytes)
{
    if (bytes == 0)
        return CLASS_BYTES;
    if (bytes > CACHED_BYTES)
        return bytes;
    return (bytes + CLASS_BYTES - 1) / CLASS_BYTES * CLASS_BYTES;
}

void *mn_host_alloc(mn_context *context, size_t bytes)
{
    struct mn_host_cache *cache = context->host_cache;
    size_t size = block_bytes(bytes);
    void *memory = NULL;
    if (size <= CACHED_BYTES && cache->free[size / CLASS_BYTES - 1]) {
        free_block *block = cache->free[size / CLASS_BYTES - 1];
        cache->free[size / CLASS_BYTES - 1] = block->next;
        memory = block;
    } else {
        memory = ask_allocator(context, size);
    }
    if (!memory) {
        mn_fail(context, MN_ERR_MEMORY, "no host memory for %zu bytes", bytes);
        return NULL;
    }
    cache->live++;
    return memory;
}

void *mn_host_calloc(mn_context *context, size_t count, size_t bytes)
{
    size_t total;
    if (!mn_size_mul(count, bytes, &total)) {
        mn_fail(context, MN_ERR_MEMORY, "no host memory for %zu times %zu bytes", count, bytes);
        return NULL;
    }
    void *memory = mn_host_alloc(context, total);
    if (memory)
        memset(memory, 0, total);
    return memory;
}

void mn_host_free(mn_context *context, void *memory, size_t bytes)
{
    if (!memory)
        return;
    struct mn_host_cache *cache = context->host_cache;
    size_t size = block_bytes(bytes);
    if (size <= CACHED_BYTES) {
        free_block *block = memory;
        block->next = cache->free[size / CLASS_BYTES - 1];
        cache->free[size / CLASS_BYTES - 1] = block;
    } else {
        context->allocator.free(context->allocator.user, memory, size);
    }
    cache->live--;
    if (context->closed && cache->live == 0)
        mn_context_destroy(context);
}

char *mn_host_strdup(mn_context *context, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = mn_host_alloc(context, bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void mn_host_strfree(mn_context *context, char *text)
{
    if (text)
        mn_host_free(context, text, strlen(text) + 1);
}
