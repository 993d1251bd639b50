/* core/safetensors.h: what the reader and the writer of checkpoint files share: dtype names,
 * checksum, and how messages show paths and the system's errors. */
#ifndef MN_CORE_SAFETENSORS_H
#define MN_CORE_SAFETENSORS_H

#include "core/core.h"

/* A file: header length (8 bytes, little-endian), the header (JSON, padded with spaces so that the
 * data start at a multiple of 8), the data. The checksum runs over all of it, with its own digits
 * taken as '0'. */
#define MN_FILE_LENGTH_BYTES    8
#define MN_FILE_HEADER_MAX      100000000
#define MN_FILE_CHECKSUM_DIGITS 16
#define MN_FILE_FORMAT          "1"
#define MN_FILE_HASH_START      0xcbf29ce484222325u

/* "F32", ...; NULL for a dtype that is none. */
const char *mn_file_dtype_name(mn_dtype dtype);
bool mn_file_dtype_find(const char *name, mn_dtype *dtype);
/* FNV-1a, 64 bits, continued from `hash`. */
uint64_t mn_file_hash(uint64_t hash, const void *data, size_t bytes);
/* Lower-case hexadecimal digits, not NUL-terminated. */
void mn_file_digits(uint64_t hash, char digits[MN_FILE_CHECKSUM_DIGITS]);
/* The end of a path, so that the rest of a message has room. */
const char *mn_file_shown(const char *path);
/* Records MN_ERR_IO "PATH: cannot VERB: the system's text for errno". */
mn_status mn_file_fail(mn_context *context, const char *path, const char *verb);

#endif
