/* datasets/idx.c: reader of the MNIST family's IDX files: a magic number and sizes in big-endian
 * words, then bytes. Nothing the header claims is believed before the bytes are there. */
#include "datasets/internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define MAGIC_LABELS 0x00000801u
#define MAGIC_IMAGES 0x00000803u
#define SIDE_MAX     32768u
#define FIRST_CHUNK  ((size_t)1 << 20)

/* One of the two files of a part. */
typedef struct idx_file {
    const char *folder, *name;
    uint32_t magic;
    uint32_t size[3];  /* from the header: count, and for images rows and columns */
    size_t start;      /* bytes before the data */
    size_t data_bytes; /* that the header promises */
    mn_data_source *source;
    mn_data_buffer data;
    char path[PATH_MAX]; /* that was opened */
} idx_file;

static mn_status open_file(const mn_dataset *dataset, idx_file *file, mn_error *error)
{
    static const char *const endings[] = {"", ".gz"};
    const char *set = dataset->info.name;
    for (int i = 0; i < 2 && !file->source; i++) {
        int length = snprintf(file->path, sizeof file->path, "%s/%s%s", file->folder, file->name,
                              endings[i]);
        if (length < 0 || (size_t)length >= sizeof file->path)
            return mn_error_fill(error, MN_ERR_ARGUMENT, "%s: the folder's name is too long", set);
        MN_TRY(mn_data_source_open(&dataset->allocator, file->path, &file->source, error));
    }
    if (file->source)
        return MN_OK;
    const char *hint = strcmp(set, "fashion-mnist") == 0
                           ? "; install the package dataset-fashion-mnist, or give its folder as "
                             "fashion-mnist:DIR"
                           : "";
    return mn_error_fill(error, MN_ERR_IO, "%s: found neither %s nor %s.gz in %s%s", set,
                         file->name, file->name, mn_path_shown(file->folder), hint);
}

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static mn_status fail_short(const idx_file *file, size_t at, size_t promised, mn_error *error)
{
    return mn_error_fill(error, MN_ERR_FORMAT, "%s: ends at byte %zu of %zu",
                         mn_path_shown(file->path), at, promised);
}

static mn_status check_sizes(idx_file *file, mn_error *error)
{
    static const char *const names[] = {"items", "rows", "columns"};
    int dims = (int)(file->magic & 0xff);
    file->data_bytes = 1;
    for (int i = 0; i < dims; i++) {
        uint32_t size = file->size[i];
        if (size == 0 || (i > 0 && size > SIDE_MAX))
            return mn_error_fill(error, MN_ERR_FORMAT, "%s: byte %d: number of %s is %lu",
                                 mn_path_shown(file->path), 4 + 4 * i, names[i],
                                 (unsigned long)size);
        if (!mn_size_mul(file->data_bytes, size, &file->data_bytes))
            return mn_error_fill(error, MN_ERR_FORMAT, "%s: byte 4: sizes do not fit in memory",
                                 mn_path_shown(file->path));
    }
    return MN_OK;
}

static mn_status read_header(idx_file *file, mn_error *error)
{
    uint8_t bytes[16];
    size_t got, wanted = 4 + 4 * (size_t)(file->magic & 0xff);
    MN_TRY(mn_data_source_read(file->source, bytes, wanted, &got, error));
    if (got >= 4 && big_endian(bytes) != file->magic)
        return mn_error_fill(
            error, MN_ERR_FORMAT, "%s: byte 0: magic number 0x%08lx, not the 0x%08lx of IDX %s",
            mn_path_shown(file->path), (unsigned long)big_endian(bytes), (unsigned long)file->magic,
            file->magic == MAGIC_IMAGES ? "images" : "labels");
    if (got < wanted)
        return fail_short(file, got, wanted, error);
    for (size_t i = 0; 4 + 4 * i < wanted; i++)
        file->size[i] = big_endian(bytes + 4 + 4 * i);
    file->start = wanted;
    return check_sizes(file, error);
}

