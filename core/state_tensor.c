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

/* Per filter, turns [rows, columns] into [columns, rows]: memory order has rows = R*S, columns = C,
 * file order the other way round. */
static void transpose(int64_t filters, size_t rows, size_t columns, size_t size,
                      const unsigned char *src, unsigned char *dst)
{
    for (int64_t k = 0; k < filters; k++) {
        for (size_t i = 0; i < rows; i++) {
            for (size_t j = 0; j < columns; j++)
                memcpy(dst + (j * rows + i) * size, src + (i * columns + j) * size, size);
        }
        src += rows * columns * size;
        dst += rows * columns * size;
    }
}

static void reorder(const mn_tensor *tensor, bool to_file, const void *src, void *dst)
{
    size_t area = (size_t)(tensor->shape[1] * tensor->shape[2]);
    size_t channels = (size_t)tensor->shape[3];
    transpose(tensor->shape[0], to_file ? area : channels, to_file ? channels : area,
              mn_dtype_size(tensor->dtype), src, dst);
}

static mn_status check_arguments(const mn_state_dict *dict, const char *name,
                                 const mn_tensor *tensor, mn_layout layout)
{
    if (!dict)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_tensor_check(mn_state_dict_context(dict), tensor, "state dictionary: the tensor"));
    if (!name)
        return mn_fail(mn_state_dict_context(dict), MN_ERR_ARGUMENT,
                       "state dictionary: name is NULL");
    if (layout == MN_LAYOUT_FILTER && tensor->ndim != 4)
        return mn_fail(mn_state_dict_context(dict), MN_ERR_SHAPE,
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
        reorder(tensor, true, raw, data);
    mn_host_free(context, raw, bytes);
    return status;
}

static mn_status write_ordered(mn_tensor *tensor, mn_layout layout, const void *data)
{
    mn_context *context = tensor->context;
    size_t bytes = mn_tensor_bytes(tensor);
    if (layout != MN_LAYOUT_FILTER || bytes == 0)
        return mn_tensor_write(tensor, data, bytes);
    void *raw = mn_host_alloc(context, bytes);
    if (!raw)
        return mn_error_status(context);
    reorder(tensor, false, data, raw);
    mn_status status = mn_tensor_write(tensor, raw, bytes);
    mn_host_free(context, raw, bytes);
    return status;
}

mn_status mn_state_dict_put_tensor(mn_state_dict *dict, const char *name, const mn_tensor *tensor,
                                   mn_layout layout)
{
    int64_t shape[MN_MAX_DIMS];
    void *data;
    MN_TRY(check_arguments(dict, name, tensor, layout));
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

static mn_view view_of(mn_dtype dtype, int ndim, const int64_t *shape)
{
    mn_view view = {.present = true, .dtype = dtype, .ndim = ndim};
    if (ndim > 0)
        memcpy(view.shape, shape, (size_t)ndim * sizeof *shape);
    return view;
}

mn_status mn_state_dict_get_tensor(const mn_state_dict *dict, const char *name, mn_tensor *tensor,
                                   mn_layout layout, bool apply)
{
    int64_t shape[MN_MAX_DIMS];
    mn_state_entry entry;
    MN_TRY(check_arguments(dict, name, tensor, layout));
    if (!mn_state_dict_find(dict, name, &entry))
        return mn_fail(mn_state_dict_context(dict), MN_ERR_MISMATCH,
                       "state dictionary: \"%.200s\" is missing", name);
    file_shape(tensor, layout, shape);
    if (entry.dtype != tensor->dtype || entry.ndim != tensor->ndim ||
        memcmp(entry.shape, shape, (size_t)entry.ndim * sizeof *shape) != 0) {
        char is[160];
        char wanted[160];
        mn_view is_view = view_of(entry.dtype, entry.ndim, entry.shape);
        mn_view wanted_view = view_of(tensor->dtype, tensor->ndim, shape);
        return mn_fail(mn_state_dict_context(dict), MN_ERR_MISMATCH,
                       "state dictionary: \"%.200s\" is %s, %s is wanted", name,
                       mn_tensor_describe(&is_view, is, sizeof is),
                       mn_tensor_describe(&wanted_view, wanted, sizeof wanted));
    }
    return apply ? write_ordered(tensor, layout, entry.data) : MN_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

static mn_status put_scalar(mn_state_dict *dict, const char *name, mn_dtype dtype,
                            const void *value)
{
    mn_state_entry entry = {.name = name, .dtype = dtype, .data = value, .bytes = 8};
    return mn_state_dict_put(dict, &entry);
}

static mn_status get_scalar(const mn_state_dict *dict, const char *name, mn_dtype dtype,
                            void *value)
{
    mn_state_entry entry;
    if (!dict)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_error_status(mn_state_dict_context(dict)));
    if (!name || !value)
        return mn_fail(mn_state_dict_context(dict), MN_ERR_ARGUMENT,
                       "state dictionary: an argument is NULL");
    if (!mn_state_dict_find(dict, name, &entry))
        return mn_fail(mn_state_dict_context(dict), MN_ERR_MISMATCH,
                       "state dictionary: \"%.200s\" is missing", name);
    if (entry.ndim != 0 || entry.dtype != dtype) {
        char is[160];
        mn_view view = view_of(entry.dtype, entry.ndim, entry.shape);
        return mn_fail(mn_state_dict_context(dict), MN_ERR_MISMATCH,
                       "state dictionary: \"%.200s\" is %s, a single %s is wanted", name,
                       mn_tensor_describe(&view, is, sizeof is), mn_dtype_name(dtype));
    }
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

mn_status mn_state_dict_get_i64(const mn_state_dict *dict, const char *name, int64_t *value)
{
    return get_scalar(dict, name, MN_I64, value);
}

mn_status mn_state_dict_get_f64(const mn_state_dict *dict, const char *name, double *value)
{
    return get_scalar(dict, name, MN_F64, value);
}
