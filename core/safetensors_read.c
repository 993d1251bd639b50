/* core/safetensors_read.c: a state dictionary from a file, or from a file's bytes in memory, in
 * which nothing is trusted. */
#include "core/json.h"
#include "core/safetensors.h"
#include "core/state_dict.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold the host's byte order");

const char *const mn_file_dtype_names[MN_DTYPE_COUNT] = {
    [MN_F64] = "F64", [MN_F32] = "F32", [MN_F16] = "F16", [MN_BF16] = "BF16",
    [MN_I64] = "I64", [MN_I32] = "I32", [MN_U8] = "U8",
};

void mn_file_digits(uint64_t hash, char digits[MN_FILE_DIGITS])
{
    for (int i = MN_FILE_DIGITS - 1; i >= 0; i--, hash >>= 4)
        digits[i] = "0123456789abcdef"[hash & 15];
}

/* ---- the file -------------------------------------------------------------------------------- */

/* A tensor as the header describes it. */
typedef struct found {
    const char *name;
    mn_dtype dtype;
    int ndim;
    int64_t shape[MN_MAX_DIMS];
    int64_t offsets[2]; /* begin and end */
} found;

/* Fewest bytes of one: "n":{"dtype":"U8","shape":[],"data_offsets":[0,0]} */
#define FOUND_BYTES 50

typedef struct reader {
    mn_context *context;
    const char *shown; /* path in messages */
    int file;
    const unsigned char *bytes; /* what is still to be read, if it is memory; else NULL */
    int64_t data_bytes;         /* behind the header */
    char *header, *strings;
    size_t header_bytes;
    mn_json json;
    mn_state_dict *dict;
    found *tensors;
    size_t count, capacity;
    bool has_format;
    char *digits; /* the checksum's, in the header; NULL: there is none */
    char checksum[MN_FILE_DIGITS];
    uint64_t hash;
} reader;

/* Memory cannot become shorter: what is asked for was found to be there. */
static mn_status read_all(reader *in, void *data, size_t bytes)
{
    if (in->bytes) {
        if (bytes > 0)
            memcpy(data, in->bytes, bytes);
        in->bytes += bytes;
        return MN_OK;
    }
    for (char *at = data; bytes > 0;) {
        ssize_t got = read(in->file, at, bytes < MN_IO_CHUNK ? bytes : MN_IO_CHUNK);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return mn_error_system(&in->context->error, in->shown, "read");
        if (got == 0)
            return mn_fail(in->context, MN_ERR_FORMAT, "%s: the file became shorter while reading",
                           in->shown);
        at += got;
        bytes -= (size_t)got;
    }
    return MN_OK;
}

static mn_status open_file(reader *in, const char *path)
{
    struct stat info;
    /* Without O_NONBLOCK the open of a pipe would wait for a writer. */
    in->file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (in->file < 0)
        return mn_error_system(&in->context->error, path, "open");
    if (fstat(in->file, &info) != 0)
        return mn_error_system(&in->context->error, path, "read");
    if (!S_ISREG(info.st_mode))
        return mn_fail(in->context, MN_ERR_IO, "%s: not a regular file", in->shown);
    in->data_bytes = info.st_size;
    return MN_OK;
}

static mn_status read_header(reader *in)
{
    uint64_t length;
    if (in->data_bytes < MN_FILE_LENGTH_BYTES)
        return mn_fail(in->context, MN_ERR_FORMAT,
                       "%s: %lld bytes are too few for a safetensors file", in->shown,
                       (long long)in->data_bytes);
    in->data_bytes -= MN_FILE_LENGTH_BYTES;
    MN_TRY(read_all(in, &length, sizeof length));
    if (length > MN_FILE_HEADER_MAX || (int64_t)length > in->data_bytes)
        return mn_fail(
            in->context, MN_ERR_FORMAT,
            "%s: not a whole safetensors file: a header of %llu bytes is announced, %lld "
            "bytes are there",
            in->shown, (unsigned long long)length, (long long)in->data_bytes);
    in->hash = mn_hash(MN_HASH_START, &length, sizeof length);
    in->data_bytes -= (int64_t)length;
    in->header_bytes = (size_t)length;
    in->capacity = in->header_bytes / FOUND_BYTES + 1;
    in->header = mn_host_alloc(in->context, in->header_bytes);
    in->strings = mn_host_alloc(in->context, in->header_bytes);
    in->tensors = mn_host_alloc(in->context, in->capacity * sizeof *in->tensors);
    MN_TRY(mn_error_status(in->context));
    in->json = (mn_json){
        .context = in->context,
        .source = in->shown,
        .text = in->header,
        .length = in->header_bytes,
        .strings = in->strings,
    };
    return read_all(in, in->header, in->header_bytes);
}