/* Reads exactly the bytes the header promises and sees that none follow. Room is made as it is
 * needed, doubling, so that a lying header costs no more than about twice what the file holds. */
static mn_status read_data(const mn_allocator *allocator, idx_file *file, mn_error *error)
{
    mn_data_buffer *data = &file->data;
    size_t got, promised = file->start + file->data_bytes;
    uint8_t extra;
    for (size_t filled = 0; filled < file->data_bytes; filled += got) {
        size_t room = filled == 0 ? FIRST_CHUNK : filled;
        room = room < file->data_bytes - filled ? room : file->data_bytes - filled;
        mn_data_buffer larger;
        MN_TRY(mn_data_alloc(allocator, &larger, filled + room, 1, error));
        if (filled > 0)
            memcpy(larger.data, data->data, filled);
        mn_data_free(allocator, data);
        *data = larger;
        MN_TRY(
            mn_data_source_read(file->source, (uint8_t *)data->data + filled, room, &got, error));
        if (got < room)
            return fail_short(file, file->start + filled + got, promised, error);
    }
    MN_TRY(mn_data_source_read(file->source, &extra, 1, &got, error));
    if (got > 0)
        return mn_error_fill(error, MN_ERR_FORMAT, "%s: goes on after its %zu bytes",
                             mn_path_shown(file->path), promised);
    return MN_OK;
}

static mn_status read_file(const mn_dataset *dataset, idx_file *file, mn_error *error)
{
    mn_status status = open_file(dataset, file, error);
    if (status == MN_OK)
        status = read_header(file, error);
    if (status == MN_OK)
        status = read_data(&dataset->allocator, file, error);
    mn_data_source_close(file->source);
    file->source = NULL;
    return status;
}

static mn_status convert_labels(mn_dataset *dataset, const idx_file *file, mn_error *error)
{
    size_t count = file->data.size;
    const uint8_t *from = file->data.data;
    MN_TRY(mn_data_alloc(&dataset->allocator, &dataset->labels, count, sizeof(int64_t), error));
    int64_t *to = dataset->labels.data;
    for (size_t i = 0; i < count; i++) {
        if (from[i] >= dataset->info.classes)
            return mn_error_fill(error, MN_ERR_FORMAT, "%s: label %zu is %d, not in [0, %d)",
                                 mn_path_shown(file->path), i, from[i], dataset->info.classes);
        to[i] = from[i];
    }
    return MN_OK;
}

static mn_status read_pair(mn_dataset *dataset, idx_file *images, idx_file *labels, mn_error *error)
{
    MN_TRY(read_file(dataset, images, error));
    MN_TRY(read_file(dataset, labels, error));
    if (images->size[0] != labels->size[0])
        return mn_error_fill(error, MN_ERR_FORMAT, "%s: %lu labels for the %lu images of %s",
                             mn_path_shown(labels->path), (unsigned long)labels->size[0],
                             (unsigned long)images->size[0], images->name);
    return convert_labels(dataset, labels, error);
}

mn_status mn_data_read_idx(mn_dataset *dataset, const char *folder, bool train, mn_error *error)
{
    idx_file images = {.folder = folder, .magic = MAGIC_IMAGES};
    idx_file labels = {.folder = folder, .magic = MAGIC_LABELS};
    images.name = train ? "train-images-idx3-ubyte" : "t10k-images-idx3-ubyte";
    labels.name = train ? "train-labels-idx1-ubyte" : "t10k-labels-idx1-ubyte";
    mn_status status = read_pair(dataset, &images, &labels, error);
    dataset->images = images.data;
    mn_data_free(&dataset->allocator, &labels.data);
    dataset->info.count = images.size[0];
    dataset->info.height = images.size[1];
    dataset->info.width = images.size[2];
    dataset->info.channels = 1;
    return status;
}
