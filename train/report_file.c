/* train/report_file.c: the report's folder, and files that are written as a whole or not at all. */
#include "train/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ALIGNMENT = 16, TEMPORARY_TRIES = 100, SHOWN = 300 };

/* The end of a path, so that the message's rest has room. */
static const char *shown(const char *path)
{
    size_t length = strlen(path);
    return length > SHOWN ? path + length - SHOWN : path;
}

static mn_status fail(mn_error *error, const char *path, const char *verb)
{
    char reason[128];
    int code = errno;
    if (strerror_r(code, reason, sizeof reason) != 0)
        snprintf(reason, sizeof reason, "error %d", code);
    return mn_error_set(error, MN_ERR_IO, "report: %s: cannot %s: %s", shown(path), verb, reason);
}

/* ---- folder ---------------------------------------------------------------------------------- */

/* One folder; it may be there already, as a folder. */
static mn_status make_one(const char *path, mn_error *error)
{
    struct stat is;
    if (mkdir(path, 0777) == 0)
        return MN_OK;
    int code = errno;
    if (stat(path, &is) == 0) {
        if (S_ISDIR(is.st_mode))
            return MN_OK;
        code = ENOTDIR;
    }
    errno = code;
    return fail(error, path, "make this folder");
}

mn_status mn_report_folder(const mn_allocator *allocator, const char *path, mn_error *error)
{
    size_t bytes = strlen(path) + 1;
    if (bytes == 1)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--report: the folder's name is empty");
    char *part = allocator->alloc(allocator->user, bytes, ALIGNMENT);
    if (!part)
        return mn_error_set(error, MN_ERR_MEMORY, "report: no memory for a path");
    memcpy(part, path, bytes);
    mn_status status = MN_OK;
    for (size_t i = 1; status == MN_OK && i < bytes; i++) {
        if (part[i] != '/' && part[i] != '\0')
            continue;
        part[i] = '\0';
        if (part[i - 1] != '/')
            status = make_one(part, error);
        part[i] = path[i];
    }
    allocator->free(allocator->user, part, bytes);
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

typedef struct output {
    mn_error *error;
    const char *folder, *name;
    char *path, *temporary;
    size_t bytes; /* of each of the two */
    int file;
} output;

/* Creates "PATH.tmp.PID", or with one more number if that is there. */
static mn_status open_temporary(output *out)
{
    for (int i = 0; i < TEMPORARY_TRIES; i++) {
        snprintf(out->temporary, out->bytes, "%s/%s.tmp.%ld.%d", out->folder, out->name,
                 (long)getpid(), i);
        out->file = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (out->file >= 0)
            return MN_OK;
        if (errno != EEXIST)
            break;
    }
    return fail(out->error, out->path, "create a file");
}

static mn_status write_all(output *out, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(out->file, data, bytes < 1u << 30 ? bytes : 1u << 30);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return fail(out->error, out->path, "write");
        data += written;
        bytes -= (size_t)written;
    }
    if (fsync(out->file) != 0)
        return fail(out->error, out->path, "flush");
    int file = out->file;
    out->file = -1;
    return close(file) == 0 ? MN_OK : fail(out->error, out->path, "close");
}

/* Makes the rename durable where the file system can. The file is whole either way. */
static void flush_folder(const char *folder)
{
    int file = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (file < 0)
        return;
    (void)fsync(file);
    close(file);
}

static mn_status save(output *out, const mn_page *page)
{
    MN_TRY(open_temporary(out));
    mn_status status = write_all(out, page->text, page->length);
    if (status == MN_OK && rename(out->temporary, out->path) != 0)
        status = fail(out->error, out->path, "replace");
    if (out->file >= 0)
        close(out->file);
    if (status != MN_OK)
        unlink(out->temporary);
    else
        flush_folder(out->folder);
    return status;
}

mn_status mn_report_save(const mn_allocator *allocator, const char *folder, const char *name,
                         const mn_page *page, mn_error *error)
{
    size_t bytes = strlen(folder) + strlen(name) + 64, both;
    if (!mn_size_mul(bytes, 2, &both))
        return mn_error_set(error, MN_ERR_MEMORY, "report: the path is too long");
    char *memory = allocator->alloc(allocator->user, both, ALIGNMENT);
    if (!memory)
        return mn_error_set(error, MN_ERR_MEMORY, "report: no memory for a path");
    output out = {error, folder, name, memory, memory + bytes, bytes, -1};
    snprintf(out.path, bytes, "%s/%s", folder, name);
    mn_status status = save(&out, page);
    allocator->free(allocator->user, memory, both);
    return status;
}
