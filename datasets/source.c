/* datasets/source.c: the bytes of a regular file, unpacked on the way if it is gzip. zlib works in
 * the caller's allocator, and every fault names the file and the byte. */
#include "datasets/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define INPUT_SIZE 65536
/* zlib counts in unsigned int. */
#define PIECE_MAX (1u << 30)
/* inflateInit2: the largest window, and expect a gzip header. */
#define GZIP_WINDOW (15 + 16)

struct mn_data_source {
    mn_allocator allocator;
    const char *path;
    int file;
    bool gzip, inflating; /* inflating: `stream` needs inflateEnd */
    bool member_done;     /* between two gzip members, or after the last */
    bool file_done;
    uint64_t file_bytes; /* read from the file so far */
    z_stream stream;
    unsigned char input[INPUT_SIZE];
};

/* zlib's free does not tell the size that ours wants, so each block is led by it. */
typedef union block_head {
    size_t size;
    max_align_t align;
} block_head;

static voidpf zlib_alloc(voidpf opaque, uInt count, uInt size)
{
    const mn_allocator *allocator = opaque;
    size_t bytes;
    mn_data_buffer buffer;
    if (!mn_size_mul(count, size, &bytes) || !mn_size_add(bytes, sizeof(block_head), &bytes) ||
        mn_data_alloc(allocator, &buffer, bytes, 1, NULL) != MN_OK)
        return Z_NULL;
    block_head *head = buffer.data;
    head->size = buffer.size;
    return head + 1;
}

static void zlib_free(voidpf opaque, voidpf address)
{
    const mn_allocator *allocator = opaque;
    block_head *head = (block_head *)address - 1;
    allocator->free(allocator->user, head, head->size);
}

/* Where input stands in the file: what was read less what still waits in the buffer. */
static unsigned long long input_position(const mn_data_source *source)
{
    return source->file_bytes - source->stream.avail_in;
}

