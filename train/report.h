/* train/report.h: what the files that write a comparison's report share: its figures, text, and
 * its parts. */
#ifndef MN_TRAIN_REPORT_H
#define MN_TRAIN_REPORT_H

#include "train/compare.h"
#include "core/json_write.h"

/* ---- what is reported: report.c -------------------------------------------------------------- */

#define MN_REPORT_PRECISIONS 4

typedef struct mn_report {
    const mn_compare_options *options;
    const mn_compare_result *result;
    mn_context_info info; /* of a context like the runs' */
    int count, seeds;
    const char *precisions[MN_REPORT_PRECISIONS]; /* `count` plain words, in order of their rows */
    bool validation;               /* the verdict goes by validation accuracy, else by test */
    int64_t last_step, last_epoch; /* largest numbers in any row; 0: none */
    const char *model, *data;
} mn_report;

/* Figures of a run; all but counts are of its end. */
typedef enum mn_figure {
    MN_FIGURE_VALIDATION, /* accuracies, from 0 to 1 */
    MN_FIGURE_VALIDATION_FP32,
    MN_FIGURE_TEST,
    MN_FIGURE_TEST_FP32,
    MN_FIGURE_LOSS,       /* infinite for NaN, which was measured all the same */
    MN_FIGURE_LOSS_DELTA, /* of the precision; likewise */
    MN_FIGURE_STEPS,
    MN_FIGURE_SKIPPED,
    MN_FIGURE_NONFINITE,
    MN_FIGURE_COLLAPSED, /* step at which it did */
    MN_FIGURE_SCALE,
    MN_FIGURE_SPEED,  /* images per second */
    MN_FIGURE_MEMORY, /* peak of tensors, bytes */
    MN_FIGURE_WAIT,   /* fraction of the time */
    MN_FIGURE_UNDERFLOW,
    MN_FIGURE_UPDATES_LOST,
    MN_FIGURES
} mn_figure;
/* NaN stands for "not measured". */
void mn_report_figures(const mn_report *report, const mn_compare_row *row,
                       double figures[MN_FIGURES]);

/* A figure over the n seeds of a precision that have it; NaN where there are too few. */
typedef struct mn_stat {
    double mean, sd, low, high;
    int n;
} mn_stat;
mn_stat mn_report_stat(const mn_report *report, const char *precision, mn_figure figure);

const mn_compare_deviation *mn_report_deviation(const mn_report *report, const char *precision);

/* ---- text: report_text.c --------------------------------------------------------------------- */

/* Text, escaped for content and for attributes in double quotes; NULL gives nothing. */
void mn_put_escaped(mn_json_out *page, const char *text);

/* Short pieces of markup by value, so that a sentence is one call of mn_put. */
typedef struct mn_label {
    char text[112];
} mn_label;
/* Numbers for readers: words for NaN and infinity, thousands apart, a real minus sign. decimals <
 * 0: at most so many significant digits. A unit ("" for none) stays on the number's line. */
mn_label mn_number(double value, int decimals, const char *unit);
mn_label mn_signed(double value); /* always with a sign; two decimals */

/* ---- parts ----------------------------------------------------------------------------------- */

/* Sentences on how to read a report, in its page and its JSON: report_json.c. */
#define MN_REPORT_NOTES 5
extern const char *const mn_report_notes[MN_REPORT_NOTES];

void mn_report_json(mn_json_out *page, const mn_report *report);
void mn_report_html(mn_json_out *page, const mn_report *report, const char *json);
/* report_charts.c: a <figure> for each chart that has something to show, in a <div>. */
void mn_report_charts(mn_json_out *page, const mn_report *report);
/* report_numerics.c: what monitors have seen, of all runs as figures and tables (nothing without a
 * monitor), and of a run as the member "monitor". */
void mn_report_numerics(mn_json_out *page, const mn_report *report);
void mn_report_numerics_json(mn_json_out *json, const mn_train_monitor *monitor);
extern const char mn_report_style[]; /* report_style.c: the style sheet, without < and & */

/* report_file.c: makes the folder and those above it, and sees that files can be made in it;
 * writes FOLDER/NAME at once or not at all. */
mn_status mn_report_folder(const mn_allocator *allocator, const char *path, mn_error *error);
mn_status mn_report_save(mn_json_out *page, const char *folder, const char *name, mn_error *error);

#endif
