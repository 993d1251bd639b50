/* Options: one table, parsed strictly, each with its line of help. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind {
    TEXT,
    WHOLE,  /* int64_t, at least `least` */
    NUMBER, /* finite double */
    FLAG,
    SEED,
    THREADS,
    AMP,
    SCHEDULE,
    KERNELS
} option_kind;

typedef struct option {
    const char *name, *value;
    const char *help; /* NULL: the models there are */
    option_kind kind;
    size_t offset;
    int64_t least;
    const char *only; /* the commands that this row is for; NULL: any without a row of its own */
} option;

#define AT(member) offsetof(settings, member)
static const option options[] = {
    {"data", "SPEC", "default: the checkpoint's", TEXT, AT(train.data), 0, "eval"},
    {"batch", "N", "images at once (default 256)", WHOLE, AT(train.batch), 1, "eval"},
    {"data", "SPEC", "synthetic:HxWxC:CLASSES (default 28x28x1:10)", TEXT, AT(train.data), 0,
     "bench models"},
    {"data", "SPEC", "default synthetic:28x28x1:10", TEXT, AT(train.data), 0, "graph"},
    {"batch", "N", "images (default 2)", WHOLE, AT(train.batch), 1, "graph"},
    {"format", "NAME", "table, json, dot or svg; default: as FILE ends, else table", TEXT,
     AT(format), 0, NULL},
    {"output", "FILE", "file to write: .txt, .json, .dot or .svg; default: standard output", TEXT,
     AT(output), 0, NULL},
    {"forward-only", NULL, "leave the backward pass out", FLAG, AT(forward_only), 0, NULL},
    {"step", NULL, "with the scaler's and the optimizer's step", FLAG, AT(step), 0, NULL},
    {"checkpoint", "FILE", "checkpoint to evaluate", TEXT, AT(train.checkpoint), 0, "eval"},
    {"checkpoint", "FILE", "checkpoint to check (default: a new model)", TEXT, AT(train.checkpoint),
     0, "shadow"},
    {"amp", "MODE", "bf16 (default) or fp16", AMP, AT(shadow.dtype), 0, "shadow"},
    {"batches", "N", "batches to run (default 1)", WHOLE, AT(shadow.batches), 1, NULL},
    {"batch", "N", "images of a batch (default 64)", WHOLE, AT(train.batch), 1, "shadow"},
    {"tolerance", "X", "largest rms that is not marked (default 0.25 for fp16, 0.5 for bf16)",
     NUMBER, AT(shadow.tolerance), 0, NULL},
    {"checkpoint", "FILE", "checkpoint to go on from (default: a new model)", TEXT,
     AT(train.resume), 0, "range"},
    {"steps", "N", "steps to measure (default 50)", WHOLE, AT(train.steps), 1, "range"},
    {"amp", "MODE", "off (default) or bf16", AMP, AT(train.amp), 0, "range"},
    {"steps", "N", "timed steps (default 50)", WHOLE, AT(train.steps), 1, "bench"},
    {"warmup", "N", "steps before timing starts (default 5)", WHOLE, AT(warmup), 0, "bench"},
    {"profile", NULL, "time per op and direction, too", FLAG, AT(profile), 0, NULL},
    {"kernels", "SET",
     "auto (default: the processor's best), reference, portable, avx2, avx512 or neon", KERNELS,
     AT(train.context.kernels), 0, NULL},
    {"direct", NULL, "no convolution by Winograd's algorithm", FLAG, AT(direct), 0, NULL},
    {"unfused", NULL, "no layers as one op", FLAG, AT(unfused), 0, NULL},
    {"data", "SPEC", "fashion-mnist[:DIR] (default), mnist:DIR, synthetic:HxWxC:CLASSES[:COUNT]",
     TEXT, AT(train.data), 0, NULL},
    {"model", "NAME", NULL, TEXT, AT(train.model), 0, NULL},
    {"amp", "MODE", "off (default), bf16 or fp16", AMP, AT(train.amp), 0, NULL},
    {"device", "NAME", "cpu (default)", TEXT, AT(train.context.device), 0, NULL},
    {"threads", "N", "worker threads; default: all processors of this process", THREADS,
     AT(train.context.threads), 1, NULL},
    {"epochs", "N", "epochs (default 5)", WHOLE, AT(train.epochs), 1, NULL},
    {"steps", "N", "optimizer steps in all, applied or skipped; replaces --epochs", WHOLE,
     AT(train.steps), 1, NULL},
    {"stop-after", "N", "end after N steps without changing the schedule", WHOLE,
     AT(train.stop_after), 1, NULL},
    {"batch", "N", "images of a micro-batch (default 64)", WHOLE, AT(train.batch), 1, NULL},
    {"accumulate", "N", "micro-batches of a step (default 1)", WHOLE, AT(train.accumulate), 1,
     NULL},
    {"optimizer", "NAME", "sgd (default), adam, adamw or rmsprop", TEXT, AT(train.optimizer), 0,
     NULL},
    {"parameters", "KIND", "f32 (default), bf16, bf16-master or bf16-stochastic", TEXT,
     AT(train.parameters), 0, NULL},
    {"lr", "X", "learning rate (default 0.05; adam, adamw, rmsprop: 1e-3)", NUMBER, AT(train.lr), 0,
     NULL},
    {"momentum", "X", "momentum of sgd and rmsprop, else ignored (default 0.9)", NUMBER,
     AT(train.momentum), 0, NULL},
    {"weight-decay", "X", "weight decay (default 5e-4)", NUMBER, AT(train.weight_decay), 0, NULL},
    {"schedule", "NAME", "constant, step, cosine (default) or onecycle", SCHEDULE,
     AT(train.schedule), 0, NULL},
    {"warmup", "N", "steps of linear warm-up before the schedule (default 0)", WHOLE,
     AT(train.warmup), 0, NULL},
    {"step-size", "N", "of --schedule step: steps between its drops", WHOLE, AT(train.step_size), 1,
     NULL},
    {"gamma", "X", "of --schedule step: factor of a drop (default 0.1)", NUMBER, AT(train.gamma), 0,
     NULL},
    {"clip-norm", "X", "clip the gradient's 2-norm to X (default: no)", NUMBER, AT(train.clip_norm),
     0, NULL},
    {"init-scale", "X", "of fp16, else ignored: first loss scale (default 65536)", NUMBER,
     AT(train.scaler.init_scale), 0, NULL},
    {"growth-interval", "N", "of fp16: clean steps before the scale grows (default 2000)", WHOLE,
     AT(train.scaler.growth_interval), 1, NULL},
    {"retry", "N", "of fp16: further attempts at a step that overflows (default 0)", WHOLE,
     AT(train.retry), 0, NULL},
    {"seed", "N", "seed of everything random (default 1)", SEED, AT(train.seed), 0, NULL},
    {"validation", "F", "fraction of the training images held out (default 0.1; 0: none)", NUMBER,
     AT(train.validation), 0, NULL},
    {"limit", "N", "first N images only", WHOLE, AT(train.limit), 1, NULL},
    {"rules", "LIST", "cast rules that differ, such as \"softmax=KEEP,add=FP32\"", TEXT,
     AT(train.rules), 0, NULL},
    {"checkpoint", "FILE", "checkpoint to write", TEXT, AT(train.checkpoint), 0, NULL},
    {"checkpoint-every", "N", "write it every N steps, not only at the end", WHOLE,
     AT(train.checkpoint_every), 1, NULL},
    {"resume", "FILE", "go on from a checkpoint of the same run", TEXT, AT(train.resume), 0, NULL},
    {"resume-anyway", NULL, "... even if the run differs", FLAG, AT(train.resume_anyway), 0, NULL},
    {"log", "FILE", "write JSON Lines; a resumed run appends", TEXT, AT(log), 0, NULL},
    {"monitor", NULL, "watch the numbers of every step: underflow, overflow, lost updates", FLAG,
     AT(monitor), 0, NULL},
    {"monitor-every", "N", "... of steps 1, 1+N, ... only", WHOLE, AT(train.monitor), 1, NULL},
    {"precisions", "LIST", "default fp32,bf16,fp16; fp32 is the reference", TEXT, AT(precisions), 0,
     NULL},
    {"seeds", "N", "runs per precision, from --seed on (default 1)", WHOLE, AT(seeds), 1, NULL},
    {"margin", "X", "bound of the verdict in percentage points (default 0.6)", NUMBER, AT(margin),
     0, NULL},
    {"report", "DIR", "folder for report.json and report.html", TEXT, AT(report), 0, NULL},
    {"quiet", NULL, "no progress on standard error", FLAG, AT(quiet), 0, NULL},
    {"json", NULL, "result as one line of JSON on standard output", FLAG, AT(json), 0, NULL},
};
enum { OPTION_COUNT = (int)(sizeof options / sizeof options[0]) };

