/* tests/support_report.c: made-up comparisons, their reports' files, and strict readers of JSON and
 * of tags. */
#include "tests/support_report.h"

#include <check.h>
#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- made-up comparisons --------------------------------------------------------------------- */

mn_made_comparison mn_made;
char mn_made_folder[64];

static void make_steps(int row, int count, int per_epoch, bool scaled)
{
    double scale = scaled ? 65536.0 : 1.0;
    for (int i = 0; i < count; i++) {
        bool skipped = scaled && i < MN_MADE_SKIPPED_AT_START;
        mn_made.steps[row][i] = (mn_step_result){.step = i + 1,
                                                 .epoch = i / per_epoch + 1,
                                                 .samples = 64,
                                                 .loss = 2.3 / (1.0 + 0.01 * i) + 0.001 * row,
                                                 .lr = 0.05,
                                                 .scale = scale,
                                                 .grad_norm = skipped ? (double)INFINITY : 1.5,
                                                 .skipped = skipped,
                                                 .nonfinite = skipped};
        scale *= skipped ? 0.5 : 1.0;
    }
}

static void make_run(const char *precision, uint64_t seed, int epochs, int steps)
{
    int row = mn_made.result.row_count++, kind = strcmp(precision, "fp32") != 0;
    bool scaled = strcmp(precision, "fp16") == 0;
    make_steps(row, steps, epochs > 0 ? steps / epochs : steps, scaled);
    for (int i = 0; i < epochs; i++)
        mn_made.epochs[row][i] = (mn_epoch_result){
            .epoch = i + 1,
            .steps = steps * (i + 1) / epochs,
            .train_loss = 0.5 - 0.05 * i,
            .train_accuracy = 0.8,
            .validation_loss = 0.4,
            .validation_accuracy = 0.85 + 0.01 * i - 0.001 * kind + 0.0001 * (double)seed * kind,
            .validation_accuracy_fp32 = 0.86,
            .test_loss = 0.4,
            .test_accuracy = 0.84,
            .test_accuracy_fp32 = 0.845,
            .images_per_s = 12345.0 + 100.0 * kind,
            .data_wait_fraction = 0.01,
            .seconds = 3.0,
            .skipped_steps = scaled ? MN_MADE_SKIPPED_AT_START : 0,
            .nonfinite = scaled ? MN_MADE_SKIPPED_AT_START : 0,
            .scale = scaled ? 4096.0 : 1.0,
            .peak_tensor_bytes = kind ? 3u << 20 : 5u << 20,
            .peak_rss_bytes = 40u << 20};
    mn_made.runs[row] = (mn_train_result){.model = "lenet5",
                                          .data = "fashion-mnist",
                                          .parameters = 61706,
                                          .epoch_count = epochs,
                                          .epochs = mn_made.epochs[row],
                                          .step_count = steps,
                                          .step_results = mn_made.steps[row],
                                          .total_steps = steps,
                                          .seconds = 12.5};
    mn_made.rows[row] = (mn_compare_row){precision, seed, &mn_made.runs[row]};
}

void mn_made_new(int seeds, int epochs, int steps)
{
    static const char *const precisions[] = {"fp32", "bf16", "fp16"};
    memset(&mn_made, 0, sizeof mn_made);
    mn_made.options = mn_compare_options_default();
    mn_made.options.train.context.threads = 1;
    mn_made.options.seeds = seeds;
    mn_made.options.report = mn_made_folder;
    mn_made.result.rows = mn_made.rows;
    mn_made.result.deviations = mn_made.deviations;
    for (int s = 0; s < seeds; s++)
        for (int p = 0; p < 3; p++)
            make_run(precisions[p], (uint64_t)s + 1, epochs, steps);
}

/* Compares, as mn_compare does, and writes. */
mn_status mn_made_write(mn_error *error)
{
    *error = (mn_error){MN_OK, ""};
    mn_made.result.deviation_count = 0;
    for (int p = 1; p < 3 && p < mn_made.result.row_count; p++) {
        mn_compare_deviation *d = &mn_made.deviations[mn_made.result.deviation_count];
        *d = (mn_compare_deviation){.precision = p == 1 ? "bf16" : "fp16"};
        mn_compare_deviate(mn_made.rows, mn_made.result.row_count, mn_made.options.margin, d);
        mn_made.result.deviation_count += d->n + d->collapsed > 0;
    }
    return mn_report_write(&mn_made.options, &mn_made.result, error);
}

/* ---- files ----------------------------------------------------------------------------------- */

