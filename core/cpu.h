/* What CPU kernels need besides their call: processor features, worker threads, conversions. */
#ifndef MN_CORE_CPU_H
#define MN_CORE_CPU_H

#include "include/minim.h"

/* Row conversions of the floating types other than f64, to and from f32; n may be 0. Every kernel
 * set gives the same bits. Entries of other dtypes are NULL. */
typedef struct mn_converter {
    void (*to_f32)(size_t n, const void *src, float *dst);
    void (*from_f32)(size_t n, const float *src, void *dst);
} mn_converter;

typedef struct mn_workers mn_workers;

typedef struct mn_cpu {
    mn_kernel_set kernels;          /* never AUTO */
    const mn_converter *converters; /* [MN_DTYPE_COUNT] */
    mn_workers *workers;
    int threads;
    bool winograd;
} mn_cpu;

/* Best kernel set of this processor that this build holds, and whether it can run one. */
mn_kernel_set mn_cpu_best_kernels(void);
bool mn_cpu_has_kernels(mn_kernel_set set);
/* Processor's name and a list of features; written NUL-terminated into the buffers. */
void mn_cpu_describe(char *name, size_t name_size, char *features, size_t features_size);
/* Number of processors that this process may run on, at least 1. */
int mn_cpu_available(void);

const mn_converter *mn_converters(mn_kernel_set set);
/* The rows of f32 in both tables. */
void mn_f32_copy(size_t n, const void *src, float *dst);
void mn_f32_copy_from(size_t n, const float *src, void *dst);
/* Tables behind mn_converters. */
extern const mn_converter mn_converters_portable[MN_DTYPE_COUNT];
extern const mn_converter mn_converters_avx2[MN_DTYPE_COUNT];
extern const mn_converter mn_converters_avx512[MN_DTYPE_COUNT];
extern const mn_converter mn_converters_neon[MN_DTYPE_COUNT];

/* Worker pool. threads - 1 workers are started, the caller is the last one; a thread that cannot be
 * started is an error (NULL, *error filled). With `parallel` given no thread is started. */
mn_workers *mn_workers_create(const mn_allocator *allocator, int threads, mn_parallel_for parallel,
                              void *parallel_user, mn_error *error);
void mn_workers_free(mn_workers *workers);
/* Runs task(arg, i, slot) for i in [0, count); slot < threads. Returns when all are done. Threads
 * run with round-to-nearest and without flush-to-zero, whatever the caller's mode; the caller's
 * mode is restored. */
void mn_workers_run(mn_workers *workers, int64_t count,
                    void (*task)(void *arg, int64_t index, int slot), void *arg);

/* Floating-point mode of the library (round to nearest, no flush to zero); enter returns the
 * caller's mode for restore. */
unsigned mn_fp_enter(void);
void mn_fp_restore(unsigned mode);

#endif
