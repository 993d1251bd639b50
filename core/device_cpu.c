/* core/device_cpu.c: the CPU as a device: memory is the host's, work runs when it is enqueued. */
#include "core/device.h"
#include "core/core.h"

#include <string.h>

enum { ALIGNMENT = 64 };

typedef struct cpu_device {
    mn_device base;
    mn_allocator allocator;
    mn_fault fault;
} cpu_device;

static void *cpu_alloc(mn_device *device, size_t bytes)
{
    const mn_allocator *allocator = &((cpu_device *)device)->allocator;
    return allocator->alloc(allocator->user, bytes, ALIGNMENT);
}

static void cpu_free(mn_device *device, void *memory, size_t bytes)
{
    const mn_allocator *allocator = &((cpu_device *)device)->allocator;
    allocator->free(allocator->user, memory, bytes);
}

static mn_status cpu_upload(mn_device *device, void *dst, const void *host, size_t bytes)
{
    (void)device;
    memcpy(dst, host, bytes);
    return MN_OK;
}

static mn_status cpu_download(mn_device *device, void *host, const void *src, size_t bytes)
{
    device->synchronizations++;
    memcpy(host, src, bytes);
    return MN_OK;
}

static mn_status cpu_enqueue(mn_device *device, void (*work)(const void *record),
                             const void *record, size_t bytes)
{
    (void)device;
    (void)bytes;
    unsigned mode = mn_fp_enter();
    work(record);
    mn_fp_restore(mode);
    return MN_OK;
}

static mn_status cpu_synchronize(mn_device *device)
{
    device->synchronizations++;
    return MN_OK;
}

static void cpu_destroy(mn_device *device)
{
    mn_allocator allocator = ((cpu_device *)device)->allocator;
    allocator.free(allocator.user, device, sizeof(cpu_device));
}

mn_device *mn_device_cpu_create(const mn_allocator *allocator, mn_error *error)
{
    cpu_device *device = allocator->alloc(allocator->user, sizeof *device, ALIGNMENT);
    if (!device) {
        mn_error_set(error, MN_ERR_MEMORY, "no memory for device cpu");
        return NULL;
    }
    *device = (cpu_device){
        .base = {.name = "cpu",
                 .type = MN_DEVICE_CPU,
                 .host_visible = true,
                 .alloc = cpu_alloc,
                 .free = cpu_free,
                 .upload = cpu_upload,
                 .download = cpu_download,
                 .enqueue = cpu_enqueue,
                 .synchronize = cpu_synchronize,
                 .destroy = cpu_destroy},
        .allocator = *allocator,
    };
    device->base.fault = &device->fault;
    return &device->base;
}
