/* core/safetensors_write.c: writing a state dictionary to a file, all or nothing. */
#include "core/safetensors.h"
#include "core/state_dict.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the header's text ----------------------------------------------------------------------- */

typedef struct text {
    mn_context *context;
    char *data;
    size_t length, capacity;
} text;

static mn_status append(text *out, const char *bytes, size_t count)
{
    if (count > out->capacity - out->length) {
        size_t capacity = out->capacity ? 2 * out->capacity : 4096;
        while (capacity - out->length < count)
            capacity *= 2; /* far from overflow: names and strings are in memory already */
        char *data = mn_host_alloc(out->context, capacity);
        if (!data)
            return mn_error_status(out->context);
        if (out->length > 0)
            memcpy(data, out->data, out->length);
        mn_host_free(out->context, out->data, out->capacity);
        out->data = data;
        out->capacity = capacity;
    }
    memcpy(out->data + out->length, bytes, count);
    out->length += count;
    return MN_OK;
}

static mn_status append_text(text *out, const char *string)
{
    return append(out, string, strlen(string));
}

static mn_status append_number(text *out, unsigned long long value)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%llu", value);
    return append_text(out, digits);
}

static mn_status append_quoted(text *out, const char *string)
{
    MN_TRY(append(out, "\"", 1));
    while (*string) {
        size_t plain = 0;
        while ((unsigned char)string[plain] >= 0x20 && !strchr("\"\\", string[plain]))
            plain++;
        MN_TRY(append(out, string, plain));
        string += plain;
        if (*string) {
            char escape[8];
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)(unsigned char)*string++);
            MN_TRY(append_text(out, escape));
        }
    }
    return append(out, "\"", 1);
}

/* ---- the file's content ---------------------------------------------------------------------- */

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

static mn_status append_tensor(text *out, const mn_state_entry *entry, uint64_t begin)
{
    MN_TRY(append(out, ",", 1));
    MN_TRY(append_quoted(out, entry->name));
    MN_TRY(append_text(out, ":{\"dtype\":\""));
    MN_TRY(append_text(out, mn_file_dtype_name(entry->dtype)));
    MN_TRY(append_text(out, "\",\"shape\":["));
    for (int i = 0; i < entry->ndim; i++) {
        if (i > 0)
            MN_TRY(append(out, ",", 1));
        MN_TRY(append_number(out, (unsigned long long)entry->shape[i]));
    }
    MN_TRY(append_text(out, "],\"data_offsets\":["));
    MN_TRY(append_number(out, begin));
    MN_TRY(append(out, ",", 1));
    MN_TRY(append_number(out, begin + entry->bytes));
    return append_text(out, "]}");
}

/* The strings, the file's own first. *digits is where the checksum stands. */
static mn_status append_metadata(text *out, const mn_state_dict *dict, size_t *digits)
{
    const char *key;
    const char *value;
    MN_TRY(append_text(out, "{\"__metadata__\":{\"" MN_STATE_KEY_FORMAT "\":\"" MN_FILE_FORMAT
                            "\",\"" MN_STATE_KEY_CHECKSUM "\":\""));
    *digits = out->length;
    MN_TRY(append_text(out, "0000000000000000\""));
    for (int64_t i = 0; mn_state_dict_string(dict, i, &key, &value); i++) {
        MN_TRY(append(out, ",", 1));
        MN_TRY(append_quoted(out, key));
        MN_TRY(append(out, ":", 1));
        MN_TRY(append_quoted(out, value));
    }
    return append(out, "}", 1);
}

/* The header's length first, then its JSON, padded. */
static mn_status build_header(text *out, const mn_state_dict *dict)
{
    mn_state_entry entry;
    uint64_t offset = 0;
    uint64_t hash = MN_FILE_HASH_START;
    size_t digits;
    MN_TRY(append(out, "\0\0\0\0\0\0\0\0", MN_FILE_LENGTH_BYTES));
    MN_TRY(append_metadata(out, dict, &digits));
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry); offset += entry.bytes)
        MN_TRY(append_tensor(out, &entry, offset));
    MN_TRY(append(out, "}", 1));
    while (out->length % 8 != 0)
        MN_TRY(append(out, " ", 1));
    uint64_t length = out->length - MN_FILE_LENGTH_BYTES;
    if (length > MN_FILE_HEADER_MAX)
        return mn_fail(out->context, MN_ERR_ARGUMENT,
                       "names and strings make a header of %llu bytes, %d are allowed",
                       (unsigned long long)length, MN_FILE_HEADER_MAX);
    memcpy(out->data, &length, sizeof length);
    hash = mn_file_hash(hash, out->data, out->length);
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry);)
        hash = mn_file_hash(hash, entry.data, entry.bytes);
    mn_file_digits(hash, out->data + digits);
    return MN_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct output {
    mn_context *context;
    const char *path; /* the final one, for messages */
    char *temporary;
    size_t temporary_bytes;
    int file;
} output;

