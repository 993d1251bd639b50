/* core/pool.c: the caching pool of device memory. Blocks are kept in bins by size class, 64-byte
 * classes up to 4 KiB and four classes per octave above, so that the same sequence of requests is
 * served without asking the device again. */
#include "core/parts.h"

enum { GRAIN = 64, SMALL_SHIFT = 12, SMALL_BYTES = 1 << SMALL_SHIFT };
enum { SMALL_BINS = SMALL_BYTES / GRAIN, LARGEST_SHIFT = 60 };

_Static_assert(MN_POOL_BINS == SMALL_BINS + 4 * (LARGEST_SHIFT - SMALL_SHIFT), "a bin per class");

typedef struct size_class {
    size_t bin;
    size_t bytes;
} size_class;

/* bytes: at least 1, at most 1 << LARGEST_SHIFT. */
static size_class class_of(size_t bytes)
{
    if (bytes <= SMALL_BYTES) {
        size_t bin = (bytes - 1) / GRAIN;
        return (size_class){bin, (bin + 1) * GRAIN};
    }
    size_t octave = SMALL_SHIFT;
    while (((size_t)2 << octave) < bytes)
        octave++;
    size_t step = (size_t)1 << (octave - 2);
    size_t quarter = (bytes - ((size_t)1 << octave) - 1) / step; /* 0 to 3 */
    size_t bin = SMALL_BINS + 4 * (octave - SMALL_SHIFT) + quarter;
    return (size_class){bin, ((size_t)1 << octave) + (quarter + 1) * step};
}

static size_t live_bytes(size_t bytes)
{
    return (bytes + GRAIN - 1) / GRAIN * GRAIN;
}

void mn_pool_flush(mn_context *context)
{
    mn_pool *pool = &context->pool;
    mn_device *device = context->device;
    if (!device)
        return;
    /* A device that fails here is met again by the next call that waits. */
    (void)device->synchronize(device);
    for (size_t i = 0; i < MN_POOL_BINS; i++) {
        mn_pool_bin *bin = &pool->bins[i];
        bin->blocks -= bin->count;
        pool->stats.pool_bytes -= bin->count * bin->block_bytes;
        while (bin->count > 0)
            device->free(device, bin->free[--bin->count], bin->block_bytes);
    }
}

void mn_pool_destroy(mn_context *context)
{
    mn_pool *pool = &context->pool;
    const mn_allocator *allocator = &context->allocator;
    mn_pool_flush(context);
    for (size_t i = 0; i < MN_POOL_BINS; i++) {
        mn_pool_bin *bin = &pool->bins[i];
        if (bin->free)
            allocator->free(allocator->user, bin->free, bin->list_bytes);
    }
}

static void *new_block(mn_context *context, size_class class)
{
    mn_pool *pool = &context->pool;
    mn_pool_bin *bin = &pool->bins[class.bin];
    void *list = bin->free;
    size_t bytes = sizeof *bin->free;
    if (!mn_allocator_grow(&context->allocator, &list, &bin->list_bytes, bin->count * bytes,
                           (bin->blocks + 1) * bytes))
        return NULL;
    bin->free = list;
    pool->stats.system_requests++;
    void *memory = context->device->alloc(context->device, class.bytes);
    if (memory) {
        bin->blocks++;
        bin->block_bytes = class.bytes;
        pool->stats.pool_bytes += class.bytes;
    }
    return memory;
}

static void *take_block(mn_context *context, size_t bytes)
{
    size_class class = class_of(bytes);
    mn_pool_bin *bin = &context->pool.bins[class.bin];
    if (bin->count > 0)
        return bin->free[--bin->count];
    void *memory = new_block(context, class);
    if (memory)
        return memory;
    mn_pool_flush(context);
    mn_host_trim(context);
    return new_block(context, class);
}

void *mn_pool_alloc(mn_context *context, size_t bytes)
{
    mn_memory_stats *stats = &context->pool.stats;
    uint64_t limit = context->pool.limit;
    if (bytes == 0)
        return NULL;
    size_t live = bytes <= (size_t)1 << LARGEST_SHIFT ? live_bytes(bytes) : bytes;
    if (limit > 0 && (live > limit || stats->live_bytes > limit - live)) {
        mn_fail(context, MN_ERR_MEMORY,
                "no memory for %zu bytes: %llu in use, and the context's limit is %llu", bytes,
                (unsigned long long)stats->live_bytes, (unsigned long long)limit);
        return NULL;
    }
    void *memory = bytes <= (size_t)1 << LARGEST_SHIFT ? take_block(context, bytes) : NULL;
    if (!memory) {
        mn_fail(context, MN_ERR_MEMORY, "no memory for %zu bytes on device %s: %llu in use", bytes,
                context->device->name, (unsigned long long)stats->live_bytes);
        return NULL;
    }
    stats->live_bytes += live;
    if (stats->live_bytes > stats->peak_bytes)
        stats->peak_bytes = stats->live_bytes;
    return memory;
}

void mn_pool_free(mn_context *context, void *memory, size_t bytes)
{
    if (!memory)
        return;
    mn_pool_bin *bin = &context->pool.bins[class_of(bytes).bin];
    context->pool.stats.live_bytes -= live_bytes(bytes);
    bin->free[bin->count++] = memory;
}

mn_memory_stats mn_memory_stats_get(const mn_context *context)
{
    return context ? context->pool.stats : (mn_memory_stats){0};
}

void mn_memory_reset_peak(mn_context *context)
{
    if (context)
        context->pool.stats.peak_bytes = context->pool.stats.live_bytes;
}
