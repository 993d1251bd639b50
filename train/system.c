/* train/system.c: the clock, the process's memory, and arrays and strings outside of a context. */
#include "train/train.h"

#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { ALIGNMENT = 16, FIRST_CAPACITY = 64 };

double mn_clock_seconds(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        return 0.0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t mn_peak_rss(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0 || usage.ru_maxrss < 0)
        return 0;
#if defined(__APPLE__)
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024;
#endif
}

bool mn_list_append(mn_list *list, const void *item)
{
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? list->capacity * 2 : FIRST_CAPACITY;
        size_t bytes;
        if (list->capacity > INT64_MAX / 4 ||
            !mn_size_mul((size_t)capacity, list->item_bytes, &bytes))
            return false;
        void *items = list->allocator.alloc(list->allocator.user, bytes, ALIGNMENT);
        if (!items)
            return false;
        int64_t count = list->count;
        if (count > 0)
            memcpy(items, list->items, (size_t)count * list->item_bytes);
        mn_list_free(list);
        list->items = items;
        list->count = count;
        list->capacity = capacity;
    }
    memcpy((char *)list->items + (size_t)list->count * list->item_bytes, item, list->item_bytes);
    list->count++;
    return true;
}

void mn_list_free(mn_list *list)
{
    if (list->items)
        list->allocator.free(list->allocator.user, list->items,
                             (size_t)list->capacity * list->item_bytes);
    list->items = NULL;
    list->count = list->capacity = 0;
}

char *mn_text_copy(const mn_allocator *allocator, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = allocator->alloc(allocator->user, bytes, ALIGNMENT);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

void mn_text_free(const mn_allocator *allocator, char *text)
{
    if (text)
        allocator->free(allocator->user, text, strlen(text) + 1);
}
