/* core/pool.c: the caching pool of device memory. Blocks up to 4 KiB are kept in bins, a bin per 64
 * bytes. Larger ones are cut from slabs, where a piece that was in use before goes first, then the
 * smallest that is large enough, and free neighbours are joined: tensors and workspaces of all
 * sizes share the memory, and a sequence of requests that begins and ends with the same blocks in
 * use finds the same places again, without asking the device. What lasts, but is asked for amid a
 * step, goes to the other end, so that the step finds its places whole again. */
#include "core/parts.h"

#include <string.h>

enum { GRAIN = 64, SMALL_BYTES = GRAIN * MN_POOL_BINS, SLAB_BYTES = 1 << 16 };
#define LARGEST ((size_t)1 << 60)

static size_t live_bytes(size_t bytes)
{
    return (bytes + GRAIN - 1) / GRAIN * GRAIN;
}

/* ---- slabs ----------------------------------------------------------------------------------- */

/* There is room. */
static mn_pool_span *insert(mn_pool *pool, size_t at, mn_pool_span span)
{
    mn_pool_span *place = pool->spans + at;
    memmove(place + 1, place, (pool->span_count++ - at) * sizeof *place);
    *place = span;
    return place;
}

static void erase(mn_pool *pool, size_t at)
{
    mn_pool_span *place = pool->spans + at;
    memmove(place, place + 1, (--pool->span_count - at) * sizeof *place);
}

