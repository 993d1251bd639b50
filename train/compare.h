/* compare: what the report needs of a comparison. */
#ifndef MN_TRAIN_COMPARE_H
#define MN_TRAIN_COMPARE_H

#include "core/core.h"
#include "core/json_write.h"

/* Writes report.json and report.html into options->report (made if it is not there), each through a
 * temporary file, so that a failure leaves no half-written report. */
mn_status mn_report_write(const mn_compare_options *options, const mn_compare_result *result,
                          mn_error *error);

/* Fills in the deviation of deviation->precision from fp32: final validation accuracy, paired by
 * seed, or test accuracy where there is no validation set. */
void mn_compare_deviate(const mn_compare_row *rows, int row_count, double margin,
                        mn_compare_deviation *deviation);
/* Whether the training loss was not finite at the end. Such runs count as collapsed ones, and so
 * does a run whose reference did either. */
bool mn_compare_diverged(const mn_train_result *run);
/* The row of a precision and seed, or NULL. */
const mn_compare_row *mn_compare_row_of(const mn_compare_row *rows, int row_count,
                                        const char *precision, uint64_t seed);
/* What the rows of a monitor come to in a layer: of stored and lost values all, else of what ops
 * gave, without casts. */
typedef struct mn_layer_side {
    int64_t histogram[MN_MONITOR_BINS];
    int64_t count, zeros, infinities, nans, stored, lost;
    double largest, smallest; /* as in a row */
} mn_layer_side;
typedef struct mn_layer {
    const char *name; /* `length` bytes of it; "(loss)" for what is in no layer */
    int length;
    mn_layer_side sides[2]; /* forward, backward */
} mn_layer;
/* Adds to a list of layers, in the order in which they are met. Paths are cut to `depth` names.
 * False: no memory. */
bool mn_layers_add(mn_list *layers, const mn_train_monitor *monitor, int depth);
/* NaN if there is nothing to take a share of. */
double mn_share(int64_t part, int64_t whole);

/* Quantile of Student's t at 0.95 for `degrees` >= 1 (two-sided 90 percent). */
double mn_student_t95(int degrees);
/* Whether the rows' runs held out a validation set. */
bool mn_compare_uses_validation(const mn_compare_row *rows, int row_count);

#endif
