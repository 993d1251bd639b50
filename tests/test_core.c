/* Errors, options and memory of contexts. */
#include "core/core.h"
#include "support_counting.h"
#include "tests/support_suite.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static const int64_t shape23[] = {2, 3};

/* ---- errors ---------------------------------------------------------------------------------- */

START_TEST(first_error_sticks)
{
    mn_context *context = mn_test_open();
    ck_assert_str_eq(mn_error_message(context), "");
    ck_assert_int_eq(mn_fail(context, MN_ERR_SHAPE, "first %d", 1), MN_ERR_SHAPE);
    ck_assert_int_eq(mn_fail(context, MN_ERR_IO, "second"), MN_ERR_SHAPE);
    ck_assert_str_eq(mn_error_message(context), "first 1");
    mn_error_clear(context);
    ck_assert_int_eq(mn_error_status(context), MN_OK);
    ck_assert_str_eq(mn_error_message(context), "");
    mn_context_free(context);
}
END_TEST

START_TEST(pending_error_stops_verbs)
{
    mn_context *context = mn_test_open();
    mn_tensor *tensor = mn_full(context, MN_F32, 2, shape23, 4);
    double values[6] = {0};
    uint64_t version = mn_tensor_version(tensor);
    mn_fail(context, MN_ERR_IO, "stuck");
    ck_assert_int_eq(mn_tensor_fill(tensor, 5), MN_ERR_IO);
    ck_assert_int_eq(mn_tensor_write_f64(tensor, values, 6), MN_ERR_IO);
    ck_assert_int_eq(mn_tensor_read_f64(tensor, values, 6), MN_ERR_IO);
    ck_assert_int_eq(mn_tensor_mark_dirty(tensor), MN_ERR_IO);
    ck_assert_int_eq(mn_synchronize(context), MN_ERR_IO);
    ck_assert_int_eq(mn_seed(context, 9), MN_ERR_IO);
    ck_assert_ptr_null(mn_tensor_data(tensor));
    ck_assert_ptr_null(mn_full(context, MN_F32, 0, NULL, 0));
    ck_assert_ptr_null(mn_parameter_create(context, "w", MN_F32, 0, NULL, MN_LAYOUT_PLAIN));
    ck_assert_uint_eq(context->seed, 1);
    ck_assert_uint_eq(mn_tensor_version(tensor), version);
    ck_assert(values[0] == 0);
    mn_error_clear(context);
    ck_assert_int_eq(mn_tensor_read_f64(tensor, values, 6), MN_OK);
    ck_assert(values[5] == 4);
    mn_context_free(context);
}
END_TEST