/* ---- the header ------------------------------------------------------------------------------ */

static mn_status take_checksum(reader *in, const char *value)
{
    char *digits = in->header + in->json.at - 1 - MN_FILE_DIGITS;
    if (in->digits)
        return mn_json_fail(&in->json, "a second checksum");
    if (strlen(value) != MN_FILE_DIGITS || memcmp(digits, value, MN_FILE_DIGITS) != 0)
        return mn_json_fail(&in->json, "the checksum should have %d digits", (int)MN_FILE_DIGITS);
    memcpy(in->checksum, digits, MN_FILE_DIGITS);
    in->digits = digits;
    return MN_OK;
}

static mn_status take_string(reader *in, const char *key, const char *value)
{
    if (strcmp(key, MN_STATE_KEY_CHECKSUM) == 0)
        return take_checksum(in, value);
    if (strcmp(key, MN_STATE_KEY_FORMAT) == 0) {
        if (in->has_format || strcmp(value, MN_FILE_FORMAT) != 0)
            return mn_json_fail(&in->json, "format \"%.50s\", this library reads \"%s\", once",
                                value, MN_FILE_FORMAT);
        in->has_format = true;
        return MN_OK;
    }
    if (mn_state_dict_get_string(in->dict, key))
        return mn_json_fail(&in->json, "a second metadata string \"%.100s\"", key);
    return mn_state_dict_set_string(in->dict, key, value);
}

static mn_status parse_metadata(reader *in)
{
    const char *key, *value;
    MN_TRY(mn_json_take(&in->json, '{'));
    for (bool first = true;; first = false) {
        MN_TRY(mn_json_key(&in->json, first, &key));
        if (!key)
            return MN_OK;
        MN_TRY(mn_json_string(&in->json, &value));
        MN_TRY(take_string(in, key, value));
    }
}

/* Whole numbers in brackets, at most `limit`. */
static mn_status parse_numbers(mn_json *json, int64_t *numbers, int limit, int *count)
{
    bool more;
    MN_TRY(mn_json_take(json, '['));
    for (*count = 0;; (*count)++) {
        MN_TRY(mn_json_more(json, ']', *count == 0, &more));
        if (!more)
            return MN_OK;
        if (*count == limit)
            return mn_json_fail(json, "more than %d numbers", limit);
        MN_TRY(mn_json_integer(json, &numbers[*count]));
    }
}

static mn_status parse_dtype(mn_json *json, mn_dtype *dtype)
{
    const char *name;
    MN_TRY(mn_json_string(json, &name));
    for (int i = 0; i < MN_DTYPE_COUNT; i++) {
        *dtype = (mn_dtype)i;
        if (strcmp(mn_file_dtype_names[i], name) == 0)
            return MN_OK;
    }
    return mn_json_fail(json, "dtype \"%.50s\" is not known", name);
}

