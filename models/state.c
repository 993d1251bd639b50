/* Saving modules into state dictionaries and loading them, under PyTorch's names; and copies of
 * their buffers on the device. */
#include "models/module.h"

#include "core/state_dict.h"

#include <string.h>

static mn_status save_slots(mn_module *module, const char *path, void *user)
{
    for (int i = 0; i < module->slot_count; i++) {
        char name[MN_PATH_MAX];
        MN_TRY(mn_path_join(module->context, path, module->specs[i].name, name));
        MN_TRY(mn_state_dict_put_tensor(user, name, module->slots[i],
                                        mn_slot_layout(&module->specs[i])));
    }
    return MN_OK;
}

mn_status mn_check_initialised(mn_module *module, const char *path, void *user)
{
    (void)user;
    if (module->slot_count > 0 && module->slots[0] == NULL)
        return mn_fail(module->context, MN_ERR_STATE,
                       "layer \"%s\" has no parameters yet: call mn_module_init first", path);
    return MN_OK;
}

mn_status mn_module_save_state(mn_module *module, mn_state_dict *dict)
{
    MN_TRY(mn_module_walk(module, mn_check_initialised, NULL));
    MN_TRY(mn_state_dict_writable(module->context, dict, "module_save_state"));
    return mn_module_walk(module, save_slots, dict);
}

typedef struct loading {
    const mn_state_dict *dict;
    bool apply;
} loading;

static mn_status load_slots(mn_module *module, const char *path, void *user)
{
    loading *load = user;
    for (int i = 0; i < module->slot_count; i++) {
        char name[MN_PATH_MAX];
        MN_TRY(mn_path_join(module->context, path, module->specs[i].name, name));
        mn_state_entry entry; /* PyTorch's older files have no counts of batches */
        if (module->specs[i].ndim == 0 && !mn_state_dict_find(load->dict, name, &entry))
            continue;
        MN_TRY(mn_state_dict_get_tensor(load->dict, name, module->slots[i],
                                        mn_slot_layout(&module->specs[i]), load->apply));
    }
    return MN_OK;
}

/* Entries of a dictionary that are not a module's carry one of these in front. */
static bool is_foreign(const char *name)
{
    static const char *const prefixes[] = {"optimizer.", "scaler.", "ema.", "progress.", "data."};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

typedef struct name_search {
    const char *name;
    bool found;
} name_search;

static mn_status search_name(mn_module *module, const char *path, void *user)
{
    name_search *search = user;
    for (int i = 0; i < module->slot_count && !search->found; i++) {
        char name[MN_PATH_MAX];
        MN_TRY(mn_path_join(module->context, path, module->specs[i].name, name));
        search->found = strcmp(name, search->name) == 0;
    }
    return MN_OK;
}

static mn_status refuse_unexpected(mn_module *module, const mn_state_dict *dict)
{
    mn_state_entry entry;
    for (int64_t i = 0; mn_state_dict_entry(dict, i, &entry); i++) {
        name_search search = {entry.name, is_foreign(entry.name)};
        if (!search.found)
            MN_TRY(mn_module_walk(module, search_name, &search));
        if (!search.found)
            return mn_fail(module->context, MN_ERR_MISMATCH,
                           "the dictionary holds \"%s\", which this model has not", entry.name);
    }
    return MN_OK;
}

mn_status mn_module_load(mn_module *module, const mn_state_dict *dict, bool apply)
{
    MN_TRY(mn_module_walk(module, mn_check_initialised, NULL));
    MN_TRY(mn_state_dict_readable(module->context, dict, "module_load_state"));
    loading load = {dict, false};
    MN_TRY(mn_module_walk(module, load_slots, &load));
    MN_TRY(refuse_unexpected(module, dict));
    load.apply = true;
    return apply ? mn_module_walk(module, load_slots, &load) : MN_OK;
}

mn_status mn_module_load_state(mn_module *module, const mn_state_dict *dict)
{
    return mn_module_load(module, dict, true);
}
