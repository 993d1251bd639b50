/* core/tensor_io.c: elements of tensors from and to the host, and filling. */
#include "core/parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- one element ----------------------------------------------------------------------------- */

/* An element; the widest dtype has eight bytes. */
typedef union scalar {
    double f64;
    float f32;
    mn_f16 f16;
    mn_bf16 bf16;
    int64_t i64;
    int32_t i32;
    uint8_t u8;
} scalar;

static double load_f64(mn_dtype dtype, const unsigned char *src)
{
    scalar value = {.f64 = 0};
    memcpy(&value, src, mn_dtype_size(dtype));
    switch (dtype) {
    case MN_F64:
        return value.f64;
    case MN_F32:
        return (double)value.f32;
    case MN_F16:
        return (double)mn_f16_to_f32(value.f16);
    case MN_BF16:
        return (double)mn_bf16_to_f32(value.bf16);
    case MN_I64:
        return (double)value.i64;
    case MN_I32:
        return value.i32;
    case MN_U8:
        return value.u8;
    }
    return 0;
}

/* Rounded to nearest even. False for a value that the integer dtype cannot hold. */
static bool store_f64(mn_dtype dtype, double value, unsigned char *dst)
{
    scalar out = {.f64 = value};
    bool fits = true, whole = floor(value) == value;
    switch (dtype) {
    case MN_F64:
        break;
    case MN_F32:
        out.f32 = (float)value;
        break;
    case MN_F16:
        out.f16 = mn_f16_from_f64(value);
        break;
    case MN_BF16:
        out.bf16 = mn_bf16_from_f64(value);
        break;
    case MN_I64:
        fits = whole && value >= -0x1p63 && value < 0x1p63;
        out.i64 = fits ? (int64_t)value : 0;
        break;
    case MN_I32:
        fits = whole && value >= (double)INT32_MIN && value <= (double)INT32_MAX;
        out.i32 = fits ? (int32_t)value : 0;
        break;
    case MN_U8:
        fits = whole && value >= 0 && value <= 255;
        out.u8 = fits ? (uint8_t)value : 0;
        break;
    }
    memcpy(dst, &out, mn_dtype_size(dtype));
    return fits;
}

void mn_convert_elements(mn_dtype from, mn_dtype to, size_t count, const void *src, void *dst)
{
    const unsigned char *in = src;
    unsigned char *out = dst;
    const size_t in_size = mn_dtype_size(from), out_size = mn_dtype_size(to);
    unsigned mode = mn_fp_enter();
    for (size_t i = 0; i < count; i++, in += in_size, out += out_size)
        store_f64(to, load_f64(from, in), out);
    mn_fp_restore(mode);
}

/* ---- filling --------------------------------------------------------------------------------- */

mn_status mn_value_check(mn_context *context, const char *function, mn_dtype dtype, double value)
{
    unsigned char bits[sizeof(scalar)];
    unsigned mode = mn_fp_enter();
    bool fits = store_f64(dtype, value, bits);
    if (fits && mn_isfinite_f64(value))
        fits = mn_isfinite_f64(load_f64(dtype, bits));
    mn_fp_restore(mode);
    if (!fits)
        return mn_fail(context, MN_ERR_DTYPE, "%s: the value %.17g does not fit %s", function,
                       value, mn_dtype_name(dtype));
    return MN_OK;
}

static mn_status upload_zeros(mn_tensor *tensor)
{
    static const unsigned char zeros[4096];
    char *to = mn_tensor_address(tensor);
    size_t bytes = mn_tensor_bytes(tensor);
    for (size_t done = 0; done < bytes; done += sizeof zeros) {
        size_t more = bytes - done < sizeof zeros ? bytes - done : sizeof zeros;
        MN_TRY(mn_upload(tensor->context, to + done, zeros, more));
    }
    return MN_OK;
}

/* ---- constructors ---------------------------------------------------------------------------- */

