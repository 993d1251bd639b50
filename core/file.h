/* core/file.h: files that are written as a whole or not at all. */
#ifndef MN_CORE_FILE_H
#define MN_CORE_FILE_H

#include "core/base.h"

typedef struct mn_file_out mn_file_out;
typedef mn_status (*mn_file_content)(mn_file_out *out, const void *user);
mn_status mn_file_put(mn_file_out *out, const void *data, size_t bytes);
/* Lets content put the file's bytes beside it, in PATH.tmp (behind symbolic links), flushes them
 * and only then replaces what was there. A failure fills *error, which names the path. */
mn_status mn_file_write(const char *path, mn_file_content content, const void *user,
                        mn_error *error);

#endif
