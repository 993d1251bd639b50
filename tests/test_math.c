/* tests/test_math.c: the f32 functions of core/math.h against the C library's in double, and the
 * same bits from scalar and vector code. MINIM_SLOW_TESTS=1 goes through all values of f32. */
#include "core/cpu.h"
#include "core/base.h"
#include "core/math.h"
#include "tests/support_suite.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

#define MAX_ULP       1.0
#define MAX_ULP_LOG1P 1.5

/* Distance in units of the last place of f32 around the exact result. */
static double distance(double exact, float got)
{
    float near = (float)exact;
    if (isnan(exact))
        return isnan(got) ? 0 : HUGE_VAL;
    if (isinf(near) || isinf(got))
        return near == got ? 0 : HUGE_VAL;
    int exponent = -200;
    if (exact != 0)
        frexp(exact, &exponent);
    return fabs((double)got - exact) / ldexp(1, exponent - 24 < -149 ? -149 : exponent - 24);
}

static uint64_t sample_step(void)
{
    const char *slow = getenv("MINIM_SLOW_TESTS");
    return slow && slow[0] == '1' && slow[1] == '\0' ? 1 : 211;
}

static void check_accuracy(const char *name, double bound, float (*got)(float),
                           double (*exact)(double))
{
    const uint64_t step = sample_step();
    double worst = 0;
    float where = 0;
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += step) {
        float x = mn_f32_from_bits((uint32_t)bits);
        double d = distance(exact((double)x), got(x));
        if (d > worst) {
            worst = d;
            where = x;
        }
    }
    ck_assert_msg(worst <= bound, "%s is off by %g ulp at %a", name, worst, (double)where);
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

START_TEST(accuracy)
{
    check_accuracy("expf", MAX_ULP, mn_expf, exp);
    check_accuracy("logf", MAX_ULP, mn_logf, log);
    check_accuracy("log1pf", MAX_ULP_LOG1P, mn_log1pf, log1p);
    check_accuracy("sigmoidf", 2.5, mn_sigmoidf, sigmoid);
    check_accuracy("tanhf", 1.5, mn_tanhf, tanh);
    check_accuracy("erff", 1.5, mn_erff, erf);
}
END_TEST

/* Bases and exponents of all signs and sizes, denser around where results are finite. */
START_TEST(pow_accuracy)
{
    const uint32_t step = sample_step() == 1 ? 10007 : 1000003;
    for (uint64_t i = 0; i < UINT64_C(1) << 32; i += step) {
        const uint32_t mixed = (uint32_t)i * 2654435761U;
        const float x = mn_f32_from_bits((uint32_t)i);
        const float log2x = x > 0 && isfinite(x) ? log2f(x) : 1;
        const float exponents[] = {mn_f32_from_bits(mixed), (float)(mixed % 41) - 20.0F,
                                   ((float)(mixed % 307) - 153.0F) / (log2x == 0 ? 1 : log2x)};
        for (int k = 0; k < 3; k++) {
            const float y = exponents[k];
            const double d = distance(pow((double)x, (double)y), mn_powf(x, y));
            ck_assert_msg(d <= 0.51, "pow is off by %g ulp at %a, %a", d, (double)x, (double)y);
        }
    }
}
END_TEST

static void check_value(float got, float want)
{
    if (isnan(want))
        ck_assert(isnan(got));
    else
        ck_assert_uint_eq(mn_f32_bits(got), mn_f32_bits(want));
}

START_TEST(exp_special)
{
    check_value(mn_expf(0.0F), 1.0F);
    check_value(mn_expf(-0.0F), 1.0F);
    check_value(mn_expf(1e-45F), 1.0F);
    check_value(mn_expf(INFINITY), INFINITY);
    check_value(mn_expf(-INFINITY), 0.0F);
    check_value(mn_expf(FLT_MAX), INFINITY);
    check_value(mn_expf(-FLT_MAX), 0.0F);
    check_value(mn_expf(NAN), NAN);
    check_value(mn_expf(-NAN), NAN);
    /* The borders: largest finite, first infinity, smallest subnormal, first zero. */
    ck_assert(isfinite(mn_expf(0x1.62e42ep6F)));
    check_value(mn_expf(0x1.62e430p6F), INFINITY);
    check_value(mn_expf(-0x1.9fe368p6F), 0x1p-149F);
    check_value(mn_expf(-0x1.9fe36ap6F), 0.0F);
    ck_assert(mn_expf(-90.0F) > 0.0F && mn_expf(-90.0F) < FLT_MIN);
}
END_TEST

