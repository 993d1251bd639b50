/* train/report.h: what the files that write a comparison's report share: what they report on, text
 * that grows, curves over steps and epochs, plots, files. */
#ifndef MN_TRAIN_REPORT_H
#define MN_TRAIN_REPORT_H

#include "train/compare.h"

/* ---- what is reported: report.c -------------------------------------------------------------- */

#define MN_REPORT_PRECISIONS 4

typedef struct mn_report {
    const mn_compare_options *options;
    const mn_compare_result *result;
    mn_context_info info; /* of a context like the runs' */
    int count;            /* precisions, in the order of their first rows */
    const char *precisions[MN_REPORT_PRECISIONS];
    int rows[MN_REPORT_PRECISIONS]; /* of each */
    int seeds;                      /* rows of the precision that has most */
    bool validation;                /* the verdict goes by validation accuracy */
    int64_t last_step; /* largest number of a step, and of an epoch, in any row; 0: none */
    int64_t last_epoch;
    const char *model, *data;
    uint64_t memory_bytes; /* of the machine; 0: not known */
    char system[160], libc[64];
} mn_report;

/* The newest epoch of a row; NULL if it has none. */
const mn_epoch_result *mn_report_last_epoch(const mn_compare_row *row);
bool mn_report_is(const mn_compare_row *row, const char *precision);
/* FP32's row of the same seed, or NULL. */
const mn_compare_row *mn_report_reference(const mn_report *report, const mn_compare_row *row);
const mn_compare_deviation *mn_report_deviation(const mn_report *report, const char *precision);

/* A number of a row, NaN where it was not measured, and what it is over a precision's seeds. */
typedef double (*mn_report_number)(const mn_report *report, const mn_compare_row *row);
typedef struct mn_report_stat {
    double mean, sd; /* NaN for n < 1 and n < 2 */
    int n;
} mn_report_stat;
mn_report_stat mn_report_over_seeds(const mn_report *report, const char *precision,
                                    mn_report_number number);

/* After the last epoch; steps are counted where there is no epoch. */
double mn_report_accuracy(const mn_report *report, const mn_compare_row *row); /* verdict's */
double mn_report_delta(const mn_report *report, const mn_compare_row *row); /* of it, in points */
double mn_report_throughput(const mn_report *report, const mn_compare_row *row);
double mn_report_memory(const mn_report *report, const mn_compare_row *row); /* bytes */
double mn_report_skipped(const mn_report *report, const mn_compare_row *row);
double mn_report_nonfinite(const mn_report *report, const mn_compare_row *row);
double mn_report_scale(const mn_report *report, const mn_compare_row *row);

/* Sentences that belong into every report, NULL-terminated. */
extern const char *const mn_report_notes[];

/* ---- text: report_page.c --------------------------------------------------------------------- */

/* Text that grows. Running out of memory is latched: what follows does nothing. */
typedef struct mn_page {
    mn_allocator allocator;
    char *text; /* `length` bytes and a terminating zero */
    size_t length, capacity;
    bool failed;
} mn_page;

