/* train/bench.c: throughput and memory of whole training steps on synthetic data. A step counts
 * three forward passes' operations: backward makes two products where forward makes one. The
 * gradient with respect to the images, which nobody asks for, is counted all the same, so that
 * figures of different libraries compare. */
#include "train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static mn_status check(const mn_bench_options *o, mn_error *error)
{
    const mn_integer_rule rules[] = {
        {"--batch", o->batch, 1},
        {"--steps", o->steps, 1},
        {"--warmup", o->warmup, 0},
        {"the image height", o->height, 1},
        {"the image width", o->width, 1},
        {"the number of channels", o->channels, 1},
        {"the number of classes", o->classes, 1},
    };
    MN_TRY(mn_check_integers(rules, sizeof rules / sizeof *rules, error));
    return mn_check_amp(o->amp, error);
}

/* A run of training on one batch of images, whose loop is not used. */
static mn_status open_run(mn_run *run, const mn_bench_options *o, mn_dataset **dataset,
                          mn_error *error)
{
    char spec[160];
    mn_train_options train = mn_train_options_default();
    snprintf(spec, sizeof spec, "synthetic:%dx%dx%d:%d:%" PRId64, o->height, o->width, o->channels,
             o->classes, o->batch);
    *dataset = mn_dataset_open(spec, true, &o->context.allocator, error);
    if (!*dataset)
        return error->status;
    train.train_set = *dataset;
    train.model = o->model;
    train.amp = o->amp;
    train.batch = o->batch;
    train.schedule = MN_SCHEDULE_CONSTANT;
    train.lr = 0.01;
    train.weight_decay = train.validation = 0.0;
    train.seed = o->context.seed;
    train.context = o->context;
    return mn_run_open(run, &train);
}

/* The report's ring is written as in training; nobody reads it. */
static mn_status time_steps(mn_run *run, const mn_bench_options *o, mn_list *times,
                            mn_profile **profile)
{
    mn_batch batch;
    MN_TRY(mn_loader_start(run->train, 0, 0, &run->error));
    MN_TRY(mn_loader_next(run->train, &batch, &run->error));
    for (int64_t i = 0; i < o->warmup + o->steps; i++) {
        if (i == o->warmup)
            mn_memory_reset_peak(run->context);
        if (i == o->warmup && o->profile && !(*profile = mn_profile_begin(run->context)))
            return mn_error_status(run->context);
        double begin = mn_clock_seconds();
        MN_TRY(mn_run_micro_step(run, &batch, 1.0, true));
        MN_TRY(mn_synchronize(run->context));
        double seconds = mn_clock_seconds() - begin;
        run->progress.step++;
        if (i >= o->warmup && !mn_list_append(times, &seconds, 1))
            return mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for the times of steps");
    }
    return MN_OK;
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static mn_bench_result make_result(mn_run *run, double *times, int64_t count)
{
    double batch = (double)run->options.batch;
    qsort(times, (size_t)count, sizeof *times, compare_seconds);
    double median = 0.5 * (times[(count - 1) / 2] + times[count / 2]);
    double seconds = 0;
    for (int64_t i = 0; i < count; i++)
        seconds += times[i];
    double gflop = 3e-9 * mn_module_forward_flops(run->model, run->options.batch);
    return (mn_bench_result){
        .images_per_s_median = batch / median,
        .images_per_s_min = batch / times[count - 1],
        .images_per_s_max = batch / times[0],
        .step_ms_median = 1e3 * median,
        .step_ms_min = 1e3 * times[0],
        .step_ms_max = 1e3 * times[count - 1],
        .peak_tensor_bytes = mn_memory_stats_get(run->context).peak_bytes,
        .peak_rss_bytes = mn_peak_rss(),
        .gflop_per_step = gflop,
        .gflops = gflop / median,
        .threads = mn_context_info_get(run->context).threads,
        .seconds = seconds,
    };
}

mn_status mn_bench(const mn_bench_options *options, mn_bench_result *result, mn_error *error)
{
    mn_bench_options o = mn_bench_options_default();
    mn_error local = {MN_OK, ""};
    error = error ? error : &local;
    *error = local;
    MN_TRY(mn_options_copy(error, "mn_bench", &o, sizeof o, options));
    MN_TRY(check(&o, error));
    if (!result)
        return mn_error_set(error, MN_ERR_ARGUMENT, "bench: result is NULL");
    mn_run run = {.context = NULL};
    mn_dataset *dataset = NULL;
    mn_profile *profile = NULL;
    mn_list times = mn_list_new(&o.context.allocator, sizeof(double));
    mn_status status = open_run(&run, &o, &dataset, error);
    if (status == MN_OK)
        status = time_steps(&run, &o, &times, &profile);
    mn_profile_end(profile);
    if (status == MN_OK) {
        *result = make_result(&run, times.items, times.count);
        result->profile = profile;
    } else {
        mn_profile_free(profile);
    }
    if (status != MN_OK && error->status == MN_OK)
        mn_error_give(error, &run.error, run.context, status, "bench");
    mn_list_free(&times);
    mn_run_close(&run);
    mn_dataset_free(dataset);
    return status;
}
