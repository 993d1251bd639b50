/* core/device_deferred.c: a device for tests that keeps asynchronous code honest. Work is queued
 * until the host waits; until then, and after, its memory cannot be touched by the host. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS, MAP_NORESERVE */
#include "core/device.h"
#include "core/core.h"
#include "core/json_write.h"

#include <string.h>
#include <sys/mman.h>

enum { ALIGNMENT = 64 };

/* All memory lies in one range of addresses, so that one call opens or closes it. */
#define RANGE_BYTES ((size_t)1 << 32)

/* A block that was freed, for the next request of its size; the pool asks for few sizes. */
typedef struct hole {
    unsigned char *memory;
    size_t bytes;
} hole;

/* In the queue before each record, which follows at the next multiple of ALIGNMENT. */
typedef struct entry {
    void (*work)(const void *record);
    size_t bytes; /* of entry and record, padded */
} entry;

typedef struct copy_record {
    void *dst;
    size_t bytes; /* the data follow */
} copy_record;

typedef struct deferred_device {
    mn_device base;
    mn_allocator allocator;
    mn_fault fault;
    unsigned char *range;
    size_t used;   /* bytes from its beginning */
    mn_list holes; /* room for all blocks, since freeing must not fail */
    int64_t block_count;
    mn_list queue; /* of bytes */
} deferred_device;

static deferred_device *self(mn_device *device)
{
    return (deferred_device *)device;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static size_t padded_bytes(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void *deferred_alloc(mn_device *base, size_t bytes)
{
    deferred_device *device = self(base);
    mn_list *holes = &device->holes;
    hole *first = holes->items;
    if (bytes > RANGE_BYTES || padded_bytes(bytes) > RANGE_BYTES - device->used)
        return NULL;
    bytes = padded_bytes(bytes);
    for (hole *at = first; at < first + holes->count; at++) {
        unsigned char *memory = at->memory;
        if (at->bytes != bytes)
            continue;
        *at = first[--holes->count];
        return memory;
    }
    if (!mn_list_reserve(holes, (size_t)(device->block_count + 1 - holes->count)))
        return NULL;
    device->block_count++;
    device->used += bytes;
    return device->range + device->used - bytes;
}

/* Queued work may still use it, but the next owner's work is queued after that. */
static void deferred_free(mn_device *base, void *memory, size_t bytes)
{
    mn_list_append(&self(base)->holes, &(hole){memory, padded_bytes(bytes)}, 1);
}

static mn_status protect(deferred_device *device, int protection)
{
    if (device->used == 0)
        return MN_OK;
    return mprotect(device->range, device->used, protection) == 0 ? MN_OK : MN_ERR_DEVICE;
}

/* ---- work ------------------------------------------------------------------------------------ */

/* Runs all queued work, then copies (bytes 0: nothing) to the host, and closes the memory again. */
static mn_status run_and_copy(deferred_device *device, void *host, const void *src, size_t bytes)
{
    device->base.synchronizations++;
    mn_status status = protect(device, PROT_READ | PROT_WRITE);
    unsigned mode = mn_fp_enter();
    const char *at = device->queue.items, *end = at ? at + device->queue.count : at;
    for (entry next; status == MN_OK && at < end; at += next.bytes) {
        memcpy(&next, at, sizeof next);
        next.work(at + ALIGNMENT);
    }
    mn_fp_restore(mode);
    if (status == MN_OK && bytes > 0)
        memcpy(host, src, bytes);
    device->queue.count = 0;
    mn_status closed = protect(device, PROT_NONE);
    return status != MN_OK ? status : closed;
}

/* Queues work with a record of the given size; *record is where to write it. */
static mn_status append(deferred_device *device, void (*work)(const void *record), size_t bytes,
                        void **record)
{
    mn_list *queue = &device->queue;
    size_t padded;
    if (!mn_size_add(bytes, 2 * ALIGNMENT - 1, &padded))
        return MN_ERR_MEMORY;
    padded = padded / ALIGNMENT * ALIGNMENT;
    if (!mn_list_reserve(queue, padded)) {
        /* No memory for a longer queue: what is queued runs now and makes room. */
        MN_TRY(run_and_copy(device, NULL, NULL, 0));
        if (!mn_list_reserve(queue, padded))
            return MN_ERR_MEMORY;
    }
    char *at = (char *)queue->items + queue->count;
    memcpy(at, &(entry){work, padded}, sizeof(entry));
    *record = at + ALIGNMENT;
    queue->count += (int64_t)padded;
    return MN_OK;
}

static mn_status deferred_enqueue(mn_device *base, void (*work)(const void *record),
                                  const void *record, size_t bytes)
{
    void *copy;
    MN_TRY(append(self(base), work, bytes, &copy));
    memcpy(copy, record, bytes);
    return MN_OK;
}

static void run_copy(const void *record)
{
    const copy_record *copy = record;
    memcpy(copy->dst, copy + 1, copy->bytes);
}

static mn_status deferred_upload(mn_device *base, void *dst, const void *host, size_t bytes)
{
    void *record;
    size_t total;
    if (!mn_size_add(bytes, sizeof(copy_record), &total))
        return MN_ERR_MEMORY;
    MN_TRY(append(self(base), run_copy, total, &record));
    copy_record *copy = record;
    *copy = (copy_record){dst, bytes};
    memcpy(copy + 1, host, bytes);
    return MN_OK;
}

static mn_status deferred_download(mn_device *base, void *host, const void *src, size_t bytes)
{
    return run_and_copy(self(base), host, src, bytes);
}

static mn_status deferred_synchronize(mn_device *base)
{
    return run_and_copy(self(base), NULL, NULL, 0);
}

/* ---- making and freeing ---------------------------------------------------------------------- */

static void deferred_destroy(mn_device *base)
{
    deferred_device *device = self(base);
    mn_allocator allocator = device->allocator;
    munmap(device->range, RANGE_BYTES);
    mn_list_free(&device->holes);
    mn_list_free(&device->queue);
    allocator.free(allocator.user, device, sizeof *device);
}

mn_device *mn_device_deferred_create(const mn_allocator *allocator, mn_error *error)
{
    deferred_device *device = allocator->alloc(allocator->user, sizeof *device, ALIGNMENT);
    void *range = !device ? MAP_FAILED
                          : mmap(NULL, RANGE_BYTES, PROT_NONE,
                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
        mn_error_set(error, MN_ERR_MEMORY, "no memory for device cpu-deferred");
        if (device)
            allocator->free(allocator->user, device, sizeof *device);
        return NULL;
    }
    *device = (deferred_device){
        .base = {.name = "cpu-deferred",
                 .type = MN_DEVICE_CPU,
                 .host_visible = false,
                 .alloc = deferred_alloc,
                 .free = deferred_free,
                 .upload = deferred_upload,
                 .download = deferred_download,
                 .enqueue = deferred_enqueue,
                 .synchronize = deferred_synchronize,
                 .destroy = deferred_destroy},
        .allocator = *allocator,
        .range = range,
        .holes = mn_list_new(allocator, sizeof(hole)),
        .queue = mn_list_new(allocator, 1),
    };
    device->base.fault = &device->fault;
    return &device->base;
}
