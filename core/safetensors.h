/* core/safetensors.h: what the reader and the writer of checkpoint files share. */
#ifndef MN_CORE_SAFETENSORS_H
#define MN_CORE_SAFETENSORS_H

#include "core/core.h"

/* A file: header length (8 bytes, little-endian), the header (JSON, padded with spaces so that the
 * data start at a multiple of 8), the data. The checksum, an FNV-1a, runs over all of it, with its
 * own digits taken as '0'. */
enum {
    MN_FILE_LENGTH_BYTES = 8,
    MN_FILE_HEADER_MAX = 100000000,
    MN_FILE_DIGITS = 16,
    MN_FILE_CHUNK = 1 << 30 /* read and write take less than 2 GiB at once */
};
#define MN_FILE_FORMAT "1"

/* "F32", ... */
extern const char *const mn_file_dtype_names[MN_DTYPE_COUNT];
/* Lower-case hexadecimal digits, not NUL-terminated. */
void mn_file_digits(uint64_t hash, char digits[MN_FILE_DIGITS]);
/* Records MN_ERR_IO "PATH: cannot VERB: the system's text for errno". */
mn_status mn_file_fail(mn_context *context, const char *path, const char *verb);

#endif
