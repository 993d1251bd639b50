/* core/safetensors_write.c: a state dictionary to a file, all or nothing, or to memory. */
#include "core/safetensors.h"
#include "core/state_dict.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MAX = 40 };

/* ---- the header ------------------------------------------------------------------------------ */

/* Put together twice: without data, bytes are only counted. */
typedef struct text {
    char *data;
    size_t length;
} text;

static void put(text *out, const char *bytes, size_t count)
{
    if (out->data)
        memcpy(out->data + out->length, bytes, count);
    out->length += count;
}

/* For short pieces. */
static void put_format(text *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put_format(text *out, const char *format, ...)
{
    char piece[128] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(piece, sizeof piece, format, arguments);
    va_end(arguments);
    put(out, piece, strlen(piece));
}

static void put_quoted(text *out, const char *string)
{
    put(out, "\"", 1);
    for (; *string; string++) {
        unsigned char c = (unsigned char)*string;
        if (c < 0x20 || c == '"' || c == '\\')
            put_format(out, "\\u%04x", c);
        else
            put(out, string, 1);
    }
    put(out, "\"", 1);
}

/* Tensors by falling element size, so that every one is aligned; else in insertion order. */
typedef struct cursor {
    const mn_state_dict *dict;
    size_t size;
    int64_t index;
} cursor;

static bool next_entry(cursor *at, mn_state_entry *entry)
{
    for (; at->size > 0; at->size /= 2, at->index = 0) {
        while (mn_state_dict_entry(at->dict, at->index, entry)) {
            at->index++;
            if (mn_dtype_size(entry->dtype) == at->size)
                return true;
        }
    }
    return false;
}

/* Returns where the checksum's digits belong. */
static size_t put_header(text *out, const mn_state_dict *dict)
{
    const char *key, *value;
    mn_state_entry entry;
    unsigned long long begin = 0;
    out->length = MN_FILE_LENGTH_BYTES;
    put_format(out, "{\"__metadata__\":{\"%s\":\"%s\",\"%s\":\"", MN_STATE_KEY_FORMAT,
               MN_FILE_FORMAT, MN_STATE_KEY_CHECKSUM);
    size_t digits = out->length;
    put_format(out, "%0*d\"", (int)MN_FILE_DIGITS, 0);
    for (int64_t i = 0; mn_state_dict_string(dict, i, &key, &value); i++) {
        put(out, ",", 1);
        put_quoted(out, key);
        put(out, ":", 1);
        put_quoted(out, value);
    }
    put(out, "}", 1);
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry); begin += entry.bytes) {
        put(out, ",", 1);
        put_quoted(out, entry.name);
        put_format(out, ":{\"dtype\":\"%s\",\"shape\":[", mn_file_dtype_names[entry.dtype]);
        for (int i = 0; i < entry.ndim; i++)
            put_format(out, "%s%lld", i ? "," : "", (long long)entry.shape[i]);
        put_format(out, "],\"data_offsets\":[%llu,%llu]}", begin, begin + entry.bytes);
    }
    put(out, "}", 1);
    while (out->length % 8 != 0)
        put(out, " ", 1);
    return digits;
}

/* The header's length first, then its JSON, padded. */
static mn_status build_header(mn_context *context, text *out, const mn_state_dict *dict)
{
    mn_state_entry entry;
    put_header(out, dict);
    uint64_t length = out->length - MN_FILE_LENGTH_BYTES;
    if (length > MN_FILE_HEADER_MAX)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "names and strings make a header of %llu bytes, %d are allowed",
                       (unsigned long long)length, (int)MN_FILE_HEADER_MAX);
    out->data = mn_host_alloc(context, out->length);
    if (!out->data)
        return mn_error_status(context);
    memcpy(out->data, &length, sizeof length);
    size_t digits = put_header(out, dict);
    uint64_t hash = mn_hash(MN_HASH_START, out->data, out->length);
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry);)
        hash = mn_hash(hash, entry.data, entry.bytes);
    mn_file_digits(hash, out->data + digits);
    return MN_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct output {
    mn_context *context;
    const char *path; /* for messages */
    int file;
    char target[PATH_MAX], temporary[PATH_MAX + 8];
} output;

/* Where the file lies: behind symbolic links, so that those stay. */
static mn_status follow_links(output *out)
{
    char link[PATH_MAX];
    int links = 0, length = snprintf(out->target, sizeof out->target, "%s", out->path);
    size_t room = sizeof out->target;
    for (; length >= 0 && (size_t)length < room && links < LINKS_MAX; links++) {
        ssize_t bytes = readlink(out->target, link, sizeof link - 1);
        if (bytes < 0)
            return MN_OK; /* no link; whether it can be written is seen later */
        link[bytes] = '\0';
        char *slash = *link == '/' ? NULL : strrchr(out->target, '/');
        char *name = slash ? slash + 1 : out->target;
        room = sizeof out->target - (size_t)(name - out->target);
        length = snprintf(name, room, "%s", link);
    }
    errno = links < LINKS_MAX ? ENAMETOOLONG : ELOOP;
    return mn_file_fail(out->context, out->path, "find the file");
}

