/* datasets/dataset.c: opening a data set by name, from memory or from a callback, its getters,
 * fingerprint and normalization. */
#include "datasets/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define FASHION_FOLDER "/usr/share/datasets/fashion-mnist"
#define CHANNELS_MAX   4
/* A cache line, and enough for the widest vector loads. */
#define ALIGNMENT 64

static const char *const fashion_names[] = {"T-shirt/top", "Trouser",   "Pullover", "Dress",
                                            "Coat",        "Sandal",    "Shirt",    "Sneaker",
                                            "Bag",         "Ankle boot"};

mn_status mn_data_alloc(const mn_allocator *allocator, mn_data_buffer *buffer, size_t count,
                        size_t size, mn_error *error)
{
    size_t bytes;
    *buffer = (mn_data_buffer){0};
    if (!mn_size_mul(count, size, &bytes) || bytes > PTRDIFF_MAX)
        return mn_error_fill(error, MN_ERR_MEMORY, "data: %zu elements of %zu bytes do not fit",
                             count, size);
    void *data = allocator->alloc(allocator->user, bytes, ALIGNMENT);
    if (!data)
        return mn_error_fill(error, MN_ERR_MEMORY, "data: no memory for %zu bytes", bytes);
    *buffer = (mn_data_buffer){data, bytes};
    return MN_OK;
}

void mn_data_free(const mn_allocator *allocator, mn_data_buffer *buffer)
{
    if (buffer->data)
        allocator->free(allocator->user, buffer->data, buffer->size);
    *buffer = (mn_data_buffer){0};
}

mn_status mn_data_alloc_images(mn_dataset *dataset, mn_error *error)
{
    const mn_dataset_info *info = &dataset->info;
    size_t count = (size_t)info->count;
    size_t bytes = (size_t)(info->height * info->width * info->channels);
    MN_TRY(mn_data_alloc(&dataset->allocator, &dataset->images, count, bytes, error));
    return mn_data_alloc(&dataset->allocator, &dataset->labels, count, sizeof(int64_t), error);
}

/* One step of a 64-bit FNV-1a over words; the shift lets high bits reach low ones. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

static uint64_t hash_bytes(uint64_t hash, const uint8_t *bytes, size_t size)
{
    size_t i = 0;
    for (; i + 8 <= size; i += 8) {
        uint64_t word = 0;
        for (size_t j = 0; j < 8; j++)
            word |= (uint64_t)bytes[i + j] << (8 * j);
        hash = mix(hash, word);
    }
    for (; i < size; i++)
        hash = mix(hash, bytes[i]);
    return hash;
}

static uint64_t fingerprint(const mn_dataset *dataset)
{
    const mn_dataset_info *info = &dataset->info;
    const int64_t sizes[] = {info->count, info->height, info->width, info->channels, info->classes};
    const int64_t *labels = dataset->labels.data;
    uint64_t hash = MN_HASH_START;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        hash = mix(hash, (uint64_t)sizes[i]);
    if (dataset->mutex)
        return mix(hash, dataset->source.fingerprint);
    hash = hash_bytes(hash, dataset->images.data, dataset->images.size);
    for (int64_t i = 0; i < info->count; i++)
        hash = mix(hash, (uint64_t)labels[i]);
    return hash;
}

/* An empty data set that the readers fill. */
static mn_dataset *create(const mn_allocator *allocator, mn_error *error)
{
    mn_allocator chosen;
    if (mn_allocator_read(allocator, &chosen, error) != MN_OK)
        return NULL;
    mn_dataset *dataset = chosen.alloc(chosen.user, sizeof *dataset, ALIGNMENT);
    if (!dataset) {
        mn_error_fill(error, MN_ERR_MEMORY, "data: no memory for a data set");
        return NULL;
    }
    *dataset = (mn_dataset){.allocator = chosen};
    return dataset;
}

static mn_dataset *finish(mn_dataset *dataset, mn_status status)
{
    if (status != MN_OK) {
        mn_dataset_free(dataset);
        return NULL;
    }
    const mn_dataset_info *info = &dataset->info;
    dataset->image_bytes = (size_t)(info->height * info->width * info->channels);
    dataset->info.fingerprint = fingerprint(dataset);
    return dataset;
}

/* What follows NAME: in "NAME:rest", "" for "NAME" alone, NULL if spec is another name. */
static const char *after_name(const char *spec, const char *name)
{
    size_t length = strlen(name);
    if (strncmp(spec, name, length) != 0 || (spec[length] != ':' && spec[length] != '\0'))
        return NULL;
    return spec + length + (spec[length] == ':');
}

static mn_status read_mnist(mn_dataset *dataset, const char *folder, bool train, mn_error *error)
{
    if (*folder == '\0')
        return mn_error_fill(error, MN_ERR_ARGUMENT, "%s: name its folder: %s:DIR",
                             dataset->info.name, dataset->info.name);
    dataset->info.classes = 10;
    return mn_data_read_idx(dataset, folder, train, error);
}

