/* Winograd's convolutions against the direct kernels and f64: errors, which shapes they serve, bits
 * with any number of threads, and what is not finite. */
#include "core/core.h"
#include "ops/ops.h"
#include "tests/support_suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct shape {
    int64_t N, H, W, C, K, padding;
} shape;

/* F(4x4), whole tiles and not, all paddings; one with so many filters that threads share the
 * image's transforms, and so many channels that the weights' gradient has one leaf; F(2x2); more
 * results than a group has; images large enough to be fetched ahead; F(2x2) again; few tiles, which
 * threads share, and narrow panels of many channels; one line of more tiles than a block has;
 * padding of more than a line. */
static const shape served[] = {
    {17, 16, 16, 32, 16, 1},  {7, 13, 11, 32, 48, 1}, {3, 19, 18, 32, 32, 2},
    {100, 4, 4, 32, 80, 1},   {1, 34, 33, 32, 64, 1}, {17, 7, 7, 112, 32, 1},
    {64, 3, 3, 448, 144, 1},  {9, 11, 10, 48, 80, 0}, {4, 9, 13, 64, 80, 1},
    {15, 6, 5, 32, 128, 1},   {4, 15, 14, 64, 32, 0}, {17, 8, 7, 32, 144, 1},
    {129, 16, 16, 16, 16, 1}, {15, 8, 7, 48, 80, 0},  {2, 8, 5, 256, 256, 1},
    {1, 4, 260, 16, 16, 1},   {1, 33, 34, 16, 16, 7},
};
#define SHARED 6
#define FEW    14 /* the weights' gradient wants more tiles */
/* Channels, tiles, or too much of the tiles or taps outside of the image. */
static const shape refused[] = {{8, 16, 16, 8, 32, 1},
                                {8, 16, 16, 32, 24, 1},
                                {1, 4, 4, 64, 64, 1},
                                {90, 1, 1, 64, 64, 1},
                                {64, 1, 8, 16, 16, 2}};

typedef enum pass { FORWARD, BACKWARD_INPUT, BACKWARD_WEIGHT, PASS_COUNT } pass;
static const mn_op_id ops[] = {MN_OP_conv2d, MN_OP_conv2d_backward_input,
                               MN_OP_conv2d_backward_weight};

typedef struct problem {
    shape s;
    pass which;
    int64_t shapes[3][4]; /* of the operands and the result */
    int64_t counts[3];
    double *values[2];
} problem;

/* Numbers of few bits, which all dtypes hold, or of many; images as after ReLU. */
static void make(problem *p, const shape *s, pass which, bool fine)
{
    const int64_t P = s->H + 2 * s->padding - 2, Q = s->W + 2 * s->padding - 2;
    const int64_t all[3][4] = {{s->N, s->H, s->W, s->C}, {s->K, 3, 3, s->C}, {s->N, P, Q, s->K}};
    static const int order[PASS_COUNT][3] = {{0, 1, 2}, {2, 1, 0}, {2, 0, 1}};
    uint32_t state = 1;
    *p = (problem){.s = *s, .which = which};
    for (int i = 0; i < 3; i++) {
        memcpy(p->shapes[i], all[order[which][i]], sizeof all[0]);
        p->counts[i] = 1;
        for (int d = 0; d < 4; d++)
            p->counts[i] *= p->shapes[i][d];
    }
    for (int i = 0; i < 2; i++) {
        p->values[i] = malloc((size_t)p->counts[i] * sizeof(double));
        for (int64_t k = 0; k < p->counts[i]; k++) {
            state = state * 1664525U + 1013904223U;
            const int bits = fine ? 24 : 7;
            const double value = ldexp((double)(state >> (32 - bits)), 1 - bits) - 1;
            p->values[i][k] = order[which][i] == 0 ? fmax(value, 0) : value;
        }
    }
}

static void drop(problem *p)
{
    free(p->values[0]);
    free(p->values[1]);
}

typedef struct way {
    bool winograd;
    mn_kernel_set kernels;
    int threads;
    mn_dtype dtype;
    const char *device;
} way;

/* The result's elements, to be freed, and what its 16-bit stores were. */
static double *solve(const problem *p, const way *w, uint64_t stores[2])
{
    mn_context_options options = mn_context_options_default();
    options.winograd = w->winograd;
    options.kernels = w->kernels;
    options.threads = w->threads;
    options.device = w->device;
    mn_context *context = mn_context_create(&options, NULL);
    mn_store_counts counts = {0, 0};
    mn_tensor *in[3] = {0};
    ck_assert_ptr_nonnull(context);
    for (int i = 0; i < 2; i++) {
        in[i] = mn_tensor_create(context, w->dtype, 4, p->shapes[i]);
        ck_assert_int_eq(mn_tensor_write_f64(in[i], p->values[i], p->counts[i]), MN_OK);
    }
    if (p->which == FORWARD)
        in[2] = mn_full(context, w->dtype, 1, &p->s.K, 0.25);
    const int64_t extent[PASS_COUNT][2] = {{0, 0}, {p->s.H, p->s.W}, {3, 3}};
    mn_conv2d_attributes attributes = {{1, 1}, {p->s.padding, p->s.padding}, {1, 1}, 1, {0, 0}};
    memcpy(attributes.extent, extent[p->which], sizeof attributes.extent);
    context->stores = stores ? &counts : NULL;
    mn_tensor *result =
        mn_dispatch1(context, ops[p->which], in, p->which == FORWARD ? 3 : 2, &attributes);
    context->stores = NULL;
    double *values = malloc((size_t)p->counts[2] * sizeof(double));
    ck_assert_ptr_nonnull(result);
    ck_assert_int_eq(mn_tensor_read_f64(result, values, p->counts[2]), MN_OK);
    if (stores) {
        stores[0] = counts.stored;
        stores[1] = counts.lost;
    }
    mn_context_free(context);
    return values;
}

