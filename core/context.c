/* core/context.c: making and freeing contexts, their options, and what acts on a whole context. */
#include "core/parts.h"

#include <string.h>

enum { MAX_THREADS = 4096 };

typedef struct device_entry {
    const char *name;
    mn_device *(*create)(const mn_allocator *allocator, mn_error *error);
} device_entry;

static const device_entry devices[] = {
    {"cpu", mn_device_cpu_create},
    {"cpu-deferred", mn_device_deferred_create},
};
static const char known_devices[] = "cpu, cpu-deferred";

static const char *const kernel_set_names[] = {
    [MN_KERNELS_AUTO] = "auto",         [MN_KERNELS_REFERENCE] = "reference",
    [MN_KERNELS_PORTABLE] = "portable", [MN_KERNELS_AVX2] = "avx2",
    [MN_KERNELS_AVX512] = "avx512",     [MN_KERNELS_NEON] = "neon",
};

#if defined(__clang__)
static const char compiler[] = "clang " __clang_version__;
#elif defined(__GNUC__)
static const char compiler[] = "gcc " __VERSION__;
#else
static const char compiler[] = "unknown";
#endif

#define TEXT(number)  TEXT_(number)
#define TEXT_(number) #number

const char *mn_version(void)
{
    return TEXT(MN_VERSION_MAJOR) "." TEXT(MN_VERSION_MINOR) "." TEXT(MN_VERSION_PATCH);
}

int mn_version_number(void)
{
    return MN_VERSION_NUMBER;
}

/* ---- options --------------------------------------------------------------------------------- */

mn_status mn_options_copy(mn_error *error, const char *what, void *known, size_t known_size,
                          const void *options)
{
    size_t size;
    if (!options)
        return MN_OK;
    memcpy(&size, options, sizeof size);
    if (size < sizeof size || size > known_size)
        return mn_error_fill(error, MN_ERR_ARGUMENT,
                             "%s: options.size is %zu, this library's is %zu (start from "
                             "%s_options_default)",
                             what, size, known_size, what);
    memcpy(known, options, size);
    memcpy(known, &known_size, sizeof known_size);
    return MN_OK;
}

mn_context_options mn_context_options_default(void)
{
    return (mn_context_options){
        .size = sizeof(mn_context_options),
        .device = "cpu",
        .kernels = MN_KERNELS_AUTO,
        .seed = 1,
        .winograd = true,
        .fusion = true,
    };
}

static const device_entry *find_device(const char *name)
{
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        if (strcmp(devices[i].name, name) == 0)
            return &devices[i];
    }
    return NULL;
}

static mn_status check_kernels(mn_kernel_set set, mn_error *error)
{
    size_t index = (size_t)set;
    if (index >= sizeof kernel_set_names / sizeof *kernel_set_names)
        return mn_error_set(error, MN_ERR_ARGUMENT, "context: there is no kernel set %d", (int)set);
    if (set != MN_KERNELS_AUTO && !mn_cpu_has_kernels(set))
        return mn_error_set(error, MN_ERR_UNSUPPORTED,
                            "context: this processor or this build has no %s kernels (%s are the "
                            "best there are)",
                            kernel_set_names[index], kernel_set_names[mn_cpu_best_kernels()]);
    return MN_OK;
}

/* The options over the defaults, checked and with every choice made. */
static mn_status read_options(mn_context_options *known, const mn_context_options *options,
                              mn_error *error)
{
    *known = mn_context_options_default();
    MN_TRY(mn_options_copy(error, "mn_context", known, sizeof *known, options));
    if (!known->device)
        known->device = devices[0].name;
    if (!find_device(known->device))
        return mn_error_set(error, MN_ERR_ARGUMENT,
                            "context: unknown device \"%.100s\" (known: %s)", known->device,
                            known_devices);
    if (known->threads < 0 || known->threads > MAX_THREADS)
        return mn_error_set(error, MN_ERR_ARGUMENT, "context: %d threads, must be 0 to %d",
                            known->threads, (int)MAX_THREADS);
    MN_TRY(mn_allocator_read(&known->allocator, &known->allocator, error));
    MN_TRY(check_kernels(known->kernels, error));
    if (known->threads == 0)
        known->threads = mn_cpu_available();
    if (known->kernels == MN_KERNELS_AUTO)
        known->kernels = mn_cpu_best_kernels();
    return MN_OK;
}

/* ---- making and freeing ---------------------------------------------------------------------- */

/* Makes all parts; on failure the error is in the context and some parts are missing. */
static bool fill_context(mn_context *context, const mn_context_options *options)
{
    context->seed = options->seed;
    context->warn = options->warn;
    context->warn_user = options->warn_user;
    context->cpu.kernels = options->kernels;
    context->cpu.converters = mn_converters(options->kernels);
    context->cpu.threads = options->threads;
    context->cpu.winograd = options->winograd;
    context->fusion = options->fusion;
    mn_cpu_describe(context->cpu_name, sizeof context->cpu_name, context->cpu_features,
                    sizeof context->cpu_features);
    if (!mn_scope_push(context))
        return false;
    context->device = find_device(options->device)->create(&context->allocator, &context->error);
    if (!context->device)
        return false;
    context->pool.limit = options->memory_limit;
    context->cpu.workers =
        mn_workers_create(&context->allocator, options->threads, options->parallel,
                          options->parallel_user, &context->error);
    return context->cpu.workers != NULL;
}

