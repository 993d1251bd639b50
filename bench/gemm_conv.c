/* Speed of matrix products and convolutions: GFLOP/s of the layers of LeNet-5 and of a small CNN in
 * all passes and dtypes, beside the peak of a loop of multiply-adds measured in the same run, and
 * GB/s of reading the operands and writing the result once, beside that of a long copy.
 * Two kernel sets are timed in turns, so that what else the machine does slows both down; xR: the
 * second is R times as fast. Usage: gemm_conv [SET[,SET]] [batch] [repeats] [part of a name], with
 * sets portable, avx2, avx512, each also as SET-direct: without Winograd's algorithm. Default: the
 * best set without it and with it. */
#include "bench/median.h"
#include "bench/peak.h"
#include "core/core.h"
#include "ops/kernels.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MAX_THREADS  2
#define MAX_SETS     2
#define MAX_REPEATS  99

typedef mn_status (*prepare_fn)(const mn_call *call, mn_plan *plan, size_t *bytes);
typedef void (*run_fn)(const mn_call *call);

typedef struct bench {
    mn_kernel_set sets[MAX_SETS];
    bool winograd[MAX_SETS];
    int set_count;
    mn_workers *workers[MAX_THREADS];
    int64_t batch;
    int repeats;
    double peak[MAX_THREADS], bandwidth[MAX_THREADS];
} bench;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *must(void *memory)
{
    if (!memory) {
        fprintf(stderr, "no memory\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void fill(mn_view *view, mn_dtype dtype, int ndim, const int64_t *shape)
{
    *view = (mn_view){.present = true, .dtype = dtype, .ndim = ndim, .numel = 1};
    for (int d = 0; d < ndim; d++) {
        view->shape[d] = shape[d];
        view->numel *= shape[d];
    }
    view->data = must(malloc((size_t)view->numel * mn_dtype_size(dtype)));
    const mn_converter *to = &mn_converters(MN_KERNELS_PORTABLE)[dtype];
    unsigned state = 1;
    for (int64_t i = 0; i < view->numel; i++) {
        state = state * 1664525U + 1013904223U;
        float value = (float)(state >> 8) / (float)(1 << 23) - 1.0F;
        to->from_f32(1, &value, (char *)view->data + (size_t)i * mn_dtype_size(dtype));
    }
}

/* One kernel set's plan and times of the call. */
typedef struct timed {
    mn_cpu cpu;
    mn_plan plan;
    void *workspace;
    size_t workspace_bytes;
    double times[MAX_REPEATS];
} timed;

static void time_once(timed *t, mn_call *call, run_fn run, int repeat)
{
    call->cpu = &t->cpu;
    call->plan = t->plan;
    call->workspace = t->workspace;
    call->workspace_bytes = t->workspace_bytes;
    double start = now();
    run(call);
    t->times[repeat] = now() - start;
}

/* Median times of the call with each kernel set, in seconds. */
static void time_call(const bench *b, mn_call *call, int threads, prepare_fn prepare, run_fn run,
                      double medians[MAX_SETS])
{
    timed all[MAX_SETS];
    mn_fault fault = {0};
    call->fault = &fault;
    for (int s = 0; s < b->set_count; s++) {
        timed *t = &all[s];
        t->cpu = (mn_cpu){b->sets[s], mn_converters(b->sets[s]), b->workers[threads - 1], threads,
                          b->winograd[s]};
        call->cpu = &t->cpu;
        if (prepare(call, &t->plan, &t->workspace_bytes) != MN_OK ||
            posix_memalign(&t->workspace, 64, t->workspace_bytes + 64) != 0)
            must(NULL);
        time_once(t, call, run, 0);
    }
    for (int i = 0; i < b->repeats; i++)
        for (int s = 0; s < b->set_count; s++)
            time_once(&all[s], call, run, i);
    for (int s = 0; s < b->set_count; s++) {
        medians[s] = median(all[s].times, b->repeats);
        free(all[s].workspace);
    }
    call->cpu = NULL;
    call->fault = NULL;
}

static double bytes_of(const mn_view *view)
{
    return (double)view->numel * (double)mn_dtype_size(view->dtype);
}

static void report(const bench *b, mn_call *call, double flops, prepare_fn prepare, run_fn run)
{
    const double bytes = bytes_of(&call->in[0]) + bytes_of(&call->in[1]) + bytes_of(&call->out[0]);
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        double medians[MAX_SETS] = {0};
        time_call(b, call, threads, prepare, run, medians);
        for (int s = 0; s < b->set_count; s++)
            printf(" %6.1f (%2.0f%%)", flops / medians[s] / 1e9,
                   100 * flops / medians[s] / 1e9 / b->peak[threads - 1]);
        if (b->set_count > 1)
            printf(" x%.2f", medians[0] / medians[1]);
        const double rate = 1e-9 * bytes / medians[b->set_count - 1];
        printf(" %5.1f GB/s (%2.0f%%)", rate, 100 * rate / b->bandwidth[threads - 1]);
    }
    printf("\n");
    for (int i = 0; i < call->input_count; i++)
        free(call->in[i].data);
    free(call->out[0].data);
}

static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16};

typedef struct conv_layer {
    const char *name;
    int64_t size, in, out, kernel, padding, stride;
} conv_layer;

static const conv_layer conv_layers[] = {
    {"5x5   1->6   28x28", 28, 1, 6, 5, 2, 1},    {"5x5   6->16  14x14", 14, 6, 16, 5, 0, 1},
    {"3x3   1->32  28x28", 28, 1, 32, 3, 1, 1},   {"3x3  32->64  28x28", 28, 32, 64, 3, 1, 1},
    {"3x3  64->128 14x14", 14, 64, 128, 3, 1, 1}, {"3x3  16->16  32x32", 32, 16, 16, 3, 1, 1},
    {"3x3  32->32  16x16", 16, 32, 32, 3, 1, 1},  {"3x3  64->64   8x8 ", 8, 64, 64, 3, 1, 1},
    {"3x3  64->64  32x32", 32, 64, 64, 3, 1, 1},  {"3x3 128->128 16x16", 16, 128, 128, 3, 1, 1},
    {"3x3 256->256  8x8 ", 8, 256, 256, 3, 1, 1}, {"3x3 512->512  4x4 ", 4, 512, 512, 3, 1, 1},
    {"3x3   3->16  32x32", 32, 3, 16, 3, 1, 1},   {"3x3   8->8   16x16", 16, 8, 8, 3, 1, 1},
    {"3x3  16->32  32/2 ", 32, 16, 32, 3, 1, 2},  {"1x1  64->128 32/2 ", 32, 64, 128, 1, 0, 2},
};

static void bench_conv(const bench *b, const conv_layer *l, mn_dtype dtype, int pass)
{
    static const char *const names[] = {"forward", "input", "weight"};
    static const prepare_fn prepare[] = {mn_cpu_conv2d_prepare,
                                         mn_cpu_conv2d_backward_input_prepare,
                                         mn_cpu_conv2d_backward_weight_prepare};
    static const run_fn run[] = {mn_cpu_conv2d, mn_cpu_conv2d_backward_input,
                                 mn_cpu_conv2d_backward_weight};
    const int64_t points = (l->size + 2 * l->padding - l->kernel) / l->stride + 1;
    const int64_t x[] = {b->batch, l->size, l->size, l->in};
    const int64_t w[] = {l->out, l->kernel, l->kernel, l->in};
    const int64_t y[] = {b->batch, points, points, l->out};
    const int64_t *const shapes[][3] = {{x, w, y}, {y, w, x}, {y, x, w}};
    mn_call call = {.input_count = 2, .output_count = 1};
    fill(&call.in[0], dtype, 4, shapes[pass][0]);
    fill(&call.in[1], dtype, 4, shapes[pass][1]);
    fill(&call.out[0], dtype, 4, shapes[pass][2]);
    mn_conv2d_attributes attributes = {
        {l->stride, l->stride}, {l->padding, l->padding}, {1, 1}, 1, {0, 0}};
    for (int axis = 0; axis < 2 && pass > 0; axis++)
        attributes.extent[axis] = pass == 1 ? l->size : l->kernel;
    memcpy(call.attributes.bytes, &attributes, sizeof attributes);
    double flops = 2.0 * (double)(b->batch * points * points * l->out) *
                   (double)(l->kernel * l->kernel * l->in);
    printf("%s %-8s %-5s", l->name, names[pass], mn_dtype_name(dtype));
    report(b, &call, flops, prepare[pass], run[pass]);
}

typedef struct linear_layer {
    const char *name;
    int64_t in, out;
} linear_layer;

static const linear_layer linear_layers[] = {
    {"linear  400->120", 400, 120}, {"linear  120->84", 120, 84},      {"linear   84->10", 84, 10},
    {"linear 6272->10", 6272, 10},  {"linear 1024->1024", 1024, 1024},
};

static void bench_linear(const bench *b, const linear_layer *l, mn_dtype dtype, int pass)
{
    static const char *const names[] = {"forward", "input", "weight"};
    const int64_t x[] = {b->batch, l->in}, w[] = {l->out, l->in}, y[] = {b->batch, l->out};
    const int64_t *const shapes[][3] = {{x, w, y}, {y, w, x}, {y, x, w}};
    mn_call call = {.input_count = 2, .output_count = 1};
    for (int i = 0; i < 2; i++)
        fill(&call.in[i], dtype, 2, shapes[pass][i]);
    fill(&call.out[0], dtype, 2, shapes[pass][2]);
    mn_matmul_attributes attributes = {pass == 2, 0};
    memcpy(call.attributes.bytes, &attributes, sizeof attributes);
    printf("%-18s %-8s %-5s", l->name, names[pass], mn_dtype_name(dtype));
    report(b, &call, 2.0 * (double)(b->batch * l->in * l->out),
           pass == 0 ? mn_cpu_linear_prepare : mn_cpu_matmul_prepare,
           pass == 0 ? mn_cpu_linear : mn_cpu_matmul);
}

/* "SET" or "SET,SET", each with "-direct" or without; false if there is no such set here. */
static bool read_sets(bench *b, const char *text)
{
    static const char *const names[] = {[MN_KERNELS_REFERENCE] = "reference",
                                        [MN_KERNELS_PORTABLE] = "portable",
                                        [MN_KERNELS_AVX2] = "avx2",
                                        [MN_KERNELS_AVX512] = "avx512"};
    for (b->set_count = 0; *text != '\0'; b->set_count++) {
        const size_t length = strcspn(text, ","), name = strcspn(text, ",-");
        const bool direct = length == name + 7 && strncmp(text + name, "-direct", 7) == 0;
        int set = MN_KERNELS_PORTABLE;
        while (set <= MN_KERNELS_AVX512 &&
               (strlen(names[set]) != name || strncmp(names[set], text, name) != 0))
            set++;
        if (set > MN_KERNELS_AVX512 || b->set_count == MAX_SETS || (length != name && !direct) ||
            !mn_cpu_has_kernels((mn_kernel_set)set))
            return false;
        b->sets[b->set_count] = (mn_kernel_set)set;
        b->winograd[b->set_count] = !direct;
        text += length + (text[length] == ',');
    }
    return b->set_count > 0;
}

int main(int argc, char **argv)
{
    const mn_kernel_set best = mn_cpu_best_kernels();
    bench b = {
        .sets = {best, best}, .winograd = {false, true}, .set_count = 2, .batch = 64, .repeats = 7};
    const char *part = argc > 4 ? argv[4] : "";
    bool good = argc <= 1 || read_sets(&b, argv[1]);
    if (argc > 2)
        b.batch = strtol(argv[2], NULL, 10);
    if (argc > 3)
        b.repeats = (int)strtol(argv[3], NULL, 10);
    if (!good || b.batch < 1 || b.repeats < 1 || b.repeats > MAX_REPEATS) {
        fprintf(stderr,
                "usage: %s [SET[,SET]] [batch] [repeats] [part of a name]; sets: portable, avx2, "
                "avx512\n",
                argv[0]);
        return EXIT_FAILURE;
    }
    for (int t = 0; t < MAX_THREADS; t++) {
        b.workers[t] = must(mn_workers_create(NULL, t + 1, NULL, NULL, NULL));
        b.peak[t] = mn_peak_gflops(b.workers[t], t + 1);
        b.bandwidth[t] = mn_peak_gbytes(b.workers[t]);
    }
    printf("batch %d; GFLOP/s (share of the peak), GB/s of the last set (share)", (int)b.batch);
    for (int t = 0; t < MAX_THREADS; t++)
        printf("%s %d thread%s: peaks %.1f GFLOP/s, %.1f GB/s", t == 0 ? " with" : ";", t + 1,
               t == 0 ? "" : "s", b.peak[t], b.bandwidth[t]);
    printf("\n");
    for (size_t i = 0; i < COUNT(conv_layers); i++)
        for (int pass = 0; pass < 3 && strstr(conv_layers[i].name, part); pass++)
            for (size_t d = 0; d < COUNT(dtypes); d++)
                bench_conv(&b, &conv_layers[i], dtypes[d], pass);
    for (size_t i = 0; i < COUNT(linear_layers); i++)
        for (int pass = 0; pass < 3 && strstr(linear_layers[i].name, part); pass++)
            for (size_t d = 0; d < COUNT(dtypes); d++)
                bench_linear(&b, &linear_layers[i], dtypes[d], pass);
    for (int t = 0; t < MAX_THREADS; t++)
        mn_workers_free(b.workers[t]);
    return EXIT_SUCCESS;
}