START_TEST(log_special)
{
    check_value(mn_logf(1.0F), 0.0F);
    check_value(mn_logf(0.0F), -INFINITY);
    check_value(mn_logf(-0.0F), -INFINITY);
    check_value(mn_logf(INFINITY), INFINITY);
    check_value(mn_logf(-INFINITY), NAN);
    check_value(mn_logf(-1.0F), NAN);
    check_value(mn_logf(-1e-45F), NAN);
    check_value(mn_logf(NAN), NAN);
    ck_assert(distance(log(0x1p-149), mn_logf(0x1p-149F)) <= MAX_ULP);
    ck_assert(distance(log((double)FLT_MAX), mn_logf(FLT_MAX)) <= MAX_ULP);
}
END_TEST

START_TEST(log1p_special)
{
    check_value(mn_log1pf(0.0F), 0.0F);
    check_value(mn_log1pf(-1.0F), -INFINITY);
    check_value(mn_log1pf(INFINITY), INFINITY);
    check_value(mn_log1pf(-INFINITY), NAN);
    check_value(mn_log1pf(-1.5F), NAN);
    check_value(mn_log1pf(NAN), NAN);
    check_value(mn_log1pf(0x1p-149F), 0x1p-149F);
}
END_TEST

/* What functions of x do at values where nothing is rounded, and their signs of zero. */
START_TEST(other_special)
{
    static const float tiny = 1e-45F;
    check_value(mn_sigmoidf(0.0F), 0.5F);
    check_value(mn_sigmoidf(INFINITY), 1.0F);
    check_value(mn_sigmoidf(-INFINITY), 0.0F);
    check_value(mn_sigmoidf(FLT_MAX), 1.0F);
    check_value(mn_sigmoidf(-FLT_MAX), 0.0F);
    check_value(mn_sigmoidf(NAN), NAN);
    static float (*const odd[])(float) = {mn_tanhf, mn_erff};
    for (int i = 0; i < 2; i++) {
        check_value(odd[i](0.0F), 0.0F);
        check_value(odd[i](-0.0F), -0.0F);
        check_value(odd[i](tiny), tiny);
        check_value(odd[i](-tiny), -tiny);
        check_value(odd[i](INFINITY), 1.0F);
        check_value(odd[i](-INFINITY), -1.0F);
        check_value(odd[i](FLT_MAX), 1.0F);
        check_value(odd[i](-FLT_MAX), -1.0F);
        check_value(odd[i](NAN), NAN);
        check_value(odd[i](-NAN), NAN);
    }
}
END_TEST

/* Every pair of special values against C's. */
START_TEST(pow_special)
{
    static const float values[] = {0.0F,          1.0F,           0.5F,    2.0F,    3.0F,
                                   1.5F,          1e-45F,         1e38F,   FLT_MAX, INFINITY,
                                   NAN,           0x1.fffffep-1F, 8388607, 0x1p24F, 16777215,
                                   0x1.000002p0F, 4194303.5F};
    enum { COUNT = sizeof values / sizeof *values };
    for (int i = 0; i < 2 * COUNT; i++) {
        for (int j = 0; j < 2 * COUNT; j++) {
            const float x = i < COUNT ? values[i] : -values[i - COUNT];
            const float y = j < COUNT ? values[j] : -values[j - COUNT];
            const float want = powf(x, y), got = mn_powf(x, y);
            if (isfinite(want) && want != 0 && fabsf(want) != 1)
                ck_assert(distance(pow((double)x, (double)y), got) <= 0.51);
            else
                ck_assert_msg(isnan(want) ? isnan(got) : mn_f32_bits(got) == mn_f32_bits(want),
                              "%a ^ %a is %a, not %a", (double)x, (double)y, (double)got,
                              (double)want);
        }
    }
}
END_TEST

START_TEST(nan_payloads)
{
    const uint32_t in[] = {0x7F800001, 0xFF812345, 0x7FC00000, 0xFFFFFFFF};
    for (int i = 0; i < 4; i++) {
        float x = mn_f32_from_bits(in[i]);
        ck_assert_uint_eq(mn_f32_bits(mn_expf(x)), in[i] | 0x00400000);
        ck_assert_uint_eq(mn_f32_bits(mn_logf(x)), in[i] | 0x00400000);
        ck_assert(isnan(mn_log1pf(x)));
        ck_assert_uint_eq(mn_f32_bits(mn_relu_f32(x)) | 0x00400000, in[i] | 0x00400000);
    }
}
END_TEST

