/* Modules: making, naming, initialising and freeing trees of layers. */
#include "models/module.h"

#include "core/philox.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

mn_module *mn_module_new(mn_context *context, const mn_module_class *class)
{
    if (context == NULL || !mn_ok(context))
        return NULL;
    mn_module *module = mn_host_calloc(context, 1, sizeof *module);
    if (module == NULL)
        return NULL;
    module->context = context;
    module->class = class;
    module->training = true;
    return module;
}

void mn_module_add_slot(mn_module *module, const mn_slot_spec *spec)
{
    module->specs[module->slot_count++] = *spec;
}

void mn_module_free(mn_module *module)
{
    if (module == NULL)
        return;
    mn_context *context = module->context;
    for (int i = 0; i < module->child_count; i++) {
        mn_host_strfree(context, module->children[i].name);
        mn_module_free(module->children[i].module);
    }
    mn_host_free(context, module->children, (size_t)module->child_capacity * sizeof(mn_child));
    for (int i = 0; i < module->slot_count; i++)
        mn_release(module->slots[i]);
    mn_host_free(context, module->parameters,
                 (size_t)module->parameter_capacity * sizeof(mn_tensor *));
    mn_host_free(context, module, sizeof *module);
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
    for (int i = 0; i < module->child_count; i++) {
        char child[MN_PATH_MAX];
        MN_TRY(mn_path_join(module->context, path, module->children[i].name, child));
        MN_TRY(walk(module->children[i].module, child, visit, user));
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

static void draw(mn_context *context, const mn_slot_spec *spec, const char *name, int64_t count,
                 double *values)
{
    mn_stream stream = mn_stream_open(context->seed, MN_STREAM_PARAMETER, name, 0);
    double bound = 1.0 / sqrt(spec->fan_in > 0 ? spec->fan_in : 1);
    for (int64_t i = 0; i < count; i++) {
        double unit = spec->init == MN_INIT_UNIFORM ? (double)mn_stream_uniform(&stream) : 0.0;
        values[i] = spec->init == MN_INIT_UNIFORM ? (2.0 * unit - 1.0) * bound
                                                  : (spec->init == MN_INIT_ONE ? 1.0 : 0.0);
    }
}

static mn_status init_slot(mn_module *module, int index, const char *path)
{
    mn_context *context = module->context;
    const mn_slot_spec *spec = &module->specs[index];
    char name[MN_PATH_MAX];
    MN_TRY(mn_path_join(context, path, spec->name, name));
    mn_tensor *tensor = module->slots[index];
    if (tensor == NULL) {
        tensor = spec->buffer
                     ? mn_tensor_new_unscoped(context, spec->dtype, spec->ndim, spec->shape)
                     : mn_parameter_create(context, name, spec->dtype, spec->ndim, spec->shape,
                                           spec->layout);
        if (tensor == NULL)
            return mn_error_status(context);
        module->slots[index] = tensor;
    } else if (!spec->buffer) {
        MN_TRY(mn_parameter_rename(tensor, name)); /* it may have got a place in a tree since */
    }
    int64_t count = mn_tensor_numel(tensor);
    size_t bytes = (size_t)count * sizeof(double);
    double *values = mn_host_alloc(context, bytes);
    if (values == NULL)
        return mn_error_status(context);
    draw(context, spec, name, count, values);
    mn_status status = mn_tensor_write_f64(tensor, values, count);
    mn_host_free(context, values, bytes);
    return status;
}

static mn_status init_module(mn_module *module, const char *path, void *user)
{
    (void)user;
    for (int i = 0; i < module->slot_count; i++)
        MN_TRY(init_slot(module, i, path));
    return MN_OK;
}

static mn_status count_parameters(mn_module *module, const char *path, void *user)
{
    (void)path;
    for (int i = 0; i < module->slot_count; i++)
        *(int *)user += !module->specs[i].buffer;
    return MN_OK;
}

static mn_status collect_parameters(mn_module *module, const char *path, void *user)
{
    (void)path;
    mn_module *root = user;
    for (int i = 0; i < module->slot_count; i++)
        if (!module->specs[i].buffer)
            root->parameters[root->parameter_count++] = module->slots[i];
    return MN_OK;
}

mn_status mn_module_init(mn_module *module)
{
    if (module == NULL)
        return MN_ERR_ARGUMENT;
    int count = 0;
    MN_TRY(mn_module_walk(module, init_module, NULL));
    MN_TRY(mn_module_walk(module, count_parameters, &count));
    if (count > module->parameter_capacity) {
        mn_tensor **list = mn_host_calloc(module->context, (size_t)count, sizeof(mn_tensor *));
        if (list == NULL)
            return mn_error_status(module->context);
        mn_host_free(module->context, module->parameters,
                     (size_t)module->parameter_capacity * sizeof(mn_tensor *));
        module->parameters = list;
        module->parameter_capacity = count;
    }
    module->parameter_count = 0;
    return mn_module_walk(module, collect_parameters, module);
}

mn_tensor *const *mn_module_parameters(mn_module *module, int *count)
{
    if (count != NULL)
        *count = module != NULL ? module->parameter_count : 0;
    return module != NULL ? module->parameters : NULL;
}

/* ---- running --------------------------------------------------------------------------------- */

mn_tensor *mn_module_forward(mn_module *module, mn_tensor *x)
{
    mn_context *context = module != NULL ? module->context : NULL;
    if (!mn_ok(context) || mn_tensor_check(context, x, "module_forward: the input") != MN_OK)
        return NULL;
    if (module->slot_count > 0 && module->slots[0] == NULL) {
        mn_fail(context, MN_ERR_STATE,
                "%s layer has no parameters yet: call mn_module_init on the "
                "root of its model first",
                module->class->kind);
        return NULL;
    }
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
    return module != NULL && module->training;
}

mn_context *mn_module_context(const mn_module *module)
{
    return module != NULL ? module->context : NULL;
}

static double sum_flops(const mn_module *module)
{
    double sum = module->flops_per_image;
    for (int i = 0; i < module->child_count; i++)
        sum += sum_flops(module->children[i].module);
    return sum;
}

double mn_module_forward_flops(mn_module *module, int64_t batch)
{
    return module != NULL ? sum_flops(module) * (double)batch : 0.0;
}