static mn_status read_spec(mn_dataset *dataset, const char *spec, bool train, mn_error *error)
{
    mn_dataset_info *info = &dataset->info;
    const char *rest;
    if ((rest = after_name(spec, "fashion-mnist")) != NULL) {
        info->name = "fashion-mnist";
        info->class_names = fashion_names;
        bool alone = strchr(spec, ':') == NULL;
        return read_mnist(dataset, alone ? FASHION_FOLDER : rest, train, error);
    }
    if ((rest = after_name(spec, "mnist")) != NULL) {
        info->name = "mnist";
        return read_mnist(dataset, rest, train, error);
    }
    if ((rest = after_name(spec, "synthetic")) != NULL)
        return mn_data_synthesize(dataset, rest, train, error);
    return mn_error_fill(error, MN_ERR_ARGUMENT,
                         "data: %s is none of fashion-mnist[:DIR], mnist:DIR, "
                         "synthetic:HxWxC:CLASSES[:COUNT]",
                         mn_path_shown(spec));
}

mn_dataset *mn_dataset_open(const char *spec, bool train, const mn_allocator *allocator,
                            mn_error *error)
{
    if (!spec) {
        mn_error_fill(error, MN_ERR_ARGUMENT, "data: no data set named");
        return NULL;
    }
    mn_dataset *dataset = create(allocator, error);
    return dataset ? finish(dataset, read_spec(dataset, spec, train, error)) : NULL;
}

static mn_status check_label(int64_t index, int64_t label, int classes, mn_error *error)
{
    if (label >= 0 && label < classes)
        return MN_OK;
    return mn_error_fill(error, MN_ERR_ARGUMENT, "data: label %lld is %lld, not in [0, %d)",
                         (long long)index, (long long)label, classes);
}

static mn_status check_sizes(const int64_t *shape, int classes, mn_error *error)
{
    static const char *const names[] = {"count", "height", "width", "channels"};
    size_t bytes = 1;
    for (int i = 0; i < 4; i++) {
        if (shape[i] < 1)
            return mn_error_fill(error, MN_ERR_SHAPE, "data: %s is %lld, want at least 1", names[i],
                                 (long long)shape[i]);
        if (!mn_size_mul(bytes, (size_t)shape[i], &bytes) || bytes > PTRDIFF_MAX)
            return mn_error_fill(error, MN_ERR_SHAPE, "data: the images do not fit in memory");
    }
    if (classes < 1)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "data: classes is %d, want at least 1",
                             classes);
    return MN_OK;
}

static mn_status check_memory(const uint8_t *images, const int64_t *labels, const int64_t *shape,
                              int classes, mn_error *error)
{
    if (!images || !labels || !shape)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "data: %s is NULL",
                             !images   ? "images"
                             : !labels ? "labels"
                                       : "shape");
    MN_TRY(check_sizes(shape, classes, error));
    for (int64_t i = 0; i < shape[0]; i++)
        MN_TRY(check_label(i, labels[i], classes, error));
    return MN_OK;
}

static mn_dataset_info info_of(const int64_t shape[4], int classes, const char *name)
{
    return (mn_dataset_info){.count = shape[0],
                             .height = shape[1],
                             .width = shape[2],
                             .channels = shape[3],
                             .classes = classes,
                             .name = name};
}

mn_dataset *mn_dataset_from_memory(const uint8_t *images, const int64_t *labels,
                                   const int64_t shape[4], int classes,
                                   const mn_allocator *allocator, mn_error *error)
{
    if (check_memory(images, labels, shape, classes, error) != MN_OK)
        return NULL;
    mn_dataset *dataset = create(allocator, error);
    if (!dataset)
        return NULL;
    dataset->info = info_of(shape, classes, "memory");
    mn_status status = mn_data_alloc_images(dataset, error);
    if (status == MN_OK) {
        memcpy(dataset->images.data, images, dataset->images.size);
        memcpy(dataset->labels.data, labels, dataset->labels.size);
    }
    return finish(dataset, status);
}

/* ---- images that are fetched ----------------------------------------------------------------- */

mn_dataset_source mn_dataset_source_default(void)
{
    return (mn_dataset_source){.size = sizeof(mn_dataset_source), .name = "callback"};
}

mn_dataset *mn_dataset_from_callback(const mn_dataset_source *source, const mn_allocator *allocator,
                                     mn_error *error)
{
    mn_dataset_source chosen = mn_dataset_source_default();
    if (mn_options_copy(error, "mn_dataset_source", &chosen, sizeof chosen, source) != MN_OK)
        return NULL;
    if (!chosen.get || !chosen.name) {
        mn_error_fill(error, MN_ERR_ARGUMENT, "data: the source's %s is NULL",
                      chosen.get ? "name" : "get");
        return NULL;
    }
    if (check_sizes(chosen.shape, chosen.classes, error) != MN_OK)
        return NULL;
    mn_dataset *dataset = create(allocator, error);
    if (!dataset)
        return NULL;
    snprintf(dataset->name, sizeof dataset->name, "%s", chosen.name);
    dataset->source = chosen;
    dataset->info = info_of(chosen.shape, chosen.classes, dataset->name);
    dataset->own_mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    dataset->mutex = &dataset->own_mutex;
    return finish(dataset, MN_OK);
}

