/* train/report_json.c: report.json, the comparison for programs. */
#include "train/report.h"
#include "train/train.h"

#include <math.h>

/* ---- one run --------------------------------------------------------------------------------- */

static void add_epochs(mn_json_out *json, const mn_train_result *run)
{
    mn_out_key(json, "epochs");
    mn_out_begin_array(json);
    for (int64_t i = 0; i < run->epoch_count; i++) {
        mn_out_begin_object(json);
        mn_epoch_json(json, &run->epochs[i]);
        mn_out_end_object(json);
    }
    mn_out_end_array(json);
}

/* Whole numbers are handed around as doubles, NaN for "not there". */
static void add_count(mn_json_out *json, const char *key, double value)
{
    if (isfinite(value))
        mn_out_add_integer(json, key, (int64_t)value);
    else
        mn_out_add_measured(json, key, value);
}

static void add_run(mn_json_out *json, const mn_report *report, const mn_compare_row *row)
{
    const mn_epoch_result *last = mn_report_last_epoch(row);
    mn_out_begin_object(json);
    mn_out_add_string(json, "precision", row->precision);
    mn_out_add_unsigned(json, "seed", row->seed);
    add_epochs(json, row->run);
    mn_out_add_integer(json, "steps", row->run->total_steps);
    mn_out_add_boolean(json, "cancelled", row->run->cancelled);
    mn_out_add_measured(json, "test_accuracy", last ? last->test_accuracy : (double)NAN);
    mn_out_add_measured(json, "test_accuracy_fp32", last ? last->test_accuracy_fp32 : (double)NAN);
    mn_out_add_measured(json, "validation_accuracy",
                        last ? last->validation_accuracy : (double)NAN);
    mn_out_add_measured(json, "validation_accuracy_fp32",
                        last ? last->validation_accuracy_fp32 : (double)NAN);
    add_count(json, "skipped_steps", mn_report_skipped(report, row));
    add_count(json, "nonfinite", mn_report_nonfinite(report, row));
    mn_out_add_measured(json, "scale_final", mn_report_scale(report, row));
    mn_out_add_measured(json, "images_per_s", mn_report_throughput(report, row));
    add_count(json, "peak_tensor_bytes", mn_report_memory(report, row));
    mn_out_add_measured(json, "underflow_fraction", (double)NAN); /* needs the monitor */
    mn_out_add_number(json, "seconds", row->run->seconds);
    mn_out_end_object(json);
}

/* ---- where and how --------------------------------------------------------------------------- */

static void add_software(mn_json_out *json, const mn_report *report)
{
    mn_out_key(json, "software");
    mn_out_begin_object(json);
    mn_out_add_string(json, "minim", mn_version());
    mn_out_add_string(json, "compiler", report->info.compiler);
    mn_out_add_string(json, "kernels", report->info.kernels);
    mn_out_add_string(json, "libc", report->libc[0] ? report->libc : NULL);
    mn_out_add_string(json, "os", report->system[0] ? report->system : NULL);
    mn_out_end_object(json);
}

static void add_hardware(mn_json_out *json, const mn_report *report)
{
    mn_out_key(json, "hardware");
    mn_out_begin_object(json);
    mn_out_add_string(json, "device", report->info.device);
    mn_out_add_string(json, "cpu", report->info.cpu);
    mn_out_add_string(json, "features", report->info.features);
    mn_out_add_integer(json, "threads", report->info.threads);
    add_count(json, "memory_bytes",
              report->memory_bytes ? (double)report->memory_bytes : (double)NAN);
    mn_out_end_object(json);
}

static void add_config(mn_json_out *json, const mn_report *report)
{
    const mn_compare_options *options = report->options;
    mn_train_options train = options->train;
    train.model = report->model;
    mn_out_key(json, "config");
    mn_config_json(json, &train, report->data);
    /* Takes back the closing brace: what only a comparison has goes into the same object. */
    if (!json->failed)
        json->length--;
    mn_out_add_integer(json, "parameters",
                       report->result->row_count ? report->result->rows[0].run->parameters : 0);
    mn_out_add_string(json, "precisions", options->precisions);
    mn_out_add_integer(json, "seeds", options->seeds);
    mn_out_add_number(json, "margin", options->margin);
    mn_out_end_object(json);
}