settings cli_defaults(void)
{
    settings set;
    memset(&set, 0, sizeof set);
    set.train = mn_train_options_default();
    set.precisions = "fp32,bf16,fp16";
    set.seeds = 1;
    set.margin = 0.6;
    set.warmup = 5;
    set.shadow = mn_shadow_options_default();
    return set;
}

/* Whether the blank-separated list holds the word. */
static bool listed(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0'))
            return true;
    return false;
}

static const option *find_option(const command *cmd, const char *name, size_t length)
{
    for (int i = 0; i < OPTION_COUNT; i++)
        if (strlen(options[i].name) == length && strncmp(options[i].name, name, length) == 0 &&
            listed(cmd->options, options[i].name) &&
            (options[i].only == NULL || listed(options[i].only, cmd->name)))
            return &options[i];
    return NULL;
}

static void print_models(void)
{
    const char *chosen = mn_train_options_default().model;
    for (int i = 0; mn_model_name(i) != NULL; i++)
        printf("%s%s%s", i > 0 ? ", " : "", mn_model_name(i),
               strcmp(mn_model_name(i), chosen) == 0 ? " (default)" : "");
    printf("\n");
}

static void print_help(const command *cmd)
{
    printf("usage: minim %s [options]\n\n%c%s.\n%s\n", cmd->name, cmd->summary[0] - 'a' + 'A',
           cmd->summary + 1, cmd->details);
    for (int i = 0; i < OPTION_COUNT; i++) {
        char left[40];
        if (find_option(cmd, options[i].name, strlen(options[i].name)) != &options[i])
            continue;
        snprintf(left, sizeof left, "--%s %s", options[i].name,
                 options[i].value != NULL ? options[i].value : "");
        printf("  %-22s ", left);
        if (options[i].help != NULL)
            printf("%s\n", options[i].help);
        else
            print_models();
    }
}

