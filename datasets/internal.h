/* datasets/internal.h: what the files of this room share: the data set itself, memory through the
 * caller's allocator, and the byte source below the IDX reader. Of core, this room may include
 * base.h and philox.h only. */
#ifndef MINIM_DATASETS_INTERNAL_H
#define MINIM_DATASETS_INTERNAL_H

#include "core/base.h"

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
    char name[64];         /* info.name, where it is not a constant */
    /* With `get` there are no images and labels: calls of it are under the mutex. */
    mn_dataset_source source;
    pthread_mutex_t *mutex; /* NULL: images are in memory; else &own_mutex */
    pthread_mutex_t own_mutex;
};

/* count * size bytes, aligned for any vector unit. A buffer that is all zero holds nothing. */
mn_status mn_data_alloc(const mn_allocator *allocator, mn_data_buffer *buffer, size_t count,
                        size_t size, mn_error *error);
void mn_data_free(const mn_allocator *allocator, mn_data_buffer *buffer);
/* Memory for the images and labels that info tells of. */
mn_status mn_data_alloc_images(mn_dataset *dataset, mn_error *error);

/* Image and label at an index that is there: *image points to the data set's memory, or to `room`
 * (image_bytes), into which it was fetched. */
mn_status mn_data_fetch(const mn_dataset *dataset, int64_t index, uint8_t *room,
                        const uint8_t **image, int64_t *label, mn_error *error);

/* Bytes of a regular file, unpacked on the way if it is gzip. */
typedef struct mn_data_source mn_data_source;
/* A file that does not exist is no error here: *source is then NULL. Close it also after a failure.
 * `path` must outlive it. */
mn_status mn_data_source_open(const mn_allocator *allocator, const char *path,
                              mn_data_source **source, mn_error *error);
/* Reads until `size` bytes are there or the file ends; *got tells which. */
mn_status mn_data_source_read(mn_data_source *source, void *data, size_t size, size_t *got,
                              mn_error *error);
void mn_data_source_close(mn_data_source *source);

/* Fill a new data set's sizes, images and labels; what they allocate, the caller frees. */
mn_status mn_data_read_idx(mn_dataset *dataset, const char *folder, bool train, mn_error *error);
mn_status mn_data_synthesize(mn_dataset *dataset, const char *parameters, bool train,
                             mn_error *error);

#endif
