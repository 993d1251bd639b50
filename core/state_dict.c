/* core/state_dict.c: named tensors and strings in host memory, in insertion order and with a hash
 * index, and their exchange with tensors. */
#include "core/state_dict.h"
#include "core/json.h"

#include <string.h>

/* A named tensor or a named string (the data), in one block with its data and its name. */
typedef struct dict_item {
    mn_state_entry entry;
    int64_t shape[MN_MAX_DIMS];
    size_t block_bytes;
} dict_item;

/* Items in insertion order, and an open-addressing index: slot 0 is empty, else item + 1. */
typedef struct dict_table {
    dict_item **items;
    size_t count, capacity;
    size_t *slots;
    size_t slot_count; /* 0 or a power of two, at least twice capacity */
} dict_table;

struct mn_state_dict {
    mn_context *context;
    dict_table tensors, strings;
};

/* ---- tables ---------------------------------------------------------------------------------- */

/* The slot that holds the name, or the empty one where it would go. */
static size_t *find_slot(const dict_table *table, const char *name)
{
    size_t mask = table->slot_count - 1;
    uint64_t hash = mn_hash(MN_HASH_START, name, strlen(name));
    size_t at = (size_t)(hash ^ hash >> 32) & mask;
    while (table->slots[at] && strcmp(table->items[table->slots[at] - 1]->entry.name, name) != 0)
        at = (at + 1) & mask;
    return &table->slots[at];
}

static dict_item *find(const dict_table *table, const char *name)
{
    size_t slot = table->slot_count ? *find_slot(table, name) : 0;
    return slot ? table->items[slot - 1] : NULL;
}

static void free_arrays(mn_context *context, const dict_table *table)
{
    mn_host_free(context, table->items, table->capacity * sizeof *table->items);
    mn_host_free(context, table->slots, table->slot_count * sizeof *table->slots);
}

static mn_status grow(mn_context *context, dict_table *old)
{
    dict_table new = {.count = old->count, .capacity = old->capacity ? 2 * old->capacity : 8};
    if (old->count < old->capacity)
        return MN_OK;
    new.slot_count = 2 * new.capacity;
    new.items = mn_host_calloc(context, new.capacity, sizeof *new.items);
    new.slots = new.items ? mn_host_calloc(context, new.slot_count, sizeof *new.slots) : NULL;
    if (!new.slots) {
        mn_host_free(context, new.items, new.capacity * sizeof *new.items);
        return mn_error_status(context);
    }
    if (old->count > 0)
        memcpy(new.items, old->items, old->count * sizeof *new.items);
    for (size_t i = 0; i < new.count; i++)
        *find_slot(&new, new.items[i]->entry.name) = i + 1;
    free_arrays(context, old);
    *old = new;
    return MN_OK;
}

static void free_item(mn_context *context, dict_item *item)
{
    mn_host_free(context, item, item->block_bytes);
}

static void free_table(mn_context *context, dict_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        free_item(context, table->items[i]);
    free_arrays(context, table);
}

/* Adds an item, in place of one of that name; entry->data NULL: its data are to be filled in. NULL
 * after recording an error. */
static dict_item *add(mn_context *context, dict_table *table, const mn_state_entry *entry)
{
    size_t name_bytes = strlen(entry->name) + 1;
    size_t bytes = sizeof(dict_item) + entry->bytes + name_bytes;
    if (grow(context, table) != MN_OK)
        return NULL;
    dict_item *item = mn_host_alloc(context, bytes);
    if (!item)
        return NULL;
    char *data = (char *)(item + 1);
    *item = (dict_item){.entry = *entry, .block_bytes = bytes};
    item->entry.shape = item->shape;
    item->entry.data = entry->bytes > 0 ? data : NULL;
    item->entry.name = memcpy(data + entry->bytes, entry->name, name_bytes);
    if (entry->ndim > 0)
        memcpy(item->shape, entry->shape, (size_t)entry->ndim * sizeof *item->shape);
    if (entry->data)
        memcpy(data, entry->data, entry->bytes);
    size_t *slot = find_slot(table, entry->name);
    if (*slot)
        free_item(context, table->items[*slot - 1]);
    else
        *slot = ++table->count;
    table->items[*slot - 1] = item;
    return item;
}

/* ---- the dictionary -------------------------------------------------------------------------- */

mn_state_dict *mn_state_dict_create(mn_context *context)
{
    if (!mn_ok(context))
        return NULL;
    mn_state_dict *dict = mn_host_calloc(context, 1, sizeof *dict);
    if (dict)
        dict->context = context;
    return dict;
}

void mn_state_dict_free(mn_state_dict *dict)
{
    if (!dict)
        return;
    free_table(dict->context, &dict->tensors);
    free_table(dict->context, &dict->strings);
    mn_host_free(dict->context, dict, sizeof *dict);
}

mn_context *mn_state_dict_context(const mn_state_dict *dict)
{
    return dict ? dict->context : NULL;
}

mn_status mn_state_dict_readable(mn_context *context, const mn_state_dict *dict, const char *what)
{
    MN_TRY(mn_error_status(context));
    return dict ? MN_OK : mn_fail(context, MN_ERR_ARGUMENT, "%s: dict is NULL", what);
}

