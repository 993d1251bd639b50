/* Saving and loading optimizers. */
#include "optim/optim.h"

#include "core/state_dict.h"

#include <stdio.h>
#include <string.h>

#define COUNTERS 3

static const char *const counter_names[COUNTERS] = {"optimizer.applied", "optimizer.skipped",
                                                    "optimizer.nonfinite"};
static const int counter_slots[COUNTERS] = {MN_OPT_APPLIED, MN_OPT_SKIPPED, MN_OPT_NONFINITE};

mn_status mn_entry_name(const mn_tensor *parameter, int index, const char *room, const char *state,
                        char name[MN_ENTRY_NAME])
{
    const char *dot = state ? "." : "", *own = mn_tensor_name(parameter);
    char number[16];
    snprintf(number, sizeof number, "%d", index);
    int length = snprintf(name, MN_ENTRY_NAME, "%s.%s%s%s", room, own[0] ? own : number, dot,
                          state ? state : "");
    if (length < 0 || length >= MN_ENTRY_NAME)
        return mn_fail(parameter->context, MN_ERR_ARGUMENT, "the name of parameter %d is too long",
                       index);
    return MN_OK;
}

static const char *name_of(const mn_optimizer_kind *kind, int state)
{
    return state == MN_MASTER ? "master" : kind->states[state];
}

/* NULL if there is no such state of the parameter. */
static mn_tensor *state_of(const mn_optimizer *optimizer, int state, int index)
{
    return optimizer->states[state] ? optimizer->states[state][index] : NULL;
}

static mn_status save_states(mn_optimizer *optimizer, int index, mn_state_dict *dict)
{
    const mn_tensor *p = optimizer->parameters[index];
    char name[MN_ENTRY_NAME];
    for (int k = 0; k <= MN_MASTER; k++) {
        if (!state_of(optimizer, k, index))
            continue;
        MN_TRY(mn_entry_name(p, index, "optimizer", name_of(optimizer->recipe.kind, k), name));
        MN_TRY(mn_state_dict_put_tensor(dict, name, state_of(optimizer, k, index), p->layout));
    }
    return MN_OK;
}

mn_status mn_optimizer_save_state(mn_optimizer *optimizer, mn_state_dict *dict)
{
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_optimizer_check(optimizer));
    MN_TRY(mn_state_dict_writable(optimizer->context, dict, "optimizer_save_state"));
    MN_TRY(mn_record_read(optimizer->record, record));
    for (int i = 0; i < optimizer->count; i++)
        MN_TRY(save_states(optimizer, i, dict));
    for (int i = 0; i < COUNTERS; i++)
        MN_TRY(mn_state_dict_put_i64(dict, counter_names[i], (int64_t)record[counter_slots[i]]));
    return MN_OK;
}

/* The counters, and by the device's own rule the factor that an uninterrupted run would have now:
 * the record is put one step back and finished again. */
static mn_status make_record(mn_optimizer *optimizer, const int64_t counters[COUNTERS],
                             double record[MN_RECORD_SIZE])
{
    static const int64_t shape[1] = {MN_RECORD_SIZE};
    mn_context *context = optimizer->context;
    double values[MN_RECORD_SIZE] = {[MN_OPT_CLIP] = 1};
    for (int i = 0; i < COUNTERS; i++)
        values[counter_slots[i]] = (double)counters[i];
    values[MN_OPT_APPLIED] -= 1;
    mn_tensor *made = mn_tensor_from(context, MN_F64, 1, shape, values);
    if (!made)
        return context->error.status;
    MN_TRY(mn_optimizer_finish(optimizer, made));
    return mn_record_read(made, record);
}

static mn_status load_states(mn_optimizer *optimizer, const mn_state_dict *dict, bool apply)
{
    char name[MN_ENTRY_NAME];
    for (int i = 0; i < optimizer->count; i++) {
        const mn_tensor *p = optimizer->parameters[i];
        for (int k = 0; k <= MN_MASTER; k++) {
            mn_tensor *state = state_of(optimizer, k, i);
            if (!state)
                continue;
            MN_TRY(mn_entry_name(p, i, "optimizer", name_of(optimizer->recipe.kind, k), name));
            MN_TRY(mn_state_dict_get_tensor(dict, name, state, p->layout, apply));
        }
    }
    return MN_OK;
}

/* A state that the kind does not have was left by another kind, whose states of the same name would
 * mean something else. */
static mn_status refuse_other_kinds(const mn_optimizer *optimizer, const mn_state_dict *dict)
{
    static const char room[] = "optimizer.";
    const mn_optimizer_kind *kind = optimizer->recipe.kind;
    mn_state_entry entry;
    for (int64_t i = 0; mn_state_dict_entry(dict, i, &entry); i++) {
        const char *state = strrchr(entry.name, '.');
        bool known = strncmp(entry.name, room, sizeof room - 1) != 0;
        for (int k = 0; k < COUNTERS && !known; k++)
            known = strcmp(entry.name, counter_names[k]) == 0;
        for (int k = 0; k <= MN_MASTER && !known; k++)
            known = (k == MN_MASTER ? optimizer->states[k] != NULL : kind->states[k] != NULL) &&
                    strcmp(state + 1, name_of(kind, k)) == 0;
        if (!known)
            return mn_fail(optimizer->context, MN_ERR_MISMATCH,
                           "the dictionary holds \"%s\", which is not of %s", entry.name,
                           kind->name);
    }
    return MN_OK;
}

mn_status mn_optimizer_load(mn_optimizer *optimizer, const mn_state_dict *dict, bool apply)
{
    int64_t counters[COUNTERS];
    double record[MN_RECORD_SIZE];
    MN_TRY(mn_optimizer_check(optimizer));
    mn_context *context = optimizer->context;
    MN_TRY(mn_state_dict_readable(context, dict, "optimizer_load_state"));
    if (optimizer->stage != MN_STAGE_READY)
        return mn_fail(
            context, MN_ERR_STATE,
            "optimizer_load_state: only between steps: call mn_grad_scaler_update first");
    for (int i = 0; i < COUNTERS; i++) {
        MN_TRY(mn_state_dict_get_i64(context, dict, counter_names[i], &counters[i]));
        if (counters[i] < 0 || counters[i] > INT64_C(1) << 53)
            return mn_fail(context, MN_ERR_MISMATCH, "%s is %lld", counter_names[i],
                           (long long)counters[i]);
    }
    MN_TRY(load_states(optimizer, dict, false));
    MN_TRY(refuse_other_kinds(optimizer, dict));
    if (!apply)
        return MN_OK;
    mn_scope scope = mn_scope_begin(context);
    mn_status status = make_record(optimizer, counters, record);
    mn_scope_end(context, scope);
    MN_TRY(status);
    /* From here on nothing asks for memory. */
    MN_TRY(load_states(optimizer, dict, true));
    optimizer->begun = true;
    return mn_tensor_write(optimizer->record, record, sizeof record);
}

mn_status mn_optimizer_load_state(mn_optimizer *optimizer, const mn_state_dict *dict)
{
    return mn_optimizer_load(optimizer, dict, true);
}
