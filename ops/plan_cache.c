/* ops/plan_cache.c: what kernels chose for calls seen before: a hash table in the context. */
#include "ops/internal.h"

#include <string.h>

/* Op, then per view a word of its kind and its extents, then the attributes. */
enum {
    VIEWS = MN_MAX_INPUTS + MN_MAX_OUTPUTS,
    KEY_WORDS = 1 + VIEWS * (1 + MN_MAX_DIMS) + MN_MAX_ATTRIBUTES / (int)sizeof(uint64_t)
};

typedef struct plan_key {
    uint64_t words[KEY_WORDS];
    size_t count;
    uint64_t hash;
} plan_key;

struct mn_plan_entry {
    mn_plan_entry *next;
    uint64_t hash;
    mn_plan plan;
    size_t workspace_bytes;
    size_t count;
    uint64_t words[];
};

static size_t entry_bytes(size_t words)
{
    return sizeof(mn_plan_entry) + words * sizeof(uint64_t);
}

/* ---- state ----------------------------------------------------------------------------------- */

static void flush(mn_context *context, mn_ops_state *state)
{
    for (int i = 0; i < MN_PLAN_BUCKETS; i++) {
        mn_plan_entry *entry = state->buckets[i];
        while (entry) {
            mn_plan_entry *next = entry->next;
            mn_host_free(context, entry, entry_bytes(entry->count));
            entry = next;
        }
        state->buckets[i] = NULL;
    }
    state->entries = 0;
}

static void destroy(mn_context *context, void *pointer)
{
    mn_ops_state *state = pointer;
    flush(context, state);
    mn_host_free(context, state->buckets, MN_PLAN_BUCKETS * sizeof *state->buckets);
    mn_host_free(context, state, sizeof *state);
}

mn_ops_state *mn_ops_state_get(mn_context *context)
{
    mn_slot *slot = &context->slots[MN_SLOT_OPS];
    if (slot->state)
        return slot->state;
    mn_ops_state *state = mn_host_calloc(context, 1, sizeof *state);
    if (!state)
        return NULL;
    state->buckets = mn_host_calloc(context, MN_PLAN_BUCKETS, sizeof *state->buckets);
    if (!state->buckets) {
        mn_host_free(context, state, sizeof *state);
        return NULL;
    }
    *slot = (mn_slot){.state = state, .destroy = destroy};
    return state;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static void add_view(plan_key *key, const mn_view *view)
{
    uint64_t kind = view->present ? 1u : 0u;
    key->words[key->count++] = kind | (uint64_t)view->dtype << 8 | (uint64_t)view->ndim << 16;
    for (int i = 0; i < view->ndim; i++)
        key->words[key->count++] = (uint64_t)view->shape[i];
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

static void make_key(const mn_call *call, plan_key *key)
{
    key->count = 0;
    key->words[key->count++] = (uint64_t)(uintptr_t)call->op;
    for (int i = 0; i < call->input_count; i++)
        add_view(key, &call->in[i]);
    for (int i = 0; i < call->output_count; i++)
        add_view(key, &call->out[i]);
    memcpy(key->words + key->count, call->attributes.bytes, MN_MAX_ATTRIBUTES);
    key->count += MN_MAX_ATTRIBUTES / sizeof(uint64_t);
    key->hash = hash_words(key->words, key->count);
}

/* ---- look-up --------------------------------------------------------------------------------- */

static mn_plan_entry **bucket_of(mn_ops_state *state, uint64_t hash)
{
    return &state->buckets[hash % MN_PLAN_BUCKETS];
}

static mn_plan_entry *find(mn_ops_state *state, const plan_key *key)
{
    mn_plan_entry *entry = *bucket_of(state, key->hash);
    while (entry && (entry->hash != key->hash || entry->count != key->count ||
                     memcmp(entry->words, key->words, key->count * sizeof(uint64_t)) != 0))
        entry = entry->next;
    return entry;
}

static mn_plan_entry *insert(mn_context *context, mn_ops_state *state, const plan_key *key,
                             const mn_plan_entry *chosen)
{
    if (state->entries >= MN_PLAN_LIMIT)
        flush(context, state);
    mn_plan_entry *entry = mn_host_alloc(context, entry_bytes(key->count));
    if (!entry)
        return NULL;
    mn_plan_entry **bucket = bucket_of(state, key->hash);
    entry->next = *bucket;
    entry->hash = key->hash;
    entry->plan = chosen->plan;
    entry->workspace_bytes = chosen->workspace_bytes;
    entry->count = key->count;
    memcpy(entry->words, key->words, key->count * sizeof(uint64_t));
    *bucket = entry;
    state->entries++;
    return entry;
}

static mn_plan_entry *ask_kernel(mn_context *context, mn_ops_state *state, const mn_kernel *kernel,
                                 const plan_key *key, const mn_call *call)
{
    mn_plan_entry chosen = {.workspace_bytes = 0};
    mn_status status = kernel->prepare(call, &chosen.plan, &chosen.workspace_bytes);
    if (status != MN_OK) {
        mn_check_fault(context); /* tells more, if the kernel left one */
        mn_fail(context, status, "%s: the kernel does not take these arguments", call->op->name);
        return NULL;
    }
    state->misses++;
    return insert(context, state, key, &chosen);
}

mn_status mn_plan_find(mn_context *context, const mn_kernel *kernel, mn_call *call)
{
    if (!kernel->prepare)
        return MN_OK;
    plan_key key;
    mn_ops_state *state = mn_ops_state_get(context);
    if (!state)
        return mn_error_status(context);
    make_key(call, &key);
    mn_plan_entry *entry = find(state, &key);
    if (entry)
        state->hits++;
    else
        entry = ask_kernel(context, state, kernel, &key, call);
    if (!entry)
        return mn_error_status(context);
    call->plan = entry->plan;
    call->workspace_bytes = entry->workspace_bytes;
    return MN_OK;
}