/* The file takes the place of what is there, which must not be a device (/dev/null!) or a pipe. */
static mn_status check_replaceable(const output *out)
{
    struct stat there;
    if (stat(out->path, &there) != 0 || S_ISREG(there.st_mode))
        return MN_OK;
    return mn_fail(out->context, MN_ERR_IO, "%.300s: cannot replace %s", out->path,
                   S_ISDIR(there.st_mode) ? "a folder" : "a device or pipe");
}

/* Creates "PATH.tmp.PID", or with one more number if that is there. */
static mn_status open_temporary(output *out)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        int length =
            snprintf(out->temporary, out->temporary_bytes, "%s.tmp.%ld", out->path, (long)getpid());
        if (attempt > 0)
            snprintf(out->temporary + length, out->temporary_bytes - (size_t)length, ".%d",
                     attempt);
        out->file = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (out->file >= 0)
            return MN_OK;
        if (errno != EEXIST)
            break;
    }
    return mn_file_fail(out->context, out->path, "create a temporary file beside it");
}

static mn_status write_all(output *out, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        size_t chunk = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
        ssize_t written = write(out->file, at, chunk);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return mn_file_fail(out->context, out->path, "write");
        at += written;
        bytes -= (size_t)written;
    }
    return MN_OK;
}

/* Content on disk, file closed. */
static mn_status finish(output *out)
{
    if (fsync(out->file) != 0)
        return mn_file_fail(out->context, out->path, "flush");
    int file = out->file;
    out->file = -1;
    if (close(file) != 0)
        return mn_file_fail(out->context, out->path, "close");
    return MN_OK;
}

/* Makes a rename in the file's folder durable. */
static mn_status sync_folder(output *out)
{
    const char *slash = strrchr(out->path, '/');
    size_t length = !slash ? 1 : slash == out->path ? 1 : (size_t)(slash - out->path);
    memcpy(out->temporary, slash ? out->path : ".", length);
    out->temporary[length] = '\0';
    int folder = open(out->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return mn_file_fail(out->context, out->path, "open its folder");
    /* Some file systems cannot flush folders and say so with EINVAL. */
    bool failed = fsync(folder) != 0 && errno != EINVAL;
    mn_status status = failed ? mn_file_fail(out->context, out->path, "flush its folder") : MN_OK;
    close(folder);
    return status;
}

static mn_status write_temporary(output *out, const mn_state_dict *dict, const text *header)
{
    mn_state_entry entry;
    MN_TRY(write_all(out, header->data, header->length));
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry);)
        MN_TRY(write_all(out, entry.data, entry.bytes));
    MN_TRY(finish(out));
    if (rename(out->temporary, out->path) != 0)
        return mn_file_fail(out->context, out->path, "replace");
    return MN_OK;
}

static mn_status write_file(mn_context *context, const mn_state_dict *dict, const char *path,
                            const text *header)
{
    output out = {.context = context, .path = path, .file = -1};
    out.temporary_bytes = strlen(path) + 64;
    out.temporary = mn_host_alloc(context, out.temporary_bytes);
    if (!out.temporary)
        return mn_error_status(context);
    mn_status status = check_replaceable(&out);
    if (status == MN_OK)
        status = open_temporary(&out);
    if (status == MN_OK) {
        status = write_temporary(&out, dict, header);
        if (out.file >= 0)
            close(out.file);
        if (status != MN_OK)
            unlink(out.temporary);
        else
            status = sync_folder(&out);
    }
    mn_host_free(context, out.temporary, out.temporary_bytes);
    return status;
}

mn_status mn_state_dict_write(mn_state_dict *dict, const char *path)
{
    mn_context *context = mn_state_dict_context(dict);
    text header = {.context = context};
    MN_TRY(mn_error_status(context));
    if (!path || !*path)
        return mn_fail(context, MN_ERR_ARGUMENT, "state_dict_write: there is no path");
    mn_status status = build_header(&header, dict);
    if (status == MN_OK)
        status = write_file(context, dict, path, &header);
    mn_host_free(context, header.data, header.capacity);
    return status;
}
