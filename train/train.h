/* train/train.h: what the files of the training room share: a run with all it is made of, the ring
 * through which the host learns of steps, the identity of a run, checkpoints and events. */
#ifndef MN_TRAIN_TRAIN_H
#define MN_TRAIN_TRAIN_H

#include "models/models.h"
#include "core/json_write.h"

/* Steps at the start of a process that no timing and no peak counts. */
#define MN_WARMUP_STEPS 5

/* ---- options.c ------------------------------------------------------------------------------- */

/* One of --epochs and its like, and the smallest value it may have. */
typedef struct mn_integer_rule {
    const char *name;
    int64_t value, smallest;
} mn_integer_rule;
mn_status mn_check_integers(const mn_integer_rule *rules, size_t count, mn_error *error);
mn_status mn_check_amp(mn_dtype amp, mn_error *error);

/* As the command line spells them: "off", "bf16", "fp16"; "constant", "cosine". NULL: none. */
const char *mn_amp_name(mn_dtype amp);
const char *mn_schedule_name(mn_schedule_kind kind);
/* An optimizer's learning rate where none is given; NaN if there is no such optimizer. */
double mn_default_lr(const char *optimizer);
/* Whether there is such a choice of parameters; and its rounding. */
bool mn_parameters_known(const char *parameters, mn_rounding *rounding);

#define MN_DEFAULT_GAMMA 0.1

/* Copies options over the defaults and checks every value. */
mn_status mn_train_options_read(const mn_train_options *given, mn_train_options *options,
                                mn_error *error);

/* ---- trainer.c ------------------------------------------------------------------------------- */

#define MN_RING_ROWS 64

/* Results of steps on their way to the host: row (window % MN_RING_ROWS) of the ring is written by
 * the device while the window runs and read together with others some windows later. */
struct mn_trainer {
    mn_context *context;
    mn_tensor *ring;      /* f64 [MN_RING_ROWS, MN_RECORD_SIZE]; owned */
    int64_t period;       /* windows between two reads */
    int64_t ended, taken; /* windows enqueued, and read */
    int64_t retries;      /* attempts at this window before the current one */
    bool reported;        /* this window has reported a micro-batch */
    struct {
        int64_t step, epoch, retries;
        bool reported;
    } rows[MN_RING_ROWS];
    double host[MN_RING_ROWS * MN_RECORD_SIZE];
};
mn_status mn_trainer_open(mn_trainer *trainer, mn_context *context);
void mn_trainer_close(mn_trainer *trainer);
/* Enqueues the report of the step that the window has ended with. Not more than MN_RING_ROWS
 * windows may be waiting to be read. */
mn_status mn_trainer_end_window(mn_trainer *trainer, const mn_step *step, int64_t epoch);
/* True when it is time to read. */
bool mn_trainer_due(const mn_trainer *trainer);
/* Waits for the device and hands every result not yet read to sink, oldest first. */
typedef mn_status (*mn_result_sink)(void *user, const mn_step_result *result);
mn_status mn_trainer_collect(mn_trainer *trainer, mn_result_sink sink, void *user);
/* Waits for the device: whether the step that the last window has ended with was skipped. */
mn_status mn_trainer_skipped(mn_trainer *trainer, bool *skipped);
/* Takes the last window back: it will be run again, and then reported in its place. */
void mn_trainer_retry(mn_trainer *trainer);

/* Tells skips that dynamic loss scaling is meant to have from trouble. An overflow is an attempt at
 * a step that was not applied.
 *   warm-up  until a step has been applied, the scale is searching
 *   growth   one overflow at a scale higher than that of the step before: it had grown too far
 *   trouble  MN_SKIPS_IN_ROW overflows after warm-up with no applied step in between; more than
 *            MN_SKIPS_IN_WINDOW of the last MN_SKIP_WINDOW steps after warm-up overflowed, growth
 *            left out; an overflow at a scale of at most 1; a scale that is down to min_scale */
#define MN_SKIPS_IN_ROW    4
#define MN_SKIPS_IN_WINDOW 10
#define MN_SKIP_WINDOW     100
enum { MN_TROUBLE_ROW = 1, MN_TROUBLE_RATE = 2, MN_TROUBLE_LOW = 4, MN_TROUBLE_FLOOR = 8 };
typedef struct mn_skips {
    int64_t applied;        /* steps */
    int64_t warmup, growth; /* skipped steps of these kinds */
    int64_t in_row;         /* overflows after warm-up since a step was applied */
    int64_t recent[2];      /* a bit for each step of the window, newest lowest; half in each */
    double scale;           /* of the step before */
} mn_skips;
/* Takes in the next step's result; returns the troubles that there are then. */
unsigned mn_skips_take(mn_skips *skips, const mn_step_result *result,
                       const mn_grad_scaler_options *scaler);

