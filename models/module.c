/* Modules: making, naming, initialising and freeing trees of layers. */
#include "models/module.h"

#include "core/philox.h"

#include <math.h>
#include <stdio.h>

mn_module *mn_module_new(mn_context *context, const mn_module_class *class)
{
    if (context == NULL || !mn_ok(context))
        return NULL;
    mn_module *module = mn_host_calloc(context, 1, sizeof *module);
    if (module == NULL)
        return NULL;
    module->context = context;
    module->class = class;
    module->children_end = &module->children;
    module->training = true;
    return module;
}

void mn_module_add_slot(mn_module *module, mn_slot_spec spec)
{
    module->specs[module->slot_count++] = spec;
}

mn_layout mn_slot_layout(const mn_slot_spec *spec)
{
    return spec->ndim == 4 ? MN_LAYOUT_FILTER : MN_LAYOUT_PLAIN;
}

/* A layer in a chain is the chain's: freeing it does nothing. */
void mn_module_free(mn_module *module)
{
    if (module == NULL || module->parent != NULL)
        return;
    for (mn_module *child = module->children, *next; child != NULL; child = next) {
        next = child->next;
        child->parent = NULL;
        mn_module_free(child);
    }
    for (int i = 0; i < module->slot_count; i++)
        mn_release(module->slots[i]);
    mn_host_free(module->context, module->parameters,
                 (size_t)module->parameter_count * sizeof(mn_tensor *));
    mn_host_strfree(module->context, module->name);
    mn_host_free(module->context, module, sizeof *module);
}

mn_status mn_path_join(mn_context *context, const char *path, const char *name,
                       char buffer[MN_PATH_MAX])
{
    int length = snprintf(buffer, MN_PATH_MAX, "%s%s%s", path, *path ? "." : "", name);
    if (length < 0 || length >= MN_PATH_MAX)
        return mn_fail(context, MN_ERR_ARGUMENT, "layer path longer than %d characters: %.64s...",
                       MN_PATH_MAX - 1, buffer);
    return MN_OK;
}

static mn_status walk(mn_module *module, const char *path, mn_module_visit visit, void *user)
{
    MN_TRY(visit(module, path, user));
    for (mn_module *child = module->children; child != NULL; child = child->next) {
        char inner[MN_PATH_MAX];
        MN_TRY(mn_path_join(module->context, path, child->name, inner));
        MN_TRY(walk(child, inner, visit, user));
    }
    return MN_OK;
}

mn_status mn_module_walk(mn_module *module, mn_module_visit visit, void *user)
{
    if (module == NULL)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_error_status(module->context));
    return walk(module, "", visit, user);
}

/* ---- initialisation -------------------------------------------------------------------------- */

/* In blocks: memory for all of it at once would stay with the process. */
static mn_status draw(mn_tensor *tensor, const mn_slot_spec *spec, const char *name)
{
    enum { BLOCK = 512 };
    mn_stream stream = mn_stream_open(tensor->context->seed, MN_STREAM_PARAMETER, name, 0);
    const double bound = 1.0 / sqrt(spec->fan_in);
    mn_status status = MN_OK;
    double values[BLOCK];
    for (int64_t at = 0; at < tensor->numel && status == MN_OK; at += BLOCK) {
        const int64_t count = tensor->numel - at < BLOCK ? tensor->numel - at : BLOCK;
        for (int64_t i = 0; i < count; i++)
            values[i] = spec->fan_in > 0.0
                            ? (2.0 * (double)mn_stream_uniform(&stream) - 1.0) * bound
                            : spec->start;
        const size_t offset = tensor->offset + (size_t)at * mn_dtype_size(tensor->dtype);
        mn_tensor *part =
            mn_tensor_view_unscoped(tensor->storage, offset, tensor->dtype, 1, &count);
        status = part ? mn_tensor_write_f64(part, values, count) : tensor->context->error.status;
        mn_release(part);
    }
    return status;
}

static mn_status init_slot(mn_module *module, int index, const char *path)
{
    mn_context *context = module->context;
    const mn_slot_spec *spec = &module->specs[index];
    char name[MN_PATH_MAX];
    MN_TRY(mn_path_join(context, path, spec->name, name));
    mn_tensor *tensor = module->slots[index];
    if (tensor != NULL && !spec->buffer) {
        MN_TRY(mn_parameter_rename(tensor, name)); /* it may have got a place in a tree since */
    } else if (tensor == NULL) {
        tensor = spec->buffer ? mn_tensor_new_unscoped(context, spec->ndim ? MN_F32 : MN_I64,
                                                       spec->ndim, spec->shape)
                              : mn_parameter_create(context, name, MN_F32, spec->ndim, spec->shape,
                                                    mn_slot_layout(spec));
        if (tensor == NULL)
            return mn_error_status(context);
        module->slots[index] = tensor;
    }
    return draw(tensor, spec, name);
}

static mn_status init_module(mn_module *module, const char *path, void *user)
{
    (void)user;
    for (int i = 0; i < module->slot_count; i++)
        MN_TRY(init_slot(module, i, path));
    return MN_OK;
}

/* Without an array yet it only counts. */
static mn_status list_parameters(mn_module *module, const char *path, void *user)
{
    (void)path;
    mn_module *root = user;
    for (int i = 0; i < module->slot_count; i++) {
        if (module->specs[i].buffer)
            continue;
        if (root->parameters != NULL)
            root->parameters[root->parameter_count] = module->slots[i];
        root->parameter_count++;
    }
    return MN_OK;
}

