/* core/host_memory.c: checked size arithmetic, the default allocator, and a context's host memory
 * with its free lists. */
#include "core/parts.h"

#include <stdlib.h>
#include <string.h>

enum { CLASS_BYTES = 64, CACHED_BYTES = CLASS_BYTES * MN_HOST_CLASSES };

typedef struct mn_free_block {
    struct mn_free_block *next;
} free_block;

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
    if (posix_memalign(&memory, alignment, size) != 0)
        return NULL;
    mn_prefer_huge_pages(memory, size);
    return memory;
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

mn_status mn_allocator_read(const mn_allocator *allocator, mn_allocator *out, mn_error *error)
{
    if (allocator && !allocator->alloc != !allocator->free)
        return mn_error_fill(error, MN_ERR_ARGUMENT,
                             "allocator: set both alloc and free, or neither");
    *out = mn_allocator_or_default(allocator);
    return MN_OK;
}

bool mn_allocator_grow(const mn_allocator *allocator, void **memory, size_t *capacity, size_t used,
                       size_t wanted)
{
    size_t larger = *capacity;
    while (larger < wanted)
        larger = larger > SIZE_MAX / 2 ? wanted : larger > 0 ? 2 * larger : CLASS_BYTES;
    if (larger == *capacity)
        return true;
    void *copy = allocator->alloc(allocator->user, larger, CLASS_BYTES);
    if (!copy)
        return false;
    if (*memory) {
        memcpy(copy, *memory, used);
        allocator->free(allocator->user, *memory, *capacity);
    }
    *memory = copy;
    *capacity = larger;
    return true;
}

uint64_t mn_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

void mn_host_trim(mn_context *context)
{
    const mn_allocator *allocator = &context->allocator;
    for (size_t i = 0; i < MN_HOST_CLASSES; i++) {
        while (context->host_free[i]) {
            free_block *block = context->host_free[i];
            context->host_free[i] = block->next;
            allocator->free(allocator->user, block, (i + 1) * CLASS_BYTES);
        }
    }
}

/* The allocator's memory; when there is none, what is cached is given back first. */
static void *ask_allocator(mn_context *context, size_t bytes)
{
    const mn_allocator *allocator = &context->allocator;
    void *memory = allocator->alloc(allocator->user, bytes, CLASS_BYTES);
    if (memory)
        return memory;
    mn_host_trim(context);
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
    size_t size = block_bytes(bytes);
    free_block **list = size <= CACHED_BYTES ? &context->host_free[size / CLASS_BYTES - 1] : NULL;
    free_block *memory = list ? *list : NULL;
    if (memory)
        *list = memory->next;
    else
        memory = ask_allocator(context, size);
    if (!memory) {
        mn_fail(context, MN_ERR_MEMORY, "no host memory for %zu bytes", bytes);
        return NULL;
    }
    context->host_live++;
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
    size_t size = block_bytes(bytes);
    if (size <= CACHED_BYTES) {
        free_block **list = &context->host_free[size / CLASS_BYTES - 1];
        *(free_block *)memory = (free_block){*list};
        *list = memory;
    } else {
        context->allocator.free(context->allocator.user, memory, size);
    }
    if (--context->host_live == 0 && context->closed)
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