static mn_status refill(mn_data_source *source, mn_error *error)
{
    if (source->stream.avail_in > 0 || source->file_done)
        return MN_OK;
    ssize_t got;
    do {
        got = read(source->file, source->input, INPUT_SIZE);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return mn_error_system(error, source->path, "read");
    source->file_done = got == 0;
    source->file_bytes += (uint64_t)got;
    source->stream.next_in = source->input;
    source->stream.avail_in = (uInt)got;
    return MN_OK;
}

static mn_status open_regular(const char *path, int *file, mn_error *error)
{
    struct stat status;
    /* Not blocking, so that a pipe is refused below instead of waited for. */
    *file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*file < 0)
        return errno == ENOENT || errno == ENOTDIR ? MN_OK : mn_error_system(error, path, "open");
    if (fstat(*file, &status) != 0)
        return mn_error_system(error, path, "look at");
    if (!S_ISREG(status.st_mode))
        return mn_error_fill(error, MN_ERR_IO, "%s: is %s, not a regular file", mn_path_shown(path),
                             S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe");
    return MN_OK;
}

static mn_status fail_zlib(mn_data_source *source, int code, mn_error *error)
{
    if (code == Z_MEM_ERROR)
        return mn_error_fill(error, MN_ERR_MEMORY, "%s: no memory to unpack it",
                             mn_path_shown(source->path));
    return mn_error_fill(error, MN_ERR_FORMAT, "%s: gzip data is damaged near byte %llu (%s)",
                         mn_path_shown(source->path), input_position(source),
                         source->stream.msg ? source->stream.msg : "zlib gives no reason");
}

static mn_status detect_gzip(mn_data_source *source, mn_error *error)
{
    MN_TRY(refill(source, error));
    source->gzip =
        source->stream.avail_in >= 2 && source->input[0] == 0x1f && source->input[1] == 0x8b;
    if (!source->gzip)
        return MN_OK;
    int code = inflateInit2(&source->stream, GZIP_WINDOW);
    source->inflating = code == Z_OK;
    return code == Z_OK ? MN_OK : fail_zlib(source, code, error);
}

mn_status mn_data_source_open(const mn_allocator *allocator, const char *path,
                              mn_data_source **source, mn_error *error)
{
    int file = -1;
    mn_data_buffer self = {0};
    *source = NULL;
    mn_status status = open_regular(path, &file, error);
    if (file < 0)
        return status;
    if (status == MN_OK)
        status = mn_data_alloc(allocator, &self, 1, sizeof(mn_data_source), error);
    mn_data_source *opened = self.data;
    if (!opened) {
        close(file);
        return status;
    }
    memset(opened, 0, sizeof *opened);
    opened->allocator = *allocator;
    opened->path = path;
    opened->file = file;
    opened->stream.zalloc = zlib_alloc;
    opened->stream.zfree = zlib_free;
    opened->stream.opaque = &opened->allocator;
    *source = opened;
    return detect_gzip(opened, error);
}

/* A gzip file may be several members in a row; anything else after a member is a fault. */
static mn_status next_member(mn_data_source *source, bool *end, mn_error *error)
{
    MN_TRY(refill(source, error));
    *end = source->stream.avail_in == 0;
    if (*end)
        return MN_OK;
    if (source->stream.next_in[0] != 0x1f)
        return mn_error_fill(error, MN_ERR_FORMAT, "%s: bytes after the gzip data, from byte %llu",
                             mn_path_shown(source->path), input_position(source));
    source->member_done = false;
    int code = inflateReset(&source->stream);
    return code == Z_OK ? MN_OK : fail_zlib(source, code, error);
}

/* Unpacks until the output is full or the data end. */
static mn_status read_gzip(mn_data_source *source, mn_error *error)
{
    z_stream *stream = &source->stream;
    bool end = false;
    while (stream->avail_out > 0) {
        MN_TRY(source->member_done ? next_member(source, &end, error) : refill(source, error));
        if (end)
            break;
        if (stream->avail_in == 0)
            return mn_error_fill(error, MN_ERR_FORMAT, "%s: gzip data ends early at byte %llu",
                                 mn_path_shown(source->path), input_position(source));
        int code = inflate(stream, Z_NO_FLUSH);
        source->member_done = code == Z_STREAM_END;
        if (code != Z_OK && code != Z_STREAM_END)
            return fail_zlib(source, code, error);
    }
    return MN_OK;
}

static mn_status read_plain(mn_data_source *source, mn_error *error)
{
    z_stream *stream = &source->stream;
    while (stream->avail_out > 0) {
        MN_TRY(refill(source, error));
        if (stream->avail_in == 0)
            break;
        uInt part = stream->avail_out < stream->avail_in ? stream->avail_out : stream->avail_in;
        memcpy(stream->next_out, stream->next_in, part);
        stream->next_out += part;
        stream->avail_out -= part;
        stream->next_in += part;
        stream->avail_in -= part;
    }
    return MN_OK;
}

mn_status mn_data_source_read(mn_data_source *source, void *data, size_t size, size_t *got,
                              mn_error *error)
{
    z_stream *stream = &source->stream;
    for (*got = 0; *got < size;) {
        uInt piece = size - *got < PIECE_MAX ? (uInt)(size - *got) : PIECE_MAX;
        stream->next_out = (unsigned char *)data + *got;
        stream->avail_out = piece;
        mn_status status = source->gzip ? read_gzip(source, error) : read_plain(source, error);
        *got += piece - stream->avail_out;
        if (status != MN_OK || stream->avail_out > 0)
            return status;
    }
    return MN_OK;
}

void mn_data_source_close(mn_data_source *source)
{
    if (!source)
        return;
    if (source->inflating)
        inflateEnd(&source->stream);
    close(source->file);
    mn_allocator allocator = source->allocator;
    allocator.free(allocator.user, source, sizeof *source);
}
