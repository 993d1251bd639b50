/* core/device_deferred.c: a device for tests that keeps asynchronous code honest. Work is queued
 * until the host waits; until then, and after, its memory cannot be touched by the host. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "core/device.h"
#include "core/core.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    ALIGNMENT = 64,
    SMALLEST_SLOT = 64,
    LARGEST_SLOT = 1024,
    SLAB_BYTES = 65536,
    SLAB_SLOTS = SLAB_BYTES / SMALLEST_SLOT
};

/* One mapping: a single large block, or a slab of equal slots, so that thousands of scalars do not
 * take as many mappings. */
typedef struct region {
    struct region *next;
    unsigned char *base;
    size_t bytes;      /* mapped */
    size_t slot_bytes; /* 0: one block */
    size_t used;       /* slots (or 1) */
    size_t free_count;
    uint16_t free_slots[SLAB_SLOTS];
} region;

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
    size_t page;
    region *regions;
    unsigned char *queue;
    size_t queued, capacity;
} deferred_device;

static deferred_device *self(mn_device *device)
{
    return (deferred_device *)device;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Bytes of a region's header: a single block needs no slot list. */
static size_t header_bytes(size_t slot_bytes)
{
    return slot_bytes ? sizeof(region) : offsetof(region, free_slots);
}

static region *map_region(deferred_device *device, size_t bytes, size_t slot_bytes)
{
    const mn_allocator *allocator = &device->allocator;
    region *made = allocator->alloc(allocator->user, header_bytes(slot_bytes), ALIGNMENT);
    if (!made)
        return NULL;
    memset(made, 0, header_bytes(slot_bytes));
    void *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
        allocator->free(allocator->user, made, header_bytes(slot_bytes));
        return NULL;
    }
    made->base = base;
    made->bytes = bytes;
    made->slot_bytes = slot_bytes;
    made->next = device->regions;
    device->regions = made;
    return made;
}

static void unmap_region(deferred_device *device, region *old)
{
    munmap(old->base, old->bytes);
    device->allocator.free(device->allocator.user, old, header_bytes(old->slot_bytes));
}

static void *alloc_slot(deferred_device *device, size_t bytes)
{
    size_t slot_bytes = SMALLEST_SLOT;
    while (slot_bytes < bytes)
        slot_bytes *= 2;
    region *slab = device->regions;
    while (slab && (slab->slot_bytes != slot_bytes || slab->free_count == 0))
        slab = slab->next;
    if (!slab) {
        slab = map_region(device, SLAB_BYTES, slot_bytes);
        if (!slab)
            return NULL;
        for (size_t i = SLAB_BYTES / slot_bytes; i > 0; i--)
            slab->free_slots[slab->free_count++] = (uint16_t)(i - 1);
    }
    slab->used++;
    return slab->base + slab->free_slots[--slab->free_count] * slot_bytes;
}

static void *deferred_alloc(mn_device *base, size_t bytes)
{
    deferred_device *device = self(base);
    size_t padded;
    if (bytes <= LARGEST_SLOT)
        return alloc_slot(device, bytes);
    if (!mn_size_add(bytes, device->page - 1, &padded))
        return NULL;
    region *made = map_region(device, padded / device->page * device->page, 0);
    if (!made)
        return NULL;
    made->used = 1;
    return made->base;
}

/* Unmaps what nobody uses any more. Only with an empty queue: queued work may still need it. */
static void sweep(deferred_device *device)
{
    region **link = &device->regions;
    while (*link) {
        region *old = *link;
        if (old->used > 0) {
            link = &old->next;
            continue;
        }
        *link = old->next;
        unmap_region(device, old);
    }
}

static void deferred_free(mn_device *base, void *memory, size_t bytes)
{
    deferred_device *device = self(base);
    unsigned char *address = memory;
    region *owner = device->regions;
    (void)bytes;
    while (owner && (address < owner->base || address >= owner->base + owner->bytes))
        owner = owner->next;
    if (!owner)
        return;
    owner->used--;
    if (owner->slot_bytes)
        owner->free_slots[owner->free_count++] =
            (uint16_t)((size_t)(address - owner->base) / owner->slot_bytes);
    if (owner->used == 0 && device->queued == 0)
        sweep(device);
}