/* Opens "TARGET.tmp", taking over what a writer that was killed has left there. */
static mn_status open_temporary(output *out)
{
    struct stat there;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    /* What is replaced must not be a device (/dev/null!) or a pipe. */
    if (stat(out->target, &there) == 0 && !S_ISREG(there.st_mode))
        return mn_fail(out->context, MN_ERR_IO, "%.300s: cannot replace %s", out->path,
                       S_ISDIR(there.st_mode) ? "a folder" : "a device or pipe");
    snprintf(out->temporary, sizeof out->temporary, "%s.tmp", out->target);
    int file = open(out->temporary, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (file < 0)
        return mn_file_fail(out->context, out->path, "create a temporary file beside it");
    /* Two processes that write the same file would mix. Not every file system has locks. */
    bool regular = fstat(file, &there) == 0 && S_ISREG(there.st_mode);
    if (regular && (fcntl(file, F_SETLK, &lock) == 0 || (errno != EAGAIN && errno != EACCES))) {
        out->file = file;
        return ftruncate(file, 0) == 0 ? MN_OK : mn_file_fail(out->context, out->path, "write");
    }
    close(file);
    return mn_fail(out->context, MN_ERR_IO, "%s.tmp is in the way: %s", mn_path_shown(out->target),
                   regular ? "another process is writing it" : "not a regular file");
}

static mn_status write_all(output *out, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t written = write(out->file, at, bytes < MN_FILE_CHUNK ? bytes : MN_FILE_CHUNK);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return mn_file_fail(out->context, out->path, "write");
        at += written;
        bytes -= (size_t)written;
    }
    return MN_OK;
}

static mn_status write_content(output *out, const mn_state_dict *dict, const text *header)
{
    mn_state_entry entry;
    MN_TRY(write_all(out, header->data, header->length));
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry);)
        MN_TRY(write_all(out, entry.data, entry.bytes));
    if (fsync(out->file) != 0)
        return mn_file_fail(out->context, out->path, "flush");
    if (rename(out->temporary, out->target) != 0)
        return mn_file_fail(out->context, out->path, "replace");
    return MN_OK;
}

/* Makes a rename in the file's folder durable. */
static mn_status sync_folder(output *out)
{
    char *slash = strrchr(out->target, '/');
    strcpy(slash ? slash + 1 : out->target, "."); /* in place of a name, so there is room */
    int folder = open(out->target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return mn_file_fail(out->context, out->path, "open its folder");
    /* Some file systems cannot flush folders and say so with EINVAL. */
    bool failed = fsync(folder) != 0 && errno != EINVAL;
    mn_status status = failed ? mn_file_fail(out->context, out->path, "flush its folder") : MN_OK;
    close(folder);
    return status;
}

static mn_status write_file(output *out, const mn_state_dict *dict, const text *header)
{
    MN_TRY(follow_links(out));
    mn_status status = open_temporary(out);
    if (out->file < 0)
        return status;
    if (status == MN_OK)
        status = write_content(out, dict, header);
    if (status != MN_OK)
        unlink(out->temporary);
    close(out->file); /* after the flush it has nothing to report */
    return status == MN_OK ? sync_folder(out) : status;
}

mn_status mn_state_dict_write(mn_state_dict *dict, const char *path)
{
    mn_context *context = mn_state_dict_context(dict);
    text header = {0};
    output out = {.context = context, .path = path, .file = -1};
    MN_TRY(mn_error_status(context));
    if (!path || !*path)
        return mn_fail(context, MN_ERR_ARGUMENT, "state_dict_write: there is no path");
    mn_status status = build_header(context, &header, dict);
    if (status == MN_OK)
        status = write_file(&out, dict, &header);
    mn_host_free(context, header.data, header.length);
    return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static mn_status fill_buffer(mn_context *context, const mn_state_dict *dict, const text *header,
                             text *out)
{
    mn_state_entry entry;
    size_t bytes = header->length;
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry);)
        bytes += entry.bytes; /* all of them are in memory, so that they fit */
    out->data = mn_host_alloc(context, bytes);
    if (!out->data)
        return mn_error_status(context);
    put(out, header->data, header->length);
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry);) {
        if (entry.bytes > 0)
            put(out, entry.data, entry.bytes);
    }
    return MN_OK;
}

mn_status mn_state_dict_to_buffer(mn_state_dict *dict, void **data, size_t *bytes)
{
    mn_context *context = mn_state_dict_context(dict);
    text header = {0}, out = {0};
    if (data)
        *data = NULL;
    MN_TRY(mn_error_status(context));
    if (!data || !bytes)
        return mn_fail(context, MN_ERR_ARGUMENT, "state_dict_to_buffer: %s is NULL",
                       data ? "bytes" : "data");
    mn_status status = build_header(context, &header, dict);
    if (status == MN_OK)
        status = fill_buffer(context, dict, &header, &out);
    mn_host_free(context, header.data, header.length);
    *data = out.data;
    *bytes = out.length;
    return status;
}

void mn_buffer_free(mn_context *context, void *data, size_t bytes)
{
    if (context)
        mn_host_free(context, data, bytes);
}
