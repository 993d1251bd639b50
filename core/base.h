/* core/base.h: helpers that need no context: sizes, allocators, hash, errors, options. */
#ifndef MN_CORE_BASE_H
#define MN_CORE_BASE_H

#include "include/minim.h"

#include <pthread.h>
#include <stdarg.h>
#include <string.h>

#define MN_TRY(expression)                                                                         \
    do {                                                                                           \
        mn_status mn_try_status = (expression);                                                    \
        if (mn_try_status != MN_OK)                                                                \
            return mn_try_status;                                                                  \
    } while (0)

/* a * b (and a + b) without overflow: false if it does not fit. */
bool mn_size_mul(size_t a, size_t b, size_t *result);
bool mn_size_add(size_t a, size_t b, size_t *result);

/* Copies the text to *at, where there is room, and moves *at behind it; returns the copy. */
static inline const char *mn_text_pack(char **at, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    *at += bytes;
    return memcpy(*at - bytes, text, bytes);
}

/* Fills the all-NULL allocator with the C library's. */
mn_allocator mn_allocator_or_default(const mn_allocator *allocator);
/* The same into *out; half a pair is refused. */
mn_status mn_allocator_read(const mn_allocator *allocator, mn_allocator *out, mn_error *error);
/* Makes *memory, which holds `used` of its *capacity bytes, hold `wanted` (at least doubling it);
 * false: no memory, nothing has changed. */
bool mn_allocator_grow(const mn_allocator *allocator, void **memory, size_t *capacity, size_t used,
                       size_t wanted);

/* By bit pattern, since -ffast-math folds comparisons with infinity and NaN. */
#define MN_F64_EXPONENT (UINT64_C(0x7FF) << 52)
static inline uint64_t mn_f64_bits(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline bool mn_isfinite_f64(double value)
{
    return (mn_f64_bits(value) & MN_F64_EXPONENT) != MN_F64_EXPONENT;
}

static inline bool mn_isnan_f64(double value)
{
    return mn_f64_bits(value) << 1 > MN_F64_EXPONENT << 1;
}

/* Whether low <= value <= high; NaN is not. */
static inline bool mn_is_within(double value, double low, double high)
{
    return !mn_isnan_f64(value) && value >= low && value <= high;
}

/* Seconds of a clock that only goes forward. */
double mn_clock_seconds(void);
/* Largest resident set of this process so far, in bytes; 0 if the system does not say. */
uint64_t mn_peak_rss(void);
/* Asks the system for large pages where a large block lies, if it has such: a hint. */
void mn_prefer_huge_pages(void *memory, size_t bytes);
/* Starts a thread with signals blocked, so that the application's handlers run on its own threads.
 * Signals raised by a fault of the thread itself stay open: blocked, they would kill the process
 * without its handler. Returns an error number, 0: started. */
int mn_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument);

/* read and write take less than 2 GiB at once. */
enum { MN_IO_CHUNK = 1 << 30 };

/* FNV-1a, 64 bits, continued from `hash`. */
#define MN_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t mn_hash(uint64_t hash, const void *data, size_t bytes);

/* Fills *error, which may be NULL or uninitialised, with one line of text; returns the status. */
mn_status mn_error_fill(mn_error *error, mn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* As mn_error_fill, but keeps an error already there. */
mn_status mn_error_set(mn_error *error, mn_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The end of a path, so that the rest of a message has room. */
const char *mn_path_shown(const char *path);
/* The system's text for an errno, in the buffer. */
const char *mn_system_text(int code, char *buffer, size_t size);
/* As mn_error_fill: MN_ERR_IO "PATH: cannot VERB: the system's text for errno". */
mn_status mn_error_system(mn_error *error, const char *path, const char *verb);
/* Copies an options struct, whose first member is its size, over the defaults in *known. A caller
 * built with an older, shorter struct is served; a longer one is refused. `options` may be NULL. */
mn_status mn_options_copy(mn_error *error, const char *what, void *known, size_t known_size,
                          const void *options);

#endif