/* How many spans lie before such an address. */
static size_t spans_before(const mn_pool *pool, const void *memory)
{
    size_t low = 0, high = pool->span_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if ((uintptr_t)pool->spans[middle].memory < (uintptr_t)memory)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* A new slab, as one free span. Slabs grow with what there is, so that they stay few; what is not
 * used of them costs addresses, but on most systems no memory. */
static mn_pool_span *new_slab(mn_context *context, size_t bytes, bool generous)
{
    mn_pool *pool = &context->pool;
    size_t half = live_bytes(pool->slab_bytes / 2);
    half = half > SLAB_BYTES ? half : SLAB_BYTES;
    if (generous && half > bytes)
        bytes = half;
    pool->stats.system_requests++;
    char *memory = context->device->alloc(context->device, bytes);
    if (!memory)
        return NULL;
    pool->slab_bytes += bytes;
    pool->stats.pool_bytes += bytes;
    return insert(pool, spans_before(pool, memory), (mn_pool_span){memory, bytes, 0, true, true});
}

static bool is_better(const mn_pool *pool, const mn_pool_span *a, const mn_pool_span *b,
                      size_t bytes)
{
    const size_t new_a = bytes > a->used ? bytes - a->used : 0;
    const size_t new_b = bytes > b->used ? bytes - b->used : 0;
    if (pool->lasting)
        return a->bytes > b->bytes;
    return new_a != new_b ? new_a < new_b : a->bytes < b->bytes;
}

/* Cuts a free piece in two, where there is room in the list. */
static void split(mn_pool *pool, mn_pool_span *span, size_t bytes)
{
    const size_t used = span->used > bytes ? span->used - bytes : 0;
    if (span->bytes == bytes)
        return;
    insert(pool, (size_t)(span - pool->spans) + 1,
           (mn_pool_span){span->memory + bytes, span->bytes - bytes, used, true, false});
    span->bytes = bytes;
    span->used -= used;
}

/* bytes: a multiple of GRAIN. The list has room for more pieces than a first step's order leaves.
 */
static void *take_span(mn_context *context, size_t bytes, bool generous)
{
    mn_pool *pool = &context->pool;
    void *list = pool->spans;
    size_t each = sizeof *pool->spans;
    if (!mn_allocator_grow(&context->allocator, &list, &pool->list_bytes, pool->span_count * each,
                           (2 * pool->span_count + 62) * each))
        return NULL;
    pool->spans = list;
    mn_pool_span *best = NULL, *end = pool->spans + pool->span_count;
    for (mn_pool_span *span = pool->spans; span < end; span++)
        if (span->free && span->bytes >= bytes && (!best || is_better(pool, span, best, bytes)))
            best = span;
    if (!best && !(best = new_slab(context, bytes, generous)))
        return NULL;
    const bool last = pool->lasting && best->bytes > bytes;
    split(pool, best, last ? best->bytes - bytes : bytes);
    best += last;
    best->used = bytes;
    best->free = false;
    return best->memory;
}

/* Joins a piece and the one after it, both free. */
static void join(mn_pool *pool, size_t at)
{
    mn_pool_span *span = pool->spans + at;
    span->used += span->used == span->bytes ? span[1].used : 0;
    span->bytes += span[1].bytes;
    erase(pool, at + 1);
}

static void free_span(mn_pool *pool, void *memory)
{
    size_t at = spans_before(pool, memory);
    mn_pool_span *span = pool->spans + at;
    span->free = true;
    if (at + 1 < pool->span_count && span[1].free && !span[1].first)
        join(pool, at);
    if (!span->first && span[-1].free)
        join(pool, at - 1);
}

static void flush_slabs(mn_context *context)
{
    mn_pool *pool = &context->pool;
    for (size_t i = pool->span_count; i-- > 0;) {
        const mn_pool_span *span = pool->spans + i;
        if (!span->first || !span->free || (i + 1 < pool->span_count && !span[1].first))
            continue;
        context->device->free(context->device, span->memory, span->bytes);
        pool->slab_bytes -= span->bytes;
        pool->stats.pool_bytes -= span->bytes;
        erase(pool, i);
    }
}

/* ---- bins ------------------------------------------------------------------------------------ */

static mn_pool_bin *bin_of(mn_pool *pool, size_t bytes)
{
    return &pool->bins[bytes / GRAIN - 1];
}

/* bytes: a multiple of GRAIN. */
static void *take_block(mn_context *context, size_t bytes)
{
    mn_pool *pool = &context->pool;
    mn_pool_bin *bin = bin_of(pool, bytes);
    if (bin->count > 0)
        return bin->free[--bin->count];
    void *list = bin->free;
    size_t each = sizeof *bin->free;
    if (!mn_allocator_grow(&context->allocator, &list, &bin->list_bytes, bin->count * each,
                           (bin->blocks + 1) * each))
        return NULL;
    bin->free = list;
    pool->stats.system_requests++;
    void *memory = context->device->alloc(context->device, bytes);
    if (memory) {
        bin->blocks++;
        pool->stats.pool_bytes += bytes;
    }
    return memory;
}

static void flush_bins(mn_context *context)
{
    mn_pool *pool = &context->pool;
    for (size_t i = 0; i < MN_POOL_BINS; i++) {
        mn_pool_bin *bin = &pool->bins[i];
        const size_t bytes = (i + 1) * GRAIN;
        bin->blocks -= bin->count;
        pool->stats.pool_bytes -= bin->count * bytes;
        while (bin->count > 0)
            context->device->free(context->device, bin->free[--bin->count], bytes);
    }
}

/* ---- all of it ------------------------------------------------------------------------------- */

void mn_pool_flush(mn_context *context)
{
    mn_device *device = context->device;
    if (!device)
        return;
    /* A device that fails here is met again by the next call that waits. */
    (void)device->synchronize(device);
    flush_bins(context);
    flush_slabs(context);
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
    if (pool->spans)
        allocator->free(allocator->user, pool->spans, pool->list_bytes);
}

/* After a failure once more, with what is cached given back first. */
static void *take(mn_context *context, size_t bytes)
{
    void *memory = NULL;
    for (int i = 0; i < 2 && !memory; i++) {
        if (i > 0) {
            mn_pool_flush(context);
            mn_host_trim(context);
        }
        memory =
            bytes <= SMALL_BYTES ? take_block(context, bytes) : take_span(context, bytes, i == 0);
    }
    return memory;
}

void *mn_pool_alloc(mn_context *context, size_t bytes)
{
    mn_memory_stats *stats = &context->pool.stats;
    uint64_t limit = context->pool.limit;
    if (bytes == 0)
        return NULL;
    size_t live = bytes <= LARGEST ? live_bytes(bytes) : bytes;
    if (limit > 0 && (live > limit || stats->live_bytes > limit - live)) {
        mn_fail(context, MN_ERR_MEMORY,
                "no memory for %zu bytes: %llu in use, and the context's limit is %llu", bytes,
                (unsigned long long)stats->live_bytes, (unsigned long long)limit);
        return NULL;
    }
    void *memory = bytes <= LARGEST ? take(context, live) : NULL;
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
    mn_pool *pool = &context->pool;
    bytes = live_bytes(bytes);
    pool->stats.live_bytes -= bytes;
    if (bytes > SMALL_BYTES) {
        free_span(pool, memory);
    } else {
        mn_pool_bin *bin = bin_of(pool, bytes);
        bin->free[bin->count++] = memory;
    }
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
