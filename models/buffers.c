/* Copies of a module's buffers on the device. Apart from state.c, so that a program that only
 * infers links nothing of optim. */
#include "models/module.h"

struct mn_module_buffers {
    mn_context *context;
    mn_tensor **own, **copies; /* one array */
    int count, room;
};

/* Without an array yet it only counts. */
static mn_status take_buffers(mn_module *module, const char *path, void *user)
{
    mn_module_buffers *buffers = user;
    (void)path;
    for (int i = 0; i < module->slot_count; i++) {
        if (!module->specs[i].buffer)
            continue;
        if (buffers->own)
            buffers->own[buffers->count] = mn_retain(module->slots[i]);
        buffers->count++;
    }
    return MN_OK;
}

static mn_status make_buffers(mn_module_buffers *buffers, mn_module *module)
{
    MN_TRY(mn_module_walk(module, take_buffers, buffers));
    int room = buffers->count;
    buffers->count = 0;
    if (room == 0)
        return MN_OK;
    buffers->own = mn_host_calloc(buffers->context, 2 * (size_t)room, sizeof(mn_tensor *));
    if (!buffers->own)
        return mn_error_status(buffers->context);
    buffers->room = room;
    buffers->copies = buffers->own + room;
    MN_TRY(mn_module_walk(module, take_buffers, buffers));
    for (int i = 0; i < room && mn_ok(buffers->context); i++) {
        const mn_tensor *own = buffers->own[i];
        buffers->copies[i] =
            mn_tensor_new_unscoped(buffers->context, own->dtype, own->ndim, own->shape);
    }
    return mn_module_buffers_save(buffers);
}

mn_module_buffers *mn_module_buffers_create(mn_module *module)
{
    if (mn_module_walk(module, mn_check_initialised, NULL) != MN_OK)
        return NULL;
    mn_module_buffers *buffers = mn_host_calloc(module->context, 1, sizeof *buffers);
    if (!buffers)
        return NULL;
    buffers->context = module->context;
    if (make_buffers(buffers, module) == MN_OK)
        return buffers;
    mn_module_buffers_free(buffers);
    return NULL;
}

void mn_module_buffers_free(mn_module_buffers *buffers)
{
    if (!buffers)
        return;
    for (int i = 0; i < 2 * buffers->room; i++)
        mn_release(buffers->own[i]);
    mn_host_free(buffers->context, buffers->own, 2 * (size_t)buffers->room * sizeof(mn_tensor *));
    mn_host_free(buffers->context, buffers, sizeof *buffers);
}

static mn_status copy_buffers(mn_module_buffers *b, mn_tensor **to, mn_tensor **from)
{
    MN_TRY(mn_error_status(b->context));
    return mn_assign_all(b->context, b->count, to, from);
}

mn_status mn_module_buffers_save(mn_module_buffers *buffers)
{
    return buffers ? copy_buffers(buffers, buffers->copies, buffers->own) : MN_ERR_ARGUMENT;
}

mn_status mn_module_buffers_restore(mn_module_buffers *buffers)
{
    return buffers ? copy_buffers(buffers, buffers->own, buffers->copies) : MN_ERR_ARGUMENT;
}
