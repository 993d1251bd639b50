/* core/safetensors.c: what the reader and the writer of checkpoint files share. */
#include "core/safetensors.h"

#include <errno.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold the host's byte order");

static const char *const dtype_names[MN_DTYPE_COUNT] = {
    [MN_F64] = "F64", [MN_F32] = "F32", [MN_F16] = "F16", [MN_BF16] = "BF16",
    [MN_I64] = "I64", [MN_I32] = "I32", [MN_U8] = "U8",
};

const char *mn_file_dtype_name(mn_dtype dtype)
{
    size_t index = (size_t)dtype;
    return index < MN_DTYPE_COUNT ? dtype_names[index] : NULL;
}

bool mn_file_dtype_find(const char *name, mn_dtype *dtype)
{
    for (size_t i = 0; i < MN_DTYPE_COUNT; i++) {
        if (strcmp(dtype_names[i], name) == 0) {
            *dtype = (mn_dtype)i;
            return true;
        }
    }
    return false;
}

uint64_t mn_file_hash(uint64_t hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

void mn_file_digits(uint64_t hash, char digits[MN_FILE_CHECKSUM_DIGITS])
{
    for (int i = MN_FILE_CHECKSUM_DIGITS - 1; i >= 0; i--) {
        digits[i] = "0123456789abcdef"[hash & 15];
        hash >>= 4;
    }
}

const char *mn_file_shown(const char *path)
{
    size_t length = strlen(path);
    return length > 200 ? path + length - 200 : path;
}

mn_status mn_file_fail(mn_context *context, const char *path, const char *verb)
{
    char reason[128];
    int code = errno;
    if (strerror_r(code, reason, sizeof reason) != 0)
        return mn_fail(context, MN_ERR_IO, "%s: cannot %s: error %d", mn_file_shown(path), verb,
                       code);
    return mn_fail(context, MN_ERR_IO, "%s: cannot %s: %s", mn_file_shown(path), verb, reason);
}
