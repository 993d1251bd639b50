/* The deferred device: work waits for the host, its memory is out of the host's reach. */
#include "core/core.h"
#include "tests/support_suite.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int64_t shape4[] = {4};

static mn_context *open_context(void)
{
    mn_error error;
    mn_context_options options = mn_context_options_default();
    options.device = "cpu-deferred";
    options.threads = 1;
    mn_context *context = mn_context_create(&options, &error);
    ck_assert_msg(context != NULL, "%s", error.message);
    return context;
}

typedef struct log_record {
    int *log;
    int *count;
    int value;
} log_record;

static void append_to_log(const void *record)
{
    const log_record *entry = record;
    entry->log[(*entry->count)++] = entry->value;
}

START_TEST(work_runs_at_sync_in_order)
{
    mn_context *context = open_context();
    int log[300];
    int count = 0;
    for (int i = 0; i < 300; i++) {
        log_record record = {log, &count, i};
        ck_assert_int_eq(
            context->device->enqueue(context->device, append_to_log, &record, sizeof record),
            MN_OK);
        record.value = -1; /* the device has its own copy */
    }
    ck_assert_int_eq(count, 0);
    ck_assert_int_eq(mn_synchronize(context), MN_OK);
    ck_assert_int_eq(count, 300);
    for (int i = 0; i < 300; i++)
        ck_assert_int_eq(log[i], i);
    ck_assert_int_eq(mn_synchronize(context), MN_OK);
    ck_assert_int_eq(count, 300);
    mn_context_free(context);
}
END_TEST

START_TEST(closing_runs_what_is_queued)
{
    mn_context *context = open_context();
    int log[1];
    int count = 0;
    log_record record = {log, &count, 5};
    context->device->enqueue(context->device, append_to_log, &record, sizeof record);
    mn_context_free(context);
    ck_assert_int_eq(count, 1);
}
END_TEST

START_TEST(writes_fills_and_reads_keep_order)
{
    mn_context *context = open_context();
    double values[4] = {1, 2, 3, 4};
    double back[4];
    mn_tensor *tensor = mn_tensor_from(context, MN_F64, 1, shape4, values);
    values[2] = 30; /* the buffer is the caller's again */
    mn_tensor *later = mn_tensor_from(context, MN_F64, 1, shape4, values);
    ck_assert_int_eq(mn_tensor_read_f64(tensor, back, 4), MN_OK);
    ck_assert(back[2] == 3);
    ck_assert_int_eq(mn_tensor_fill(later, 7), MN_OK);
    ck_assert_int_eq(mn_tensor_write_f64(later, values, 4), MN_OK);
    ck_assert_int_eq(mn_tensor_read_f64(later, back, 4), MN_OK);
    ck_assert(back[2] == 30);
    mn_context_free(context);
}
END_TEST

START_TEST(waits_are_counted)
{
    mn_context *context = open_context();
    double back[4];
    uint64_t before = context->device->synchronizations;
    mn_tensor *tensor = mn_full(context, MN_F32, 1, shape4, 1);
    mn_tensor_fill(tensor, 2);
    ck_assert_uint_eq(context->device->synchronizations, before);
    mn_tensor_read_f64(tensor, back, 4);
    ck_assert_uint_eq(context->device->synchronizations, before + 1);
    mn_synchronize(context);
    ck_assert_uint_eq(context->device->synchronizations, before + 2);
    mn_context_free(context);
}
END_TEST

START_TEST(host_pointers_are_refused)
{
    mn_context *context = open_context();
    mn_tensor *tensor = mn_full(context, MN_F32, 1, shape4, 1);
    uint64_t version = mn_tensor_version(tensor);
    ck_assert_ptr_null(mn_tensor_data(tensor));
    ck_assert_int_eq(mn_error_status(context), MN_ERR_DEVICE);
    mn_error_clear(context);
    ck_assert_ptr_null(mn_tensor_data_mut(tensor));
    ck_assert_int_eq(mn_error_status(context), MN_ERR_DEVICE);
    ck_assert_uint_eq(mn_tensor_version(tensor), version);
    mn_context_free(context);
}
END_TEST

/* True if reading the byte kills a child process by a memory fault. */
static bool reading_faults(const volatile unsigned char *address)
{
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would report it otherwise */
        signal(SIGBUS, SIG_DFL);
        _exit(*address ? 1 : 0);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
}

START_TEST(host_access_faults)
{
    mn_context *context = open_context();
    const int64_t sizes[] = {1, 100, 100000};
    double value;
    unsigned char plain = 0;
    ck_assert(!reading_faults(&plain));
    for (int i = 0; i < 3; i++) {
        mn_tensor *tensor = mn_full(context, MN_F32, 1, &sizes[i], 3);
        unsigned char *address = mn_tensor_address(tensor);
        ck_assert(reading_faults(address));
        ck_assert(reading_faults(address + mn_tensor_bytes(tensor) - 1));
        ck_assert_int_eq(mn_synchronize(context), MN_OK);
        ck_assert(reading_faults(address));
        mn_tensor *scalar = mn_tensor_view(tensor->storage, 0, MN_F32, 0, NULL);
        ck_assert_int_eq(mn_tensor_item(scalar, &value), MN_OK);
        ck_assert(value == 3);
        ck_assert(reading_faults(address));
    }
    mn_context_free(context);
}
END_TEST

