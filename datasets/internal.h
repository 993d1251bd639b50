/* datasets/internal.h: what the files of this room share: the data set itself, memory through the
 * caller's allocator, error text, the byte source below the IDX reader, and the split. Of core,
 * this room may include philox.h only. */
#ifndef MINIM_DATASETS_INTERNAL_H
#define MINIM_DATASETS_INTERNAL_H

#include "minim.h"

/* Largest length of a path that the readers build. */
#define MN_DATA_PATH_MAX 4096

/* Memory with the size it was asked for, which the allocator's free wants back. */
typedef struct mn_data_buffer {
    void *data;
    size_t size;
} mn_data_buffer;

struct mn_dataset {
    mn_allocator allocator;
    mn_dataset_info info;
    mn_data_buffer images; /* u8 [count,h,w,c] */
    mn_data_buffer labels; /* i64 [count] */
    size_t image_bytes;    /* of one image */
    char name[64];         /* info.name, where it is made of numbers */
};

/* Fills *error (may be NULL) with one line of text and returns `status`. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
mn_status
mn_data_fail(mn_error *error, mn_status status, const char *format, ...);

/* The end of a path, short enough to leave room for the reason in a message. */
const char *mn_data_shown(const char *path);

/* *product = a * b; false if that does not fit. */
bool mn_data_multiply(uint64_t a, uint64_t b, uint64_t *product);

/* Copies *allocator, or the C library's for NULL and all NULL; half a pair is an error. */
mn_status mn_data_allocator(const mn_allocator *allocator, mn_allocator *out, mn_error *error);
/* count * size bytes, aligned for any vector unit. A buffer that is all zero holds nothing. */
mn_status mn_data_alloc(const mn_allocator *allocator, mn_data_buffer *buffer, uint64_t count,
                        size_t size, mn_error *error);
void mn_data_free(const mn_allocator *allocator, mn_data_buffer *buffer);

/* Bytes of a regular file, unpacked on the way if it is gzip. */
typedef struct mn_data_source mn_data_source;
/* A file that does not exist is no error here: *source is then NULL. `path` must outlive it. */
mn_status mn_data_source_open(const mn_allocator *allocator, const char *path,
                              mn_data_source **source, mn_error *error);
/* Reads until `size` bytes are there or the file ends; *got tells which. */
mn_status mn_data_source_read(mn_data_source *source, void *data, size_t size, size_t *got,
                              mn_error *error);
const char *mn_data_source_path(const mn_data_source *source);
void mn_data_source_close(mn_data_source *source);

/* Fill a new data set's sizes, images and labels; what they allocate, the caller frees. */
mn_status mn_data_read_idx(mn_dataset *dataset, const char *folder, bool train, mn_error *error);
mn_status mn_data_synthesize(mn_dataset *dataset, const char *parameters, bool train,
                             mn_error *error);

/* How many of `count` images are held out: the nearest number, but where the fraction is not 0
 * neither part is left empty if that can be. */
int64_t mn_data_held_count(int64_t count, double fraction);
/* Chooses `held` of `count` images by the seed. Writes the indices of the chosen ones, or of the
 * others, in index order. `scratch` has room for `count` values. */
void mn_data_split(uint64_t seed, int64_t count, int64_t held, bool want_held, int64_t *scratch,
                   int64_t *part);

#endif