mn_status mn_state_dict_writable(mn_context *context, const mn_state_dict *dict, const char *what)
{
    MN_TRY(mn_state_dict_readable(context, dict, what));
    if (dict->context == context)
        return MN_OK;
    return mn_fail(context, MN_ERR_ARGUMENT, "%s: the dictionary belongs to another context", what);
}

int64_t mn_state_dict_count(const mn_state_dict *dict)
{
    return dict ? (int64_t)dict->tensors.count : 0;
}

bool mn_state_dict_entry(const mn_state_dict *dict, int64_t index, mn_state_entry *entry)
{
    if (!entry || index < 0 || index >= mn_state_dict_count(dict))
        return false;
    *entry = dict->tensors.items[index]->entry;
    return true;
}

bool mn_state_dict_find(const mn_state_dict *dict, const char *name, mn_state_entry *entry)
{
    const dict_item *item = dict && name ? find(&dict->tensors, name) : NULL;
    if (item && entry)
        *entry = item->entry;
    return item != NULL;
}

/* Names and strings must be able to stand in a file. */
static mn_status check_text(mn_context *context, const char *text, const char *what)
{
    if (!text)
        return mn_fail(context, MN_ERR_ARGUMENT, "state dictionary: %s is NULL", what);
    if (!mn_utf8_valid(text))
        return mn_fail(context, MN_ERR_ARGUMENT, "state dictionary: %s \"%.100s\" is not UTF-8",
                       what, text);
    return MN_OK;
}

static mn_status check_entry(mn_state_dict *dict, const mn_state_entry *entry)
{
    mn_context *context = dict->context;
    size_t bytes;
    MN_TRY(mn_error_status(context));
    if (!entry)
        return mn_fail(context, MN_ERR_ARGUMENT, "state dictionary: entry is NULL");
    MN_TRY(check_text(context, entry->name, "name"));
    if (!*entry->name || strcmp(entry->name, "__metadata__") == 0)
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "state dictionary: a tensor cannot be named \"%s\"", entry->name);
    if (find(&dict->tensors, entry->name))
        return mn_fail(context, MN_ERR_ARGUMENT, "state dictionary: \"%.200s\" is there already",
                       entry->name);
    MN_TRY(mn_shape_check(context, entry->dtype, entry->ndim, entry->shape, NULL, &bytes));
    if (entry->bytes != bytes)
        return mn_fail(context, MN_ERR_SHAPE,
                       "state dictionary: \"%.200s\" has %zu bytes, its shape needs %zu",
                       entry->name, entry->bytes, bytes);
    return MN_OK;
}

mn_status mn_state_dict_reserve(mn_state_dict *dict, const mn_state_entry *entry, void **data)
{
    if (!dict)
        return MN_ERR_ARGUMENT;
    MN_TRY(check_entry(dict, entry));
    mn_state_entry empty = *entry;
    empty.data = NULL;
    dict_item *item = add(dict->context, &dict->tensors, &empty);
    if (!item)
        return mn_error_status(dict->context);
    *data = item->entry.data ? item + 1 : NULL;
    return MN_OK;
}

void mn_state_dict_drop(mn_state_dict *dict)
{
    dict_table *tensors = &dict->tensors;
    dict_item *newest = tensors->items[--tensors->count];
    /* Nothing came after it, so no other name was put behind its slot. */
    *find_slot(tensors, newest->entry.name) = 0;
    free_item(dict->context, newest);
}

mn_status mn_state_dict_put(mn_state_dict *dict, const mn_state_entry *entry)
{
    if (!dict)
        return MN_ERR_ARGUMENT;
    MN_TRY(check_entry(dict, entry));
    if (!entry->data && entry->bytes > 0)
        return mn_fail(dict->context, MN_ERR_ARGUMENT, "state dictionary: data is NULL");
    add(dict->context, &dict->tensors, entry);
    return mn_error_status(dict->context);
}

/* ---- strings --------------------------------------------------------------------------------- */

mn_status mn_state_dict_set_string(mn_state_dict *dict, const char *key, const char *value)
{
    if (!dict)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_error_status(dict->context));
    MN_TRY(check_text(dict->context, key, "key"));
    MN_TRY(check_text(dict->context, value, "value"));
    if (strcmp(key, MN_STATE_KEY_CHECKSUM) == 0 || strcmp(key, MN_STATE_KEY_FORMAT) == 0)
        return mn_fail(dict->context, MN_ERR_ARGUMENT,
                       "state dictionary: the key \"%s\" belongs to the file format", key);
    mn_state_entry entry = {.name = key, .data = value, .bytes = strlen(value) + 1};
    add(dict->context, &dict->strings, &entry);
    return mn_error_status(dict->context);
}

const char *mn_state_dict_get_string(const mn_state_dict *dict, const char *key)
{
    const dict_item *item = dict && key ? find(&dict->strings, key) : NULL;
    return item ? item->entry.data : NULL;
}

int64_t mn_state_dict_string_count(const mn_state_dict *dict)
{
    return dict ? (int64_t)dict->strings.count : 0;
}

bool mn_state_dict_string(const mn_state_dict *dict, int64_t index, const char **key,
                          const char **value)
{
    if (index < 0 || index >= mn_state_dict_string_count(dict))
        return false;
    if (key)
        *key = dict->strings.items[index]->entry.name;
    if (value)
        *value = dict->strings.items[index]->entry.data;
    return true;
}
