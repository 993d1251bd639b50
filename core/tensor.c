/* core/tensor.c: storage, tensor headers, references and getters. */
#include "core/parts.h"

#include <string.h>

/* ---- storage --------------------------------------------------------------------------------- */

mn_storage *mn_storage_create(mn_context *context, size_t bytes)
{
    mn_storage *storage = mn_host_calloc(context, 1, sizeof *storage);
    if (!storage)
        return NULL;
    storage->context = context;
    storage->bytes = bytes;
    storage->references = 1;
    storage->serial = ++context->storages;
    storage->data = mn_pool_alloc(context, bytes);
    if (!storage->data && bytes > 0) {
        mn_host_free(context, storage, sizeof *storage);
        return NULL;
    }
    return storage;
}

void mn_storage_release(mn_storage *storage)
{
    if (!storage || --storage->references > 0)
        return;
    mn_pool_free(storage->context, storage->data, storage->bytes);
    mn_host_free(storage->context, storage, sizeof *storage);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

mn_status mn_shape_check(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape,
                         int64_t *numel, size_t *bytes)
{
    size_t size = mn_dtype_size(dtype);
    int64_t count = 1; /* without zero axes: no product of axes may overflow */
    bool empty = false;
    MN_TRY(mn_error_status(context));
    if (size == 0)
        return mn_fail(context, MN_ERR_DTYPE, "there is no dtype %d", (int)dtype);
    if (ndim < 0 || ndim > MN_MAX_DIMS)
        return mn_fail(context, MN_ERR_SHAPE, "a tensor has 0 to %d axes, not %d", MN_MAX_DIMS,
                       ndim);
    if (ndim > 0 && !shape)
        return mn_fail(context, MN_ERR_ARGUMENT, "shape is NULL for a tensor of %d axes", ndim);
    for (int i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return mn_fail(context, MN_ERR_SHAPE, "axis %d of the shape is %lld", i,
                           (long long)shape[i]);
        empty = empty || shape[i] == 0;
        if (shape[i] > 0 && __builtin_mul_overflow(count, shape[i], &count))
            return mn_fail(context, MN_ERR_MEMORY, "the shape has more elements than fit 64 bits");
    }
    /* A 16th of what fits, so that the sum of a few extents of empty tensors does not overflow. */
    if (count > INT64_MAX / 16 / (int64_t)size || (uint64_t)count > SIZE_MAX / size)
        return mn_fail(context, MN_ERR_MEMORY, "no memory for %lld elements of %s",
                       (long long)count, mn_dtype_name(dtype));
    if (numel)
        *numel = empty ? 0 : count;
    if (bytes)
        *bytes = empty ? 0 : (size_t)count * size;
    return MN_OK;
}

/* ---- making tensors -------------------------------------------------------------------------- */

mn_tensor *mn_tensor_view_unscoped(mn_storage *storage, size_t offset, mn_dtype dtype, int ndim,
                                   const int64_t *shape)
{
    mn_context *context = storage->context;
    int64_t numel;
    size_t bytes;
    if (mn_shape_check(context, dtype, ndim, shape, &numel, &bytes) != MN_OK)
        return NULL;
    if (offset > storage->bytes || bytes > storage->bytes - offset) {
        mn_fail(context, MN_ERR_INTERNAL, "a view of %zu bytes at %zu in a storage of %zu", bytes,
                offset, storage->bytes);
        return NULL;
    }
    mn_tensor *tensor = mn_host_calloc(context, 1, sizeof *tensor);
    if (!tensor)
        return NULL;
    tensor->context = context;
    tensor->storage = storage;
    tensor->offset = offset;
    tensor->dtype = dtype;
    tensor->ndim = ndim;
    if (ndim > 0)
        memcpy(tensor->shape, shape, (size_t)ndim * sizeof *shape);
    tensor->numel = numel;
    tensor->references = 1;
    storage->references++;
    return tensor;
}

mn_tensor *mn_tensor_view(mn_storage *storage, size_t offset, mn_dtype dtype, int ndim,
                          const int64_t *shape)
{
    mn_tensor *tensor = mn_tensor_view_unscoped(storage, offset, dtype, ndim, shape);
    if (tensor)
        mn_scope_adopt(tensor->context, tensor);
    return tensor;
}

mn_tensor *mn_tensor_new_unscoped(mn_context *context, mn_dtype dtype, int ndim,
                                  const int64_t *shape)
{
    size_t bytes;
    if (!context || mn_shape_check(context, dtype, ndim, shape, NULL, &bytes) != MN_OK)
        return NULL;
    mn_storage *storage = mn_storage_create(context, bytes);
    if (!storage)
        return NULL;
    mn_tensor *tensor = mn_tensor_view_unscoped(storage, 0, dtype, ndim, shape);
    mn_storage_release(storage); /* the tensor holds its own reference */
    return tensor;
}

mn_tensor *mn_tensor_new(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape)
{
    mn_tensor *tensor = mn_tensor_new_unscoped(context, dtype, ndim, shape);
    if (tensor)
        mn_scope_adopt(context, tensor);
    return tensor;
}

mn_tensor *mn_tensor_create(mn_context *context, mn_dtype dtype, int ndim, const int64_t *shape)
{
    return mn_tensor_new(context, dtype, ndim, shape);
}

mn_leaf *mn_tensor_leaf(mn_tensor *tensor)
{
    if (tensor->leaf)
        return tensor->leaf;
    mn_leaf *leaf = mn_host_calloc(tensor->context, 1, sizeof *leaf);
    if (!leaf)
        return NULL;
    leaf->name = mn_host_strdup(tensor->context, "");
    if (!leaf->name) {
        mn_host_free(tensor->context, leaf, sizeof *leaf);
        return NULL;
    }
    tensor->leaf = leaf;
    return leaf;
}

/* ---- references ------------------------------------------------------------------------------ */

static void destroy_leaf(mn_context *context, mn_leaf *leaf)
{
    if (!leaf)
        return;
    if (leaf->grad)
        mn_tensor_unreference(leaf->grad);
    for (size_t i = 0; i < sizeof leaf->shadow / sizeof *leaf->shadow; i++)
        mn_storage_release(leaf->shadow[i].storage);
    mn_host_strfree(context, leaf->name);
    mn_host_free(context, leaf, sizeof *leaf);
}

void mn_tensor_unreference(mn_tensor *tensor)
{
    if (--tensor->references > 0)
        return;
    mn_context *context = tensor->context;
    if (tensor->node && context->release_node)
        context->release_node(context, tensor->node);
    destroy_leaf(context, tensor->leaf);
    mn_storage_release(tensor->storage);
    mn_host_free(context, tensor, sizeof *tensor);
}

mn_tensor *mn_retain(mn_tensor *tensor)
{
    if (tensor)
        tensor->references++;
    return tensor;
}

void mn_release(mn_tensor *tensor)
{
    if (!tensor)
        return;
    if (tensor->scope && tensor->references == 1) {
        mn_fail(tensor->context, MN_ERR_STATE,
                "release: the tensor belongs to its scope alone (released more often than "
                "retained)");
        return;
    }
    mn_tensor_unreference(tensor);
}

/* ---- getters --------------------------------------------------------------------------------- */

mn_context *mn_tensor_context(const mn_tensor *tensor)
{
    return tensor ? tensor->context : NULL;
}

mn_dtype mn_tensor_dtype(const mn_tensor *tensor)
{
    return tensor ? tensor->dtype : (mn_dtype)0;
}

int mn_tensor_ndim(const mn_tensor *tensor)
{
    return tensor ? tensor->ndim : 0;
}

const int64_t *mn_tensor_shape(const mn_tensor *tensor)
{
    return tensor ? tensor->shape : NULL;
}

int64_t mn_tensor_numel(const mn_tensor *tensor)
{
    return tensor ? tensor->numel : 0;
}

size_t mn_tensor_bytes(const mn_tensor *tensor)
{
    return tensor ? (size_t)tensor->numel * mn_dtype_size(tensor->dtype) : 0;
}

const char *mn_tensor_name(const mn_tensor *tensor)
{
    if (!tensor)
        return NULL;
    return tensor->leaf ? tensor->leaf->name : "";
}

uint64_t mn_tensor_version(const mn_tensor *tensor)
{
    return tensor ? tensor->storage->version : 0;
}

void *mn_tensor_address(const mn_tensor *tensor)
{
    if (tensor->numel == 0)
        return NULL;
    return (char *)tensor->storage->data + tensor->offset;
}

mn_view mn_tensor_as_view(const mn_tensor *tensor)
{
    if (!tensor)
        return (mn_view){.present = false};
    mn_view view = {
        .present = true,
        .dtype = tensor->dtype,
        .ndim = tensor->ndim,
        .numel = tensor->numel,
        .data = mn_tensor_address(tensor),
    };
    memcpy(view.shape, tensor->shape, sizeof view.shape);
    return view;
}

mn_status mn_tensor_check(mn_context *context, const mn_tensor *tensor, const char *what)
{
    MN_TRY(mn_error_status(context));
    if (!tensor)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s is NULL", what);
    if (tensor->context != context)
        return mn_fail(context, MN_ERR_ARGUMENT, "%s belongs to another context", what);
    return MN_OK;
}