/* The result in f64, to be freed. The reference kernel would do, but takes a minute, and so would
 * this with every access checked. */
__attribute__((no_sanitize("address", "undefined"))) static double *solve_exactly(const problem *p)
{
    const shape *s = &p->s;
    const int64_t P = s->H + 2 * s->padding - 2, Q = s->W + 2 * s->padding - 2;
    double *result = malloc((size_t)p->counts[2] * sizeof *result);
    for (int64_t i = 0; i < p->counts[2]; i++)
        result[i] = p->which == FORWARD ? 0.25 : 0;
    double *x = p->which == FORWARD          ? p->values[0]
                : p->which == BACKWARD_INPUT ? result
                                             : p->values[1];
    double *w = p->which == BACKWARD_WEIGHT ? result : p->values[1];
    double *y = p->which == FORWARD ? result : p->values[0];
    for (int64_t i = 0; i < s->N * P * Q * 9; i++) {
        const int64_t point = i / 9, r = i / 3 % 3, t = i % 3;
        const int64_t h = point / Q % P + r - s->padding, v = point % Q + t - s->padding;
        if (h < 0 || h >= s->H || v < 0 || v >= s->W)
            continue;
        double *pixel = x + ((point / Q / P * s->H + h) * s->W + v) * s->C;
        for (int64_t k = 0; k < s->K; k++) {
            double *filter = w + ((k * 3 + r) * 3 + t) * s->C, *g = y + point * s->K + k;
            double sum[4] = {0};
            for (int64_t c = 0; c < s->C; c++)
                if (p->which == FORWARD)
                    sum[c % 4] += pixel[c] * filter[c];
                else if (p->which == BACKWARD_INPUT)
                    pixel[c] += *g * filter[c];
                else
                    filter[c] += *g * pixel[c];
            *g += sum[0] + sum[1] + sum[2] + sum[3];
        }
    }
    return result;
}

static double *solve_by(const problem *p, bool winograd, mn_kernel_set kernels, mn_dtype dtype)
{
    return solve(p, &(way){winograd, kernels, 2, dtype, "cpu"}, NULL);
}

static bool alike(const problem *p, const double *a, const double *b)
{
    return memcmp(a, b, (size_t)p->counts[2] * sizeof *a) == 0;
}

/* Largest and rms error. */
static void measure(const problem *p, const double *got, const double *exact, double error[2])
{
    error[0] = error[1] = 0;
    for (int64_t i = 0; i < p->counts[2]; i++) {
        const double e = fabs(got[i] - exact[i]);
        error[0] = fmax(error[0], e);
        error[1] += e * e;
    }
    error[1] = sqrt(error[1] / (double)p->counts[2]);
}

static void check_errors(const problem *p, const double *exact, mn_kernel_set kernels,
                         mn_dtype dtype)
{
    /* The error of 16-bit results is that of their rounding. */
    const double most = dtype == MN_F32 ? 4 : 1.01;
    double *direct = solve_by(p, false, kernels, dtype);
    double *winograd = solve_by(p, true, kernels, dtype), errors[2][2];
    measure(p, direct, exact, errors[0]);
    measure(p, winograd, exact, errors[1]);
    for (int i = 0; i < 2; i++)
        ck_assert_msg(errors[1][i] <= most * errors[0][i],
                      "%d x %d x %d x %d to %d, pass %d %s, kernels %d: error %d is %g, direct %g",
                      (int)p->s.N, (int)p->s.H, (int)p->s.W, (int)p->s.C, (int)p->s.K, p->which,
                      mn_dtype_name(dtype), (int)kernels, i, errors[1][i], errors[0][i]);
    ck_assert(dtype != MN_F32 || !alike(p, direct, winograd));
    free(direct);
    free(winograd);
}