mn_status mn_data_fetch(const mn_dataset *dataset, int64_t index, uint8_t *room,
                        const uint8_t **image, int64_t *label, mn_error *error)
{
    const mn_dataset_source *source = &dataset->source;
    if (!dataset->mutex) {
        mn_dataset_get(dataset, index, image, label);
        return MN_OK;
    }
    *image = room;
    *label = -1;
    pthread_mutex_lock(dataset->mutex);
    bool got = source->get(source->user, index, room, label);
    pthread_mutex_unlock(dataset->mutex);
    if (!got)
        return mn_error_fill(error, MN_ERR_IO, "data %s: image %lld is not to be had",
                             dataset->name, (long long)index);
    return check_label(index, *label, dataset->info.classes, error);
}

/* ---- getters --------------------------------------------------------------------------------- */

void mn_dataset_free(mn_dataset *dataset)
{
    if (!dataset)
        return;
    mn_allocator allocator = dataset->allocator;
    if (dataset->mutex)
        pthread_mutex_destroy(dataset->mutex);
    mn_data_free(&allocator, &dataset->images);
    mn_data_free(&allocator, &dataset->labels);
    allocator.free(allocator.user, dataset, sizeof *dataset);
}

mn_dataset_info mn_dataset_info_get(const mn_dataset *dataset)
{
    return dataset ? dataset->info : (mn_dataset_info){0};
}

bool mn_dataset_get(const mn_dataset *dataset, int64_t index, const uint8_t **image, int64_t *label)
{
    if (!dataset || dataset->mutex || index < 0 || index >= dataset->info.count)
        return false;
    if (image)
        *image = (const uint8_t *)dataset->images.data + (size_t)index * dataset->image_bytes;
    if (label)
        *label = ((const int64_t *)dataset->labels.data)[index];
    return true;
}

/* Of one channel. They are exact, so that the result depends on nothing but the pixels. */
typedef struct sums {
    uint64_t sum, squares;
} sums;

static void add_pixels(sums *to, const uint8_t *pixels, size_t bytes, size_t channels)
{
    for (size_t c = 0; c < channels; c++) {
        for (size_t i = c; i < bytes; i += channels) {
            unsigned value = pixels[i];
            to[c].sum += value;
            to[c].squares += value * value;
        }
    }
}

static void measure(const sums *of, double count, float *mean, float *deviation)
{
    double average = (double)of->sum / count;
    double variance = (double)of->squares / count - average * average;
    /* A channel that never changes has nothing to scale; dividing by zero would spoil it. */
    *deviation = variance > 0.0 ? (float)(sqrt(variance) / 255.0) : 1.0f;
    *mean = (float)(average / 255.0);
}

static mn_status add_images(const mn_dataset *dataset, int64_t images, sums *to, mn_error *error)
{
    mn_data_buffer room = {0};
    const uint8_t *pixels;
    int64_t label;
    mn_status status = MN_OK;
    if (dataset->mutex)
        MN_TRY(mn_data_alloc(&dataset->allocator, &room, dataset->image_bytes, 1, error));
    for (int64_t i = 0; i < images && status == MN_OK; i++) {
        status = mn_data_fetch(dataset, i, room.data, &pixels, &label, error);
        if (status == MN_OK)
            add_pixels(to, pixels, dataset->image_bytes, (size_t)dataset->info.channels);
    }
    mn_data_free(&dataset->allocator, &room);
    return status;
}

mn_status mn_dataset_normalization(const mn_dataset *dataset, int64_t limit,
                                   mn_normalization *normalization, mn_error *error)
{
    if (!dataset || !normalization)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "normalization: %s is NULL",
                             dataset ? "normalization" : "data set");
    const mn_dataset_info *info = &dataset->info;
    if (limit < 0)
        return mn_error_fill(error, MN_ERR_ARGUMENT, "normalization: limit is %lld, want 0 or more",
                             (long long)limit);
    if (info->channels > CHANNELS_MAX)
        return mn_error_fill(error, MN_ERR_UNSUPPORTED,
                             "normalization: the images have %lld channels, want at most %d",
                             (long long)info->channels, CHANNELS_MAX);
    int64_t images = limit == 0 || limit > info->count ? info->count : limit;
    double pixels = (double)images * (double)info->height * (double)info->width;
    sums of[CHANNELS_MAX] = {{0}};
    MN_TRY(add_images(dataset, images, of, error));
    mn_normalization measured = {.channels = (int)info->channels};
    for (int c = 0; c < measured.channels; c++)
        measure(&of[c], pixels, &measured.mean[c], &measured.deviation[c]);
    *normalization = measured;
    return MN_OK;
}
