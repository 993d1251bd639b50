/* train/report_curve.c: values over steps or epochs, as means over windows that a reader can tell
 * apart. */
#include "train/report.h"

#include <math.h>
#include <string.h>

static void begin(mn_curve *curve, const mn_report *report, const mn_curve_source *source)
{
    int64_t last = source->steps ? report->last_step : report->last_epoch;
    int64_t points = source->points > 0 ? source->points : MN_CURVE_POINTS;
    memset(curve, 0, sizeof *curve);
    curve->last = last;
    curve->width = last > 0 ? (last - 1) / points + 1 : 1;
    curve->count = last > 0 ? (int)((last - 1) / curve->width + 1) : 0;
}

int mn_curve_window(const mn_curve *curve, int64_t position)
{
    if (position < 1 || position > curve->last)
        return -1;
    return (int)((position - 1) / curve->width);
}

static void add(mn_curve *curve, int64_t position, double value)
{
    int window = mn_curve_window(curve, position);
    if (window < 0 || isnan(value))
        return;
    if (isfinite(value)) {
        curve->sum[window] += value;
        curve->finite[window]++;
    } else {
        curve->broken[window] = true;
    }
}

static void add_row(mn_curve *curve, const mn_report *report, const mn_curve_source *source,
                    const mn_compare_row *row)
{
    const mn_train_result *run = row->run;
    int64_t count = source->steps ? run->step_count : run->epoch_count;
    for (int64_t i = 0; i < count; i++) {
        int64_t position = source->steps ? run->step_results[i].step : run->epochs[i].epoch;
        add(curve, position, source->value(report, row, i));
    }
}

void mn_curve_of_row(mn_curve *curve, const mn_report *report, const mn_curve_source *source,
                     const mn_compare_row *row)
{
    begin(curve, report, source);
    add_row(curve, report, source, row);
}

void mn_curve_of_all(mn_curve *curve, const mn_report *report, const mn_curve_source *source,
                     const char *precision)
{
    begin(curve, report, source);
    for (int i = 0; i < report->result->row_count; i++)
        if (mn_report_is(&report->result->rows[i], precision))
            add_row(curve, report, source, &report->result->rows[i]);
}

double mn_curve_x(const mn_curve *curve, int point)
{
    int64_t first = point * curve->width + 1, end = first + curve->width - 1;
    return 0.5 * (double)(first + (end < curve->last ? end : curve->last));
}

double mn_curve_y(const mn_curve *curve, int point)
{
    if (curve->finite[point] == 0)
        return (double)NAN;
    return curve->sum[point] / (double)curve->finite[point];
}
