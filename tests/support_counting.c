/* tests/support_counting.c: see the header. */
#include "tests/support_counting.h"

#include <stdlib.h>

/* More than any test needs. Sanitizers end a program that asks for absurdly much. */
#define LARGEST ((size_t)1 << 30)

static void *counted_alloc(void *user, size_t size, size_t alignment)
{
    mn_test_counter *counter = user;
    void *memory;
    long call = ++counter->calls;
    bool late = counter->for_good && counter->fail_at > 0 && call > counter->fail_at;
    if (call == counter->fail_at || late || size > LARGEST)
        return NULL;
    if (posix_memalign(&memory, alignment, size) != 0)
        return NULL;
    counter->blocks++;
    counter->bytes += size;
    return memory;
}

static void counted_free(void *user, void *memory, size_t size)
{
    mn_test_counter *counter = user;
    counter->blocks--;
    counter->bytes -= size;
    free(memory);
}

mn_allocator mn_test_counting(mn_test_counter *counter)
{
    return (mn_allocator){.alloc = counted_alloc, .free = counted_free, .user = counter};
}
