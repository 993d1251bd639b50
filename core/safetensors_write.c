/* core/safetensors_write.c: a state dictionary to a file, all or nothing, or to memory. */
#include "core/file.h"
#include "core/json_write.h"
#include "core/safetensors.h"
#include "core/state_dict.h"

#include <string.h>

/* ---- the header ------------------------------------------------------------------------------ */

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

static void put_entry(mn_json_out *out, const mn_state_entry *entry, uint64_t begin)
{
    mn_out_begin(out, entry->name, '{');
    mn_out_string(out, "dtype", mn_file_dtype_names[entry->dtype]);
    mn_out_begin(out, "shape", '[');
    for (int i = 0; i < entry->ndim; i++)
        mn_out_integer(out, NULL, entry->shape[i]);
    mn_out_end(out, ']');
    mn_out_begin(out, "data_offsets", '[');
    mn_out_unsigned(out, NULL, begin);
    mn_out_unsigned(out, NULL, begin + entry->bytes);
    mn_out_end(out, ']');
    mn_out_end(out, '}');
}

/* Room for the header's length, and its JSON, padded. Returns where the checksum's digits belong.
 */
static int64_t put_header(mn_json_out *out, const mn_state_dict *dict)
{
    const char *key, *value;
    mn_state_entry entry;
    uint64_t begin = 0;
    mn_put(out, "%*s", (int)MN_FILE_LENGTH_BYTES, "");
    mn_out_begin(out, NULL, '{');
    mn_out_begin(out, "__metadata__", '{');
    mn_out_string(out, MN_STATE_KEY_FORMAT, MN_FILE_FORMAT);
    mn_out_string(out, MN_STATE_KEY_CHECKSUM, "0000000000000000");
    int64_t digits = out->text.count - 1 - MN_FILE_DIGITS;
    for (int64_t i = 0; mn_state_dict_string(dict, i, &key, &value); i++)
        mn_out_string(out, key, value);
    mn_out_end(out, '}');
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry); begin += entry.bytes)
        put_entry(out, &entry, begin);
    mn_out_end(out, '}');
    mn_put(out, "%*s", (int)(-out->text.count & 7), "");
    return digits;
}

static mn_status build_header(mn_context *context, mn_json_out *out, const mn_state_dict *dict)
{
    mn_state_entry entry;
    mn_out_init(out, &context->allocator);
    int64_t digits = put_header(out, dict);
    char *text = mn_out_text(out);
    if (!text)
        return mn_fail(context, MN_ERR_MEMORY, "no memory for the header of a file");
    uint64_t length = (uint64_t)out->text.count - MN_FILE_LENGTH_BYTES;
    if (length > MN_FILE_HEADER_MAX)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "names and strings make a header of %llu bytes, %d are allowed",
                       (unsigned long long)length, (int)MN_FILE_HEADER_MAX);
    memcpy(text, &length, sizeof length);
    uint64_t hash = mn_hash(MN_HASH_START, text, (size_t)out->text.count);
    for (cursor at = {dict, 8, 0}; next_entry(&at, &entry);)
        hash = mn_hash(hash, entry.data, entry.bytes);
    mn_file_digits(hash, text + digits);
    return MN_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct content {
    const mn_state_dict *dict;
    mn_json_out header;
} content;

static mn_status write_content(mn_file_out *out, const void *user)
{
    const content *c = user;
    mn_state_entry entry;
    MN_TRY(mn_file_put(out, c->header.text.items, (size_t)c->header.text.count));
    for (cursor at = {c->dict, 8, 0}; next_entry(&at, &entry);)
        MN_TRY(mn_file_put(out, entry.data, entry.bytes));
    return MN_OK;
}

mn_status mn_state_dict_write(mn_state_dict *dict, const char *path)
{
    mn_context *context = mn_state_dict_context(dict);
    content c = {.dict = dict};
    MN_TRY(mn_error_status(context));
    if (!path || !*path)
        return mn_fail(context, MN_ERR_ARGUMENT, "state_dict_write: there is no path");
    mn_status status = build_header(context, &c.header, dict);
    if (status == MN_OK)
        status = mn_file_write(path, write_content, &c, &context->error);
    mn_out_free(&c.header);
    return status;
}

/* ---- memory ---------------------------------------------------------------------------------- */

mn_status mn_state_dict_to_buffer(mn_state_dict *dict, void **data, size_t *bytes)
{
    mn_context *context = mn_state_dict_context(dict);
    mn_json_out header;
    mn_state_entry entry;
    if (data)
        *data = NULL;
    MN_TRY(mn_error_status(context));
    if (!data || !bytes)
        return mn_fail(context, MN_ERR_ARGUMENT, "state_dict_to_buffer: %s is NULL",
                       data ? "bytes" : "data");
    mn_status status = build_header(context, &header, dict);
    *bytes = status == MN_OK ? (size_t)header.text.count : 0;
    for (cursor at = {dict, 8, 0}; status == MN_OK && next_entry(&at, &entry);)
        *bytes += entry.bytes; /* all of them are in memory, so that they fit */
    char *end = *data = status == MN_OK ? mn_host_alloc(context, *bytes) : NULL;
    if (end)
        end = (char *)memcpy(end, header.text.items, (size_t)header.text.count) + header.text.count;
    for (cursor at = {dict, 8, 0}; end && next_entry(&at, &entry); end += entry.bytes)
        if (entry.bytes > 0)
            memcpy(end, entry.data, entry.bytes);
    if (!*data)
        *bytes = 0;
    mn_out_free(&header);
    return mn_error_status(context);
}

void mn_buffer_free(mn_context *context, void *data, size_t bytes)
{
    if (context)
        mn_host_free(context, data, bytes);
}
