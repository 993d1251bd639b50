/* JSON values, and what the user sees of a run on standard error. */
#define _DEFAULT_SOURCE
#include "cli.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

void cli_json_string(FILE *out, const char *text)
{
    putc('"', out);
    for (const unsigned char *p = (const unsigned char *)text; *p != '\0'; p++)
        if (*p == '"' || *p == '\\' || *p < 0x20 || *p > '~')
            fprintf(out, "\\u%04x", *p);
        else
            putc(*p, out);
    putc('"', out);
}

void cli_json_text(FILE *out, const char *key, const char *text)
{
    fprintf(out, text != NULL ? ",\"%s\":" : ",\"%s\":null", key);
    if (text != NULL)
        cli_json_string(out, text);
}

void cli_json_number(FILE *out, const char *key, double value)
{
    if (isfinite(value))
        fprintf(out, ",\"%s\":%.15g", key, value);
    else
        fprintf(out, ",\"%s\":\"%s\"", key, isnan(value) ? "nan" : value > 0.0 ? "inf" : "-inf");
}

void cli_json_measured(FILE *out, const char *key, double value)
{
    if (isnan(value))
        fprintf(out, ",\"%s\":null", key);
    else
        cli_json_number(out, key, value);
}

void cli_cell(int width, const char *format, double value)
{
    char text[32] = "-";
    if (!isnan(value))
        snprintf(text, sizeof text, format, value);
    printf(" %*s", width, text);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* "1:02:03" or "4:05". */
static const char *clock_text(double seconds, char *buffer, size_t size)
{
    if (!(seconds >= 0.0 && seconds < 1e8))
        return "?";
    long whole = (long)(seconds + 0.5);
    if (whole >= 3600)
        snprintf(buffer, size, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
    else
        snprintf(buffer, size, "%ld:%02ld", whole / 60, whole % 60);
    return buffer;
}

int cli_columns(int file, int otherwise)
{
    struct winsize size;
    if (ioctl(file, TIOCGWINSZ, &size) != 0 || size.ws_col < 2)
        return otherwise;
    return size.ws_col;
}

static void on_progress(void *user, const mn_progress *p)
{
    progress_line *line = user;
    line->epochs = p->epochs;
    if (line->quiet || !line->terminal)
        return;
    double time = now();
    if (line->open && time - line->last_draw < 0.1)
        return;
    char left[32], scale[32] = "", speed[32] = "", text[256];
    if (p->last.scale != 1.0)
        snprintf(scale, sizeof scale, "  scale %g", p->last.scale);
    if (!isnan(p->images_per_s))
        snprintf(speed, sizeof speed, "  %.0f images/s", p->images_per_s);
    /* Losses are positive, or NaN, whose sign says nothing. */
    snprintf(
        text, sizeof text,
        "%sepoch %lld/%lld  step %lld/%lld  loss %.4f  accuracy %.1f%%%s%s  skipped %lld  %s left",
        line->prefix, (long long)p->last.epoch, (long long)p->epochs, (long long)p->steps,
        (long long)p->total_steps, fabs(p->loss), 100.0 * p->accuracy, speed, scale,
        (long long)p->skipped_steps, clock_text(p->seconds_left, left, sizeof left));
    /* A line that wraps could not be redrawn; the last column is left free, where some terminals
     * wrap already. */
    fprintf(stderr, "\r\033[K%.*s", cli_columns(STDERR_FILENO, 80) - 1, text);
    fflush(stderr);
    line->open = true;
    line->last_draw = time;
}

void cli_progress_end(progress_line *line)
{
    if (line->open)
        fputs("\r\033[K", stderr);
    line->open = false;
}

static void on_epoch(void *user, const mn_epoch_result *r)
{
    progress_line *line = user;
    if (line->quiet)
        return;
    cli_progress_end(line);
    fprintf(stderr, "%sepoch %lld", line->prefix, (long long)r->epoch);
    if (line->epochs > 0)
        fprintf(stderr, "/%lld", (long long)line->epochs);
    fprintf(stderr, "  train loss %.4f", fabs(r->train_loss));
    if (!isnan(r->validation_accuracy))
        fprintf(stderr, "  validation accuracy %.2f%%", 100.0 * r->validation_accuracy);
    if (!isnan(r->test_accuracy))
        fprintf(stderr, "  test accuracy %.2f%%", 100.0 * r->test_accuracy);
    if (!isnan(r->images_per_s))
        fprintf(stderr, "  %.0f images/s", r->images_per_s);
    if (r->skipped_steps > 0 || r->scale != 1.0)
        fprintf(stderr, "  scale %g  skipped %lld", r->scale, (long long)r->skipped_steps);
    if (r->skipped_warmup + r->skipped_growth > 0)
        fprintf(stderr, " (%lld in warm-up, %lld after growth)", (long long)r->skipped_warmup,
                (long long)r->skipped_growth);
    if (r->retries > 0)
        fprintf(stderr, "  retries %lld", (long long)r->retries);
    if (r->nonfinite > r->skipped_steps)
        fprintf(stderr, "  NON-FINITE gradients in %lld steps", (long long)r->nonfinite);
    fputc('\n', stderr);
}

static void on_notice(void *user, const char *text)
{
    cli_progress_end(user);
    cli_say(EXIT_OK, "note: %s", text);
}

static bool on_cancel(void *user)
{
    return cli_interrupted || ((const progress_line *)user)->stop;
}

void cli_progress_begin(progress_line *line, settings *set)
{
    *line = (progress_line){.quiet = set->quiet, .terminal = isatty(STDERR_FILENO) == 1};
    set->train.user = line;
    set->train.progress = on_progress;
    set->train.epoch = on_epoch;
    set->train.notice = on_notice;
    set->train.cancel = on_cancel;
    cli_catch_interrupts();
}

const mn_epoch_result *cli_last_epoch(const mn_train_result *run)
{
    return run->epoch_count > 0 ? &run->epochs[run->epoch_count - 1] : NULL;
}
