/* train/bench.c: throughput and memory of whole training steps on synthetic data. A step counts
 * three forward passes' operations: backward makes two products where forward makes one. The
 * gradient with respect to the images, which nobody asks for, is counted all the same, so that
 * figures of different libraries compare. */
#include "train/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct bench {
    mn_bench_options options;
    mn_error error;
    mn_allocator allocator;
    mn_context *context;
    mn_dataset *dataset;
    mn_loader *loader;
    mn_batch batch; /* the one that every step takes */
    mn_module *model;
    mn_optimizer *optimizer;
    mn_grad_scaler *scaler;
    mn_trainer trainer;
    mn_list seconds; /* double, one a timed step */
} bench;

static mn_status read_options(bench *b, const mn_bench_options *given)
{
    mn_bench_options *o = &b->options;
    *o = mn_bench_options_default();
    MN_TRY(mn_options_copy(&b->error, "mn_bench", o, sizeof *o, given));
    if (!o->model)
        o->model = mn_bench_options_default().model;
    const struct {
        const char *name;
        int64_t value, smallest;
    } rules[] = {
        {"--batch", o->batch, 1},
        {"--steps", o->steps, 1},
        {"--warmup", o->warmup, 0},
        {"the image height", o->height, 1},
        {"the image width", o->width, 1},
        {"the number of channels", o->channels, 1},
        {"the number of classes", o->classes, 1},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (rules[i].value < rules[i].smallest)
            return mn_error_set(&b->error, MN_ERR_ARGUMENT, "%s must be at least %lld, got %lld",
                                rules[i].name, (long long)rules[i].smallest,
                                (long long)rules[i].value);
    }
    if (!mn_amp_name(o->amp))
        return mn_error_set(&b->error, MN_ERR_ARGUMENT, "--amp must be off, bf16 or fp16, got %s",
                            mn_dtype_name(o->amp));
    return MN_OK;
}

static mn_status open_batch(bench *b)
{
    const mn_bench_options *o = &b->options;
    mn_loader_options options = mn_loader_options_default();
    char spec[160];
    snprintf(spec, sizeof spec, "synthetic:%dx%dx%d:%d:%" PRId64, o->height, o->width, o->channels,
             o->classes, o->batch);
    b->dataset = mn_dataset_open(spec, true, &b->allocator, &b->error);
    if (!b->dataset)
        return b->error.status;
    options.batch = o->batch;
    options.shuffle = options.prefetch = false;
    options.allocator = b->allocator;
    MN_TRY(mn_dataset_normalization(b->dataset, 0, &options.normalization, &b->error));
    b->loader = mn_loader_create(b->dataset, &options, &b->error);
    if (!b->loader)
        return b->error.status;
    MN_TRY(mn_loader_start(b->loader, 0, 0, &b->error));
    return mn_loader_next(b->loader, &b->batch, &b->error);
}

static mn_status open_training(bench *b)
{
    const mn_bench_options *o = &b->options;
    mn_model_options model = mn_model_options_default();
    mn_sgd_options sgd = mn_sgd_options_default();
    mn_grad_scaler_options scaler = mn_grad_scaler_options_default();
    int count = 0;
    b->context = mn_context_create(&o->context, &b->error);
    if (!b->context)
        return b->error.status;
    model.height = o->height;
    model.width = o->width;
    model.channels = o->channels;
    model.classes = o->classes;
    b->model = mn_model_create(b->context, o->model, &model);
    MN_TRY(mn_error_status(b->context));
    mn_tensor *const *parameters = mn_module_parameters(b->model, &count);
    sgd.momentum = 0.9;
    b->optimizer = mn_sgd_create(b->context, parameters, count, &sgd);
    scaler.enabled = o->amp == MN_F16;
    b->scaler = mn_grad_scaler_create(b->context, &scaler);
    return mn_trainer_open(&b->trainer, b->context);
}

/* The ring is written as in training; nobody reads it. */
static mn_status one_step(bench *b, int64_t number)
{
    mn_step step = {
        .context = b->context,
        .model = b->model,
        .optimizer = b->optimizer,
        .scaler = b->scaler,
        .amp = b->options.amp,
        .weight = 1.0,
        .clip_norm = (double)INFINITY,
        .window_complete = true,
        .step = number,
        .trainer = &b->trainer,
    };
    MN_TRY(mn_trainer_micro_step(&step, &b->batch, 1, mn_step_default, NULL));
    return mn_synchronize(b->context);
}

static mn_status time_steps(bench *b)
{
    for (int64_t i = 0; i < b->options.warmup; i++)
        MN_TRY(one_step(b, i + 1));
    mn_memory_reset_peak(b->context);
    for (int64_t i = 0; i < b->options.steps; i++) {
        double begin = mn_clock_seconds();
        MN_TRY(one_step(b, b->options.warmup + i + 1));
        double seconds = mn_clock_seconds() - begin;
        if (!mn_list_append(&b->seconds, &seconds))
            return mn_error_set(&b->error, MN_ERR_MEMORY, "no memory for the times of steps");
    }
    return MN_OK;
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill_result(bench *b, mn_bench_result *result)
{
    double *times = b->seconds.items;
    int64_t count = b->seconds.count;
    double batch = (double)b->options.batch;
    qsort(times, (size_t)count, sizeof *times, compare_seconds);
    double median = 0.5 * (times[(count - 1) / 2] + times[count / 2]);
    double gflop = 3e-9 * mn_module_forward_flops(b->model, b->options.batch);
    *result = (mn_bench_result){
        .images_per_s_median = batch / median,
        .images_per_s_min = batch / times[count - 1],
        .images_per_s_max = batch / times[0],
        .step_ms_median = 1e3 * median,
        .step_ms_min = 1e3 * times[0],
        .step_ms_max = 1e3 * times[count - 1],
        .peak_tensor_bytes = mn_memory_stats_get(b->context).peak_bytes,
        .peak_rss_bytes = mn_peak_rss(),
        .gflop_per_step = gflop,
        .gflops = gflop / median,
        .threads = mn_context_info_get(b->context).threads,
    };
}

static void close_bench(bench *b)
{
    mn_loader_free(b->loader);
    mn_dataset_free(b->dataset);
    mn_trainer_close(&b->trainer);
    mn_grad_scaler_free(b->scaler);
    mn_optimizer_free(b->optimizer);
    mn_module_free(b->model);
    mn_context_free(b->context);
    mn_list_free(&b->seconds);
}

mn_status mn_bench(const mn_bench_options *options, mn_bench_result *result, mn_error *error)
{
    bench b = {.context = NULL};
    mn_status status = read_options(&b, options);
    if (status == MN_OK && !result)
        status = mn_error_set(&b.error, MN_ERR_ARGUMENT, "bench: result is NULL");
    b.allocator = mn_allocator_or_default(&b.options.context.allocator);
    b.seconds = (mn_list){.allocator = b.allocator, .item_bytes = sizeof(double)};
    if (status == MN_OK)
        status = open_batch(&b);
    if (status == MN_OK)
        status = open_training(&b);
    if (status == MN_OK)
        status = time_steps(&b);
    if (status == MN_OK)
        fill_result(&b, result);
    else if (b.error.status == MN_OK)
        mn_error_set(&b.error, status, "%s", mn_error_message(b.context));
    if (status != MN_OK && error)
        *error = b.error;
    close_bench(&b);
    return status;
}
