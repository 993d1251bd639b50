/* train/report_file.c: the report's folder, and files that are written as a whole or not at all. */
#include "core/file.h"
#include "train/report.h"

#include <errno.h>
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
    if (code == EEXIST)
        code = ENOTDIR; /* what is in the way is a file */
    errno = code;
    return fail(error, path, "make this folder");
}

mn_status mn_report_save(mn_json_out *page, const char *folder, const char *name, mn_error *error)
{
    mn_json_out path;
    mn_error local = {.status = MN_OK};
    mn_out_init(&path, &page->text.allocator);
    mn_put(&path, "%s/%s", folder, name);
    const char *text = mn_out_text(&path);
    if (!text)
        mn_error_set(&local, MN_ERR_MEMORY, "no memory for a path");
    else
        mn_file_save(text, page->text.items, (size_t)page->text.count, &local);
    mn_out_free(&path);
    return local.status == MN_OK ? MN_OK
                                 : mn_error_set(error, local.status, "report: %s", local.message);
}
