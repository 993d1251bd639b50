/* The device interface: memory, copies, and a queue of work. Every call may be asynchronous; only
 * download and synchronize wait. One device per context. */
#ifndef MN_CORE_DEVICE_H
#define MN_CORE_DEVICE_H

#include "include/minim_ext.h"

typedef struct mn_device mn_device;
struct mn_device {
    const char *name;
    mn_device_type type; /* selects kernels and cast rules */
    bool host_visible;   /* data may be touched by the host after synchronize */
    /* Memory aligned to 64 bytes (256 on CUDA); NULL: none left. free comes after the work that
     * uses the memory was enqueued, not after it ran: the device defers it where that matters. */
    void *(*alloc)(mn_device *device, size_t bytes);
    void (*free)(mn_device *device, void *memory, size_t bytes);
    /* The host buffer may be reused when upload returns; download waits for all work before. */
    mn_status (*upload)(mn_device *device, void *dst, const void *host, size_t bytes);
    mn_status (*download)(mn_device *device, void *host, const void *src, size_t bytes);
    /* Runs work(record) on the device in order; record is copied. */
    mn_status (*enqueue)(mn_device *device, void (*work)(const void *record), const void *record,
                         size_t bytes);
    mn_status (*synchronize)(mn_device *device);
    void (*destroy)(mn_device *device);
    mn_fault *fault;           /* where kernels record a fault; read it after synchronize */
    uint64_t synchronizations; /* how often the host has waited */
};

/* Devices built in. NULL on failure with *error filled. The deferred one, for tests, queues work
 * until the host waits and makes its memory inaccessible to the host in between. */
mn_device *mn_device_cpu_create(const mn_allocator *allocator, mn_error *error);
mn_device *mn_device_deferred_create(const mn_allocator *allocator, mn_error *error);

#endif