static mn_status protect(deferred_device *device, int protection)
{
    mn_status status = MN_OK;
    for (region *at = device->regions; at; at = at->next) {
        if (mprotect(at->base, at->bytes, protection) != 0)
            status = MN_ERR_DEVICE;
    }
    return status;
}

/* ---- queue ----------------------------------------------------------------------------------- */

static mn_status reserve(deferred_device *device, size_t more)
{
    const mn_allocator *allocator = &device->allocator;
    size_t needed;
    size_t capacity = device->capacity ? device->capacity : 4096;
    if (!mn_size_add(device->queued, more, &needed))
        return MN_ERR_MEMORY;
    while (capacity < needed && capacity <= SIZE_MAX / 2)
        capacity *= 2;
    if (capacity < needed)
        return MN_ERR_MEMORY;
    if (capacity == device->capacity)
        return MN_OK;
    unsigned char *queue = allocator->alloc(allocator->user, capacity, ALIGNMENT);
    if (!queue)
        return MN_ERR_MEMORY;
    if (device->queue) {
        memcpy(queue, device->queue, device->queued);
        allocator->free(allocator->user, device->queue, device->capacity);
    }
    device->queue = queue;
    device->capacity = capacity;
    return MN_OK;
}

/* Runs all queued work, then copies (bytes 0: nothing) to the host, and closes the memory again. */
static mn_status run_and_copy(deferred_device *device, void *host, const void *src, size_t bytes)
{
    device->base.synchronizations++;
    mn_status status = protect(device, PROT_READ | PROT_WRITE);
    unsigned mode = mn_fp_enter();
    for (size_t at = 0; status == MN_OK && at < device->queued;) {
        entry next;
        memcpy(&next, device->queue + at, sizeof next);
        next.work(device->queue + at + ALIGNMENT);
        at += next.bytes;
    }
    mn_fp_restore(mode);
    if (status == MN_OK && bytes > 0)
        memcpy(host, src, bytes);
    device->queued = 0;
    sweep(device);
    mn_status closed = protect(device, PROT_NONE);
    return status != MN_OK ? status : closed;
}

/* Queues work with a record of the given size; *record is where to write it. */
static mn_status append(deferred_device *device, void (*work)(const void *record), size_t bytes,
                        void **record)
{
    size_t padded;
    if (!mn_size_add(bytes, 2 * ALIGNMENT - 1, &padded))
        return MN_ERR_MEMORY;
    padded = padded / ALIGNMENT * ALIGNMENT;
    if (reserve(device, padded) != MN_OK) {
        /* No memory for a longer queue: what is queued runs now and makes room. */
        MN_TRY(run_and_copy(device, NULL, NULL, 0));
        MN_TRY(reserve(device, padded));
    }
    unsigned char *at = device->queue + device->queued;
    memcpy(at, &(entry){work, padded}, sizeof(entry));
    *record = at + ALIGNMENT;
    device->queued += padded;
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
    while (device->regions) {
        region *old = device->regions;
        device->regions = old->next;
        unmap_region(device, old);
    }
    if (device->queue)
        allocator.free(allocator.user, device->queue, device->capacity);
    allocator.free(allocator.user, device, sizeof *device);
}

mn_device *mn_device_deferred_create(const mn_allocator *allocator, mn_error *error)
{
    mn_allocator host = mn_allocator_or_default(allocator);
    long page = sysconf(_SC_PAGESIZE);
    deferred_device *device = host.alloc(host.user, sizeof *device, ALIGNMENT);
    if (!device) {
        mn_error_set(error, MN_ERR_MEMORY, "no memory for device cpu-deferred");
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
        .allocator = host,
        .page = page > 0 ? (size_t)page : 4096,
    };
    device->base.fault = &device->fault;
    return &device->base;
}
