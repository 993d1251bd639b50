/* train/identity.c: which run a checkpoint belongs to, as strings beside its tensors. How a run is
 * run (threads, device, paths, logging, times) is no part of it. */
#include "train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { VALUE_TEXT = 64 };

typedef enum fact_kind { TEXT, RULES, WHOLE, CLASSES, SEED, HASH, REAL, SCHEDULE } fact_kind;

/* One part of the identity. */
typedef struct fact {
    const char *key;    /* in the checkpoint */
    const char *option; /* for the user */
    fact_kind kind;
    size_t offset; /* in mn_run */
    bool scaler;   /* matters only between two runs with loss scaling */
} fact;

#define AT(member) offsetof(mn_run, member)
static const fact facts[] = {
    {"model", "--model", TEXT, AT(options.model), false},
    {"data", "--data", TEXT, AT(info.name), false},
    {"data_fingerprint", "fingerprint of the data", HASH, AT(info.fingerprint), false},
    {"height", "image height", WHOLE, AT(info.height), false},
    {"width", "image width", WHOLE, AT(info.width), false},
    {"channels", "image channels", WHOLE, AT(info.channels), false},
    {"classes", "classes", CLASSES, AT(info.classes), false},
    {"batch", "--batch", WHOLE, AT(options.batch), false},
    {"accumulate", "--accumulate", WHOLE, AT(options.accumulate), false},
    {"optimizer", "--optimizer", TEXT, AT(options.optimizer), false},
    {"parameters", "--parameters", TEXT, AT(options.parameters), false},
    {"lr", "--lr", REAL, AT(options.lr), false},
    {"momentum", "--momentum", REAL, AT(options.momentum), false},
    {"weight_decay", "--weight-decay", REAL, AT(options.weight_decay), false},
    {"schedule", "--schedule", SCHEDULE, AT(options.schedule), false},
    {"warmup", "--warmup", WHOLE, AT(options.warmup), false},
    {"step_size", "--step-size", WHOLE, AT(options.step_size), false},
    {"gamma", "--gamma", REAL, AT(options.gamma), false},
    {"planned_steps", "planned steps (--steps or --epochs)", WHOLE, AT(planned), false},
    {"clip_norm", "--clip-norm", REAL, AT(options.clip_norm), false},
    {"init_scale", "--init-scale", REAL, AT(options.scaler.init_scale), true},
    {"growth_factor", "growth factor of the scale", REAL, AT(options.scaler.growth_factor), true},
    {"backoff_factor", "backoff factor of the scale", REAL, AT(options.scaler.backoff_factor),
     true},
    {"growth_interval", "--growth-interval", WHOLE, AT(options.scaler.growth_interval), true},
    {"min_scale", "smallest scale", REAL, AT(options.scaler.min_scale), true},
    {"max_scale", "largest scale", REAL, AT(options.scaler.max_scale), true},
    {"retry", "--retry", WHOLE, AT(options.retry), true},
    {"seed", "--seed", SEED, AT(options.seed), false},
    {"validation", "--validation", REAL, AT(options.validation), false},
    {"limit", "--limit", WHOLE, AT(options.limit), false},
    {"rules", "autocast rules", RULES, AT(rules), false},
};
enum { FACTS = sizeof facts / sizeof *facts };

/* The value as text, in `text` if it is a number. */
static const char *value_of(const mn_run *run, const fact *f, char text[VALUE_TEXT])
{
    const void *at = (const char *)run + f->offset;
    switch (f->kind) {
    case TEXT:
        return *(const char *const *)at;
    case RULES:
        return at;
    case SCHEDULE:
        return mn_schedule_name(*(const mn_schedule_kind *)at);
    case WHOLE:
        snprintf(text, VALUE_TEXT, "%" PRId64, *(const int64_t *)at);
        break;
    case CLASSES:
        snprintf(text, VALUE_TEXT, "%d", *(const int *)at);
        break;
    case SEED:
        snprintf(text, VALUE_TEXT, "%" PRIu64, *(const uint64_t *)at);
        break;
    case HASH:
        snprintf(text, VALUE_TEXT, "%016" PRIx64, *(const uint64_t *)at);
        break;
    case REAL:
        if (mn_isfinite_f64(*(const double *)at))
            mn_number_text(*(const double *)at, text);
        else
            snprintf(text, VALUE_TEXT, "%g", *(const double *)at);
    }
    return text;
}

/* One name a line. */
static mn_status save_class_names(const mn_run *run, mn_state_dict *dict)
{
    mn_json_out names;
    if (!run->info.class_names)
        return MN_OK;
    mn_out_init(&names, &run->allocator);
    for (int i = 0; i < run->info.classes; i++)
        mn_put(&names, "%s%s", i ? "\n" : "", run->info.class_names[i]);
    const char *text = mn_out_text(&names);
    mn_status status = text ? mn_state_dict_set_string(dict, "class_names", text)
                            : mn_fail(run->context, MN_ERR_MEMORY, "no memory for class names");
    mn_out_free(&names);
    return status;
}

mn_status mn_identity_save(const mn_run *run, mn_state_dict *dict)
{
    char text[VALUE_TEXT];
    MN_TRY(mn_state_dict_set_string(dict, "minim_version", mn_version()));
    MN_TRY(mn_state_dict_set_string(dict, "amp", mn_amp_name(run->options.amp)));
    for (int i = 0; i < FACTS; i++)
        MN_TRY(mn_state_dict_set_string(dict, facts[i].key, value_of(run, &facts[i], text)));
    return save_class_names(run, dict);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Data sets are the same whatever follows the name: their fingerprints are compared. */
static bool same(const char *key, const char *here, const char *there)
{
    size_t length = strcspn(here, ":");
    if (strcmp(key, "data") != 0)
        return strcmp(here, there) == 0;
    return length == strcspn(there, ":") && strncmp(here, there, length) == 0;
}

/* Appends "--lr 0.05 there, 0.1 here" while there is room. */
static void describe(char *text, size_t size, const char *option, const char *here,
                     const char *there)
{
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%s%s %.80s there, %.80s here", used ? "; " : "", option,
             there ? (*there ? there : "none") : "unknown", *here ? here : "none");
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
    char differences[800] = "", text[1024], value[VALUE_TEXT];
    const char *amp = mn_state_dict_get_string(dict, "amp");
    const char *path = run->options.resume;
    if (!amp || !mn_state_dict_get_string(dict, "model"))
        return mn_error_set(&run->error, MN_ERR_MISMATCH,
                            "%.400s is no checkpoint of a run of minim: it does not say of which "
                            "model and run",
                            path);
    bool scaled = strcmp(amp, "fp16") == 0 && run->options.amp == MN_F16;
    for (const fact *f = facts; f < facts + FACTS; f++) {
        const char *here = value_of(run, f, value), *there = mn_state_dict_get_string(dict, f->key);
        if (!there && f->offset == AT(options.retry))
            there = "0"; /* the file is from a version without */
        if ((!f->scaler || scaled) && (!there || !same(f->key, here, there)))
            describe(differences, sizeof differences, f->option, here, there);
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