START_TEST(messages_are_one_line_with_path)
{
    mn_context *context = mn_test_open();
    mn_name_push(context, "layer1");
    mn_name_push(context, "conv\n2");
    mn_fail(context, MN_ERR_SHAPE, "bad\tname");
    ck_assert_str_eq(mn_error_message(context), "layer1.conv?2: bad?name");
    mn_error_clear(context);
    char text[3000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    mn_fail(context, MN_ERR_SHAPE, "%s", text);
    ck_assert_uint_eq(strlen(mn_error_message(context)), sizeof context->error.message - 1);
    mn_context_free(context);
}
END_TEST

START_TEST(infer_errors_list_inputs)
{
    mn_context *context = mn_test_open();
    mn_op op = {.size = sizeof op, .name = "add"};
    mn_infer infer = {.context = context, .op = &op, .input_count = 2};
    infer.in[0] = (mn_view){.present = true, .dtype = MN_F32, .ndim = 2, .shape = {2, 3}};
    ck_assert_int_eq(mn_infer_error(&infer, MN_ERR_SHAPE, "no %s", "fit"), MN_ERR_SHAPE);
    ck_assert_str_eq(mn_error_message(context), "add: no fit (a [2,3] f32, b none)");
    mn_context_free(context);
}
END_TEST

START_TEST(faults_become_errors)
{
    mn_context *context = mn_test_open();
    mn_op op = {.size = sizeof op, .name = "cross_entropy"};
    mn_call call = {.op = &op, .cpu = &context->cpu, .fault = context->device->fault};
    mn_call_fault(&call, MN_ERR_ARGUMENT, "label %lld of %lld at %s %lld", 12, 10);
    mn_call_fault(&call, MN_ERR_IO, "later", 0, 0);
    ck_assert_int_eq(mn_check_fault(context), MN_ERR_ARGUMENT);
    ck_assert_str_eq(mn_error_message(context), "cross_entropy: label 12 of 10 at %s %lld");
    mn_error_clear(context);
    ck_assert_int_eq(mn_check_fault(context), MN_OK);
    ck_assert_int_eq(mn_call_threads(&call), context->cpu.threads);
    mn_context_free(context);
}
END_TEST

START_TEST(status_names)
{
    ck_assert_str_eq(mn_status_name(MN_OK), "ok");
    ck_assert_str_eq(mn_status_name(MN_ERR_SHAPE), "shape");
    ck_assert_str_eq(mn_status_name(MN_ERR_INTERNAL), "internal");
    ck_assert_str_eq(mn_status_name((mn_status)16), "unknown");
    ck_assert_str_eq(mn_status_name((mn_status)-1), "unknown");
    ck_assert_str_eq(mn_version(), "0.1.0");
    ck_assert_int_eq(mn_error_status(NULL), MN_ERR_ARGUMENT);
}
END_TEST

/* ---- options --------------------------------------------------------------------------------- */

static void expect_refused(const mn_context_options *options, mn_status status, const char *part)
{
    mn_error error;
    memset(&error, 0x5a, sizeof error);
    ck_assert_ptr_null(mn_context_create(options, &error));
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.message, part) != NULL, "\"%s\" lacks \"%s\"", error.message, part);
    ck_assert_ptr_null(mn_context_create(options, NULL));
}

START_TEST(wrong_options_are_refused)
{
    mn_context_options options = mn_context_options_default();
    options.device = "gpu";
    expect_refused(&options, MN_ERR_ARGUMENT, "known: cpu, cpu-deferred");
    options = mn_context_options_default();
    options.threads = -1;
    expect_refused(&options, MN_ERR_ARGUMENT, "-1 threads");
    options = mn_context_options_default();
    options.kernels = (mn_kernel_set)77;
    expect_refused(&options, MN_ERR_ARGUMENT, "77");
    options = mn_context_options_default();
    options.size += 8;
    expect_refused(&options, MN_ERR_ARGUMENT, "size");
    options = mn_context_options_default();
    options.size = 0;
    expect_refused(&options, MN_ERR_ARGUMENT, "size");
    mn_test_counter counter = {0};
    options = mn_context_options_default();
    options.allocator = mn_test_counting(&counter);
    options.allocator.free = NULL;
    expect_refused(&options, MN_ERR_ARGUMENT, "alloc");
}
END_TEST

START_TEST(shorter_options_get_defaults)
{
    mn_context_options options = mn_context_options_default();
    options.size = offsetof(mn_context_options, memory_limit);
    options.threads = 1;
    options.memory_limit = 1;
    options.seed = 99;
    mn_context *context = mn_context_create(&options, NULL);
    ck_assert_ptr_nonnull(context);
    ck_assert_uint_eq(context->seed, 1);
    ck_assert_int_eq(context->cpu.threads, 1);
    ck_assert_ptr_nonnull(mn_full(context, MN_F32, 2, shape23, 1));
    mn_context_free(context);
}
END_TEST

