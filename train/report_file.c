/* train/report_file.c: the report's folder, and files that are written as a whole or not at all. */
#include "train/report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static mn_status fail(mn_error *error, const char *path, const char *verb)
{
    char reason[128];
    return mn_error_set(error, MN_ERR_IO, "report: %.300s: cannot %s: %s", path, verb,
                        mn_system_text(errno, reason, sizeof reason));
}

mn_status mn_report_folder(const mn_allocator *allocator, const char *path, mn_error *error)
{
    struct stat is;
    int code = 0; /* why the last folder was not made; it may be there */
    mn_json_out part;
    if (!*path)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--report: the folder's name is empty");
    mn_out_init(&part, allocator);
    mn_put(&part, "%s", path);
    char *text = mn_out_text(&part);
    if (!text)
        return mn_error_set(error, MN_ERR_MEMORY, "report: no memory for a path");
    for (size_t i = 1; i <= strlen(path); i++) {
        if ((path[i] != '/' && path[i] != '\0') || path[i - 1] == '/')
            continue;
        text[i] = '\0'; /* ends the path here for a moment */
        code = mkdir(text, 0777) == 0 ? 0 : errno;
        text[i] = path[i];
    }
    mn_out_free(&part);
    if (stat(path, &is) == 0 && S_ISDIR(is.st_mode))
        return access(path, W_OK | X_OK) == 0 ? MN_OK : fail(error, path, "write in this folder");
    errno = code;
    return fail(error, path, "make this folder");
}

static bool write_all(int file, const char *data, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(file, data, bytes < 1u << 30 ? bytes : 1u << 30);
        if (written < 0 && errno != EINTR)
            return false;
        if (written > 0) {
            data += written;
            bytes -= (size_t)written;
        }
    }
    return fsync(file) == 0;
}

/* On disk before it takes the place of what was there. */
static mn_status replace(const mn_json_out *page, const char *path, const char *temporary,
                         mn_error *error)
{
    mn_status status = MN_OK;
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (file < 0)
        return fail(error, path, "create a file");
    if (!write_all(file, page->text.items, (size_t)page->text.count))
        status = fail(error, path, "write");
    if (close(file) != 0 && status == MN_OK)
        status = fail(error, path, "close");
    if (status == MN_OK && rename(temporary, path) != 0)
        status = fail(error, path, "replace");
    if (status != MN_OK)
        unlink(temporary);
    return status;
}

mn_status mn_report_save(mn_json_out *page, const char *folder, const char *name, mn_error *error)
{
    mn_json_out paths; /* both, each with its zero */
    mn_out_init(&paths, &page->text.allocator);
    mn_put(&paths, "%s/%s.tmp.%ld%c%s/%s", folder, name, (long)getpid(), '\0', folder, name);
    const char *temporary = mn_out_text(&paths);
    mn_status status = temporary
                           ? replace(page, temporary + strlen(temporary) + 1, temporary, error)
                           : mn_error_set(error, MN_ERR_MEMORY, "report: no memory for a path");
    mn_out_free(&paths);
    return status;
}
