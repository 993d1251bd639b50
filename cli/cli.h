/* cli: what the commands share. The program uses the public header only. */
#ifndef MN_CLI_CLI_H
#define MN_CLI_CLI_H

#include <minim.h>

#include <signal.h>
#include <stdio.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* Everything that options can set; a command reads what concerns it. */
typedef struct settings {
    mn_train_options train;
    const char *log;
    bool quiet, json, monitor;
    const char *precisions, *report;
    int64_t seeds;
    double margin;
    int64_t warmup;
    mn_shadow_options shadow;
    bool batch_given, data_given;
    const char *format, *output;
    bool forward_only, step, profile, direct, unfused;
} settings;

typedef struct command {
    const char *name;
    const char *summary;
    const char *details; /* what --help adds */
    const char *options; /* the option names it takes, separated by blanks */
    int (*run)(settings *set);
} command;

settings cli_defaults(void);
/* Parses argv[0 .. count-1]; returns EXIT_OK, EXIT_USAGE after one line on standard error, or -1
 * when help was asked for (and printed). */
int cli_parse(const command *cmd, int count, char **argv, settings *set);

/* "minim: " and the text on standard error; returns status. One line whatever the text holds: what
 * users and files say may have control characters. */
int cli_say(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "minim: WHAT: WHY" on standard error; returns EXIT_FAILED. */
int cli_fail(const char *what, const char *why);
int cli_fail_error(const char *what, const mn_error *error);
/* Flushes standard output; a failed write there (a full disk, say) is a failure of the program. */
int cli_finish(int status);

/* Set by an interrupt once they are caught: the first one asks to stop, the second one kills. */
extern volatile sig_atomic_t cli_interrupted;
void cli_catch_interrupts(void);

const char *cli_amp_name(mn_dtype amp);

/* How wide the terminal is that the file is; `otherwise` if it is none. Asked for every time:
 * windows change their size. */
int cli_columns(int file, int otherwise);

/* A JSON string on a stream: one of the library's and thus ASCII. */
void cli_json_string(FILE *out, const char *text);
/* Members of an object, but for its first, with the comma before: a string, NULL as null; a number,
 * a non-finite one as a string; and a number that may not have been measured, NaN, as null. */
void cli_json_text(FILE *out, const char *key, const char *text);
void cli_json_number(FILE *out, const char *key, double value);
void cli_json_measured(FILE *out, const char *key, double value);

/* A right-aligned figure of a table; "-" for what was not measured, NaN. */
void cli_cell(int width, const char *format, double value);

/* What the user sees of a run on standard error: a line redrawn on a terminal, and a line an epoch.
 * begin makes it the `user` of the run's callbacks. */
typedef struct progress_line {
    bool quiet, terminal, open;
    bool stop; /* ends the run, as an interrupt does */
    double last_draw;
    int64_t epochs;
    char prefix[48];
} progress_line;
void cli_progress_begin(progress_line *line, settings *set);
void cli_progress_end(progress_line *line);
const mn_epoch_result *cli_last_epoch(const mn_train_result *run);

int cli_train(settings *set);
int cli_eval(settings *set);
int cli_compare(settings *set);
int cli_bench(settings *set);
int cli_shadow(settings *set);
int cli_models(settings *set);
int cli_graph(settings *set);
int cli_range(settings *set);
int cli_ops(settings *set);
int cli_info(settings *set);

#endif
