/* core/safetensors.h: what the reader and the writer of checkpoint files share. */
#ifndef MN_CORE_SAFETENSORS_H
#define MN_CORE_SAFETENSORS_H

#include "core/core.h"

/* A file: header length (8 bytes, little-endian), the header (JSON, padded with spaces so that the
 * data start at a multiple of 8), the data. The checksum, an FNV-1a, runs over all of it, with its
 * own digits taken as '0'. */
enum { MN_FILE_LENGTH_BYTES = 8, MN_FILE_HEADER_MAX = 100000000, MN_FILE_DIGITS = 16 };
#define MN_FILE_FORMAT "1"

/* "F32", ... */
extern const char *const mn_file_dtype_names[MN_DTYPE_COUNT];
/* Lower-case hexadecimal digits, not NUL-terminated. */
void mn_file_digits(uint64_t hash, char digits[MN_FILE_DIGITS]);

#endif
