/* train/identity.c: which run a checkpoint belongs to, as strings beside its tensors. How a run is
 * run (threads, device, paths, logging, times) is no part of it. */
#include "train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { VALUE_TEXT = 64, FACT_COUNT = 32 };

/* One part of the identity. */
typedef struct fact {
    const char *key;    /* in the checkpoint */
    const char *option; /* for the user */
    const char *value;
    bool scaler; /* matters only between two runs with loss scaling */
} fact;

typedef struct facts {
    char texts[FACT_COUNT][VALUE_TEXT]; /* of the values that are numbers */
    int text_count;
    fact list[FACT_COUNT];
    int count;
} facts;

static void add(facts *all, const char *key, const char *option, const char *value)
{
    all->list[all->count++] = (fact){key, option, value, false};
}

static void add_integer(facts *all, const char *key, const char *option, int64_t value)
{
    char *text = all->texts[all->text_count++];
    snprintf(text, VALUE_TEXT, "%" PRId64, value);
    add(all, key, option, text);
}

static void add_number(facts *all, const char *key, const char *option, double value)
{
    char *text = all->texts[all->text_count++];
    if (isfinite(value))
        mn_number_text(value, text);
    else
        snprintf(text, VALUE_TEXT, "%g", value);
    add(all, key, option, text);
}

static void add_data(facts *all, const mn_run *run)
{
    add(all, "data", "--data", mn_run_data_name(run));
    char *text = all->texts[all->text_count++];
    snprintf(text, VALUE_TEXT, "%016" PRIx64, run->info.fingerprint);
    add(all, "data_fingerprint", "fingerprint of the data", text);
    add_integer(all, "height", "image height", run->info.height);
    add_integer(all, "width", "image width", run->info.width);
    add_integer(all, "channels", "image channels", run->info.channels);
    add_integer(all, "classes", "classes", run->info.classes);
}

static void add_scaler(facts *all, const mn_grad_scaler_options *scaler)
{
    int first = all->count;
    add_number(all, "init_scale", "--init-scale", scaler->init_scale);
    add_number(all, "growth_factor", "growth factor of the scale", scaler->growth_factor);
    add_number(all, "backoff_factor", "backoff factor of the scale", scaler->backoff_factor);
    add_integer(all, "growth_interval", "--growth-interval", scaler->growth_interval);
    add_number(all, "min_scale", "smallest scale", scaler->min_scale);
    add_number(all, "max_scale", "largest scale", scaler->max_scale);
    for (int i = first; i < all->count; i++)
        all->list[i].scaler = true;
}

static void collect(facts *all, const mn_run *run)
{
    const mn_train_options *o = &run->options;
    all->count = all->text_count = 0;
    add(all, "model", "--model", o->model);
    add_data(all, run);
    add_integer(all, "batch", "--batch", o->batch);
    add_integer(all, "accumulate", "--accumulate", o->accumulate);
    add(all, "optimizer", "--optimizer", o->optimizer);
    add_number(all, "lr", "--lr", o->lr);
    add_number(all, "momentum", "--momentum", o->momentum);
    add_number(all, "weight_decay", "--weight-decay", o->weight_decay);
    add(all, "schedule", "--schedule", mn_schedule_name(o->schedule));
    add_integer(all, "planned_steps", "planned steps (--steps or --epochs)", run->planned);
    add_number(all, "clip_norm", "--clip-norm", o->clip_norm);
    add_scaler(all, &o->scaler);
    char *seed = all->texts[all->text_count++];
    snprintf(seed, VALUE_TEXT, "%" PRIu64, o->seed);
    add(all, "seed", "--seed", seed);
    add_number(all, "validation", "--validation", o->validation);
    add_integer(all, "limit", "--limit", o->limit);
    add(all, "rules", "autocast rules", run->rules);
}