void mn_page_free(mn_page *page);
/* Markup, as it is. */
void mn_page_put(mn_page *page, const char *markup);
void mn_page_format(mn_page *page, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Text, escaped for content and for attributes in double quotes; NULL gives nothing. */
void mn_page_escape(mn_page *page, const char *text);
/* "FP16" for "fp16". */
void mn_page_precision(mn_page *page, const char *precision);
/* Numbers for readers: "not measured" for NaN, thousands apart, a real minus sign; signed: with a
 * plus as well. */
void mn_page_number(mn_page *page, double value, int decimals);
void mn_page_signed(mn_page *page, double value, int decimals);
/* At most `digits` significant digits, without trailing zeros: settings and losses. */
void mn_page_general(mn_page *page, double value, int digits);

/* ---- curves: report_curve.c ------------------------------------------------------------------ */

#define MN_CURVE_POINTS 240

/* Means over windows of positions 1 .. last; windows so wide that MN_CURVE_POINTS are enough. */
typedef struct mn_curve {
    int64_t last, width;
    int count;
    double sum[MN_CURVE_POINTS];
    int64_t finite[MN_CURVE_POINTS];
    bool broken[MN_CURVE_POINTS]; /* a value there is not finite */
} mn_curve;

/* What is drawn of a row: at its step or epoch number `index`, from 0. NaN: not there; infinite:
 * not finite. */
typedef struct mn_curve_source {
    double (*value)(const mn_report *report, const mn_compare_row *row, int64_t index);
    bool steps; /* else epochs */
    int points; /* at most so many; 0: MN_CURVE_POINTS */
} mn_curve_source;

/* The curve of one row, or of all rows of a precision together. */
void mn_curve_of_row(mn_curve *curve, const mn_report *report, const mn_curve_source *source,
                     const mn_compare_row *row);
void mn_curve_of_all(mn_curve *curve, const mn_report *report, const mn_curve_source *source,
                     const char *precision);
double mn_curve_x(const mn_curve *curve, int point); /* the window's middle */
double mn_curve_y(const mn_curve *curve, int point); /* NaN: nothing there */
int mn_curve_window(const mn_curve *curve, int64_t position);

/* ---- plots: report_axis.c, report_svg.c ------------------------------------------------------ */

typedef enum mn_axis_kind {
    MN_AXIS_LINEAR,
    MN_AXIS_WHOLE,
    MN_AXIS_LOG10,
    MN_AXIS_LOG2
} mn_axis_kind;

/* low and high are logarithms on logarithmic axes; ticks stand at multiples of step. */
typedef struct mn_axis {
    mn_axis_kind kind;
    double low, high, step;
    const char *title;
} mn_axis;

/* Begin with nothing, take in every value (those that cannot be shown are passed over), then fit:
 * picks round ticks, and widens the ends to ticks if `widen`. */
mn_axis mn_axis_begin(mn_axis_kind kind, const char *title);
void mn_axis_take(mn_axis *axis, double value);
bool mn_axis_empty(const mn_axis *axis);
void mn_axis_fit(mn_axis *axis, int ticks, bool widen);
/* Where a value lies between the ends, 0 to 1 inside; NaN if it cannot be shown. */
double mn_axis_place(const mn_axis *axis, double value);
/* The i-th tick's value, up to the first that returns false; label is markup for a <text>. */
bool mn_axis_tick(const mn_axis *axis, int index, double *place, char label[64]);

typedef struct mn_plot {
    mn_page *page;
    const char *id;          /* unique on the page */
    const char *title;       /* plain ASCII words, not escaped */
    const char *description; /* for who cannot see it, and as a note below the title */
    mn_axis x, y;
    double height;                   /* of the drawing; 0: the usual */
    double gutter;                   /* more room on the left than usual */
    double strip;                    /* room above the plot for marks */
    bool rows;                       /* narrow; the y axis is a list, not numbers: no ticks */
    double left, top, right, bottom; /* set by begin: edges of the plot */
} mn_plot;

/* A <figure> with title, axes and a legend of the precisions whose bits are set; end closes it. */
void mn_plot_begin(mn_plot *plot, const mn_report *report, unsigned precisions);
void mn_plot_end(mn_plot *plot);
double mn_plot_x(const mn_plot *plot, double value);
double mn_plot_y(const mn_plot *plot, double value);
/* A line through a curve's points, broken where there are none. */
void mn_plot_line(mn_plot *plot, const mn_curve *curve, const char *precision, bool thin);
/* Shapes of a precision at a point of the drawing: disc, square or triangle. */
void mn_plot_marker(mn_plot *plot, double x, double y, const char *precision, double radius);
/* CSS class of a precision's colour: "fp32", "bf16", "fp16" or "other". */
const char *mn_plot_class(const char *precision);

/* ---- parts of the page: report_charts.c, report_bars.c, report_table.c ----------------------- */

void mn_report_final_table(mn_page *page, const mn_report *report);
void mn_report_run_table(mn_page *page, const mn_report *report); /* where there are seeds */

void mn_report_line_charts(mn_page *page, const mn_report *report);
void mn_report_scale_chart(mn_page *page, const mn_report *report);
void mn_report_verdict_chart(mn_page *page, const mn_report *report);
void mn_report_bar_charts(mn_page *page, const mn_report *report);

/* ---- documents ------------------------------------------------------------------------------- */

/* report.json and report.html as text; MN_ERR_MEMORY if memory ran out. `page` is zero except for
 * its allocator and is freed by the caller. */
mn_status mn_report_json(mn_page *page, const mn_report *report, mn_error *error);
mn_status mn_report_html(mn_page *page, const mn_report *report, mn_error *error);
/* report_style.c: the page's style sheet, without < and &. */
extern const char mn_report_style[];

/* report_file.c. Makes the folder and those above it; writes DIR/NAME at once or not at all. */
mn_status mn_report_folder(const mn_allocator *allocator, const char *path, mn_error *error);
mn_status mn_report_save(const mn_allocator *allocator, const char *folder, const char *name,
                         const mn_page *page, mn_error *error);

#endif