START_TEST(info_tells_what_runs)
{
    mn_context_options options = mn_context_options_default();
    options.threads = 2;
    options.kernels = MN_KERNELS_PORTABLE;
    mn_context *context = mn_context_create(&options, NULL);
    mn_context_info info = mn_context_info_get(context);
    ck_assert_str_eq(info.device, "cpu");
    ck_assert_str_eq(info.kernels, "portable");
    ck_assert_int_eq(info.threads, 2);
    ck_assert_ptr_nonnull(info.cpu);
    ck_assert(strlen(info.compiler) > 0);
    mn_context_free(context);
    mn_context_free(NULL);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* An allocator that fails at one call or from it on, and checks sizes. */
typedef struct hook {
    long calls, fail_from, fail_count;
    long blocks;
    size_t bytes;
} hook;

static void *hook_alloc(void *user, size_t size, size_t alignment)
{
    hook *state = user;
    long call = ++state->calls;
    if (state->fail_from && call >= state->fail_from && call < state->fail_from + state->fail_count)
        return NULL;
    void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    if (memory) {
        memset(memory, 0xa5, size);
        state->blocks++;
        state->bytes += size;
    }
    return memory;
}

static void hook_free(void *user, void *memory, size_t size)
{
    hook *state = user;
    state->blocks--;
    state->bytes -= size;
    free(memory);
}

static mn_context *open_hooked(hook *state, const char *device, uint64_t limit)
{
    mn_context_options options = mn_context_options_default();
    options.device = device;
    options.threads = 2;
    options.memory_limit = limit;
    options.allocator = (mn_allocator){hook_alloc, hook_free, state};
    mn_error error = {.status = MN_OK};
    mn_context *context = mn_context_create(&options, &error);
    ck_assert(context || error.status == MN_ERR_MEMORY);
    return context;
}

/* Uses everything once; stops at the first failure, as callers may. */
static mn_status use_everything(mn_context *context)
{
    const int64_t shape[] = {40, 50};
    double values[6] = {1, 2, 3, 4, 5, 6};
    mn_scope outer = mn_scope_begin(context);
    mn_scope inner = mn_scope_begin(context);
    mn_name_push(context, "layer");
    mn_tensor *kept = mn_scope_keep(mn_full(context, MN_F32, 2, shape, 2));
    mn_tensor *small = mn_tensor_from(context, MN_F64, 2, shape23, values);
    mn_tensor *half = mn_tensor_create(context, MN_F16, 2, shape23);
    mn_tensor *parameter =
        mn_parameter_create(context, "weight", MN_F32, 2, shape23, MN_LAYOUT_PLAIN);
    mn_tensor_write_f64(half, values, 6);
    mn_tensor_read_f64(half, values, 6);
    mn_tensor_read_f64(small, values, 6);
    mn_name_pop(context);
    mn_scope_end(context, inner);
    mn_status status = mn_tensor_fill(kept, 3);
    if (status == MN_OK)
        status = mn_synchronize(context);
    mn_scope_end(context, outer);
    mn_release(parameter);
    return status;
}

/* Lets allocation N fail, for every N, once or for good. True if the whole run succeeded. */
static bool run_failing(const char *device, long fail_from, long fail_count)
{
    hook state = {.fail_from = fail_from, .fail_count = fail_count};
    mn_context *context = open_hooked(&state, device, 0);
    bool done = false;
    if (context) {
        done = use_everything(context) == MN_OK && mn_ok(context);
        if (!done && !mn_ok(context))
            ck_assert_int_eq(mn_error_status(context), MN_ERR_MEMORY);
        ck_assert(done || !mn_ok(context));
        mn_error_clear(context);
        state.fail_from = 0;
        ck_assert_int_eq(use_everything(context), MN_OK);
        ck_assert_uint_eq(mn_memory_stats_get(context).live_bytes, 0);
    }
    mn_context_free(context);
    ck_assert_int_eq(state.blocks, 0);
    ck_assert_uint_eq(state.bytes, 0);
    return done && state.calls < fail_from;
}

START_TEST(every_allocation_may_fail)
{
    static const char *const device[] = {"cpu", "cpu-deferred"};
    for (int i = 0; i < 2; i++) {
        long once = 1;
        while (!run_failing(device[i], once, 1))
            ck_assert_int_lt(once++, 500);
        long always = 1;
        while (!run_failing(device[i], always, 1000000))
            ck_assert_int_lt(always++, 500);
        ck_assert_int_gt(always, 15);
    }
}
END_TEST

START_TEST(steady_state_asks_for_nothing)
{
    static const char *const device[] = {"cpu", "cpu-deferred"};
    for (int i = 0; i < 2; i++) {
        hook state = {0};
        mn_context *context = open_hooked(&state, device[i], 0);
        ck_assert_int_eq(use_everything(context), MN_OK);
        long calls = state.calls;
        uint64_t requests = mn_memory_stats_get(context).system_requests;
        for (int k = 0; k < 5; k++)
            ck_assert_int_eq(use_everything(context), MN_OK);
        ck_assert_int_eq(state.calls, calls);
        ck_assert_uint_eq(mn_memory_stats_get(context).system_requests, requests);
        mn_context_free(context);
    }
}
END_TEST

START_TEST(pool_counts)
{
    mn_context *context = mn_test_open();
    void *a = mn_pool_alloc(context, 1);
    void *b = mn_pool_alloc(context, 5000);
    mn_memory_stats stats = mn_memory_stats_get(context);
    ck_assert_uint_eq(stats.live_bytes, 64 + 5056);
    ck_assert_uint_eq(stats.peak_bytes, 64 + 5056);
    ck_assert_uint_eq(stats.pool_bytes, 64 + (1 << 16));
    ck_assert_uint_eq(stats.system_requests, 2);
    ck_assert_uint_eq((uintptr_t)a % 64 + (uintptr_t)b % 64, 0);
    mn_pool_free(context, b, 5000);
    ck_assert_ptr_eq(mn_pool_alloc(context, 9000), b);
    mn_pool_free(context, b, 9000);
    mn_memory_reset_peak(context);
    ck_assert_uint_eq(mn_memory_stats_get(context).peak_bytes, 64);
    ck_assert_int_eq(mn_memory_trim(context), MN_OK);
    ck_assert_uint_eq(mn_memory_stats_get(context).pool_bytes, 64);
    mn_pool_free(context, a, 1);
    ck_assert_ptr_null(mn_pool_alloc(context, 0));
    ck_assert(mn_ok(context));
    mn_context_free(context);
}
END_TEST

/* Blocks of all sizes, some hundred at once in an order made by chance: none touches another, all
 * is counted, and when the same is done again the device is asked for nothing. */
static void use_pool(mn_context *context, uint64_t seed)
{
    enum { BLOCKS = 256, TURNS = 4000 };
    static unsigned char *memory[BLOCKS];
    static size_t bytes[BLOCKS];
    for (int i = 0; i < TURNS + BLOCKS; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
        const size_t at = i < TURNS ? (seed >> 33) % BLOCKS : (size_t)(i - TURNS);
        const unsigned char mark = (unsigned char)(at + 1);
        if (memory[at]) {
            ck_assert_int_eq(memory[at][0], mark);
            ck_assert_int_eq(memory[at][bytes[at] - 1], mark);
            mn_pool_free(context, memory[at], bytes[at]);
            memory[at] = NULL;
        } else if (i < TURNS) {
            bytes[at] = (size_t)1 << (seed >> 50) % 18;
            bytes[at] += (seed >> 20) % bytes[at];
            memory[at] = mn_pool_alloc(context, bytes[at]);
            ck_assert_ptr_nonnull(memory[at]);
            ck_assert_uint_eq((uintptr_t)memory[at] % 64, 0);
            memset(memory[at], mark, bytes[at]);
        }
    }
}

START_TEST(pool_shares_memory)
{
    hook state = {0};
    mn_context *context = open_hooked(&state, "cpu", 0);
    for (uint64_t seed = 1; seed < 20; seed++) {
        use_pool(context, seed);
        const mn_memory_stats stats = mn_memory_stats_get(context);
        ck_assert_uint_eq(stats.live_bytes, 0);
        ck_assert_uint_lt(stats.pool_bytes, 2 * stats.peak_bytes);
        use_pool(context, seed);
        ck_assert_uint_eq(mn_memory_stats_get(context).system_requests, stats.system_requests);
    }
    mn_memory_trim(context);
    ck_assert_uint_eq(mn_memory_stats_get(context).pool_bytes, 0);
    mn_context_free(context);
    ck_assert_uint_eq(state.bytes, 0);
}
END_TEST

/* A slab with a block in use stays, with its free parts; others go. */
START_TEST(pool_trim_keeps_slabs_in_use)
{
    mn_context *context = mn_test_open();
    char *a = mn_pool_alloc(context, 40000), *b = mn_pool_alloc(context, 20000);
    char *c = mn_pool_alloc(context, 100000);
    ck_assert_ptr_eq(b, a + 40000);
    mn_pool_free(context, a, 40000);
    mn_pool_free(context, c, 100000);
    mn_memory_trim(context);
    ck_assert_uint_eq(mn_memory_stats_get(context).pool_bytes, 1 << 16);
    ck_assert_ptr_eq(mn_pool_alloc(context, 40000), a);
    mn_pool_free(context, b, 20000);
    mn_pool_free(context, a, 40000);
    ck_assert_ptr_eq(mn_pool_alloc(context, 1 << 16), a);
    mn_pool_free(context, a, 1 << 16);
    mn_context_free(context);
}
END_TEST

START_TEST(pool_limit_and_flush)
{
    hook state = {0};
    mn_context *context = open_hooked(&state, "cpu", 1000000);
    void *a = mn_pool_alloc(context, 600000);
    ck_assert_ptr_null(mn_pool_alloc(context, 500000));
    mn_test_expect(context, MN_ERR_MEMORY, "limit is 1000000");
    mn_pool_free(context, a, 600000);
    ck_assert_ptr_null(mn_pool_alloc(context, SIZE_MAX - 10));
    mn_test_expect(context, MN_ERR_MEMORY, "limit");
    /* The first try fails; what is cached is given back, and the second succeeds. */
    uint64_t requests = mn_memory_stats_get(context).system_requests;
    state.fail_from = state.calls + 1;
    state.fail_count = 1;
    void *b = mn_pool_alloc(context, 900000);
    ck_assert_ptr_nonnull(b);
    ck_assert_uint_eq(mn_memory_stats_get(context).system_requests, requests + 2);
    ck_assert_uint_eq(mn_memory_stats_get(context).pool_bytes, 900032);
    mn_pool_free(context, b, 900000);
    mn_context_free(context);
    context = mn_test_open();
    ck_assert_ptr_null(mn_pool_alloc(context, SIZE_MAX - 10));
    mn_test_expect(context, MN_ERR_MEMORY, "device cpu");
    mn_context_free(context);
}
END_TEST

START_TEST(host_memory)
{
    mn_context *context = mn_test_open();
    size_t result;
    ck_assert(!mn_size_mul(SIZE_MAX / 2, 3, &result));
    ck_assert(!mn_size_add(SIZE_MAX, 1, &result));
    ck_assert(mn_size_mul(3, 5, &result) && result == 15);
    ck_assert_ptr_null(mn_host_calloc(context, SIZE_MAX / 4, 8));
    mn_test_expect(context, MN_ERR_MEMORY, "8 bytes");
    char *text = mn_host_strdup(context, "hello");
    ck_assert_str_eq(text, "hello");
    mn_host_strfree(context, text);
    void *again = mn_host_alloc(context, 64);
    ck_assert_ptr_eq(again, text);
    mn_host_free(context, again, 64);
    mn_host_free(context, NULL, 8);
    mn_host_strfree(context, NULL);
    void *large = mn_host_alloc(context, 2049);
    ck_assert_uint_eq((uintptr_t)large % 64, 0);
    mn_host_free(context, large, 2049);
    mn_context_free(context);
}
END_TEST

/* ---- suite ----------------------------------------------------------------------------------- */

static void add_cases(Suite *suite)
{
    TCase *tcase = tcase_create("errors, options, memory");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, first_error_sticks);
    tcase_add_test(tcase, pending_error_stops_verbs);
    tcase_add_test(tcase, messages_are_one_line_with_path);
    tcase_add_test(tcase, infer_errors_list_inputs);
    tcase_add_test(tcase, faults_become_errors);
    tcase_add_test(tcase, status_names);
    tcase_add_test(tcase, wrong_options_are_refused);
    tcase_add_test(tcase, shorter_options_get_defaults);
    tcase_add_test(tcase, info_tells_what_runs);
    tcase_add_test(tcase, every_allocation_may_fail);
    tcase_add_test(tcase, steady_state_asks_for_nothing);
    tcase_add_test(tcase, pool_counts);
    tcase_add_test(tcase, pool_shares_memory);
    tcase_add_test(tcase, pool_trim_keeps_slabs_in_use);
    tcase_add_test(tcase, pool_limit_and_flush);
    tcase_add_test(tcase, host_memory);
    suite_add_tcase(suite, tcase);
}

int main(void)
{
    Suite *suite = suite_create("core");
    add_cases(suite);
    return mn_test_run(suite, CK_FORK_GETENV);
}
