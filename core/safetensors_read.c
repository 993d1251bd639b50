/* core/safetensors_read.c: reading a state dictionary from a file in which nothing is trusted. */
#include "core/json.h"
#include "core/safetensors.h"
#include "core/state_dict.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A tensor as the header describes it. */
typedef struct found {
    char *name;
    mn_dtype dtype;
    int ndim;
    int64_t shape[MN_MAX_DIMS];
    uint64_t begin, end;
    size_t index; /* in the header */
} found;

typedef struct reader {
    mn_context *context;
    const char *shown; /* path in messages */
    int file;
    uint64_t data_bytes; /* behind the header */
    char *header;
    size_t header_bytes;
    mn_json json;
    mn_state_dict *dict;
    found *tensors;
    size_t count, capacity;
    bool has_format;
    char *digits; /* the checksum's, in the header; NULL: there is none */
    char checksum[MN_FILE_CHECKSUM_DIGITS];
    uint64_t hash;
} reader;

/* ---- the file -------------------------------------------------------------------------------- */

static mn_status read_all(reader *in, void *data, size_t bytes)
{
    char *at = data;
    while (bytes > 0) {
        size_t chunk = bytes < (size_t)1 << 30 ? bytes : (size_t)1 << 30;
        ssize_t got = read(in->file, at, chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return mn_file_fail(in->context, in->shown, "read");
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
        return mn_file_fail(in->context, path, "open");
    if (fstat(in->file, &info) != 0)
        return mn_file_fail(in->context, path, "read");
    if (!S_ISREG(info.st_mode))
        return mn_fail(in->context, MN_ERR_IO, "%s: not a regular file", in->shown);
    if (info.st_size < MN_FILE_LENGTH_BYTES)
        return mn_fail(in->context, MN_ERR_FORMAT,
                       "%s: %lld bytes are too few for a safetensors file", in->shown,
                       (long long)info.st_size);
    in->data_bytes = (uint64_t)info.st_size - MN_FILE_LENGTH_BYTES;
    return MN_OK;
}

static mn_status read_header(reader *in)
{
    uint64_t length;
    MN_TRY(read_all(in, &length, sizeof length));
    if (length > MN_FILE_HEADER_MAX || length > in->data_bytes)
        return mn_fail(in->context, MN_ERR_FORMAT,
                       "%s: a header of %llu bytes is announced, %llu bytes are there", in->shown,
                       (unsigned long long)length, (unsigned long long)in->data_bytes);
    in->hash = mn_file_hash(MN_FILE_HASH_START, &length, sizeof length);
    in->data_bytes -= length;
    in->header_bytes = (size_t)length;
    in->header = mn_host_alloc(in->context, in->header_bytes);
    if (!in->header)
        return mn_error_status(in->context);
    return read_all(in, in->header, in->header_bytes);
}

/* ---- strings --------------------------------------------------------------------------------- */

static mn_status take_checksum(reader *in, const char *value)
{
    char *digits = in->header + in->json.at - 1 - MN_FILE_CHECKSUM_DIGITS;
    if (in->digits)
        return mn_json_fail(&in->json, "a second checksum");
    if (strlen(value) != MN_FILE_CHECKSUM_DIGITS || in->json.at < MN_FILE_CHECKSUM_DIGITS + 2 ||
        memcmp(digits, value, MN_FILE_CHECKSUM_DIGITS) != 0)
        return mn_json_fail(&in->json, "the checksum should have %d digits",
                            MN_FILE_CHECKSUM_DIGITS);
    memcpy(in->checksum, digits, MN_FILE_CHECKSUM_DIGITS);
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
    bool more;
    MN_TRY(mn_json_enter(&in->json, '{'));
    for (bool first = true;; first = false) {
        char *key = NULL;
        char *value = NULL;
        MN_TRY(mn_json_more(&in->json, '}', first, &more));
        if (!more)
            return MN_OK;
        mn_status status = mn_json_key(&in->json, &key);
        if (status == MN_OK)
            status = mn_json_string(&in->json, &value);
        if (status == MN_OK)
            status = take_string(in, key, value);
        mn_host_strfree(in->context, key);
        mn_host_strfree(in->context, value);
        MN_TRY(status);
    }
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Whole numbers in brackets, at most `limit`. */
static mn_status parse_numbers(mn_json *json, int64_t *numbers, int limit, int *count)
{
    bool more;
    *count = 0;
    MN_TRY(mn_json_enter(json, '['));
    for (;;) {
        MN_TRY(mn_json_more(json, ']', *count == 0, &more));
        if (!more)
            return MN_OK;
        if (*count == limit)
            return mn_json_fail(json, "more than %d numbers", limit);
        MN_TRY(mn_json_integer(json, &numbers[(*count)++]));
    }
}

static mn_status parse_dtype(mn_json *json, mn_dtype *dtype)
{
    char *name = NULL;
    MN_TRY(mn_json_string(json, &name));
    mn_status status = mn_file_dtype_find(name, dtype)
                           ? MN_OK
                           : mn_json_fail(json, "dtype \"%.50s\" is not known", name);
    mn_host_strfree(json->context, name);
    return status;
}

static mn_status parse_offsets(mn_json *json, found *tensor)
{
    int64_t offsets[2];
    int count;
    MN_TRY(parse_numbers(json, offsets, 2, &count));
    if (count != 2 || offsets[1] < offsets[0])
        return mn_json_fail(json, "data_offsets should be begin and end");
    tensor->begin = (uint64_t)offsets[0];
    tensor->end = (uint64_t)offsets[1];
    return MN_OK;
}

/* One member of a tensor's description; `seen` has a bit for each of the three. */
static mn_status parse_member(mn_json *json, const char *key, found *tensor, unsigned *seen)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets"};
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
    return parse_offsets(json, tensor);
}

static mn_status parse_tensor(mn_json *json, found *tensor)
{
    unsigned seen = 0;
    bool more;
    MN_TRY(mn_json_enter(json, '{'));
    for (bool first = true;; first = false) {
        char *key = NULL;
        MN_TRY(mn_json_more(json, '}', first, &more));
        if (!more)
            break;
        MN_TRY(mn_json_key(json, &key));
        mn_status status = parse_member(json, key, tensor, &seen);
        mn_host_strfree(json->context, key);
        MN_TRY(status);
    }
    if (seen != 7)
        return mn_json_fail(json, "dtype, shape and data_offsets are not all there");
    return MN_OK;
}

/* Shape, dtype and offsets must agree, with each other and with the file. */
static mn_status check_tensor(reader *in, const found *tensor)
{
    size_t bytes = mn_dtype_size(tensor->dtype);
    bool empty = false;
    bool fits = true;
    for (int i = 0; i < tensor->ndim; i++) {
        empty = empty || tensor->shape[i] == 0;
        if (tensor->shape[i] > 0)
            fits = fits && (uint64_t)tensor->shape[i] <= SIZE_MAX &&
                   mn_size_mul(bytes, (size_t)tensor->shape[i], &bytes);
    }
    if (!fits || bytes > INT64_MAX)
        return mn_json_fail(&in->json, "the shape is too large");
    if (empty)
        bytes = 0;
    if (tensor->end - tensor->begin != bytes)
        return mn_json_fail(&in->json, "the shape needs %zu bytes, data_offsets give %llu", bytes,
                            (unsigned long long)(tensor->end - tensor->begin));
    if (tensor->end > in->data_bytes)
        return mn_json_fail(&in->json, "data_offsets end at %llu, the data at %llu",
                            (unsigned long long)tensor->end, (unsigned long long)in->data_bytes);
    return MN_OK;
}

static mn_status grow(reader *in)
{
    size_t capacity = in->capacity ? 2 * in->capacity : 16;
    if (in->count < in->capacity)
        return MN_OK;
    found *tensors = mn_host_calloc(in->context, capacity, sizeof *tensors);
    if (!tensors)
        return mn_error_status(in->context);
    if (in->count > 0)
        memcpy(tensors, in->tensors, in->count * sizeof *tensors);
    mn_host_free(in->context, in->tensors, in->capacity * sizeof *tensors);
    in->tensors = tensors;
    in->capacity = capacity;
    return MN_OK;
}

/* Takes over the name. */
static mn_status take_tensor(reader *in, char *name)
{
    mn_status status = grow(in);
    if (status != MN_OK) {
        mn_host_strfree(in->context, name);
        return status;
    }
    found *tensor = &in->tensors[in->count];
    *tensor = (found){.name = name, .index = in->count};
    in->count++;
    status = parse_tensor(&in->json, tensor);
    if (status == MN_OK)
        status = check_tensor(in, tensor);
    return status;
}

static mn_status parse_entry(reader *in, bool *has_metadata)
{
    char *name = NULL;
    MN_TRY(mn_json_key(&in->json, &name));
    if (*name && strcmp(name, "__metadata__") != 0)
        return take_tensor(in, name);
    bool unnamed = !*name;
    mn_host_strfree(in->context, name);
    if (unnamed)
        return mn_json_fail(&in->json, "a tensor without a name");
    if (*has_metadata)
        return mn_json_fail(&in->json, "a second __metadata__");
    *has_metadata = true;
    return parse_metadata(in);
}

static mn_status parse_header(reader *in)
{
    bool has_metadata = false;
    bool more;
    MN_TRY(mn_json_open(&in->json, in->context, in->shown, in->header, in->header_bytes));
    MN_TRY(mn_json_enter(&in->json, '{'));
    for (bool first = true;; first = false) {
        MN_TRY(mn_json_more(&in->json, '}', first, &more));
        if (!more)
            break;
        MN_TRY(parse_entry(in, &has_metadata));
    }
    MN_TRY(mn_json_end(&in->json));
    if (in->has_format && !in->digits)
        return mn_json_fail(&in->json, "the checksum is missing");
    return MN_OK;
}

/* ---- data ------------------------------------------------------------------------------------ */

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int by_place(const void *left, const void *right)
{
    const found *a = left;
    const found *b = right;
    int order = compare(a->begin, b->begin);
    if (order == 0)
        order = compare(a->end, b->end);
    return order ? order : compare(a->index, b->index);
}

/* Sorts by place; the data must be covered without gap and overlap. */
static mn_status check_places(reader *in)
{
    uint64_t end = 0;
    if (in->count > 0)
        qsort(in->tensors, in->count, sizeof *in->tensors, by_place);
    for (size_t i = 0; i < in->count; i++) {
        if (in->tensors[i].begin != end)
            return mn_fail(in->context, MN_ERR_FORMAT,
                           "%s: tensor \"%.200s\" begins at data byte %llu, %s at %llu", in->shown,
                           in->tensors[i].name, (unsigned long long)in->tensors[i].begin,
                           in->tensors[i].begin > end ? "after a gap" : "inside one that ends",
                           (unsigned long long)end);
        end = in->tensors[i].end;
    }
    if (end != in->data_bytes)
        return mn_fail(in->context, MN_ERR_FORMAT, "%s: %llu bytes of data, the tensors take %llu",
                       in->shown, (unsigned long long)in->data_bytes, (unsigned long long)end);
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
        .bytes = (size_t)(tensor->end - tensor->begin),
    };
    if (mn_state_dict_find(in->dict, tensor->name, NULL))
        return mn_fail(in->context, MN_ERR_FORMAT, "%s: a second tensor \"%.200s\"", in->shown,
                       tensor->name);
    MN_TRY(mn_state_dict_reserve(in->dict, &entry, &data));
    MN_TRY(read_all(in, data, entry.bytes));
    if (in->digits)
        in->hash = mn_file_hash(in->hash, data, entry.bytes);
    return MN_OK;
}

static mn_status read_data(reader *in)
{
    if (in->digits) {
        memset(in->digits, '0', MN_FILE_CHECKSUM_DIGITS);
        in->hash = mn_file_hash(in->hash, in->header, in->header_bytes);
    }
    for (size_t i = 0; i < in->count; i++)
        MN_TRY(read_tensor(in, &in->tensors[i]));
    if (in->digits) {
        char digits[MN_FILE_CHECKSUM_DIGITS];
        mn_file_digits(in->hash, digits);
        if (memcmp(digits, in->checksum, sizeof digits) != 0)
            return mn_fail(in->context, MN_ERR_FORMAT,
                           "%s: the checksum does not match: the file is damaged", in->shown);
    }
    return MN_OK;
}

static mn_status read_file(reader *in, const char *path)
{
    MN_TRY(open_file(in, path));
    MN_TRY(read_header(in));
    MN_TRY(parse_header(in));
    MN_TRY(check_places(in));
    return read_data(in);
}

static void clean_up(reader *in)
{
    if (in->file >= 0)
        close(in->file);
    for (size_t i = 0; i < in->count; i++)
        mn_host_strfree(in->context, in->tensors[i].name);
    mn_host_free(in->context, in->tensors, in->capacity * sizeof *in->tensors);
    mn_json_close(&in->json);
    mn_host_free(in->context, in->header, in->header_bytes);
}

mn_state_dict *mn_state_dict_read(mn_context *context, const char *path)
{
    if (!mn_ok(context))
        return NULL;
    if (!path || !*path) {
        mn_fail(context, MN_ERR_ARGUMENT, "state_dict_read: there is no path");
        return NULL;
    }
    reader in = {.context = context, .shown = mn_file_shown(path), .file = -1};
    in.dict = mn_state_dict_create(context);
    if (!in.dict)
        return NULL;
    mn_status status = read_file(&in, path);
    clean_up(&in);
    if (status == MN_OK)
        return in.dict;
    mn_state_dict_free(in.dict);
    return NULL;
}