/* Makes *batch, which holds nothing at first, the next one; after the last of an epoch comes the
 * first of epoch *epoch, which is then counted. */
mn_status mn_batch_next(mn_loader *loader, int64_t *epoch, mn_batch *batch, mn_error *error);
/* A batch in host memory as tensors of the scope. */
mn_status mn_batch_upload(mn_context *context, const mn_batch *batch, mn_tensor **images,
                          mn_tensor **labels);
/* Cross entropy and logits, in an autocast region of `amp` (MN_F32: none). */
mn_tensor *mn_model_loss(mn_module *model, mn_tensor *images, mn_tensor *labels, mn_dtype amp,
                         mn_tensor **logits);

/* ---- run ------------------------------------------------------------------------------------- */

/* How far a run has come; all of it is in the checkpoint. */
typedef struct mn_run_progress {
    int64_t epoch;    /* complete epochs */
    int64_t position; /* images of the current epoch that steps have seen */
    int64_t step;     /* steps, applied or skipped */
    int64_t skipped, nonfinite, retries;
    mn_skips skips; /* where there is loss scaling */
    /* Of the current epoch: sum of loss * samples, samples right, samples. */
    double loss_sum;
    int64_t correct, samples;
    int64_t best_epoch; /* 0: none yet */
    double best_accuracy, best_loss;
} mn_run_progress;

/* Time of the current epoch's steps after warm-up, without evaluation and checkpoints. */
typedef struct mn_stopwatch {
    bool running;
    double started, waited_before; /* when running */
    double seconds, waited;
    int64_t images;
} mn_stopwatch;

/* The numerics monitor of a run. */
typedef struct mn_run_monitor {
    mn_monitor *monitor; /* NULL: none */
    int64_t steps;       /* it has looked on at */
    bool fresh;          /* it has since the last collect */
    mn_list overflows;   /* and where their rows are: monitor.c knows */
    int64_t told;        /* overflows that the log has */
} mn_run_monitor;

typedef struct mn_run {
    mn_train_options options;
    mn_error error; /* first error that is not the context's */
    mn_allocator allocator;
    mn_context *context;
    mn_dataset *own_train, *own_test; /* opened here, or NULL */
    const mn_dataset *train_set, *test_set;
    mn_dataset_info info; /* of the training set */
    mn_normalization normalization;
    mn_loader *train, *validation, *test; /* the last two may be NULL */
    mn_module *model;
    mn_optimizer *optimizer;
    mn_grad_scaler *scaler;
    mn_trainer trainer;
    /* For retries, else NULL and empty: the model's buffers, images (f32) and labels (i64) of the
     * window. */
    mn_module_buffers *buffers;
    mn_list kept_images, kept_labels;
    unsigned warned;    /* of which troubles */
    int64_t parameters; /* numbers in all parameters */
    int64_t count;      /* images of an epoch */
    int64_t window;     /* images of a whole window */
    int64_t steps_per_epoch;
    int64_t planned, epochs; /* steps and epochs of the whole run */
    int64_t last;            /* step after which this process stops */
    mn_run_progress progress;
    mn_stopwatch watch;
    int64_t steps_here; /* steps of this process */
    uint64_t peak;      /* of tensor bytes in steps */
    double started, epoch_started;
    bool cancelled;
    int64_t collapsed_step; /* 0: the loss scale has not collapsed */
    mn_list step_results, epoch_results;
    mn_run_monitor monitor;
    mn_json_out json;
    char rules[4096];
} mn_run;

/* setup.c: makes everything that a run needs, resuming if asked to; close frees it, also after a
 * failure, when part of it is missing. On failure the error is in run->error or the context. */
mn_status mn_run_open(mn_run *run, const mn_train_options *options);
void mn_run_close(mn_run *run);
/* A model for the images of a data set, with f32 parameters or by what begins with "bf16" bf16
 * ones. */
mn_module *mn_model_for(mn_context *context, const char *name, const char *parameters,
                        const mn_dataset_info *info, mn_error *error);
/* The first error, wherever it was met: *own, or the context's (NULL: none), or else `status` and
 * what `unsaid` says of it, into *error, which may be NULL. Returns its status. */
mn_status mn_error_give(mn_error *error, const mn_error *own, const mn_context *context,
                        mn_status status, const char *unsaid);
