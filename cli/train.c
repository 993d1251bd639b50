/* minim train and minim eval. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct session {
    progress_line line; /* first: the callbacks' user */
    FILE *log;
    bool clear_log; /* of a run that is not resumed, at the first line */
    int log_error;  /* errno of the first failed write, 0: none */
} session;

static void on_log(void *user, const char *json_line)
{
    session *s = user;
    if (s->log == NULL || s->log_error != 0)
        return;
    errno = 0;
    /* Not before: a run that does not even begin leaves the old log as it is. */
    if (s->clear_log && ftruncate(fileno(s->log), 0) != 0 && errno != EINVAL)
        s->log_error = errno;
    s->clear_log = false;
    if (fprintf(s->log, "%s\n", json_line) < 0 || fflush(s->log) != 0)
        s->log_error = errno != 0 ? errno : EIO;
    s->line.stop = s->log_error != 0;
}

/* A loss is null only where its part was not evaluated, which the accuracy tells. */
static void print_json_epoch(const mn_epoch_result *last)
{
    bool validated = !isnan(last->validation_accuracy), tested = !isnan(last->test_accuracy);
    const struct {
        const char *name;
        double value;
        bool measured;
    } fields[] = {{"train_loss", last->train_loss, true},
                  {"validation_loss", last->validation_loss, validated},
                  {"validation_accuracy", last->validation_accuracy, validated},
                  {"test_loss", last->test_loss, tested},
                  {"test_accuracy", last->test_accuracy, tested},
                  {"images_per_s", last->images_per_s, !isnan(last->images_per_s)},
                  {"skipped_steps", (double)last->skipped_steps, true},
                  {"skipped_warmup", (double)last->skipped_warmup, true},
                  {"skipped_growth", (double)last->skipped_growth, true},
                  {"retries", (double)last->retries, true},
                  {"nonfinite", (double)last->nonfinite, true},
                  {"scale", last->scale, true},
                  {"peak_tensor_bytes", (double)last->peak_tensor_bytes, true},
                  {"peak_rss_bytes", (double)last->peak_rss_bytes, true}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].measured)
            cli_json_number(stdout, fields[i].name, fields[i].value);
        else
            cli_json_measured(stdout, fields[i].name, (double)NAN);
    }
}

static void print_json_monitor(const mn_train_monitor *m)
{
    char text[512];
    printf(",\"monitor\":{\"steps\":%lld,\"overflows\":%d", (long long)m->steps, m->overflow_count);
    cli_json_measured(stdout, "underflow_fraction", m->underflow_fraction);
    cli_json_measured(stdout, "underflow_forward", m->underflow_forward);
    cli_json_measured(stdout, "underflow_backward", m->underflow_backward);
    cli_json_measured(stdout, "worst_underflow", m->worst_underflow);
    cli_json_measured(stdout, "updates_lost", m->updates_lost);
    if (m->worst_layer != NULL)
        cli_json_text(stdout, "worst_layer", m->worst_layer);
    if (m->overflow_count > 0)
        cli_json_text(stdout, "first_overflow",
                      mn_overflow_describe(m->overflows, text, sizeof text));
    printf("}");
}

static void print_monitor(const mn_train_monitor *m)
{
    char text[512];
    int steps = 0; /* an overflow for each attempt of --retry */
    for (int i = 0; i < m->overflow_count; i++)
        steps += i == 0 || m->overflows[i].step != m->overflows[i - 1].step;
    printf("monitor: %lld step%s\n", (long long)m->steps, m->steps == 1 ? "" : "s");
    if (m->overflow_count > 0)
        printf("  not finite in %d of them, first: %s\n", steps,
               mn_overflow_describe(m->overflows, text, sizeof text));
    if (!isnan(m->underflow_fraction))
        printf(
            "  underflow: %.3g%% of what was stored in 16 bit became 0 (forward %.3g%%, backward "
            "%.3g%%)",
            100.0 * m->underflow_fraction, 100.0 * m->underflow_forward,
            100.0 * m->underflow_backward);
    if (m->worst_layer != NULL)
        printf(", most in %s: %.3g%%", m->worst_layer, 100.0 * m->worst_underflow);
    if (!isnan(m->underflow_fraction))
        printf("\n");
    if (!isnan(m->updates_lost))
        printf("  updates: %.3g%% changed nothing\n", 100.0 * m->updates_lost);
}

static void print_json(const settings *set, const mn_train_result *r)
{
    const mn_epoch_result *last = cli_last_epoch(r);
    printf("{\"model\":");
    cli_json_string(stdout, r->model);
    cli_json_text(stdout, "data", r->data);
    printf(",\"amp\":\"%s\",\"parameters\":%lld", cli_amp_name(set->train.amp),
           (long long)r->parameters);
    /* A process that has ended no epoch does not know how many the run has had. */
    cli_json_measured(stdout, "epochs", last != NULL ? (double)last->epoch : (double)NAN);
    printf(",\"steps\":%lld", (long long)r->total_steps);
    cli_json_number(stdout, "seconds", r->seconds);
    printf(",\"cancelled\":%s", r->cancelled ? "true" : "false");
    if (last != NULL)
        print_json_epoch(last);
    if (r->monitor != NULL)
        print_json_monitor(r->monitor);
    printf("}\n");
}

