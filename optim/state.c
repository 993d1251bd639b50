/* Saving and loading optimizers. */
#include "optim/optim.h"

#include "core/state_dict.h"

#include <stdio.h>

#define COUNTERS 3

static const char *const counter_names[COUNTERS] = {"optimizer.applied", "optimizer.skipped",
                                                    "optimizer.nonfinite"};
static const int counter_slots[COUNTERS] = {MN_OPT_APPLIED, MN_OPT_SKIPPED, MN_OPT_NONFINITE};

/* "optimizer.<parameter>.momentum_buffer"; parameters without a name go by their number. */
static mn_status momentum_name(const mn_optimizer *optimizer, int index, char *buffer, size_t size)
{
    const char *name = mn_tensor_name(optimizer->parameters[index]);
    int length = name[0] ? snprintf(buffer, size, "optimizer.%s.momentum_buffer", name)
                         : snprintf(buffer, size, "optimizer.%d.momentum_buffer", index);
    if (length < 0 || (size_t)length >= size)
        return mn_fail(optimizer->context, MN_ERR_ARGUMENT, "the name of parameter %d is too long",
                       index);
    return MN_OK;
}

mn_status mn_optimizer_save_state(mn_optimizer *optimizer, mn_state_dict *dict)
{
    double record[MN_RECORD_SIZE];
    char name[512];
    MN_TRY(mn_optimizer_check(optimizer));
    if (!dict)
        return mn_fail(optimizer->context, MN_ERR_ARGUMENT, "optimizer_save_state: dict is NULL");
    MN_TRY(mn_record_read(optimizer->record, record));
    for (int i = 0; i < optimizer->count && optimizer->momenta; i++) {
        MN_TRY(momentum_name(optimizer, i, name, sizeof name));
        MN_TRY(mn_state_dict_put_tensor(dict, name, optimizer->momenta[i],
                                        optimizer->parameters[i]->layout));
    }
    for (int i = 0; i < COUNTERS; i++)
        MN_TRY(mn_state_dict_put_i64(dict, counter_names[i], (int64_t)record[counter_slots[i]]));
    return MN_OK;
}

/* The counters, and by the device's own rule the learning rate that an uninterrupted run would have
 * now: the record is put one step back and finished again. */
static mn_status make_record(mn_optimizer *optimizer, const int64_t counters[COUNTERS],
                             double record[MN_RECORD_SIZE])
{
    static const int64_t shape[1] = {MN_RECORD_SIZE};
    mn_context *context = optimizer->context;
    double values[MN_RECORD_SIZE] = {0};
    for (int i = 0; i < COUNTERS; i++)
        values[counter_slots[i]] = (double)counters[i];
    values[MN_OPT_LR] = optimizer->options.lr;
    values[MN_OPT_CLIP] = 1;
    if (counters[0] > 0)
        values[MN_OPT_APPLIED] -= 1;
    mn_tensor *made = mn_tensor_from(context, MN_F64, 1, shape, values);
    if (!made)
        return context->error.status;
    mn_schedule_attributes attributes = mn_optimizer_schedule(optimizer);
    if (counters[0] > 0)
        MN_TRY(mn_dispatch(context, &mn_ops[MN_OP_optimizer_finish], &made, 1, &attributes, false,
                           NULL));
    return mn_record_read(made, record);
}

static mn_status load_momenta(mn_optimizer *optimizer, const mn_state_dict *dict, bool apply)
{
    char name[512];
    for (int i = 0; i < optimizer->count && optimizer->momenta; i++) {
        MN_TRY(momentum_name(optimizer, i, name, sizeof name));
        MN_TRY(mn_state_dict_get_tensor(dict, name, optimizer->momenta[i],
                                        optimizer->parameters[i]->layout, apply));
    }
    return MN_OK;
}

mn_status mn_optimizer_load(mn_optimizer *optimizer, const mn_state_dict *dict, bool apply)
{
    int64_t counters[COUNTERS];
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_optimizer_check(optimizer));
    mn_context *context = optimizer->context;
    if (!dict)
        return mn_fail(context, MN_ERR_ARGUMENT, "optimizer_load_state: dict is NULL");
    if (optimizer->stage != MN_STAGE_READY)
        return mn_fail(
            context, MN_ERR_STATE,
            "optimizer_load_state: only between steps: call mn_grad_scaler_update first");
    for (int i = 0; i < COUNTERS; i++) {
        MN_TRY(mn_state_dict_get_i64(dict, counter_names[i], &counters[i]));
        if (counters[i] < 0 || counters[i] > INT64_C(1) << 53)
            return mn_fail(context, MN_ERR_MISMATCH, "%s is %lld", counter_names[i],
                           (long long)counters[i]);
    }
    MN_TRY(load_momenta(optimizer, dict, false));
    if (!apply)
        return MN_OK;
    mn_scope scope = mn_scope_begin(context);
    mn_status status = make_record(optimizer, counters, record);
    mn_scope_end(context, scope);
    MN_TRY(status);
    /* From here on nothing asks for memory. */
    MN_TRY(load_momenta(optimizer, dict, true));
    return mn_tensor_write(optimizer->record, record, sizeof record);
}

mn_status mn_optimizer_load_state(mn_optimizer *optimizer, const mn_state_dict *dict)
{
    return mn_optimizer_load(optimizer, dict, true);
}