START_TEST(freeing_waits_for_queued_work)
{
    mn_context *context = open_context();
    mn_device *device = context->device;
    unsigned char bytes[5000] = {1};
    for (size_t size = 100; size <= 5000; size += 4900) {
        void *memory = device->alloc(device, size);
        ck_assert_int_eq(device->upload(device, memory, bytes, size), MN_OK);
        device->free(device, memory, size);
        ck_assert_int_eq(device->synchronize(device), MN_OK);
        ck_assert(reading_faults(memory)); /* gone */
    }
    void *memory = device->alloc(device, 64);
    device->upload(device, memory, bytes, 64);
    device->free(device, memory, 64);
    void *again = device->alloc(device, 64);
    bytes[0] = 9;
    device->upload(device, again, bytes, 64);
    unsigned char back[64];
    ck_assert_int_eq(device->download(device, back, again, 64), MN_OK);
    ck_assert_int_eq(back[0], 9);
    device->free(device, again, 64);
    mn_context_free(context);
}
END_TEST

START_TEST(memory_is_aligned_and_disjoint)
{
    mn_context *context = open_context();
    mn_device *device = context->device;
    enum { COUNT = 600 };
    unsigned char *memory[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        size_t size = 1 + i * 3;
        unsigned char bytes[2048];
        memset(bytes, (int)(i % 251), sizeof bytes);
        memory[i] = device->alloc(device, size);
        ck_assert_uint_eq((uintptr_t)memory[i] % 64, 0);
        ck_assert_int_eq(device->upload(device, memory[i], bytes, size), MN_OK);
    }
    for (size_t i = 0; i < COUNT; i++) {
        size_t size = 1 + i * 3;
        unsigned char back[2048];
        ck_assert_int_eq(device->download(device, back, memory[i], size), MN_OK);
        ck_assert(back[0] == i % 251 && back[size - 1] == i % 251);
        device->free(device, memory[i], size);
    }
    mn_context_free(context);
}
END_TEST

/* More scalars than a process may have mappings. */
START_TEST(scalars_share_pages)
{
    mn_context *context = open_context();
    enum { COUNT = 100000 };
    mn_tensor *last = NULL;
    for (int i = 0; i < COUNT; i++)
        last = mn_full(context, MN_F32, 0, NULL, i);
    double value = 0;
    ck_assert_int_eq(mn_tensor_item(last, &value), MN_OK);
    ck_assert(value == COUNT - 1);
    mn_context_free(context);
}
END_TEST

static const mn_op faulty_op = {.size = sizeof(mn_op), .name = "faulty"};

static void record_fault(const void *record)
{
    mn_call_fault(record, MN_ERR_ARGUMENT, "label %lld", 11, 0);
}

START_TEST(faults_show_at_sync)
{
    mn_context *context = open_context();
    mn_call call = {.op = &faulty_op, .cpu = &context->cpu, .fault = context->device->fault};
    context->device->enqueue(context->device, record_fault, &call, sizeof call);
    ck_assert_int_eq(mn_check_fault(context), MN_OK);
    ck_assert_int_eq(mn_synchronize(context), MN_ERR_ARGUMENT);
    ck_assert_str_eq(mn_error_message(context), "faulty: label 11");
    mn_error_clear(context);
    ck_assert_int_eq(mn_synchronize(context), MN_OK);
    mn_context_free(context);
}
END_TEST

START_TEST(pool_trim_runs_the_queue)
{
    mn_context *context = open_context();
    const int64_t many[] = {100000};
    mn_scope scope = mn_scope_begin(context);
    mn_full(context, MN_F32, 1, many, 1);
    mn_scope_end(context, scope);
    ck_assert_int_eq(mn_memory_trim(context), MN_OK);
    ck_assert_uint_eq(mn_memory_stats_get(context).pool_bytes, 0);
    mn_context_free(context);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("deferred");
    TCase *tcase = tcase_create("deferred");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, work_runs_at_sync_in_order);
    tcase_add_test(tcase, closing_runs_what_is_queued);
    tcase_add_test(tcase, writes_fills_and_reads_keep_order);
    tcase_add_test(tcase, waits_are_counted);
    tcase_add_test(tcase, host_pointers_are_refused);
    tcase_add_test(tcase, host_access_faults);
    tcase_add_test(tcase, freeing_waits_for_queued_work);
    tcase_add_test(tcase, memory_is_aligned_and_disjoint);
    tcase_add_test(tcase, scalars_share_pages);
    tcase_add_test(tcase, faults_show_at_sync);
    tcase_add_test(tcase, pool_trim_runs_the_queue);
    suite_add_tcase(suite, tcase);
    return mn_test_run(suite, CK_FORK_GETENV);
}
