/* tests/support_counting.c: see the header. */
#include "tests/support_counting.h"

#include <check.h>

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

void mn_test_exhaust(void (*run)(mn_context *context))
{
    bool succeeded = false;
    for (long k = 1; k < 2000 && !succeeded; k++) {
        mn_test_counter counter = {.fail_at = 0};
        mn_context_options options = mn_context_options_default();
        options.threads = 1;
        options.allocator = mn_test_counting(&counter);
        mn_context *ctx = mn_context_create(&options, NULL);
        counter.fail_at = counter.calls + k;
        run(ctx);
        succeeded = counter.calls < counter.fail_at;
        ck_assert_msg(mn_error_status(ctx) == MN_OK || mn_error_status(ctx) == MN_ERR_MEMORY,
                      "%ld: %s", k, mn_error_message(ctx));
        mn_error_clear(ctx);
        counter.fail_at = 0;
        run(ctx);
        ck_assert_int_eq(mn_error_status(ctx), MN_OK);
        mn_context_free(ctx);
        ck_assert_int_eq(counter.blocks, 0);
    }
    ck_assert(succeeded);
}
