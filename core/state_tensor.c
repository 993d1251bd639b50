/* core/state_tensor.c: tensors and numbers into and out of state dictionaries, with the change
 * between memory order and file order. */
#include "core/state_dict.h"

#include <string.h>

/* Shape in file order. */
static void file_shape(const mn_tensor *tensor, mn_layout layout, int64_t shape[MN_MAX_DIMS])
{
    memcpy(shape, tensor->shape, sizeof tensor->shape);
    if (layout == MN_LAYOUT_FILTER) {
        shape[1] = tensor->shape[3];
        shape[2] = tensor->shape[1];
        shape[3] = tensor->shape[2];
    }
}

/* Elements from (in the order that they get) to (its end) of a filter, in file order or back, each
 * of so many bytes. Per filter, [rows, columns] becomes [columns, rows]: memory order has rows =
 * R*S, columns = C, file order the other way round. */
static void reorder(const mn_tensor *tensor, size_t size, bool to_file, const unsigned char *src,
                    unsigned char *dst, size_t from, size_t end)
{
    size_t area = (size_t)(tensor->shape[1] * tensor->shape[2]);
    size_t channels = (size_t)tensor->shape[3], each = area * channels;
    size_t rows = to_file ? area : channels, columns = to_file ? channels : area;
    for (size_t i = from; i < end; i++, dst += size) {
        size_t at = i % each;
        memcpy(dst, src + (i - at + at % rows * columns + at / rows) * size, size);
    }
}

static mn_status check_arguments(const char *name, const mn_tensor *tensor, mn_layout layout)
{
    if (!tensor)
        return MN_ERR_ARGUMENT;
    mn_context *context = tensor->context;
    if (!name)
        return mn_fail(context, MN_ERR_ARGUMENT, "state dictionary: name is NULL");
    if (layout == MN_LAYOUT_FILTER && tensor->ndim != 4)
        return mn_fail(context, MN_ERR_SHAPE,
                       "state dictionary: \"%.200s\" is no filter: it has %d axes, not 4", name,
                       tensor->ndim);
    return MN_OK;
}

/* Reads the tensor in file order. */
static mn_status read_ordered(const mn_tensor *tensor, mn_layout layout, void *data)
{
    mn_context *context = tensor->context;
    size_t bytes = mn_tensor_bytes(tensor);
    if (layout != MN_LAYOUT_FILTER || bytes == 0)
        return mn_tensor_read(tensor, data, bytes);
    void *raw = mn_host_alloc(context, bytes);
    if (!raw)
        return mn_error_status(context);
    mn_status status = mn_tensor_read(tensor, raw, bytes);
    if (status == MN_OK)
        reorder(tensor, mn_dtype_size(tensor->dtype), true, raw, data, 0, (size_t)tensor->numel);
    mn_host_free(context, raw, bytes);
    return status;
}

/* Piece by piece: it allocates nothing, so a load that was checked does not fail half-way. */
static mn_status write_ordered(mn_tensor *tensor, mn_layout layout, const mn_state_entry *entry)
{
    enum { PIECE = 512 };
    unsigned char piece[8 * PIECE], converted[8 * PIECE];
    const size_t in = mn_dtype_size(entry->dtype), out = mn_dtype_size(tensor->dtype);
    const size_t numel = (size_t)tensor->numel;
    const bool filter = layout == MN_LAYOUT_FILTER, same = entry->dtype == tensor->dtype;
    if ((!filter && same) || numel == 0)
        return mn_tensor_write(tensor, entry->data, mn_tensor_bytes(tensor));
    char *to = mn_tensor_address(tensor);
    for (size_t from = 0, end; from < numel; from = end) {
        const unsigned char *ready = (const unsigned char *)entry->data + from * in;
        end = from + PIECE < numel ? from + PIECE : numel;
        if (filter) {
            reorder(tensor, in, false, entry->data, piece, from, end);
            ready = piece;
        }
        if (!same) {
            mn_convert_elements(entry->dtype, tensor->dtype, end - from, ready, converted);
            ready = converted;
        }
        MN_TRY(mn_upload(tensor->context, to + from * out, ready, (end - from) * out));
    }
    return mn_tensor_mark_dirty(tensor);
}