/* One name a line. */
static mn_status save_class_names(const mn_run *run, mn_state_dict *dict)
{
    const char *const *names = run->info.class_names;
    size_t bytes = 1, used = 0;
    if (!names)
        return MN_OK;
    for (int i = 0; i < run->info.classes; i++)
        if (!mn_size_add(bytes, strlen(names[i]) + 1, &bytes))
            return mn_fail(run->context, MN_ERR_MEMORY, "class names do not fit in memory");
    char *text = mn_host_alloc(run->context, bytes);
    if (!text)
        return mn_error_status(run->context);
    text[0] = '\0';
    for (int i = 0; i < run->info.classes; i++) {
        int length = snprintf(text + used, bytes - used, "%s%s", i ? "\n" : "", names[i]);
        used += length > 0 ? (size_t)length : 0;
    }
    mn_status status = mn_state_dict_set_string(dict, "class_names", text);
    mn_host_free(run->context, text, bytes);
    return status;
}

mn_status mn_identity_save(const mn_run *run, mn_state_dict *dict)
{
    facts all;
    collect(&all, run);
    MN_TRY(mn_state_dict_set_string(dict, "minim_version", mn_version()));
    MN_TRY(mn_state_dict_set_string(dict, "amp", mn_amp_name(run->options.amp)));
    for (int i = 0; i < all.count; i++)
        MN_TRY(mn_state_dict_set_string(dict, all.list[i].key, all.list[i].value));
    return save_class_names(run, dict);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Data sets are the same whatever follows the name: their fingerprints are compared. */
static bool same(const fact *here, const char *there)
{
    size_t length = strcspn(here->value, ":");
    if (strcmp(here->key, "data") != 0)
        return strcmp(here->value, there) == 0;
    return length == strcspn(there, ":") && strncmp(here->value, there, length) == 0;
}

/* Appends "--lr 0.05 there, 0.1 here" while there is room. */
static void describe(char *text, size_t size, const fact *here, const char *there)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s %.80s there, %.80s here", used ? "; " : "",
             here->option, there ? (*there ? there : "none") : "unknown",
             *here->value ? here->value : "none");
}

static void notice(const mn_run *run, const char *text)
{
    if (run->options.notice)
        run->options.notice(run->options.user, text);
}

static void notice_amp(const mn_run *run, const char *there)
{
    const char *here = mn_amp_name(run->options.amp);
    char text[256];
    if (strcmp(there, here) == 0)
        return;
    const char *scaler = run->options.amp == MN_F16   ? "; the loss scale starts anew"
                         : strcmp(there, "fp16") == 0 ? "; its loss scale is not used"
                                                      : "";
    snprintf(text, sizeof text,
             "the checkpoint was trained with --amp %.20s, going on with --amp "
             "%s%s",
             there, here, scaler);
    notice(run, text);
}

mn_status mn_identity_check(mn_run *run, const mn_state_dict *dict)
{
    facts all;
    char differences[800] = "", text[1024];
    const char *amp = mn_state_dict_get_string(dict, "amp");
    const char *path = run->options.resume;
    if (!amp || !mn_state_dict_get_string(dict, "model"))
        return mn_error_set(&run->error, MN_ERR_MISMATCH,
                            "%.400s is no checkpoint of a run of minim: it does not say of which "
                            "model and run",
                            path);
    bool scaled = strcmp(amp, "fp16") == 0 && run->options.amp == MN_F16;
    collect(&all, run);
    for (int i = 0; i < all.count; i++) {
        const char *there = mn_state_dict_get_string(dict, all.list[i].key);
        if (all.list[i].scaler && !scaled)
            continue;
        if (!there || !same(&all.list[i], there))
            describe(differences, sizeof differences, &all.list[i], there);
    }
    if (differences[0] && !run->options.resume_anyway)
        return mn_error_set(&run->error, MN_ERR_MISMATCH,
                            "checkpoint %.200s belongs to another run: %s", path, differences);
    if (differences[0]) {
        snprintf(text, sizeof text, "going on although the checkpoint belongs to another run: %s",
                 differences);
        notice(run, text);
    }
    notice_amp(run, amp);
    return MN_OK;
}