static int usage(const command *cmd, const char *option_name, const char *why, const char *value)
{
    return cli_say(EXIT_USAGE, "--%s: %s%s%.200s%s ('minim %s --help' lists the options)",
                   option_name, why, value != NULL ? " \"" : "", value != NULL ? value : "",
                   value != NULL ? "\"" : "", cmd->name);
}

/* strtoll and its like skip white space and take "+1", which nobody means. */
static bool begins_number(const char *text)
{
    return *text == '-' || *text == '.' || (*text >= '0' && *text <= '9');
}

static bool parse_whole(const char *text, int64_t least, int64_t *value)
{
    char *end;
    errno = 0;
    long long parsed = strtoll(text, &end, 10);
    if (!begins_number(text) || errno != 0 || end == text || *end != '\0' || parsed < least)
        return false;
    *value = parsed;
    return true;
}

static bool parse_number(const char *text, double *value)
{
    char *end;
    errno = 0;
    *value = strtod(text, &end);
    return begins_number(text) && end != text && *end == '\0' && isfinite(*value);
}

typedef struct choice {
    const char *name;
    int value;
} choice;

static const choice modes[] = {
    {"off", MN_F32}, {"bf16", MN_BF16}, {"fp16", MN_F16}, {"fp32", MN_F32}, {NULL, -1}};
static const choice schedules[] = {{"constant", MN_SCHEDULE_CONSTANT},
                                   {"step", MN_SCHEDULE_STEP},
                                   {"cosine", MN_SCHEDULE_COSINE},
                                   {"onecycle", MN_SCHEDULE_ONE_CYCLE},
                                   {NULL, -1}};

static const choice kernel_sets[] = {{"auto", MN_KERNELS_AUTO},
                                     {"reference", MN_KERNELS_REFERENCE},
                                     {"portable", MN_KERNELS_PORTABLE},
                                     {"avx2", MN_KERNELS_AVX2},
                                     {"avx512", MN_KERNELS_AVX512},
                                     {"neon", MN_KERNELS_NEON},
                                     {NULL, -1}};