START_TEST(relu)
{
    check_value(mn_relu_f32(2.5F), 2.5F);
    check_value(mn_relu_f32(-2.5F), 0.0F);
    check_value(mn_relu_f32(0.0F), 0.0F);
    check_value(mn_relu_f32(-0.0F), 0.0F);
    check_value(mn_relu_f32(INFINITY), INFINITY);
    check_value(mn_relu_f32(-INFINITY), 0.0F);
    check_value(mn_relu_f32(1e-45F), 1e-45F);
}
END_TEST

START_TEST(finiteness)
{
    const float finite[] = {0.0F, -0.0F, 1.0F, -FLT_MAX, FLT_MAX, 1e-45F};
    for (int i = 0; i < 6; i++)
        ck_assert(mn_isfinite_f32(finite[i]) && mn_isfinite_f64((double)finite[i]));
    const float other[] = {INFINITY, -INFINITY, NAN, -NAN};
    for (int i = 0; i < 4; i++)
        ck_assert(!mn_isfinite_f32(other[i]) && !mn_isfinite_f64((double)other[i]));
    ck_assert(mn_isfinite_f64(DBL_MAX) && mn_isfinite_f64(5e-324));
    ck_assert(mn_isnan_f64((double)NAN) && mn_isnan_f64(-(double)NAN));
    ck_assert(!mn_isnan_f64((double)INFINITY) && !mn_isnan_f64(-(double)INFINITY));
    ck_assert(!mn_isnan_f64(DBL_MAX) && !mn_isnan_f64(-0.0));
    ck_assert(mn_is_within(0, 0, 1) && mn_is_within(1, 0, 1) && !mn_is_within(-1e-9, 0, 1));
    ck_assert(!mn_is_within(1.001, 0, 1) && !mn_is_within((double)NAN, 0, 1));
    ck_assert(!mn_is_finite_bits(0x7F800001) && mn_is_finite_bits(0xFF7FFFFF));
}
END_TEST

/* ---- scalar and vector code ------------------------------------------------------------------ */

typedef void (*row_fn)(size_t n, const float *x, float *y);

static void rows_exp(size_t n, const float *restrict x, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = mn_expf(x[i]);
}

static void rows_log(size_t n, const float *restrict x, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = mn_logf(x[i]);
}

/* Volatile: one value at a time. */
static void scalar_exp(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++) {
        volatile float one = x[i];
        y[i] = mn_expf(one);
    }
}

static void scalar_log(size_t n, const float *x, float *y)
{
    for (size_t i = 0; i < n; i++) {
        volatile float one = x[i];
        y[i] = mn_logf(one);
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void avx2_exp(size_t n, const float *restrict x,
                                                         float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = mn_expf(x[i]);
}

__attribute__((target("avx2,fma"))) static void avx2_log(size_t n, const float *restrict x,
                                                         float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = mn_logf(x[i]);
}
#endif

static void check_same(row_fn a, row_fn b)
{
    enum { N = 4096 };
    static float x[N], y[N], z[N];
    uint32_t bits = 0;
    for (int chunk = 0; chunk < 1024; chunk++) {
        for (int i = 0; i < N; i++, bits += 1021)
            x[i] = mn_f32_from_bits(bits);
        a(N, x, y);
        b(N, x, z);
        for (int i = 0; i < N; i++) {
            if (mn_f32_bits(y[i]) != mn_f32_bits(z[i]))
                ck_abort_msg("at %a", (double)x[i]);
        }
    }
}

START_TEST(same_bits)
{
    check_same(scalar_exp, rows_exp);
    check_same(scalar_log, rows_log);
#if defined(__x86_64__)
    if (mn_cpu_has_kernels(MN_KERNELS_AVX2)) {
        check_same(scalar_exp, avx2_exp);
        check_same(scalar_log, avx2_log);
    }
#endif
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("math");
    TCase *tests = tcase_create("math");
    tcase_add_test(tests, accuracy);
    tcase_add_test(tests, pow_accuracy);
    tcase_add_test(tests, exp_special);
    tcase_add_test(tests, log_special);
    tcase_add_test(tests, log1p_special);
    tcase_add_test(tests, other_special);
    tcase_add_test(tests, pow_special);
    tcase_add_test(tests, nan_payloads);
    tcase_add_test(tests, relu);
    tcase_add_test(tests, same_bits);
    tcase_set_timeout(tests, sample_step() == 1 ? 3600 : 100);
    suite_add_tcase(suite, tests);
    tests = tcase_create("finiteness"); /* holds under -ffast-math as well: check_fast_math.sh */
    tcase_add_test(tests, finiteness);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
