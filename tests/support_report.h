/* tests/support_report.h: made-up comparisons, their reports' files, and strict readers of JSON and
 * of tags. Every check fails the test that runs. */
#ifndef MINIM_TESTS_SUPPORT_REPORT_H
#define MINIM_TESTS_SUPPORT_REPORT_H

#include "train/report.h"

enum {
    MN_MADE_MOST_ROWS = 15,
    MN_MADE_MOST_EPOCHS = 6,
    MN_MADE_MOST_STEPS = 5000,
    MN_MADE_SKIPPED_AT_START = 4 /* of every fp16 run */
};

/* Rows in the order of seeds, and fp32, bf16, fp16 for each. */
typedef struct mn_made_comparison {
    mn_compare_options options;
    mn_compare_result result;
    mn_compare_row rows[MN_MADE_MOST_ROWS];
    mn_compare_deviation deviations[2];
    mn_train_result runs[MN_MADE_MOST_ROWS];
    mn_epoch_result epochs[MN_MADE_MOST_ROWS][MN_MADE_MOST_EPOCHS];
    mn_step_result steps[MN_MADE_MOST_ROWS][MN_MADE_MOST_STEPS];
} mn_made_comparison;
extern mn_made_comparison mn_made;
extern char mn_made_folder[64]; /* where mn_made's report goes */

void mn_made_new(int seeds, int epochs, int steps);
/* Compares, as mn_compare does, and writes. */
mn_status mn_made_write(mn_error *error);
/* Writes a report that must succeed and gives one of its files; freed by the caller. */
char *mn_made_report(const char *name);

/* A new empty folder for each test. */
void mn_made_folder_make(void);
void mn_made_folder_remove(void);
int mn_made_entries(const char *folder);
/* Path of a file of the report, valid until the next call; and its text, freed by the caller. */
const char *mn_made_path(const char *name);
char *mn_made_read(const char *name);

/* What follows a JSON value, which must be there; the value at "a.b.2.c", NULL if there is none. */
const char *mn_json_skip(const char *at);
const char *mn_json_at(const char *json, const char *where);
void mn_json_check(const char *json, const char *where, const char *expected);

/* Tags are closed in order, attributes quoted, text escaped, outlines numbers. */
void mn_tags_check(const char *html);
int mn_count_of(const char *text, const char *word);

#endif