/* One member of a tensor's description; `seen` has a bit for each of the three. */
static mn_status parse_member(mn_json *json, const char *key, found *tensor, unsigned *seen)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
    int count;
    unsigned which = 0;
    while (which < 3 && strcmp(key, keys[which]) != 0)
        which++;
    if (which == 3 || *seen & 1u << which)
        return mn_json_fail(json, "%s \"%.50s\"", which == 3 ? "unknown key" : "a second", key);
    *seen |= 1u << which;
    if (which == 0)
        return parse_dtype(json, &tensor->dtype);
    if (which == 1)
        return parse_numbers(json, tensor->shape, MN_MAX_DIMS, &tensor->ndim);
    MN_TRY(parse_numbers(json, tensor->offsets, 2, &count));
    if (count != 2 || tensor->offsets[1] < tensor->offsets[0])
        return mn_json_fail(json, "data_offsets should be begin and end");
    return MN_OK;
}

/* Shape, dtype and offsets must agree, with each other and with the file. */
static mn_status check_tensor(reader *in, const found *tensor)
{
    int64_t bytes = (int64_t)mn_dtype_size(tensor->dtype);
    int64_t given = tensor->offsets[1] - tensor->offsets[0];
    bool empty = false;
    for (int i = 0; i < tensor->ndim; i++) {
        empty = empty || tensor->shape[i] == 0;
        if (tensor->shape[i] > 0 && __builtin_mul_overflow(bytes, tensor->shape[i], &bytes))
            return mn_json_fail(&in->json, "the shape is too large");
    }
    if (given != (empty ? 0 : bytes))
        return mn_json_fail(&in->json, "the shape needs %lld bytes, data_offsets give %lld",
                            empty ? 0 : (long long)bytes, (long long)given);
    if (tensor->offsets[1] > in->data_bytes)
        return mn_json_fail(&in->json, "data_offsets end at %lld, the data at %lld",
                            (long long)tensor->offsets[1], (long long)in->data_bytes);
    return MN_OK;
}

static mn_status parse_tensor(reader *in, const char *name)
{
    unsigned seen = 0;
    const char *key;
    found *tensor = &in->tensors[in->count++];
    *tensor = (found){.name = name};
    if (!*name)
        return mn_json_fail(&in->json, "a tensor without a name");
    MN_TRY(mn_json_take(&in->json, '{'));
    for (bool first = true;; first = false) {
        MN_TRY(mn_json_key(&in->json, first, &key));
        if (!key)
            break;
        MN_TRY(parse_member(&in->json, key, tensor, &seen));
    }
    if (seen != 7)
        return mn_json_fail(&in->json, "dtype, shape and data_offsets are not all there");
    return check_tensor(in, tensor);
}

static mn_status parse_header(reader *in)
{
    bool has_metadata = false;
    const char *name;
    MN_TRY(mn_json_take(&in->json, '{'));
    for (bool first = true;; first = false) {
        MN_TRY(mn_json_key(&in->json, first, &name));
        if (!name)
            break;
        bool metadata = strcmp(name, "__metadata__") == 0;
        if (metadata && has_metadata)
            return mn_json_fail(&in->json, "a second __metadata__");
        has_metadata = has_metadata || metadata;
        MN_TRY(metadata ? parse_metadata(in) : parse_tensor(in, name));
    }
    MN_TRY(mn_json_end(&in->json));
    if (in->has_format && !in->digits)
        return mn_json_fail(&in->json, "the checksum is missing");
    return MN_OK;
}

/* ---- the data -------------------------------------------------------------------------------- */

/* By begin, by end, and by the place in the header, which the names keep. */
static int by_place(const void *left, const void *right)
{
    const found *a = left, *b = right;
    for (int i = 0; i < 2; i++) {
        if (a->offsets[i] != b->offsets[i])
            return a->offsets[i] < b->offsets[i] ? -1 : 1;
    }
    return (a->name > b->name) - (a->name < b->name);
}

