/* train/report.c: the report of a comparison: what it reports on, its numbers per run and over
 * seeds, and writing its files. */
#include "train/report.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <xlocale.h>
#endif

const char *const mn_report_notes[] = {
    "A skipped step is a diagnosis of the loss scale, and no sign of convergence: whether training "
    "works is read from loss and accuracy.",
    "Small models, and models that wait for their input, may gain nothing from half precision.",
    "Throughput leaves out the first 5 steps of a run and evaluation; peak_tensor_bytes is the "
    "most that lived in tensors and workspaces at once after those steps.",
    "underflow_fraction is null: it is measured with a monitor only.", NULL};

/* ---- rows ------------------------------------------------------------------------------------ */

bool mn_report_is(const mn_compare_row *row, const char *precision)
{
    return strcmp(row->precision, precision) == 0;
}

const mn_epoch_result *mn_report_last_epoch(const mn_compare_row *row)
{
    return row->run->epoch_count > 0 ? &row->run->epochs[row->run->epoch_count - 1] : NULL;
}

static const mn_step_result *last_step(const mn_compare_row *row)
{
    return row->run->step_count > 0 ? &row->run->step_results[row->run->step_count - 1] : NULL;
}

const mn_compare_row *mn_report_reference(const mn_report *report, const mn_compare_row *row)
{
    for (int i = 0; i < report->result->row_count; i++) {
        const mn_compare_row *other = &report->result->rows[i];
        if (other->seed == row->seed && mn_report_is(other, "fp32"))
            return other;
    }
    return NULL;
}

const mn_compare_deviation *mn_report_deviation(const mn_report *report, const char *precision)
{
    for (int i = 0; i < report->result->deviation_count; i++)
        if (strcmp(report->result->deviations[i].precision, precision) == 0)
            return &report->result->deviations[i];
    return NULL;
}

/* ---- numbers of a run ------------------------------------------------------------------------ */

double mn_report_accuracy(const mn_report *report, const mn_compare_row *row)
{
    const mn_epoch_result *last = mn_report_last_epoch(row);
    if (!last)
        return (double)NAN;
    return report->validation ? last->validation_accuracy : last->test_accuracy;
}

double mn_report_delta(const mn_report *report, const mn_compare_row *row)
{
    const mn_compare_row *reference = mn_report_reference(report, row);
    if (!reference)
        return (double)NAN;
    return 100.0 * (mn_report_accuracy(report, row) - mn_report_accuracy(report, reference));
}

double mn_report_throughput(const mn_report *report, const mn_compare_row *row)
{
    const mn_epoch_result *last = mn_report_last_epoch(row);
    (void)report;
    return last ? last->images_per_s : (double)NAN;
}

double mn_report_memory(const mn_report *report, const mn_compare_row *row)
{
    const mn_epoch_result *last = mn_report_last_epoch(row);
    (void)report;
    return last && last->peak_tensor_bytes > 0 ? (double)last->peak_tensor_bytes : (double)NAN;
}

double mn_report_skipped(const mn_report *report, const mn_compare_row *row)
{
    const mn_epoch_result *last = mn_report_last_epoch(row);
    int64_t count = 0;
    (void)report;
    if (last)
        return (double)last->skipped_steps;
    for (int64_t i = 0; i < row->run->step_count; i++)
        count += row->run->step_results[i].skipped;
    return (double)count;
}

double mn_report_nonfinite(const mn_report *report, const mn_compare_row *row)
{
    const mn_epoch_result *last = mn_report_last_epoch(row);
    int64_t count = 0;
    (void)report;
    if (last)
        return (double)last->nonfinite;
    for (int64_t i = 0; i < row->run->step_count; i++)
        count += row->run->step_results[i].nonfinite;
    return (double)count;
}

double mn_report_scale(const mn_report *report, const mn_compare_row *row)
{
    const mn_epoch_result *last = mn_report_last_epoch(row);
    const mn_step_result *step = last_step(row);
    (void)report;
    return last ? last->scale : step ? step->scale : (double)NAN;
}