static void print_text(const settings *set, const mn_train_result *r)
{
    const mn_epoch_result *last = cli_last_epoch(r);
    printf("%s on %s, amp %s, seed %llu: %lld step%s", r->model, r->data,
           cli_amp_name(set->train.amp), (unsigned long long)set->train.seed,
           (long long)r->total_steps, r->total_steps == 1 ? "" : "s");
    if (r->step_count != r->total_steps)
        printf(", %lld of them now", (long long)r->step_count);
    printf(", %.1f s", r->seconds);
    if (last != NULL)
        printf(", test accuracy %.2f%%, test loss %.4f", 100.0 * last->test_accuracy,
               fabs(last->test_loss));
    printf("\n");
    if (r->monitor != NULL)
        print_monitor(r->monitor);
    if (set->train.checkpoint != NULL)
        printf("checkpoint: %s\n", set->train.checkpoint);
    if (set->log != NULL)
        printf("log: %s\n", set->log);
}

static int fail_log(const settings *set, int code)
{
    return cli_say(EXIT_FAILED, "train: --log %.800s: cannot write: %s", set->log, strerror(code));
}

static int finish_log(const settings *set, session *s, int status)
{
    if (s->log == NULL)
        return status;
    errno = 0;
    if (fclose(s->log) != 0 && s->log_error == 0)
        s->log_error = errno != 0 ? errno : EIO;
    return s->log_error != 0 ? fail_log(set, s->log_error) : status;
}

static bool is_file(const struct stat *file, const char *path)
{
    struct stat other;
    return path != NULL && stat(path, &other) == 0 && other.st_dev == file->st_dev &&
           other.st_ino == file->st_ino;
}

static int open_log(settings *set, session *s)
{
    struct stat status;
    s->log = fopen(set->log, "a");
    if (s->log == NULL)
        return fail_log(set, errno);
    set->train.log = on_log;
    s->clear_log = set->train.resume == NULL;
    bool clash = fstat(fileno(s->log), &status) == 0 && S_ISREG(status.st_mode) &&
                 (is_file(&status, set->train.checkpoint) || is_file(&status, set->train.resume));
    if (!clash)
        return EXIT_OK;
    fclose(s->log);
    return cli_fail(set->log, "--log and the checkpoint are one file; give the log another name");
}

int cli_train(settings *set)
{
    session s = {.log = NULL};
    if (set->log != NULL && open_log(set, &s) != EXIT_OK)
        return EXIT_FAILED;
    cli_progress_begin(&s.line, set);
    mn_error error = {MN_OK, ""};
    mn_train_result *result = mn_train(&set->train, &error);
    cli_progress_end(&s.line);
    int status = result != NULL ? EXIT_OK : cli_fail_error("train", &error);
    if (result != NULL && result->cancelled)
        status = EXIT_INTERRUPTED;
    if (result != NULL && set->json)
        print_json(set, result);
    else if (result != NULL)
        print_text(set, result);
    mn_train_result_free(result);
    return finish_log(set, &s, status);
}

int cli_eval(settings *set)
{
    mn_eval_options options = mn_eval_options_default();
    if (set->train.checkpoint == NULL)
        return cli_say(EXIT_USAGE, "--checkpoint: eval needs one ('minim eval --help')");
    options.checkpoint = set->train.checkpoint;
    options.data = set->data_given ? set->train.data : NULL;
    options.amp = set->train.amp;
    options.batch = set->batch_given ? set->train.batch : options.batch;
    options.limit = set->train.limit;
    options.context = set->train.context;
    mn_metrics metrics;
    mn_error error = {MN_OK, ""};
    const char *model = NULL;
    if (mn_eval_checkpoint(&options, &metrics, &model, &error) != MN_OK)
        return cli_fail_error("eval", &error);
    if (set->json) {
        printf("{\"model\":\"%s\",\"amp\":\"%s\",\"count\":%lld,\"correct\":%lld", model,
               cli_amp_name(options.amp), (long long)metrics.count, (long long)metrics.correct);
        cli_json_number(stdout, "loss", metrics.loss);
        cli_json_measured(stdout, "accuracy", metrics.accuracy);
        printf("}\n");
    } else {
        printf("%s, amp %s: accuracy %.2f%% (%lld of %lld), loss %.4f\n", model,
               cli_amp_name(options.amp), 100.0 * metrics.accuracy, (long long)metrics.correct,
               (long long)metrics.count, fabs(metrics.loss));
    }
    return EXIT_OK;
}