/* The value of that name; -1 if there is none. */
static int choose(const choice *from, const char *name)
{
    while (from->name != NULL && strcmp(from->name, name) != 0)
        from++;
    return from->value;
}

const char *cli_amp_name(mn_dtype amp)
{
    const choice *mode = modes;
    while (mode->value != (int)amp)
        mode++;
    return mode->name;
}

static bool parse_seed(const char *text, uint64_t *seed)
{
    char *end;
    errno = 0;
    *seed = strtoull(text, &end, 10);
    return begins_number(text) && *text != '-' && errno == 0 && end != text && *end == '\0';
}

/* Stores the value; NULL if it is fine, else what was expected. */
static const char *store(const option *opt, const char *text, settings *set)
{
    void *at = (char *)set + opt->offset;
    int64_t whole;
    int chosen;
    switch (opt->kind) {
    case TEXT:
        *(const char **)at = text;
        return *text != '\0' ? NULL : "expected a value, got";
    case WHOLE:
        if (parse_whole(text, opt->least, at))
            return NULL;
        return opt->least > 0 ? "expected a whole number of at least 1, got"
                              : "expected a whole number of at least 0, got";
    case NUMBER:
        return parse_number(text, at) ? NULL : "expected a number, got";
    case FLAG:
        *(bool *)at = true;
        return NULL;
    case SEED:
        return parse_seed(text, at) ? NULL : "expected a whole number of at least 0, got";
    case THREADS:
        if (!parse_whole(text, 1, &whole) || whole > 1024)
            return "expected a whole number from 1 to 1024, got";
        *(int *)at = (int)whole;
        return NULL;
    case AMP:
        if ((chosen = choose(modes, text)) < 0)
            return "expected off, bf16 or fp16, got";
        *(mn_dtype *)at = (mn_dtype)chosen;
        return NULL;
    case SCHEDULE:
        if ((chosen = choose(schedules, text)) < 0)
            return "expected constant, step, cosine or onecycle, got";
        *(mn_schedule_kind *)at = (mn_schedule_kind)chosen;
        return NULL;
    case KERNELS:
        if ((chosen = choose(kernel_sets, text)) < 0)
            return "expected auto, reference, portable, avx2, avx512 or neon, got";
        *(mn_kernel_set *)at = (mn_kernel_set)chosen;
        return NULL;
    }
    return "cannot be set to";
}

static int parse_one(const command *cmd, const char *argument, const char *next, settings *set,
                     bool *used_next)
{
    if (strncmp(argument, "--", 2) != 0)
        return cli_say(EXIT_USAGE,
                       "unexpected argument \"%.200s\" ('minim %s --help' lists the options)",
                       argument, cmd->name);
    const char *name = argument + 2, *equals = strchr(name, '=');
    size_t length = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const option *opt = find_option(cmd, name, length);
    if (opt == NULL)
        return cli_say(EXIT_USAGE, "unknown option \"%.*s\" ('minim %s --help' lists the options)",
                       (int)(length < 200 ? length : 200) + 2, argument, cmd->name);
    if (opt->kind == FLAG && equals != NULL)
        return usage(cmd, opt->name, "takes no value, got", equals + 1);
    const char *value = equals != NULL ? equals + 1 : opt->kind == FLAG ? "" : next;
    /* "--log --quiet" has forgotten the file's name; "--log=--quiet" says that it is one. */
    if (value == NULL || (value == next && strncmp(value, "--", 2) == 0))
        return usage(cmd, opt->name, "needs a value", NULL);
    *used_next = opt->kind != FLAG && equals == NULL;
    const char *fault = store(opt, value, set);
    if (fault != NULL)
        return usage(cmd, opt->name, fault, value);
    set->batch_given |= strcmp(opt->name, "batch") == 0;
    set->data_given |= strcmp(opt->name, "data") == 0;
    return EXIT_OK;
}

int cli_parse(const command *cmd, int count, char **argv, settings *set)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(cmd);
            return -1;
        }
        bool used_next = false;
        int status = parse_one(cmd, argv[i], i + 1 < count ? argv[i + 1] : NULL, set, &used_next);
        if (status != EXIT_OK)
            return status;
        i += used_next;
    }
    if (set->monitor && set->train.monitor == 0)
        set->train.monitor = 1;
    return EXIT_OK;
}
