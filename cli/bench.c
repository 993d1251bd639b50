/* minim bench and minim models: what training and models cost. */
#include "cli.h"

#include <math.h>
#include <string.h>

/* "synthetic:HxWxC:CLASSES" of --data, if it was given; six digits are more than any of the numbers
 * may have. Returns EXIT_OK or EXIT_USAGE. */
static int read_sizes(const settings *set, const char *command_name, mn_model_options *o)
{
    int used = 0;
    const char *data = set->train.data;
    if (!set->data_given || (sscanf(data, "synthetic:%6dx%6dx%6d:%6d%n", &o->height, &o->width,
                                    &o->channels, &o->classes, &used) == 4 &&
                             data[used] == '\0'))
        return EXIT_OK;
    return cli_say(EXIT_USAGE, "--data: %s takes synthetic:HxWxC:CLASSES, got \"%.200s\"",
                   command_name, data);
}

static double mebibytes(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

/* ---- bench ----------------------------------------------------------------------------------- */

/* Time of all calls of a direction, or of every one (-1), in seconds. */
static double time_of(const mn_profile *profile, int direction)
{
    double seconds = 0;
    mn_profile_row row;
    for (int64_t i = 0; mn_profile_get(profile, i, &row); i++)
        if (direction < 0 || row.direction == (mn_direction)direction)
            seconds += row.seconds;
    return seconds;
}

/* That part of it that casts take. */
static double time_of_casts(const mn_profile *profile)
{
    double seconds = 0;
    mn_profile_row row;
    for (int64_t i = 0; mn_profile_get(profile, i, &row); i++)
        if (strcmp(row.op, "cast") == 0)
            seconds += row.seconds;
    return seconds;
}

static void print_share(const char *name, double seconds, const mn_bench_result *r, double steps)
{
    printf("  %-39s %9.3f  %5.1f%%\n", name, 1e3 * seconds / steps, 1e2 * seconds / r->seconds);
}

static void print_profile(const mn_bench_result *r, double steps)
{
    mn_profile_row row;
    printf("\n  %-28s direction  calls   ms/step   share  GFLOP/s    GB/s\n", "op");
    for (int64_t i = 0; mn_profile_get(r->profile, i, &row); i++) {
        printf("  %-28s %-9s %6.4g %9.3f  %5.1f%%", row.op, mn_direction_name(row.direction),
               (double)row.calls / steps, 1e3 * row.seconds / steps,
               1e2 * row.seconds / r->seconds);
        if (row.flops > 0)
            printf("  %7.1f", 1e-9 * row.flops / row.seconds);
        else
            printf("  %7s", "");
        if (row.bytes > 0)
            printf(" %7.1f", 1e-9 * row.bytes / row.seconds);
        printf("\n");
    }
    for (int d = 0; d < 3; d++)
        print_share(mn_direction_name((mn_direction)d), time_of(r->profile, d), r, steps);
    print_share("rest: dispatch and host", r->seconds - time_of(r->profile, -1), r, steps);
    print_share("mean step", r->seconds, r, steps);
}

/* What half precision gains, or why not. */
static void print_gain(const mn_bench_options *o, const mn_bench_result *r,
                       const mn_bench_result *fp32)
{
    const double gain = fp32->step_ms_median / r->step_ms_median;
    const double casts = time_of_casts(r->profile) / r->seconds;
    printf(
        "\n  FP32 takes %.2f ms/step: with --amp %s %.2f times its throughput; casts take %.1f%%\n",
        fp32->step_ms_median, cli_amp_name(o->amp), gain, 100.0 * casts);
    if (gain < 1.0)
        printf("  slower than FP32: 16 bits save memory traffic, of which small models and batches "
               "have little;\n  a larger --batch, or FP32, may be faster\n");
}

/* 0: not counted. */
static void print_rate(const char *key, double count, double seconds)
{
    cli_json_measured(stdout, key, count > 0 ? 1e-9 * count / seconds : (double)NAN);
}

static void print_profile_json(const mn_bench_result *r, const mn_bench_result *fp32, double steps)
{
    mn_profile_row row;
    printf(",\"profile\":{\"step_ms\":%.6g,\"rest_ms\":%.6g,\"ops\":[", 1e3 * r->seconds / steps,
           1e3 * (r->seconds - time_of(r->profile, -1)) / steps);
    for (int64_t i = 0; mn_profile_get(r->profile, i, &row); i++) {
        printf("%s{\"op\":\"%s\",\"direction\":\"%s\",\"calls\":%.6g,\"ms\":%.6g,\"share\":%.6g",
               i > 0 ? "," : "", row.op, mn_direction_name(row.direction),
               (double)row.calls / steps, 1e3 * row.seconds / steps, row.seconds / r->seconds);
        print_rate("gflops", row.flops, row.seconds);
        print_rate("gb_per_s", row.bytes, row.seconds);
        printf("}");
    }
    printf("]");
    cli_json_measured(stdout, "cast_share", time_of_casts(r->profile) / r->seconds);
    cli_json_measured(stdout, "fp32_step_ms", fp32->step_ms_median);
    printf("}");
}

static void print_bench_json(const mn_bench_options *o, const mn_bench_result *r,
                             const mn_bench_result *fp32)
{
    printf("{\"model\":\"%s\",\"amp\":\"%s\",\"device\":\"%s\",\"threads\":%d,\"batch\":%lld,"
           "\"steps\":%lld,",
           o->model, cli_amp_name(o->amp), o->context.device != NULL ? o->context.device : "cpu",
           r->threads, (long long)o->batch, (long long)o->steps);
    printf("\"images_per_s\":{\"median\":%.6g,\"min\":%.6g,\"max\":%.6g},", r->images_per_s_median,
           r->images_per_s_min, r->images_per_s_max);
    printf("\"step_ms\":{\"median\":%.6g,\"min\":%.6g,\"max\":%.6g},", r->step_ms_median,
           r->step_ms_min, r->step_ms_max);
    printf("\"peak_tensor_bytes\":%llu,\"peak_rss_bytes\":%llu,\"gflop_per_step\":%.6g,"
           "\"gflops\":%.6g",
           (unsigned long long)r->peak_tensor_bytes, (unsigned long long)r->peak_rss_bytes,
           r->gflop_per_step, r->gflops);
    if (r->profile != NULL)
        print_profile_json(r, fp32, (double)o->steps);
    printf("}\n");
}

static void print_bench(const mn_bench_options *o, const mn_bench_result *r,
                        const mn_bench_result *fp32)
{
    printf("%s on %dx%dx%d images, amp %s, batch %lld, %s with %d thread%s, %lld steps\n", o->model,
           o->height, o->width, o->channels, cli_amp_name(o->amp), (long long)o->batch,
           o->context.device != NULL ? o->context.device : "cpu", r->threads,
           r->threads == 1 ? "" : "s", (long long)o->steps);
    printf("  images/s  %10.1f   (%.1f to %.1f)\n", r->images_per_s_median, r->images_per_s_min,
           r->images_per_s_max);
    printf("  ms/step   %10.2f   (%.2f to %.2f)\n", r->step_ms_median, r->step_ms_min,
           r->step_ms_max);
    printf("  GFLOP/s   %10.1f   (%.3g GFLOP a step)\n", r->gflops, r->gflop_per_step);
    printf("  peak MiB  %10.1f   in tensors; resident %.1f\n", mebibytes(r->peak_tensor_bytes),
           mebibytes(r->peak_rss_bytes));
    if (r->profile != NULL)
        print_profile(r, (double)o->steps);
    if (r->profile != NULL && o->amp != MN_F32)
        print_gain(o, r, fp32);
}

/* The run, and, if its profile is wanted, the same in FP32 to compare with. */
static mn_status run_bench(mn_bench_options *o, mn_bench_result *r, mn_bench_result *fp32,
                           mn_error *error)
{
    mn_bench_options plain = *o;
    plain.profile = false;
    plain.amp = MN_F32;
    if (o->profile && o->amp != MN_F32 && mn_bench(&plain, fp32, error) != MN_OK)
        return error->status;
    mn_status status = mn_bench(o, r, error);
    if (!o->profile || o->amp == MN_F32)
        *fp32 = *r;
    return status;
}

int cli_bench(settings *set)
{
    mn_bench_options options = mn_bench_options_default();
    mn_model_options sizes = mn_model_options_default();
    int usage = read_sizes(set, "bench", &sizes);
    if (usage != EXIT_OK)
        return usage;
    options.model = set->train.model;
    options.batch = set->train.batch;
    options.steps = set->train.steps > 0 ? set->train.steps : options.steps;
    options.warmup = set->warmup;
    options.amp = set->train.amp;
    options.height = sizes.height;
    options.width = sizes.width;
    options.channels = sizes.channels;
    options.classes = sizes.classes;
    options.profile = set->profile;
    options.context = set->train.context;
    options.context.winograd = !set->direct;
    options.context.fusion = !set->unfused;
    mn_bench_result r, fp32;
    mn_error error = {MN_OK, ""};
    if (run_bench(&options, &r, &fp32, &error) != MN_OK)
        return cli_fail_error("bench", &error);
    if (set->json)
        print_bench_json(&options, &r, &fp32);
    else
        print_bench(&options, &r, &fp32);
    mn_profile_free(r.profile);
    return EXIT_OK;
}

/* ---- models ---------------------------------------------------------------------------------- */

static void print_model_json(const char *name, const mn_model_summary *s, const char *error)
{
    printf("{\"model\":\"%s\"", name);
    if (error != NULL) {
        cli_json_text(stdout, "error", error);
    } else {
        printf(",\"parameters\":%lld,\"forward_flops\":%.15g,\"kept_bytes_f32\":%llu,"
               "\"kept_bytes_16bit\":%llu,\"inference_peak_bytes\":%llu",
               (long long)s->parameters, s->forward_flops, (unsigned long long)s->kept_bytes_f32,
               (unsigned long long)s->kept_bytes_16bit,
               (unsigned long long)s->inference_peak_bytes);
    }
    printf("}");
}

static void print_model(const char *name, const mn_model_summary *s, const char *error)
{
    if (error != NULL)
        printf("%s\n", error); /* begins with the model's name */
    else
        printf("%-10s %12lld %10.2f %13.1f %13.1f %15.1f\n", name, (long long)s->parameters,
               1e-6 * s->forward_flops, 1024.0 * mebibytes(s->kept_bytes_f32),
               1024.0 * mebibytes(s->kept_bytes_16bit),
               1024.0 * mebibytes(s->inference_peak_bytes));
}

/* A model that the images are too small for has a row that says so. */
static mn_status list_models(mn_context *context, const mn_model_options *sizes, bool json)
{
    printf(json ? "{\"height\":%d,\"width\":%d,\"channels\":%d,\"classes\":%d,\"models\":["
                : "One image of %dx%dx%d, %d classes:\n\n",
           sizes->height, sizes->width, sizes->channels, sizes->classes);
    if (!json)
        printf("%-10s %12s %10s %13s %13s %15s\n", "model", "parameters", "MFLOP", "kept FP32 KiB",
               "16 bit KiB", "inference KiB");
    for (int i = 0; mn_model_name(i) != NULL; i++) {
        mn_model_summary summary;
        const char *name = mn_model_name(i);
        mn_status status = mn_model_summarize(context, name, sizes, &summary);
        if (status != MN_OK && status != MN_ERR_SHAPE)
            return status;
        if (json && i > 0)
            printf(",");
        (json ? print_model_json : print_model)(
            name, &summary, status == MN_ERR_SHAPE ? mn_error_message(context) : NULL);
        mn_error_clear(context);
    }
    if (json)
        printf("]}\n");
    return MN_OK;
}

int cli_models(settings *set)
{
    mn_model_options sizes = mn_model_options_default();
    int usage = read_sizes(set, "models", &sizes);
    if (usage != EXIT_OK)
        return usage;
    mn_error error = {MN_OK, ""};
    mn_context *context = mn_context_create(&set->train.context, &error);
    if (context == NULL)
        return cli_fail_error("models", &error);
    int status = EXIT_OK;
    if (list_models(context, &sizes, set->json) != MN_OK)
        status = cli_fail("models", mn_error_message(context));
    mn_context_free(context);
    return status;
}
