/* datasets/memory.c: memory through the caller's allocator, checked sizes, and error text. */
#include "datasets/internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A cache line, and enough for the widest vector loads. */
#define ALIGNMENT      64
#define SHOWN_PATH_MAX 300

mn_status mn_data_fail(mn_error *error, mn_status status, const char *format, ...)
{
    if (!error)
        return status;
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(error->message, sizeof error->message, format, arguments);
    va_end(arguments);
    if (length < 0)
        error->message[0] = '\0';
    /* Names come from outside; the message stays one line whatever they hold. */
    for (char *c = error->message; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    }
    error->status = status;
    return status;
}

const char *mn_data_shown(const char *path)
{
    size_t length = strlen(path);
    return length > SHOWN_PATH_MAX ? path + (length - SHOWN_PATH_MAX) : path;
}

bool mn_data_multiply(uint64_t a, uint64_t b, uint64_t *product)
{
    if (b != 0 && a > UINT64_MAX / b)
        return false;
    *product = a * b;
    return true;
}

static void *default_alloc(void *user, size_t size, size_t alignment)
{
    (void)user;
    void *memory = NULL;
    return posix_memalign(&memory, alignment, size) == 0 ? memory : NULL;
}

static void default_free(void *user, void *memory, size_t size)
{
    (void)user;
    (void)size;
    free(memory);
}

mn_status mn_data_allocator(const mn_allocator *allocator, mn_allocator *out, mn_error *error)
{
    if (allocator && (allocator->alloc == NULL) != (allocator->free == NULL))
        return mn_data_fail(error, MN_ERR_ARGUMENT,
                            "allocator: set both alloc and free, or neither");
    if (allocator && allocator->alloc)
        *out = *allocator;
    else
        *out = (mn_allocator){.alloc = default_alloc, .free = default_free};
    return MN_OK;
}

mn_status mn_data_alloc(const mn_allocator *allocator, mn_data_buffer *buffer, uint64_t count,
                        size_t size, mn_error *error)
{
    uint64_t bytes;
    *buffer = (mn_data_buffer){0};
    if (!mn_data_multiply(count, size, &bytes) || bytes > PTRDIFF_MAX)
        return mn_data_fail(error, MN_ERR_MEMORY, "data: %llu elements of %zu bytes do not fit",
                            (unsigned long long)count, size);
    void *data = allocator->alloc(allocator->user, (size_t)bytes, ALIGNMENT);
    if (!data)
        return mn_data_fail(error, MN_ERR_MEMORY, "data: no memory for %llu bytes",
                            (unsigned long long)bytes);
    *buffer = (mn_data_buffer){.data = data, .size = (size_t)bytes};
    return MN_OK;
}

void mn_data_free(const mn_allocator *allocator, mn_data_buffer *buffer)
{
    if (buffer->data)
        allocator->free(allocator->user, buffer->data, buffer->size);
    *buffer = (mn_data_buffer){0};
}
