/* train/report_json.c: report.json, the comparison for programs. */
#include "train/report.h"
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <sys/utsname.h>
#include <unistd.h>

static void add_software(mn_json_out *json, const mn_report *report)
{
    struct utsname name;
    char libc[64] = "", system[160] = "";
    if (uname(&name) >= 0)
        snprintf(system, sizeof system, "%.64s %.64s", name.sysname, name.release);
#ifdef _CS_GNU_LIBC_VERSION
    (void)confstr(_CS_GNU_LIBC_VERSION, libc, sizeof libc);
#endif
    mn_out_begin(json, "software", '{');
    mn_out_string(json, "minim", mn_version());
    mn_out_string(json, "compiler", report->info.compiler);
    mn_out_string(json, "kernels", report->info.kernels);
    mn_out_string(json, "libc", libc[0] ? libc : NULL);
    mn_out_string(json, "os", system[0] ? system : NULL);
    mn_out_end(json, '}');
}

static void add_hardware(mn_json_out *json, const mn_report *report)
{
    double bytes = (double)NAN;
#ifdef _SC_PHYS_PAGES
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0)
        bytes = (double)pages * (double)page;
#endif
    mn_out_begin(json, "hardware", '{');
    mn_out_string(json, "device", report->info.device);
    mn_out_string(json, "cpu", report->info.cpu);
    mn_out_string(json, "features", report->info.features);
    mn_out_integer(json, "threads", report->info.threads);
    mn_out_measured(json, "memory_bytes", bytes);
    mn_out_end(json, '}');
}

static void add_config(mn_json_out *json, const mn_report *report)
{
    const mn_compare_options *options = report->options;
    const mn_compare_result *result = report->result;
    mn_out_begin(json, "config", '{');
    mn_config_json(json, &options->train, report->model, report->data);
    mn_out_integer(json, "parameter_count",
                   result->row_count > 0 ? result->rows[0].run->parameters : 0);
    mn_out_string(json, "precisions", options->precisions);
    mn_out_integer(json, "seeds", options->seeds);
    mn_out_number(json, "margin", options->margin);
    mn_out_end(json, '}');
}

static void add_run(mn_json_out *json, const mn_report *report, const mn_compare_row *row)
{
    static const struct {
        const char *key;
        mn_figure figure;
    } kept[] = {
        {"collapsed_step", MN_FIGURE_COLLAPSED},
        {"test_accuracy", MN_FIGURE_TEST},
        {"test_accuracy_fp32", MN_FIGURE_TEST_FP32},
        {"validation_accuracy", MN_FIGURE_VALIDATION},
        {"validation_accuracy_fp32", MN_FIGURE_VALIDATION_FP32},
        {"skipped_steps", MN_FIGURE_SKIPPED},
        {"nonfinite", MN_FIGURE_NONFINITE},
        {"scale_final", MN_FIGURE_SCALE},
        {"images_per_s", MN_FIGURE_SPEED},
        {"data_wait_fraction", MN_FIGURE_WAIT},
        {"peak_tensor_bytes", MN_FIGURE_MEMORY},
        {"underflow_fraction", MN_FIGURE_UNDERFLOW},
    };
    double figures[MN_FIGURES];
    mn_report_figures(report, row, figures);
    mn_out_begin(json, NULL, '{');
    mn_out_string(json, "precision", row->precision);
    mn_out_unsigned(json, "seed", row->seed);
    mn_out_begin(json, "epochs", '[');
    for (int64_t i = 0; i < row->run->epoch_count; i++) {
        mn_out_begin(json, NULL, '{');
        mn_epoch_json(json, &row->run->epochs[i]);
        mn_out_end(json, '}');
    }
    mn_out_end(json, ']');
    mn_out_integer(json, "steps", row->run->total_steps);
    mn_out_boolean(json, "cancelled", row->run->cancelled);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        mn_out_measured(json, kept[i].key, figures[kept[i].figure]);
    mn_out_boolean(json, "diverged", mn_compare_diverged(row->run));
    mn_out_number(json, "seconds", row->run->seconds);
    mn_report_numerics_json(json, row->run->monitor);
    mn_out_end(json, '}');
}