mn_status mn_state_dict_put_tensor(mn_state_dict *dict, const char *name, const mn_tensor *tensor,
                                   mn_layout layout)
{
    int64_t shape[MN_MAX_DIMS];
    void *data;
    MN_TRY(check_arguments(name, tensor, layout));
    MN_TRY(mn_state_dict_writable(tensor->context, dict, "state dictionary"));
    file_shape(tensor, layout, shape);
    mn_state_entry entry = {
        .name = name,
        .dtype = tensor->dtype,
        .ndim = tensor->ndim,
        .shape = shape,
        .bytes = mn_tensor_bytes(tensor),
    };
    MN_TRY(mn_state_dict_reserve(dict, &entry, &data));
    mn_status status = read_ordered(tensor, layout, data);
    if (status != MN_OK)
        mn_state_dict_drop(dict);
    return status;
}

/* The entry of that name, which must have this shape and dtype; unless exact, floating ones may
 * stand for each other. */
static mn_status find_like(mn_context *context, const mn_state_dict *dict, const char *name,
                           const mn_view *wanted, bool exact, mn_state_entry *entry)
{
    char is[160], wants[160];
    size_t bytes = (size_t)wanted->ndim * sizeof *wanted->shape;
    if (!mn_state_dict_find(dict, name, entry))
        return mn_fail(context, MN_ERR_MISMATCH, "state dictionary: \"%.200s\" is missing", name);
    const bool fits = entry->dtype == wanted->dtype || (!exact && mn_dtype_is_float(entry->dtype) &&
                                                        mn_dtype_is_float(wanted->dtype));
    if (fits && entry->ndim == wanted->ndim && memcmp(entry->shape, wanted->shape, bytes) == 0)
        return MN_OK;
    mn_view view = {.present = true, .dtype = entry->dtype, .ndim = entry->ndim};
    memcpy(view.shape, entry->shape, (size_t)entry->ndim * sizeof *view.shape);
    return mn_fail(context, MN_ERR_MISMATCH, "state dictionary: \"%.200s\" is %s, %s is wanted",
                   name, mn_tensor_describe(&view, is, sizeof is),
                   mn_tensor_describe(wanted, wants, sizeof wants));
}

mn_status mn_state_dict_get_tensor(const mn_state_dict *dict, const char *name, mn_tensor *tensor,
                                   mn_layout layout, bool apply)
{
    mn_state_entry entry;
    MN_TRY(check_arguments(name, tensor, layout));
    MN_TRY(mn_state_dict_readable(tensor->context, dict, "state dictionary"));
    mn_view wanted = mn_tensor_as_view(tensor);
    file_shape(tensor, layout, wanted.shape);
    MN_TRY(find_like(tensor->context, dict, name, &wanted, false, &entry));
    return apply ? write_ordered(tensor, layout, &entry) : MN_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static mn_status put_scalar(mn_state_dict *dict, const char *name, mn_dtype dtype,
                            const void *value)
{
    mn_state_entry entry = {.name = name, .dtype = dtype, .data = value, .bytes = 8};
    return mn_state_dict_put(dict, &entry);
}

static mn_status get_scalar(mn_context *context, const mn_state_dict *dict, const char *name,
                            mn_dtype dtype, void *value)
{
    const mn_view wanted = {.present = true, .dtype = dtype};
    mn_state_entry entry;
    MN_TRY(mn_state_dict_readable(context, dict, "state dictionary"));
    MN_TRY(find_like(context, dict, name, &wanted, true, &entry));
    memcpy(value, entry.data, entry.bytes);
    return MN_OK;
}

mn_status mn_state_dict_put_i64(mn_state_dict *dict, const char *name, int64_t value)
{
    return put_scalar(dict, name, MN_I64, &value);
}

mn_status mn_state_dict_put_f64(mn_state_dict *dict, const char *name, double value)
{
    return put_scalar(dict, name, MN_F64, &value);
}

mn_status mn_state_dict_get_i64(mn_context *context, const mn_state_dict *dict, const char *name,
                                int64_t *value)
{
    return get_scalar(context, dict, name, MN_I64, value);
}

mn_status mn_state_dict_get_f64(mn_context *context, const mn_state_dict *dict, const char *name,
                                double *value)
{
    return get_scalar(context, dict, name, MN_F64, value);
}