mn_tensor *mn_tensor_from(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape,
                          const void *data)
{
    mn_tensor *tensor = mn_tensor_new_unscoped(context, dtype, ndim, shape);
    if (!tensor)
        return NULL;
    if (!data && tensor->numel > 0)
        mn_fail(context, MN_ERR_ARGUMENT, "tensor_from: data is NULL");
    if (mn_upload(context, mn_tensor_address(tensor), data, mn_tensor_bytes(tensor)) != MN_OK) {
        mn_tensor_unreference(tensor);
        return NULL;
    }
    mn_scope_adopt(context, tensor);
    return tensor;
}

static mn_status check_parameter(mn_context *context, const char *name, mn_dtype dtype, int ndim,
                                 mn_layout layout)
{
    MN_TRY(mn_error_status(context));
    if (!name)
        return mn_fail(context, MN_ERR_ARGUMENT, "parameter_create: name is NULL");
    if (!mn_dtype_is_float(dtype))
        return mn_fail(context, MN_ERR_DTYPE,
                       "parameter %.200s: only floating dtypes have gradients, not %s", name,
                       mn_dtype_name(dtype));
    if (layout != MN_LAYOUT_PLAIN && layout != MN_LAYOUT_FILTER)
        return mn_fail(context, MN_ERR_ARGUMENT, "parameter %.200s: there is no layout %d", name,
                       (int)layout);
    if (layout == MN_LAYOUT_FILTER && ndim != 4)
        return mn_fail(context, MN_ERR_SHAPE, "parameter %.200s: a filter has 4 axes, not %d", name,
                       ndim);
    return MN_OK;
}

mn_status mn_parameter_rename(mn_tensor *tensor, const char *name)
{
    mn_leaf *leaf = mn_tensor_leaf(tensor);
    char *copy = leaf ? mn_host_strdup(tensor->context, name) : NULL;
    if (!copy)
        return tensor->context->error.status;
    mn_host_strfree(tensor->context, leaf->name);
    leaf->name = copy;
    return MN_OK;
}

mn_tensor *mn_parameter_create(mn_context *context, const char *name, mn_dtype dtype, int ndim,
                               const int64_t *shape, mn_layout layout)
{
    if (check_parameter(context, name, dtype, ndim, layout) != MN_OK)
        return NULL;
    mn_tensor *tensor = mn_tensor_new_unscoped(context, dtype, ndim, shape);
    if (!tensor)
        return NULL;
    tensor->layout = layout;
    tensor->requires_grad = true;
    if (mn_parameter_rename(tensor, name) != MN_OK || upload_zeros(tensor) != MN_OK) {
        mn_tensor_unreference(tensor);
        return NULL;
    }
    return tensor;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The verb's look at its arguments; there is no context to report to without a tensor. */
static mn_status check_verb(const mn_tensor *tensor, const char *verb, const void *data,
                            const char *unit, size_t given, size_t wanted)
{
    char shape[160];
    if (!tensor)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_error_status(tensor->context));
    if (!data && tensor->numel > 0)
        return mn_fail(tensor->context, MN_ERR_ARGUMENT, "%s: data is NULL", verb);
    mn_view view = mn_tensor_as_view(tensor);
    if (given != wanted)
        return mn_fail(tensor->context, MN_ERR_SHAPE, "%s: the tensor %s has %lld %s, not %lld",
                       verb, mn_tensor_describe(&view, shape, sizeof shape), (long long)wanted,
                       unit, (long long)given);
    return MN_OK;
}

mn_status mn_tensor_read(const mn_tensor *tensor, void *data, size_t bytes)
{
    MN_TRY(check_verb(tensor, "tensor_read", data, "bytes", bytes, mn_tensor_bytes(tensor)));
    return mn_download(tensor->context, data, mn_tensor_address(tensor), bytes);
}