mn_status mn_module_init(mn_module *module)
{
    MN_TRY(mn_module_walk(module, init_module, NULL));
    mn_tensor **list = module->parameters;
    int before = module->parameter_count;
    module->parameters = NULL;
    module->parameter_count = 0;
    mn_module_walk(module, list_parameters, module); /* counts; cannot fail where init did not */
    int count = module->parameter_count;
    if (count != before) {
        mn_host_free(module->context, list, (size_t)before * sizeof *list);
        list = count > 0 ? mn_host_calloc(module->context, (size_t)count, sizeof *list) : NULL;
    }
    module->parameters = list;
    module->parameter_count = 0;
    return list != NULL ? mn_module_walk(module, list_parameters, module)
                        : mn_error_status(module->context);
}

mn_tensor *const *mn_module_parameters(mn_module *module, int *count)
{
    if (count != NULL)
        *count = module != NULL ? module->parameter_count : 0;
    return module != NULL ? module->parameters : NULL;
}

/* ---- dtype of parameters --------------------------------------------------------------------- */

static mn_status check_dtype_change(const mn_module *module, mn_dtype dtype)
{
    if (dtype != MN_F32 && !mn_is_16_bit(dtype))
        return mn_fail(module->context, MN_ERR_DTYPE,
                       "module_set_parameter_dtype: parameters can be f32, f16 or bf16, not %s",
                       mn_dtype_name(dtype));
    if (module->parent != NULL || module->parameters == NULL)
        return mn_fail(module->context, MN_ERR_STATE,
                       "module_set_parameter_dtype: only of the root of a model that "
                       "mn_module_init has given parameters");
    for (int i = 0; i < module->parameter_count; i++) {
        const mn_tensor *p = module->parameters[i];
        if (p->references > 1 || p->storage->references > 1)
            return mn_fail(module->context, MN_ERR_STATE,
                           "module_set_parameter_dtype: something else holds parameter %s: call it "
                           "before an optimizer or average is made, outside of a step",
                           mn_tensor_name(p));
    }
    return MN_OK;
}

/* The new tensor gets the old content, to be freed with it. */
static void exchange(mn_tensor *p, mn_tensor *new)
{
    mn_storage *storage = p->storage;
    mn_dtype dtype = p->dtype;
    p->storage = new->storage;
    p->dtype = new->dtype;
    new->storage = storage;
    new->dtype = dtype;
    mn_zero_grad(p);
    for (int k = 0; k < 2; k++) {
        mn_storage_release(p->leaf->shadow[k].storage);
        p->leaf->shadow[k] = (mn_shadow){NULL, 0};
    }
}

mn_status mn_module_set_parameter_dtype(mn_module *module, mn_dtype dtype)
{
    mn_context *context = mn_module_context(module);
    if (context == NULL)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_error_status(context));
    MN_TRY(check_dtype_change(module, dtype));
    const int count = module->parameter_count;
    mn_tensor **new = mn_host_calloc(context, (size_t)count, sizeof *new);
    for (int i = 0; i < count && mn_ok(context); i++) {
        mn_tensor *p = module->parameters[i];
        new[i] = mn_tensor_new_unscoped(context, dtype, p->ndim, p->shape);
        mn_dispatch1(context, MN_OP_assign, (mn_tensor *const[]){new[i], p}, 2, NULL);
    }
    const mn_status status = mn_error_status(context);
    for (int i = 0; i < count && new != NULL; i++) {
        if (status == MN_OK)
            exchange(module->parameters[i], new[i]);
        mn_release(new[i]);
    }
    mn_host_free(context, new, (size_t)count * sizeof *new);
    return status;
}

/* ---- running --------------------------------------------------------------------------------- */

mn_status mn_module_check(mn_module *module, mn_tensor *x)
{
    mn_context *context = module->context;
    MN_TRY(mn_error_status(context));
    MN_TRY(mn_tensor_check(context, x, "module_forward: the input"));
    if (module->slot_count > 0 && module->slots[0] == NULL)
        return mn_fail(context, MN_ERR_STATE,
                       "%s layer has no parameters yet: call mn_module_init on the "
                       "root of its model first",
                       module->class->kind);
    return MN_OK;
}

mn_tensor *mn_module_forward(mn_module *module, mn_tensor *x)
{
    if (module == NULL || mn_module_check(module, x) != MN_OK)
        return NULL;
    return module->class->forward(module, x);
}

static mn_status set_training(mn_module *module, const char *path, void *user)
{
    (void)path;
    module->training = *(const bool *)user;
    return MN_OK;
}

mn_status mn_module_set_training(mn_module *module, bool training)
{
    return mn_module_walk(module, set_training, &training);
}

bool mn_module_is_training(const mn_module *module)
{
    return module != NULL && module->training && !module->evaluating;
}

void mn_module_evaluating(mn_module *module, bool evaluating)
{
    module->evaluating = evaluating;
    for (mn_module *child = module->children; child != NULL; child = child->next)
        mn_module_evaluating(child, evaluating);
}

mn_context *mn_module_context(const mn_module *module)
{
    return module != NULL ? module->context : NULL;
}

static double sum_flops(const mn_module *module)
{
    double sum = module->flops_per_image;
    for (const mn_module *child = module->children; child != NULL; child = child->next)
        sum += sum_flops(child);
    return sum;
}

double mn_module_forward_flops(mn_module *module, int64_t batch)
{
    return module != NULL ? sum_flops(module) * (double)batch : 0.0;
}