mn_report_stat mn_report_over_seeds(const mn_report *report, const char *precision,
                                    mn_report_number number)
{
    mn_report_stat stat = {0.0, (double)NAN, 0};
    double squares = 0.0; /* of the differences from the mean: Welford's sums */
    for (int i = 0; i < report->result->row_count; i++) {
        const mn_compare_row *row = &report->result->rows[i];
        double value = mn_report_is(row, precision) ? number(report, row) : (double)NAN;
        if (isnan(value))
            continue;
        double before = value - stat.mean;
        stat.mean += before / ++stat.n;
        squares += before * (value - stat.mean);
    }
    if (stat.n == 0)
        stat.mean = (double)NAN;
    if (stat.n > 1)
        stat.sd = sqrt(squares / (stat.n - 1));
    return stat;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void add_row(mn_report *report, const mn_compare_row *row)
{
    const mn_epoch_result *epoch = mn_report_last_epoch(row);
    const mn_step_result *step = last_step(row);
    int known = 0;
    while (known < report->count && !mn_report_is(row, report->precisions[known]))
        known++;
    if (known == report->count && known < MN_REPORT_PRECISIONS)
        report->precisions[report->count++] = row->precision;
    if (known < report->count && ++report->rows[known] > report->seeds)
        report->seeds = report->rows[known];
    report->last_epoch = larger(report->last_epoch, epoch ? epoch->epoch : 0);
    report->last_step = larger(report->last_step, step ? step->step : 0);
}

static void describe_system(mn_report *report)
{
    struct utsname name;
    if (uname(&name) >= 0)
        snprintf(report->system, sizeof report->system, "%.64s %.64s", name.sysname, name.release);
#ifdef _CS_GNU_LIBC_VERSION
    (void)confstr(_CS_GNU_LIBC_VERSION, report->libc, sizeof report->libc);
#endif
#ifdef _SC_PHYS_PAGES
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    if (pages > 0 && bytes > 0)
        report->memory_bytes = (uint64_t)pages * (uint64_t)bytes;
#endif
}

static void fill(mn_report *report, const mn_compare_options *options,
                 const mn_compare_result *result)
{
    *report = (mn_report){.options = options, .result = result};
    report->validation = mn_compare_uses_validation(result->rows, result->row_count);
    report->model = options->train.model;
    report->data = options->train.data;
    for (int i = 0; i < result->row_count; i++)
        add_row(report, &result->rows[i]);
    if (result->row_count > 0) {
        report->model = result->rows[0].run->model;
        report->data = result->rows[0].run->data;
    }
    describe_system(report);
}

static mn_status write_files(const mn_report *report, const mn_allocator *allocator,
                             mn_error *error)
{
    const char *folder = report->options->report;
    mn_page json = {.allocator = *allocator}, html = {.allocator = *allocator};
    mn_status status = mn_report_json(&json, report, error);
    if (status == MN_OK)
        status = mn_report_html(&html, report, error);
    if (status == MN_OK)
        status = mn_report_folder(allocator, folder, error);
    if (status == MN_OK)
        status = mn_report_save(allocator, folder, "report.json", &json, error);
    if (status == MN_OK)
        status = mn_report_save(allocator, folder, "report.html", &html, error);
    mn_page_free(&json);
    mn_page_free(&html);
    return status;
}

/* Numbers are written with a decimal point, whatever the program's locale. */
static mn_status write_in_c_locale(const mn_report *report, const mn_allocator *allocator,
                                   mn_error *error)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return mn_error_set(error, MN_ERR_MEMORY, "report: no memory for a locale");
    locale_t before = uselocale(plain);
    mn_status status = write_files(report, allocator, error);
    uselocale(before);
    freelocale(plain);
    return status;
}

mn_status mn_report_write(const mn_compare_options *options, const mn_compare_result *result,
                          mn_error *error)
{
    mn_report report;
    if (!options->report)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--report: a folder is needed");
    mn_allocator allocator = mn_allocator_or_default(&options->train.context.allocator);
    /* Says what the runs' contexts were: they are gone by now. */
    mn_error local = {MN_OK, ""};
    mn_context *context = mn_context_create(&options->train.context, &local);
    if (!context)
        return mn_error_set(error, local.status, "report: %s", local.message);
    fill(&report, options, result);
    report.info = mn_context_info_get(context);
    mn_status status = write_in_c_locale(&report, &allocator, error);
    mn_context_free(context);
    return status;
}