static void add_deviation(mn_json_out *json, const mn_compare_deviation *deviation)
{
    mn_out_begin(json, deviation->precision, '{');
    mn_out_begin(json, "accuracy_delta_pp", '{');
    mn_out_measured(json, "mean", deviation->accuracy_delta_pp_mean);
    mn_out_measured(json, "sd", deviation->accuracy_delta_pp_sd);
    mn_out_integer(json, "n", deviation->n);
    mn_out_end(json, '}');
    mn_out_begin(json, "interval", '{');
    mn_out_number(json, "level", 0.9);
    mn_out_measured(json, "low", deviation->interval_low_pp);
    mn_out_measured(json, "high", deviation->interval_high_pp);
    mn_out_end(json, '}');
    mn_out_integer(json, "collapsed_runs", deviation->collapsed);
    /* NaN is a difference, if there was one to take. */
    (deviation->n > 0 ? mn_out_number : mn_out_measured)(json, "max_loss_delta",
                                                         deviation->max_loss_delta);
    mn_out_measured(json, "throughput_ratio", deviation->throughput_ratio);
    mn_out_measured(json, "memory_ratio", deviation->memory_ratio);
    mn_out_end(json, '}');
}

static void add_deviations(mn_json_out *json, const mn_compare_result *result)
{
    mn_out_begin(json, "deviation", '{');
    for (int i = 0; i < result->deviation_count; i++)
        add_deviation(json, &result->deviations[i]);
    mn_out_end(json, '}');
    mn_out_begin(json, "verdict", '{');
    for (int i = 0; i < result->deviation_count; i++)
        mn_out_string(json, result->deviations[i].precision, result->deviations[i].verdict);
    mn_out_end(json, '}');
}

const char *const mn_report_notes[MN_REPORT_NOTES] = {
    "Verdict: over 3 seeds or more, the 90 percent interval (Student t) of the difference of final "
    "accuracy from FP32, paired by seed, in percentage points, decides. Inside \u00b1margin: "
    "within "
    "the stated bound; wholly outside: outside; else, or where a run collapsed or diverged: not "
    "enough seeds to say. Seeds alone move accuracy by some tenths of a point: a single pair "
    "proves nothing.",
    "Skipped steps: with FP16 the loss is multiplied by a scale, so that small gradients do not "
    "become zero. If one overflows, the step is not applied and the scale is lowered; a few such "
    "steps, above all at the start, are how the right scale is found. A skipped step is a "
    "diagnosis of the loss scale, and no sign of convergence: whether training works is read from "
    "loss and accuracy.",
    "Speed and memory: images per second leave out the first 5 steps and evaluation; peak tensor "
    "memory is the most that lived in tensors and workspaces at once after those steps. Small "
    "models, and models that wait for their input, may gain nothing from half precision. Measured "
    "figures differ from run to run; losses and accuracies do not.",
    "Accuracy in FP32: that of the same weights, evaluated without half precision: where it is "
    "clearly above a precision's own, evaluation loses accuracy and not training.",
    "Underflow and updates lost: measured with --monitor, whose steps no figure of time or memory "
    "counts; what it holds (3 KB for each place, and a copy of the parameters) is tensor memory. "
    "What became 0 in 16 bit trains nothing; an update so small that the parameter stays "
    "as it was does neither, and some of those are there in FP32 as well.",
};

static void add_rule(mn_json_out *json, const mn_report *report)
{
    mn_out_begin(json, "verdict_rule", '{');
    mn_out_string(json, "metric", report->validation ? "validation_accuracy" : "test_accuracy");
    mn_out_number(json, "margin", report->options->margin);
    mn_out_end(json, '}');
    mn_out_begin(json, "notes", '[');
    for (int i = 0; i < MN_REPORT_NOTES; i++)
        mn_out_string(json, NULL, mn_report_notes[i]);
    mn_out_end(json, ']');
}

void mn_report_json(mn_json_out *json, const mn_report *report)
{
    mn_out_begin(json, NULL, '{');
    add_config(json, report);
    add_hardware(json, report);
    add_software(json, report);
    mn_out_string(json, "reference", "fp32");
    mn_out_boolean(json, "cancelled", report->result->cancelled);
    mn_out_begin(json, "runs", '[');
    for (int i = 0; i < report->result->row_count; i++)
        add_run(json, report, &report->result->rows[i]);
    mn_out_end(json, ']');
    add_deviations(json, report->result);
    add_rule(json, report);
    mn_out_end(json, '}');
    mn_put(json, "\n");
}
