/* ops/plan_cache.c: what kernels chose for calls seen before: a hash table in the context, with a
 * few places per hash, so that a model's calls do not push each other out in every step. */
#include "ops/internal.h"

#include <string.h>

/* Op, then per view a word of its kind and its extents, then the attributes. */
enum {
    VIEWS = MN_MAX_INPUTS + MN_MAX_OUTPUTS,
    KEY_WORDS = 1 + VIEWS * (1 + MN_MAX_DIMS) + MN_MAX_ATTRIBUTES / (int)sizeof(uint64_t),
    PLACES = 8
};

struct mn_plan_entry {
    mn_plan plan;
    size_t workspace_bytes;
    size_t count;
    uint64_t key[];
};

static void entry_free(mn_context *context, mn_plan_entry *entry)
{
    if (entry)
        mn_host_free(context, entry, sizeof *entry + entry->count * sizeof *entry->key);
}

static void destroy(mn_context *context, void *pointer)
{
    mn_ops_state *state = pointer;
    for (int i = 0; i < MN_PLAN_LIMIT; i++)
        entry_free(context, state->plans[i]);
    mn_host_free(context, state, sizeof *state);
}

mn_ops_state *mn_ops_state_get(mn_context *context)
{
    mn_slot *slot = &context->slots[MN_SLOT_OPS];
    if (!slot->state) {
        mn_ops_state *state = mn_host_calloc(context, 1, sizeof *state);
        if (state)
            *slot = (mn_slot){.state = state, .destroy = destroy};
    }
    return slot->state;
}

static size_t add_view(const mn_view *view, uint64_t *key)
{
    *key++ = view->present | (uint64_t)view->dtype << 8 | (uint64_t)view->ndim << 16;
    for (int i = 0; i < view->ndim; i++)
        key[i] = (uint64_t)view->shape[i];
    return 1 + (size_t)view->ndim;
}

static size_t make_key(const mn_call *call, uint64_t *key)
{
    size_t count = 1;
    key[0] = (uint64_t)(uintptr_t)call->op;
    for (int i = 0; i < call->input_count; i++)
        count += add_view(&call->in[i], key + count);
    for (int i = 0; i < call->output_count; i++)
        count += add_view(&call->out[i], key + count);
    memcpy(key + count, call->attributes.bytes, MN_MAX_ATTRIBUTES);
    return count + MN_MAX_ATTRIBUTES / sizeof(uint64_t);
}

static uint64_t hash_words(const uint64_t *words, size_t count)
{
    uint64_t hash = UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ words[i]) * UINT64_C(0xff51afd7ed558ccd);
        hash ^= hash >> 32;
    }
    return hash;
}

static bool is_of(const mn_plan_entry *entry, const uint64_t *key, size_t count)
{
    return entry && entry->count == count && memcmp(entry->key, key, count * sizeof *key) == 0;
}

/* Where the key's entry is or may be put. */
static mn_plan_entry **place_of(mn_ops_state *state, const uint64_t *key, size_t count)
{
    const uint64_t hash = hash_words(key, count);
    for (uint64_t i = 0; i < PLACES; i++) {
        mn_plan_entry **place = &state->plans[(hash + i) % MN_PLAN_LIMIT];
        if (!*place || is_of(*place, key, count))
            return place;
    }
    return &state->plans[hash % MN_PLAN_LIMIT];
}

/* Asks the kernel; NULL records an error. */
static mn_plan_entry *make_entry(mn_context *context, const mn_kernel *kernel, const mn_call *call,
                                 const uint64_t *key, size_t count)
{
    mn_plan plan = {{0}};
    size_t workspace_bytes = 0;
    mn_status status = kernel->prepare(call, &plan, &workspace_bytes);
    if (status != MN_OK) {
        mn_check_fault(context); /* tells more, if the kernel left one */
        mn_fail(context, status, "%s: the kernel does not take these arguments", call->op->name);
        return NULL;
    }
    mn_plan_entry *entry = mn_host_alloc(context, sizeof *entry + count * sizeof *key);
    if (!entry)
        return NULL;
    *entry = (mn_plan_entry){plan, workspace_bytes, count};
    memcpy(entry->key, key, count * sizeof *key);
    return entry;
}

mn_status mn_plan_find(mn_context *context, const mn_kernel *kernel, mn_call *call)
{
    if (!kernel->prepare)
        return MN_OK;
    uint64_t key[KEY_WORDS];
    mn_ops_state *state = mn_ops_state_get(context);
    if (!state)
        return mn_error_status(context);
    const size_t count = make_key(call, key);
    mn_plan_entry **place = place_of(state, key, count), *entry = *place;
    if (is_of(entry, key, count)) {
        state->hits++;
    } else {
        entry = make_entry(context, kernel, call, key, count);
        if (!entry)
            return mn_error_status(context);
        entry_free(context, *place);
        *place = entry;
    }
    call->plan = entry->plan;
    call->workspace_bytes = entry->workspace_bytes;
    return MN_OK;
}
