/* Speed of single ops: every op case of the tests and the large ones, forward and forward with
 * backward from the sum of the result, in f32, f16 and bf16. One line a case: microseconds of the
 * fastest run, how many times faster than f32 the 16-bit formats are, and of large cases the rate
 * of forward with its share of the peak that is measured first (what fits the caches may have more
 * than all of memory's). Usage: bench_ops [part of a case's name, such as large] [milliseconds a
 * measurement] [threads] */
#include "bench/peak.h"
#include "tests/support_cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const mn_dtype formats[] = {MN_F32, MN_F16, MN_BF16};
enum { FORMATS = 3, LARGE_BYTES = 1 << 16 };

typedef struct bench {
    mn_context *ctx;
    double seconds; /* of a measurement */
    double gflops, gbytes;
} bench;

/* Of a case in one format; NaN: not measured. */
typedef struct timing {
    double forward, both; /* seconds */
    double bytes, flops;  /* of forward */
} timing;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool make_inputs(mn_context *ctx, const op_case *c, mn_dtype dtype, mn_tensor **in)
{
    for (int i = 0; i < mn_case_inputs(c); i++) {
        const case_input *input = &c->inputs[i];
        in[i] = mn_tensor_create(ctx, mn_case_dtype(input->kind, dtype), input->ndim, input->shape);
        int64_t count = mn_tensor_numel(in[i]);
        double *values = calloc((size_t)count + 1, sizeof *values);
        if (values == NULL)
            return false;
        mn_case_draw(c, i, dtype, count, values);
        mn_tensor_write_f64(in[i], values, count);
        free(values);
        if (mn_case_wants_gradient(c, i))
            mn_set_requires_grad(in[i], true);
    }
    return mn_ok(ctx);
}

/* Seconds of building the case and, if asked for, of backward. */
static double run_once(mn_context *ctx, const op_case *c, mn_tensor **in, bool backward)
{
    double start = now();
    mn_scope scope = mn_scope_begin(ctx);
    if (!backward && !c->forward_only)
        mn_no_grad_begin(ctx);
    mn_tensor *y = mn_case_build(ctx, in, c);
    if (backward) {
        mn_backward(mn_sum(y, 0, NULL, false), 1.0);
        for (int i = 0; i < mn_case_inputs(c); i++)
            mn_zero_grad(in[i]);
    }
    mn_synchronize(ctx);
    mn_scope_end(ctx, scope);
    return now() - start;
}

/* The fastest of at least three runs; the first one warms up. */
static double measure(const bench *b, const op_case *c, mn_tensor **in, bool backward)
{
    double best = (double)INFINITY;
    run_once(b->ctx, c, in, backward);
    double end = now() + b->seconds;
    for (int i = 0; (i < 3 || now() < end) && mn_ok(b->ctx); i++)
        best = fmin(best, run_once(b->ctx, c, in, backward));
    return mn_ok(b->ctx) ? best : (double)NAN;
}

static bool measure_peaks(bench *b, int threads)
{
    mn_workers *workers = mn_workers_create(NULL, threads, NULL, NULL, NULL);
    if (workers == NULL)
        return false;
    b->gflops = mn_peak_gflops(workers, threads);
    b->gbytes = mn_peak_gbytes(workers);
    mn_workers_free(workers);
    return true;
}

static timing time_case(const bench *b, const op_case *c, mn_dtype dtype)
{
    timing t = {(double)NAN, (double)NAN, 0.0, 0.0};
    mn_tensor *in[CASE_INPUTS] = {NULL};
    mn_scope scope = mn_scope_begin(b->ctx);
    if (make_inputs(b->ctx, c, dtype, in)) {
        mn_tensor *y = mn_case_build(b->ctx, in, c);
        t.flops = 2.0 * c->f[3] * (double)mn_tensor_numel(y);
        t.bytes = (double)mn_tensor_bytes(y);
        for (int i = 0; i < mn_case_inputs(c); i++)
            t.bytes += (double)mn_tensor_bytes(in[i]);
        t.forward = measure(b, c, in, false);
        if (!c->forward_only)
            t.both = measure(b, c, in, true);
    }
    mn_scope_end(b->ctx, scope);
    if (!mn_ok(b->ctx))
        fprintf(stderr, "%s, %s: %s\n", c->name, mn_dtype_name(dtype), mn_error_message(b->ctx));
    mn_error_clear(b->ctx);
    return t;
}

static void print_times(double f32, double f16, double bf16)
{
    if (isnan(f32) && isnan(f16) && isnan(bf16))
        printf("  %9s%36s", "-", "");
    else
        printf("  %9.1f %9.1f x%-5.2f %9.1f x%-5.2f", 1e6 * f32, 1e6 * f16, f32 / f16, 1e6 * bf16,
               f32 / bf16);
}

static void print_rate(double rate, double peak)
{
    printf(" %7.1f (%3.0f%%)", rate, 100 * rate / peak);
}

static void bench_case(const bench *b, const op_case *c)
{
    timing t[FORMATS];
    for (int i = 0; i < FORMATS; i++)
        t[i] = time_case(b, c, formats[i]);
    printf("%-30s", c->name);
    print_times(t[0].forward, t[1].forward, t[2].forward);
    print_times(t[0].both, t[1].both, t[2].both);
    bool flops = t[0].flops > 0.0;
    if (flops || t[0].bytes >= LARGE_BYTES)
        for (int i = 0; i < FORMATS; i++)
            print_rate(1e-9 * (flops ? t[i].flops : t[i].bytes) / t[i].forward,
                       flops ? b->gflops : b->gbytes);
    printf("%s\n", flops ? " GFLOP/s" : t[0].bytes >= LARGE_BYTES ? " GB/s" : "");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "";
    mn_context_options options = mn_context_options_default();
    mn_error error = {MN_OK, ""};
    options.threads = argc > 3 ? (int)strtol(argv[3], NULL, 10) : 0;
    bench b = {mn_context_create(&options, &error), argc > 2 ? 1e-3 * strtod(argv[2], NULL) : 0.02,
               0, 0};
    if (b.ctx == NULL) {
        fprintf(stderr, "%s\n", error.message);
        return EXIT_FAILURE;
    }
    mn_context_info info = mn_context_info_get(b.ctx);
    if (!measure_peaks(&b, info.threads))
        return EXIT_FAILURE;
    printf("%s, %s kernels, %d threads, peaks %.1f GFLOP/s and %.1f GB/s; microseconds, and times "
           "f32's speed\n",
           info.cpu, info.kernels, info.threads, b.gflops, b.gbytes);
    printf("%-30s", "case");
    for (int i = 0; i < 2; i++)
        printf("  %9s %9s%8s%9s%7s", i == 0 ? "f32" : "f32 both", i == 0 ? "f16" : "f16 both", "",
               i == 0 ? "bf16" : "bf16 both", "");
    printf("  forward's rate (share of the peak)\n");
    for (int i = 0; i < mn_case_count(); i++)
        if (strstr(mn_case_at(i)->name, part) != NULL)
            bench_case(&b, mn_case_at(i));
    for (const op_case *c = mn_cases_large; c->name != NULL; c++)
        if (strstr(c->name, part) != NULL)
            bench_case(&b, c);
    mn_context_free(b.ctx);
    return EXIT_SUCCESS;
}
