/* core/file_write.c: a file is written as a whole or not at all. */
#include "core/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINKS_MAX = 40 };

struct mn_file_out {
    mn_error *error;
    const char *path; /* for messages */
    int file;
    char target[PATH_MAX], temporary[PATH_MAX + 8];
};

/* Where the file lies: behind symbolic links, so that those stay. */
static mn_status follow_links(mn_file_out *out)
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
    return mn_error_system(out->error, out->path, "find the file");
}

/* Takes the temporary file for this writer alone, among processes and threads. A writer that had it
 * when it was opened here may have renamed or removed it before its lock fell: it is the target
 * then, or nothing. */
static bool lock_temporary(const mn_file_out *out, int file, const struct stat *opened)
{
    struct stat there;
    /* Not every file system has locks. */
    return (flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
           lstat(out->temporary, &there) == 0 && there.st_dev == opened->st_dev &&
           there.st_ino == opened->st_ino;
}

/* Opens "TARGET.tmp", taking over what a writer that was killed has left there. */
static mn_status open_temporary(mn_file_out *out)
{
    struct stat target, opened;
    bool replaces = stat(out->target, &target) == 0;
    /* What is replaced must not be a device (/dev/null!) or a pipe. */
    if (replaces && !S_ISREG(target.st_mode))
        return mn_error_fill(out->error, MN_ERR_IO, "%.300s: cannot replace %s", out->path,
                             S_ISDIR(target.st_mode) ? "a folder" : "a device or pipe");
    snprintf(out->temporary, sizeof out->temporary, "%s.tmp", out->target);
    int file = open(out->temporary, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (file < 0)
        return mn_error_system(out->error, out->path, "create a temporary file beside it");
    bool regular = fstat(file, &opened) == 0 && S_ISREG(opened.st_mode);
    if (!regular || !lock_temporary(out, file, &opened)) {
        close(file);
        return mn_error_fill(out->error, MN_ERR_IO, "%s.tmp is in the way: %s",
                             mn_path_shown(out->target),
                             regular ? "another writer has it" : "not a regular file");
    }
    out->file = file;
    /* Who may read the old file may read the new one; a later writer must get in in any case. */
    if (replaces)
        (void)fchmod(file, (target.st_mode & 0777) | S_IWUSR);
    return ftruncate(file, 0) == 0 ? MN_OK : mn_error_system(out->error, out->path, "write");
}

mn_status mn_file_put(mn_file_out *out, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t written = write(out->file, at, bytes < MN_IO_CHUNK ? bytes : MN_IO_CHUNK);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return mn_error_system(out->error, out->path, "write");
        at += written;
        bytes -= (size_t)written;
    }
    return MN_OK;
}

static mn_status replace(mn_file_out *out, mn_file_content content, const void *user)
{
    MN_TRY(content(out, user));
    if (fsync(out->file) != 0)
        return mn_error_system(out->error, out->path, "flush");
    if (rename(out->temporary, out->target) != 0)
        return mn_error_system(out->error, out->path, "replace");
    return MN_OK;
}

/* Makes a rename in the file's folder durable. */
static mn_status sync_folder(mn_file_out *out)
{
    char *slash = strrchr(out->target, '/');
    strcpy(slash ? slash + 1 : out->target, "."); /* in place of a name, so there is room */
    int folder = open(out->target, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) /* one that may be written but not read cannot be flushed */
        return errno == EACCES ? MN_OK : mn_error_system(out->error, out->path, "open its folder");
    /* Some file systems cannot flush folders and say so with EINVAL. */
    bool failed = fsync(folder) != 0 && errno != EINVAL;
    mn_status status = failed ? mn_error_system(out->error, out->path, "flush its folder") : MN_OK;
    close(folder);
    return status;
}

mn_status mn_file_write(const char *path, mn_file_content content, const void *user,
                        mn_error *error)
{
    mn_file_out out = {.error = error, .path = path, .file = -1};
    MN_TRY(follow_links(&out));
    mn_status status = open_temporary(&out);
    if (out.file < 0)
        return status;
    if (status == MN_OK)
        status = replace(&out, content, user);
    if (status != MN_OK)
        unlink(out.temporary);
    close(out.file); /* after the flush it has nothing to report */
    return status == MN_OK ? sync_folder(&out) : status;
}

/* Bytes in memory. */
typedef struct memory {
    const void *data;
    size_t bytes;
} memory;

static mn_status put_memory(mn_file_out *out, const void *user)
{
    const memory *m = user;
    return mn_file_put(out, m->data, m->bytes);
}

mn_status mn_file_save(const char *path, const void *data, size_t bytes, mn_error *error)
{
    const memory m = {data, bytes};
    if (!path || !*path || (!data && bytes > 0))
        return mn_error_fill(error, MN_ERR_ARGUMENT, "file_save: %s",
                             path && *path ? "data is NULL" : "there is no path");
    return mn_file_write(path, put_memory, &m, error);
}