/* ---- the comparison -------------------------------------------------------------------------- */

static void add_deviation(mn_json_out *json, const mn_compare_deviation *deviation)
{
    mn_out_key(json, deviation->precision);
    mn_out_begin_object(json);
    mn_out_key(json, "accuracy_delta_pp");
    mn_out_begin_object(json);
    mn_out_add_measured(json, "mean", deviation->accuracy_delta_pp_mean);
    mn_out_add_measured(json, "sd", deviation->accuracy_delta_pp_sd);
    mn_out_add_integer(json, "n", deviation->n);
    mn_out_end_object(json);
    mn_out_key(json, "interval");
    mn_out_begin_object(json);
    mn_out_add_number(json, "level", 0.9);
    mn_out_add_measured(json, "low", deviation->interval_low_pp);
    mn_out_add_measured(json, "high", deviation->interval_high_pp);
    mn_out_end_object(json);
    mn_out_add_number(json, "max_loss_delta", deviation->max_loss_delta);
    mn_out_add_measured(json, "throughput_ratio", deviation->throughput_ratio);
    mn_out_add_measured(json, "memory_ratio", deviation->memory_ratio);
    mn_out_end_object(json);
}

static void add_deviations(mn_json_out *json, const mn_compare_result *result)
{
    mn_out_key(json, "deviation");
    mn_out_begin_object(json);
    for (int i = 0; i < result->deviation_count; i++)
        add_deviation(json, &result->deviations[i]);
    mn_out_end_object(json);
    mn_out_key(json, "verdict");
    mn_out_begin_object(json);
    for (int i = 0; i < result->deviation_count; i++)
        mn_out_add_string(json, result->deviations[i].precision, result->deviations[i].verdict);
    mn_out_end_object(json);
}

static void add_rule(mn_json_out *json, const mn_report *report)
{
    mn_out_key(json, "verdict_rule");
    mn_out_begin_object(json);
    mn_out_add_string(json, "metric", report->validation ? "validation_accuracy" : "test_accuracy");
    mn_out_add_number(json, "margin", report->options->margin);
    mn_out_add_string(json, "interval",
                      "90 percent, Student t, of the difference after the last epoch, paired by "
                      "seed, in percentage points");
    mn_out_add_integer(json, "fewest_seeds", 3);
    mn_out_add_string(json, "text",
                      "interval inside +-margin: within the stated bound; wholly outside: "
                      "outside; else, or fewer than 3 seeds: not enough seeds to say");
    mn_out_end_object(json);
    mn_out_key(json, "notes");
    mn_out_begin_array(json);
    for (int i = 0; mn_report_notes[i]; i++)
        mn_out_string(json, mn_report_notes[i]);
    mn_out_end_array(json);
}

mn_status mn_report_json(mn_page *page, const mn_report *report, mn_error *error)
{
    const mn_compare_result *result = report->result;
    mn_json_out json;
    mn_out_init(&json, &page->allocator);
    mn_out_begin_object(&json);
    add_software(&json, report);
    add_hardware(&json, report);
    add_config(&json, report);
    mn_out_add_string(&json, "reference", "fp32");
    mn_out_add_boolean(&json, "cancelled", result->cancelled);
    mn_out_key(&json, "runs");
    mn_out_begin_array(&json);
    for (int i = 0; i < result->row_count; i++)
        add_run(&json, report, &result->rows[i]);
    mn_out_end_array(&json);
    add_deviations(&json, result);
    add_rule(&json, report);
    mn_out_end_object(&json);
    const char *text = mn_out_text(&json);
    if (text) {
        mn_page_put(page, text);
        mn_page_put(page, "\n");
    }
    mn_out_free(&json);
    if (text && !page->failed)
        return MN_OK;
    return mn_error_set(error, MN_ERR_MEMORY, "report: no memory for report.json");
}