mn_status mn_tensor_write(mn_tensor *tensor, const void *data, size_t bytes)
{
    MN_TRY(check_verb(tensor, "tensor_write", data, "bytes", bytes, mn_tensor_bytes(tensor)));
    MN_TRY(mn_upload(tensor->context, mn_tensor_address(tensor), data, bytes));
    tensor->storage->version++;
    return MN_OK;
}

static mn_status check_count(const mn_tensor *tensor, const char *verb, const void *data,
                             int64_t count)
{
    return check_verb(tensor, verb, data, "elements", (size_t)count,
                      (size_t)mn_tensor_numel(tensor));
}

mn_status mn_tensor_read_f64(const mn_tensor *tensor, double *data, int64_t count)
{
    MN_TRY(check_count(tensor, "tensor_read_f64", data, count));
    size_t bytes = mn_tensor_bytes(tensor);
    if (tensor->dtype == MN_F64 || count == 0)
        return mn_download(tensor->context, data, mn_tensor_address(tensor), bytes);
    unsigned char *raw = mn_host_alloc(tensor->context, bytes);
    if (!raw)
        return tensor->context->error.status;
    mn_status status = mn_download(tensor->context, raw, mn_tensor_address(tensor), bytes);
    unsigned mode = mn_fp_enter();
    for (int64_t i = 0; status == MN_OK && i < count; i++)
        data[i] = load_f64(tensor->dtype, raw + (size_t)i * mn_dtype_size(tensor->dtype));
    mn_fp_restore(mode);
    mn_host_free(tensor->context, raw, bytes);
    return status;
}

mn_status mn_tensor_write_f64(mn_tensor *tensor, const double *data, int64_t count)
{
    MN_TRY(check_count(tensor, "tensor_write_f64", data, count));
    size_t bytes = mn_tensor_bytes(tensor);
    if (tensor->dtype == MN_F64 || count == 0)
        return mn_tensor_write(tensor, data, bytes);
    unsigned char *raw = mn_host_alloc(tensor->context, bytes);
    if (!raw)
        return tensor->context->error.status;
    int64_t i = 0;
    unsigned mode = mn_fp_enter();
    while (i < count &&
           store_f64(tensor->dtype, data[i], raw + (size_t)i * mn_dtype_size(tensor->dtype)))
        i++;
    mn_fp_restore(mode);
    mn_status status = i == count
                           ? mn_tensor_write(tensor, raw, bytes)
                           : mn_fail(tensor->context, MN_ERR_DTYPE,
                                     "tensor_write_f64: element %lld, %.17g, does not fit %s",
                                     (long long)i, data[i], mn_dtype_name(tensor->dtype));
    mn_host_free(tensor->context, raw, bytes);
    return status;
}

mn_status mn_tensor_item(const mn_tensor *tensor, double *value)
{
    MN_TRY(check_count(tensor, "tensor_item", value, 1));
    return mn_tensor_read_f64(tensor, value, 1);
}

/* ---- pointers and in-place ------------------------------------------------------------------- */

const void *mn_tensor_data(const mn_tensor *tensor)
{
    if (!tensor || !mn_ok(tensor->context))
        return NULL;
    const mn_device *device = tensor->context->device;
    if (!device->host_visible) {
        mn_fail(tensor->context, MN_ERR_DEVICE,
                "tensor_data: memory of device %s is not visible to the host (use "
                "mn_tensor_read and mn_tensor_write)",
                device->name);
        return NULL;
    }
    return mn_synchronize(tensor->context) == MN_OK ? mn_tensor_address(tensor) : NULL;
}

void *mn_tensor_data_mut(mn_tensor *tensor)
{
    /* The address itself is not const; only the getter's promise is. */
    void *data = mn_tensor_data(tensor) ? mn_tensor_address(tensor) : NULL;
    if (data)
        tensor->storage->version++;
    return data;
}

mn_status mn_tensor_mark_dirty(mn_tensor *tensor)
{
    if (!tensor)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_error_status(tensor->context));
    tensor->storage->version++;
    return MN_OK;
}