/* Sizes of images and number of classes must fit `like`. */
mn_status mn_check_fits(const mn_dataset *dataset, const mn_dataset_info *like, const char *what,
                        mn_error *error);

/* checkpoint.c: write to options.checkpoint, and restore from options.resume. */
mn_status mn_run_save(mn_run *run);
mn_status mn_run_load(mn_run *run, const mn_state_dict *dict);
/* Mean and deviation of a checkpoint, for images of so many channels. */
mn_status mn_checkpoint_normalization(const mn_state_dict *dict, int64_t channels,
                                      mn_normalization *normalization);

/* identity.c: strings of the checkpoint that say which run it belongs to, and comparing them. */
mn_status mn_identity_save(const mn_run *run, mn_state_dict *dict);
/* MN_ERR_MISMATCH with every difference, unless options.resume_anyway; tells the notice callback of
 * differences that are let through. */
mn_status mn_identity_check(mn_run *run, const mn_state_dict *dict);

/* loop.c: one micro-step of the run's step function over a batch in host memory, in a scope of its
 * own: `weight` of its window; at the end of the window the report is enqueued as well. */
mn_status mn_run_micro_step(mn_run *run, const mn_batch *batch, double weight, bool last);
void mn_run_next_epoch(mn_run *run);
/* As mn_train, but a collapse of the loss scale ends the run and is said in its result. */
mn_train_result *mn_train_collapsible(const mn_train_options *options, mn_error *error);

/* monitor.c: the monitor of a run; without one, all of it does nothing. */
mn_status mn_run_monitor_open(mn_run *run);
void mn_run_monitor_close(mn_run *run);
/* Whether it looks on at a step. */
bool mn_run_monitors(const mn_run *run, int64_t step);
/* Has it look on at the window that begins, or no longer. */
mn_status mn_run_monitor_look(mn_run *run, bool begins);
/* Brings what it has seen to the host: before results of steps are taken there. */
mn_status mn_run_monitor_collect(mn_run *run);
/* Before a further attempt at a window: collects, since a monitor keeps few overflows. */
mn_status mn_run_monitor_again(mn_run *run);
/* Logs what was first not finite in steps up to this one. */
mn_status mn_run_monitor_tell(mn_run *run, int64_t step);
void mn_run_monitor_epoch(const mn_run *run, mn_epoch_result *result);
/* Of the product of loss and loss scale: none of the model's values. */
bool mn_row_is_scaling(const mn_monitor_row *row);
/* A copy for the result of the run, in one block; NULL: there is none, or memory ran out. */
mn_train_monitor *mn_run_monitor_keep(mn_run *run);
void mn_train_monitor_free(const mn_train_monitor *monitor);

/* events.c: lines for options.log. */
mn_status mn_event_start(mn_run *run);
mn_status mn_event_overflow(mn_run *run, const mn_overflow *overflow);
mn_status mn_event_step(mn_run *run, const mn_step_result *result);
/* A warning for each trouble that this process has not told yet, also to the notice callback. */
mn_status mn_event_troubles(mn_run *run, unsigned troubles, const mn_step_result *result);
mn_status mn_event_epoch(mn_run *run, const mn_epoch_result *result);
mn_status mn_event_end(mn_run *run);

/* For compare's report as well: the members (without braces) of an overflow's and of an epoch's
 * object, and the object of the hyper-parameters. */
void mn_overflow_json(mn_json_out *json, const mn_overflow *overflow);
void mn_epoch_json(mn_json_out *json, const mn_epoch_result *result);
void mn_config_json(mn_json_out *json, const mn_train_options *options, const char *model,
                    const char *data);

/* evaluate.c: a model and the data that it is run on, with the options of an evaluation: a
 * checkpoint's and the test part, or, without a checkpoint, a new one by name and the training
 * part. Close it also after a failure, when the error is in `error` or in the context. */
typedef struct mn_evaluation {
    mn_eval_options options;
    const char *name;  /* of the model, static storage or the caller's */
    const char *rules; /* in place of the checkpoint's; or NULL */
    mn_error error;
    mn_context *context;
    mn_state_dict *dict;
    mn_dataset *dataset;
    mn_loader *loader;
    mn_module *model;
    mn_dataset_info wanted;
} mn_evaluation;
mn_status mn_evaluation_open(mn_evaluation *e);
void mn_evaluation_close(mn_evaluation *e);
/* As mn_evaluate; the error stays in the context or goes to *error. */
mn_status mn_evaluate_loader(mn_module *model, mn_loader *loader, mn_dtype amp, mn_metrics *metrics,
                             mn_error *error);

#endif