/* Sorts by place; the data must be covered without gap and overlap. */
static mn_status check_places(reader *in)
{
    int64_t end = 0;
    qsort(in->tensors, in->count, sizeof *in->tensors, by_place);
    for (size_t i = 0; i < in->count; i++) {
        const found *tensor = &in->tensors[i];
        if (tensor->offsets[0] != end)
            return mn_fail(in->context, MN_ERR_FORMAT,
                           "%s: tensor \"%.200s\" begins at data byte %lld, %s at %lld", in->shown,
                           tensor->name, (long long)tensor->offsets[0],
                           tensor->offsets[0] > end ? "after a gap" : "inside one that ends",
                           (long long)end);
        end = tensor->offsets[1];
    }
    if (end != in->data_bytes)
        return mn_fail(in->context, MN_ERR_FORMAT, "%s: %lld bytes of data, the tensors take %lld",
                       in->shown, (long long)in->data_bytes, (long long)end);
    return MN_OK;
}

static mn_status read_tensor(reader *in, const found *tensor)
{
    void *data;
    mn_state_entry entry = {
        .name = tensor->name,
        .dtype = tensor->dtype,
        .ndim = tensor->ndim,
        .shape = tensor->shape,
        .bytes = (size_t)(tensor->offsets[1] - tensor->offsets[0]),
    };
    if (mn_state_dict_find(in->dict, tensor->name, NULL))
        return mn_fail(in->context, MN_ERR_FORMAT, "%s: a second tensor \"%.200s\"", in->shown,
                       tensor->name);
    MN_TRY(mn_state_dict_reserve(in->dict, &entry, &data));
    MN_TRY(read_all(in, data, entry.bytes));
    if (in->digits)
        in->hash = mn_hash(in->hash, data, entry.bytes);
    return MN_OK;
}

static mn_status read_data(reader *in)
{
    char digits[MN_FILE_DIGITS];
    if (in->digits) {
        memset(in->digits, '0', MN_FILE_DIGITS);
        in->hash = mn_hash(in->hash, in->header, in->header_bytes);
    }
    for (size_t i = 0; i < in->count; i++)
        MN_TRY(read_tensor(in, &in->tensors[i]));
    mn_file_digits(in->hash, digits);
    if (in->digits && memcmp(digits, in->checksum, MN_FILE_DIGITS) != 0)
        return mn_fail(in->context, MN_ERR_FORMAT,
                       "%s: the checksum does not match: the file is damaged", in->shown);
    return MN_OK;
}

static mn_status read_content(reader *in)
{
    MN_TRY(read_header(in));
    MN_TRY(parse_header(in));
    MN_TRY(check_places(in));
    return read_data(in);
}

/* From the file at path, or without one from the reader's memory. */
static mn_state_dict *read_dict(reader *in, const char *path)
{
    mn_context *context = in->context;
    in->file = -1;
    in->dict = mn_state_dict_create(context);
    if (!in->dict)
        return NULL;
    mn_status status = path ? open_file(in, path) : MN_OK;
    if (status == MN_OK)
        status = read_content(in);
    if (in->file >= 0)
        close(in->file);
    mn_host_free(context, in->tensors, in->capacity * sizeof *in->tensors);
    mn_host_free(context, in->strings, in->header_bytes);
    mn_host_free(context, in->header, in->header_bytes);
    if (status == MN_OK)
        return in->dict;
    mn_state_dict_free(in->dict);
    return NULL;
}

mn_state_dict *mn_state_dict_read(mn_context *context, const char *path)
{
    if (!mn_ok(context))
        return NULL;
    if (!path || !*path) {
        mn_fail(context, MN_ERR_ARGUMENT, "state_dict_read: there is no path");
        return NULL;
    }
    reader in = {.context = context, .shown = mn_path_shown(path)};
    return read_dict(&in, path);
}

mn_state_dict *mn_state_dict_from_buffer(mn_context *context, const void *data, size_t bytes)
{
    if (!mn_ok(context))
        return NULL;
    if (!data || bytes > PTRDIFF_MAX) {
        mn_fail(context, MN_ERR_ARGUMENT, "state_dict_from_buffer: %s",
                data ? "more bytes than memory can have" : "data is NULL");
        return NULL;
    }
    reader in = {
        .context = context, .shown = "buffer", .bytes = data, .data_bytes = (int64_t)bytes};
    return read_dict(&in, NULL);
}