static mn_context *create_context(const mn_context_options *options, mn_error *error)
{
    mn_context_options known;
    if (read_options(&known, options, error) != MN_OK)
        return NULL;
    mn_context *context = known.allocator.alloc(known.allocator.user, sizeof *context, 64);
    if (!context) {
        mn_error_set(error, MN_ERR_MEMORY, "no memory for a context");
        return NULL;
    }
    memset(context, 0, sizeof *context);
    context->allocator = known.allocator;
    if (!fill_context(context, &known)) {
        *error = context->error;
        mn_context_free(context);
        return NULL;
    }
    return context;
}

mn_context *mn_context_create(const mn_context_options *options, mn_error *error)
{
    /* The caller's error may be uninitialised, so it is only written. */
    mn_error first = {.status = MN_OK};
    mn_context *context = create_context(options, &first);
    if (!context && error)
        *error = first;
    return context;
}

void mn_context_destroy(mn_context *context)
{
    mn_allocator allocator = context->allocator;
    mn_pool_destroy(context);
    if (context->device)
        context->device->destroy(context->device);
    mn_host_trim(context);
    allocator.free(allocator.user, context, sizeof *context);
}

static void destroy_slots(mn_context *context)
{
    for (int i = MN_SLOT_COUNT - 1; i >= 0; i--) {
        mn_slot slot = context->slots[i];
        context->slots[i] = (mn_slot){.state = NULL};
        if (slot.state && slot.destroy)
            slot.destroy(context, slot.state);
    }
    context->cast_hook = NULL;
}

void mn_context_free(mn_context *context)
{
    if (!context || context->closed)
        return;
    if (context->device)
        (void)context->device->synchronize(context->device);
    mn_scopes_destroy(context);
    destroy_slots(context);
    mn_names_restore(context, 0);
    mn_workers_free(context->cpu.workers);
    context->cpu.workers = NULL;
    if (context->host_live == 0) {
        mn_context_destroy(context);
        return;
    }
    mn_error_clear(context);
    mn_fail(context, MN_ERR_STATE, "the context has been freed");
    context->closed = true;
}

/* ---- the whole context ----------------------------------------------------------------------- */

mn_status mn_synchronize(mn_context *context)
{
    MN_TRY(mn_error_status(context));
    mn_status status = context->device->synchronize(context->device);
    if (status != MN_OK)
        return mn_fail(context, status, "synchronize: device %s failed", context->device->name);
    return mn_check_fault(context);
}

mn_status mn_upload(mn_context *context, void *dst, const void *host, size_t bytes)
{
    MN_TRY(mn_error_status(context));
    if (bytes == 0)
        return MN_OK;
    mn_status status = context->device->upload(context->device, dst, host, bytes);
    if (status != MN_OK)
        return mn_fail(context, status, "device %s failed to take %zu bytes", context->device->name,
                       bytes);
    return MN_OK;
}

mn_status mn_download(mn_context *context, void *host, const void *src, size_t bytes)
{
    MN_TRY(mn_error_status(context));
    if (bytes == 0)
        return MN_OK;
    mn_status status = context->device->download(context->device, host, src, bytes);
    if (status != MN_OK)
        return mn_fail(context, status, "device %s failed to give %zu bytes", context->device->name,
                       bytes);
    return mn_check_fault(context);
}

mn_status mn_seed(mn_context *context, uint64_t seed)
{
    MN_TRY(mn_error_status(context));
    context->seed = seed;
    return MN_OK;
}

/* The position fills 64 bits of a stream's counter: 40 of the step, 24 of the micro-step. */
mn_status mn_random_position(mn_context *context, int64_t step, int64_t micro_step)
{
    MN_TRY(mn_error_status(context));
    if (step < 0 || step >> 40 != 0 || micro_step < 0 || micro_step >> 24 != 0)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "random_position: step %lld, micro-step %lld: must be in [0, 2^40) and "
                       "[0, 2^24)",
                       (long long)step, (long long)micro_step);
    context->random_position = (uint64_t)step << 24 | (uint64_t)micro_step;
    context->dropout_calls = 0;
    return MN_OK;
}

mn_status mn_memory_trim(mn_context *context)
{
    MN_TRY(mn_error_status(context));
    mn_pool_flush(context);
    mn_host_trim(context);
    return mn_check_fault(context);
}

mn_context_info mn_context_info_get(const mn_context *context)
{
    if (!context)
        return (mn_context_info){.device = NULL};
    return (mn_context_info){
        .device = context->device->name,
        .cpu = context->cpu_name,
        .features = context->cpu_features,
        .kernels = kernel_set_names[context->cpu.kernels],
        .threads = context->cpu.threads,
        .compiler = compiler,
    };
}

void mn_call_parallel(const mn_call *call, int64_t count,
                      void (*task)(void *arg, int64_t index, int slot), void *arg)
{
    mn_workers_run(call->cpu->workers, count, task, arg);
}

int mn_call_threads(const mn_call *call)
{
    return call->cpu->threads;
}