void mn_made_folder_make(void)
{
    strcpy(mn_made_folder, "/tmp/minim-report-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(mn_made_folder));
}

void mn_made_folder_remove(void)
{
    char command[192];
    snprintf(command, sizeof command, "chmod -R u+w '%s' && rm -r '%s'", mn_made_folder,
             mn_made_folder);
    ck_assert_int_eq(system(command), 0);
}

int mn_made_entries(const char *name)
{
    int count = 0;
    DIR *dir = opendir(name);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count - 2; /* without . and .. */
}

const char *mn_made_path(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", mn_made.options.report, name);
    return path;
}

/* The file's text; freed by the caller. */
char *mn_made_read(const char *name)
{
    FILE *file = fopen(mn_made_path(name), "rb");
    ck_assert_ptr_nonnull(file);
    char *text = calloc(1, 1u << 22);
    ck_assert_ptr_nonnull(text);
    size_t size = fread(text, 1, 1u << 22, file);
    ck_assert_uint_lt(size, 1u << 22);
    ck_assert_uint_eq(strlen(text), size);
    fclose(file);
    return text;
}

/* Writes a report that must succeed and gives one of its files. */
char *mn_made_report(const char *name)
{
    mn_error error;
    ck_assert_msg(mn_made_write(&error) == MN_OK, "%s", error.message);
    ck_assert_int_eq(mn_made_entries(mn_made.options.report), 2);
    return mn_made_read(name);
}

/* ---- a strict JSON reader -------------------------------------------------------------------- */

static const char *skip_string(const char *at)
{
    ck_assert_int_eq(*at, '"');
    for (at++; *at != '"'; at++) {
        ck_assert_msg((unsigned char)*at >= 0x20, "control character");
        if (*at == '\\') {
            at++;
            ck_assert_ptr_nonnull(strchr("\"\\/bfnrtu", *at));
        }
    }
    return at + 1;
}

static const char *skip_digits(const char *at)
{
    ck_assert_msg(isdigit((unsigned char)*at), "digit expected at %.20s", at);
    while (isdigit((unsigned char)*at))
        at++;
    return at;
}

static const char *skip_number(const char *at)
{
    at += *at == '-';
    at = *at == '0' ? at + 1 : skip_digits(at);
    if (*at == '.')
        at = skip_digits(at + 1);
    if (*at == 'e' || *at == 'E') {
        at++;
        at = skip_digits(at + (*at == '+' || *at == '-'));
    }
    return at;
}

static const char *skip_list(const char *at, char close)
{
    if (at[1] == close)
        return at + 2;
    do {
        at++;
        if (close == '}') {
            at = skip_string(at);
            ck_assert_int_eq(*at++, ':');
        }
        at = mn_json_skip(at);
    } while (*at == ',');
    ck_assert_msg(*at == close, "%c expected at %.20s", close, at);
    return at + 1;
}

const char *mn_json_skip(const char *at)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0)
            return at + strlen(words[i]);
    return *at == '"'   ? skip_string(at)
           : *at == '{' ? skip_list(at, '}')
           : *at == '[' ? skip_list(at, ']')
                        : skip_number(at);
}

/* The value at "a.b.2.c" of a valid text; NULL if it is not there. */
const char *mn_json_at(const char *at, const char *where)
{
    while (*where) {
        size_t length = strcspn(where, ".");
        bool object = *at == '{';
        int index = atoi(where);
        if (at[1] == '}' || at[1] == ']')
            return NULL;
        for (at++;; at++) {
            bool same = object ? strncmp(at + 1, where, length) == 0 && at[length + 1] == '"'
                               : index-- == 0;
            at = object ? skip_string(at) + 1 : at;
            if (same)
                break;
            at = mn_json_skip(at);
            if (*at != ',')
                return NULL;
        }
        where += length + (where[length] == '.');
    }
    return at;
}

void mn_json_check(const char *json, const char *where, const char *expected)
{
    const char *at = mn_json_at(json, where);
    ck_assert_msg(at != NULL, "%s is not there", where);
    size_t length = (size_t)(mn_json_skip(at) - at);
    ck_assert_msg(length == strlen(expected) && strncmp(at, expected, length) == 0,
                  "%s: %.*s, not %s", where, (int)length, at, expected);
}

/* ---- a checker of tags ----------------------------------------------------------------------- */

/* An attribute of <name; outlines have only numbers and letters of commands. */
static const char *skip_attribute(const char *at, const char *name)
{
    const char *value = at + strcspn(at, "= />");
    ck_assert_msg(value[0] == '=' && value[1] == '"', "attribute without value in <%s", name);
    value += 2;
    size_t length = strcspn(value, "\"<");
    ck_assert_msg(value[length] == '"', "attribute not closed in <%s", name);
    if (strncmp(at, "d=", 2) == 0)
        ck_assert_msg(strspn(value, "MLHVhlmvz0123456789 .-") == length, "no outline: %.*s",
                      (int)length, value);
    return value + length + 1;
}

/* One tag from '<' on: names it, tells what it is, returns what follows. */
static const char *skip_tag(const char *at, char name[32], bool *closing, bool *empty)
{
    size_t length = 0;
    *closing = *++at == '/';
    at += *closing;
    for (; isalnum((unsigned char)*at) && length < 31; at++)
        name[length++] = *at;
    name[length] = '\0';
    ck_assert_msg(length > 0, "a tag without name at %.20s", at);
    while (*at == ' ')
        at = skip_attribute(at + 1, name);
    *empty = *at == '/';
    at += *empty;
    ck_assert_msg(*at == '>', "<%s not closed at %.20s", name, at);
    return at + 1;
}

static void check_entity(const char *at)
{
    size_t length = strspn(at + 1, "#abcdefghijklmnopqrstuvwxyz0123456789");
    ck_assert_msg(length > 0 && at[length + 1] == ';', "a bare & at %.20s", at);
}

void mn_tags_check(const char *html)
{
    char open[32][32];
    int depth = 0;
    ck_assert_msg(strncmp(html, "<!DOCTYPE html>\n", 16) == 0, "no document type");
    for (const char *at = html + 16; *at;) {
        bool closing, empty;
        char name[32];
        if (*at == '&')
            check_entity(at);
        if (*at != '<') {
            at++;
            continue;
        }
        at = skip_tag(at, name, &closing, &empty);
        if (closing) {
            ck_assert_msg(depth > 0 && strcmp(open[--depth], name) == 0, "</%s> closes nothing",
                          name);
        } else if (!empty) {
            ck_assert_int_lt(depth, 32);
            strcpy(open[depth++], name);
        }
    }
    ck_assert_int_eq(depth, 0);
}

int mn_count_of(const char *text, const char *word)
{
    int count = 0;
    for (; (text = strstr(text, word)) != NULL; text += strlen(word))
        count++;
    return count;
}