START_TEST(errors)
{
    for (int i = 0; i < (int)COUNT(served) * 2; i++) {
        problem p;
        if (i == 2 * SHARED + 1 ||
            (_i == BACKWARD_WEIGHT && i / 2 == FEW)) /* the first takes long */
            continue;
        make(&p, &served[i / 2], (pass)_i, i % 2 == 0);
        double *exact = solve_exactly(&p);
        if (i % 2 == 0) {
            check_errors(&p, exact, MN_KERNELS_AUTO, MN_F32);
            if (i != 2 * SHARED)
                check_errors(&p, exact, MN_KERNELS_PORTABLE, MN_F32);
            if (i == 0 && mn_cpu_has_kernels(MN_KERNELS_AVX2))
                check_errors(&p, exact, MN_KERNELS_AVX2, MN_F32);
        } else {
            check_errors(&p, exact, MN_KERNELS_AUTO, MN_F16);
            check_errors(&p, exact, MN_KERNELS_PORTABLE, MN_BF16);
        }
        free(exact);
        drop(&p);
    }
}
END_TEST

START_TEST(other_shapes)
{
    for (size_t i = 0; i < COUNT(refused); i++) {
        problem p;
        make(&p, &refused[i], (pass)_i, true);
        double *direct = solve_by(&p, false, MN_KERNELS_AUTO, MN_F32);
        double *winograd = solve_by(&p, true, MN_KERNELS_AUTO, MN_F32);
        ck_assert_msg(alike(&p, direct, winograd), "shape %d pass %d", (int)i, _i);
        free(direct);
        free(winograd);
        drop(&p);
    }
}
END_TEST

START_TEST(threads)
{
    static const way ways[] = {{true, MN_KERNELS_AUTO, 2, MN_F32, "cpu"},
                               {true, MN_KERNELS_AUTO, 5, MN_F32, "cpu"},
                               {true, MN_KERNELS_AUTO, 3, MN_F32, "cpu-deferred"}};
    for (size_t i = 0; i < COUNT(served); i++) {
        problem p;
        make(&p, &served[i], (pass)_i, true);
        double *first = solve(&p, &(way){true, MN_KERNELS_AUTO, 1, MN_F32, "cpu"}, NULL);
        for (size_t t = 0; t < COUNT(ways); t++) {
            double *other = solve(&p, &ways[t], NULL);
            ck_assert_msg(alike(&p, first, other), "shape %d pass %d way %d", (int)i, _i, (int)t);
            free(other);
        }
        free(first);
        drop(&p);
    }
}
END_TEST

/* Not finite in the same places, and else as near as two ways to round a sum. */
static bool near(const problem *p, const double *a, const double *b)
{
    double largest = 0;
    bool same = true;
    for (int64_t i = 0; i < p->counts[2]; i++)
        if (isfinite(a[i]) && fabs(a[i]) > largest)
            largest = fabs(a[i]);
    for (int64_t i = 0; i < p->counts[2] && same; i++)
        same = isfinite(a[i]) ? fabs(a[i] - b[i]) <= 2e-3 * largest : !isfinite(b[i]);
    return same;
}

/* The direct kernels' results, to the bit where both work in the same register tile, as portable
 * ones do, and stores counted once. */
static void check_not_finite(problem *p, mn_dtype dtype, mn_kernel_set kernels)
{
    uint64_t counts[2][2];
    double *direct = solve(p, &(way){false, kernels, 2, dtype, "cpu"}, counts[0]);
    double *winograd = solve(p, &(way){true, kernels, 2, dtype, "cpu"}, counts[1]);
    const bool good =
        kernels == MN_KERNELS_PORTABLE ? alike(p, direct, winograd) : near(p, direct, winograd);
    ck_assert_msg(good, "%d x %d x %d x %d, pass %d, kernels %d", (int)p->s.N, (int)p->s.H,
                  (int)p->s.W, (int)p->s.C, p->which, (int)kernels);
    ck_assert_mem_eq(counts[0], counts[1], sizeof counts[0]);
    free(direct);
    free(winograd);
}

START_TEST(not_finite)
{
    static const double bad[] = {(double)NAN, (double)INFINITY, 3e38};
    /* Leaves, several passes, F(2x2), and no leaves. */
    static const int chosen[] = {1, 11, 13, 15};
    for (size_t i = 0; i < COUNT(chosen); i++)
        for (int operand = 0; operand < 2; operand++)
            for (size_t b = 0; b < COUNT(bad); b++) {
                const mn_dtype dtype = b == 1 ? MN_F16 : MN_F32;
                problem p;
                make(&p, &served[chosen[i]], (pass)_i, dtype == MN_F32);
                for (int64_t k = 0; k < 3; k++) /* in a corner, inside and at the end */
                    p.values[operand][k * (p.counts[operand] - 1) / 2] = bad[b];
                check_not_finite(&p, dtype, MN_KERNELS_PORTABLE);
                check_not_finite(&p, dtype, MN_KERNELS_AUTO);
                drop(&p);
            }
}
END_TEST

static Suite *winograd_suite(void)
{
    Suite *suite = suite_create("winograd");
    TCase *tests = tcase_create("winograd");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, errors, 0, PASS_COUNT);
    tcase_add_loop_test(tests, other_shapes, 0, PASS_COUNT);
    tcase_add_loop_test(tests, threads, 0, PASS_COUNT);
    tcase_add_loop_test(tests, not_finite, 0, PASS_COUNT);
    suite_add_tcase(suite, tests);
    return suite;
}

int main(void)
{
    return mn_test_run(winograd_suite(), CK_FORK_GETENV);
}
