/* tests/test_convert.c: data types and conversions of 16-bit floats. The oracle knows only the
 * values of the 16-bit patterns, as doubles, and the midpoints between them. MINIM_SLOW_TESTS=1 in
 * the environment goes through all 2^32 values of f32. */
#include "core/cpu.h"
#include "core/half.h"
#include "minim.h"
#include "tests/support_suite.h"

#include <check.h>
#include <fenv.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

typedef struct format {
    const char *name;
    mn_dtype dtype;
    int exponent_bits, mantissa_bits;
    double *middle; /* [infinity]: between the values of patterns i and i + 1 */
    unsigned infinity;
} format;

static format f16 = {"f16", MN_F16, 5, 10, NULL, 0x7C00};
static format bf16 = {"bf16", MN_BF16, 8, 7, NULL, 0x7F80};

/* Value of a positive pattern; infinity counts as the next power of two. */
static double pattern_value(const format *f, unsigned pattern)
{
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    int exponent = (int)(pattern >> f->mantissa_bits);
    double mantissa = pattern & ((1U << f->mantissa_bits) - 1);
    if (exponent == 0)
        return ldexp(mantissa, 1 - bias - f->mantissa_bits);
    return ldexp(mantissa + (1 << f->mantissa_bits), exponent - bias - f->mantissa_bits);
}

static void make_middles(format *f)
{
    f->middle = malloc(f->infinity * sizeof *f->middle);
    ck_assert_ptr_nonnull(f->middle);
    for (unsigned i = 0; i < f->infinity; i++)
        f->middle[i] = (pattern_value(f, i) + pattern_value(f, i + 1)) / 2;
}

static void set_up(void)
{
    make_middles(&f16);
    make_middles(&bf16);
}

static void tear_down(void)
{
    free(f16.middle);
    free(bf16.middle);
}

/* The nearest pattern, the even one of two. `*from` is where to look first: any lower bound. */
static uint16_t nearest(const format *f, double x, unsigned *from)
{
    unsigned sign = signbit(x) ? 0x8000 : 0;
    double size = fabs(x);
    unsigned i = *from;
    while (i < f->infinity && size > f->middle[i])
        i++;
    *from = i;
    if (i < f->infinity && size == f->middle[i] && (i & 1))
        i++;
    return (uint16_t)(sign | i);
}

static unsigned lower_bound(const format *f, double size)
{
    unsigned low = 0, high = f->infinity;
    while (low < high) {
        unsigned half = (low + high) / 2;
        if (size > f->middle[half])
            low = half + 1;
        else
            high = half;
    }
    return low;
}

/* What narrowing x must give. `top` holds the bits of sign and payload that a NaN keeps. */
static uint16_t oracle(const format *f, double x, uint16_t top, unsigned *from)
{
    if (isnan(x))
        return (uint16_t)(top | f->infinity | 1U << (f->mantissa_bits - 1));
    return nearest(f, x, from);
}

static uint16_t nan_bits_f32(const format *f, uint32_t bits)
{
    uint32_t payload = (bits & 0x7FFFFF) >> (23 - f->mantissa_bits);
    return (uint16_t)((bits >> 16 & 0x8000) | payload);
}

static uint16_t from_f32(const format *f, float x)
{
    return f->dtype == MN_F16 ? mn_f16_from_f32(x).bits : mn_bf16_from_f32(x).bits;
}

static uint16_t from_f64(const format *f, double x)
{
    return f->dtype == MN_F16 ? mn_f16_from_f64(x).bits : mn_bf16_from_f64(x).bits;
}

static float to_f32(const format *f, uint16_t bits)
{
    return f->dtype == MN_F16 ? mn_f16_to_f32((mn_f16){bits}) : mn_bf16_to_f32((mn_bf16){bits});
}

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525U + 1013904223U;
    return *state ^ *state >> 15;
}

START_TEST(dtypes)
{
    const struct {
        mn_dtype dtype;
        const char *name;
        size_t size;
        bool is_float;
    } rows[] = {{MN_F64, "f64", 8, true},   {MN_F32, "f32", 4, true},  {MN_F16, "f16", 2, true},
                {MN_BF16, "bf16", 2, true}, {MN_I64, "i64", 8, false}, {MN_I32, "i32", 4, false},
                {MN_U8, "u8", 1, false}};
    ck_assert_uint_eq(sizeof rows / sizeof *rows, MN_DTYPE_COUNT);
    for (int i = 0; i < MN_DTYPE_COUNT; i++) {
        ck_assert_str_eq(mn_dtype_name(rows[i].dtype), rows[i].name);
        ck_assert_uint_eq(mn_dtype_size(rows[i].dtype), rows[i].size);
        ck_assert_int_eq(mn_dtype_is_float(rows[i].dtype), rows[i].is_float);
    }
    const int wrong[] = {-1, MN_DTYPE_COUNT, 1000};
    for (int i = 0; i < 3; i++) {
        ck_assert_str_eq(mn_dtype_name((mn_dtype)wrong[i]), "?");
        ck_assert_uint_eq(mn_dtype_size((mn_dtype)wrong[i]), 0);
        ck_assert(!mn_dtype_is_float((mn_dtype)wrong[i]));
    }
}
END_TEST

START_TEST(known_f16)
{
    const struct {
        float x;
        uint16_t bits;
    } rows[] = {
        {65504.0F, 0x7BFF},        {65519.996F, 0x7BFF},
        {65520.0F, 0x7C00},        {0x1p-24F, 0x0001},
        {0x1p-25F, 0x0000},        {0x1.000002p-25F, 0x0001},
        {-0x1p-25F, 0x8000},       {0x1p-14F, 0x0400},
        {0x1.ffbp-15F, 0x03FF},    {0x1.ffcp-15F, 0x0400},
        {2049.0F, 0x6800},         {2051.0F, 0x6802},
        {1.0F + 0x1p-11F, 0x3C00}, {1.0F + 3 * 0x1p-11F, 0x3C02},
        {-1e9F, 0xFC00},           {1e-8F, 0x0000},
        {1e-7F, 0x0002},           {0.0F, 0x0000},
        {-0.0F, 0x8000},           {INFINITY, 0x7C00},
        {-INFINITY, 0xFC00},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_msg(from_f32(&f16, rows[i].x) == rows[i].bits, "%a", (double)rows[i].x);
    ck_assert_uint_eq(mn_f16_from_f32(mn_f32_from_bits(0x7F800001)).bits, 0x7E00);
    ck_assert_uint_eq(mn_f16_from_f32(mn_f32_from_bits(0xFF802001)).bits, 0xFE01);
    ck_assert_uint_eq(mn_f16_from_f64(1 + 0x1p-11 + 0x1p-30).bits, 0x3C01);
    ck_assert_uint_eq(mn_f16_from_f32((float)(1 + 0x1p-11 + 0x1p-30)).bits, 0x3C00);
    mn_f16 sum = {0};
    for (int i = 0; i < 4096; i++)
        sum = mn_f16_from_f32(mn_f16_to_f32(sum) + 1.0F);
    ck_assert(mn_f16_to_f32(sum) == 2048.0F);
}
END_TEST

START_TEST(known_bf16)
{
    const struct {
        float x;
        uint16_t bits;
    } rows[] = {
        {1.0F + 0x1p-8F, 0x3F80},
        {1.0F + 3 * 0x1p-8F, 0x3F82},
        {0.2691408770292272F, 0x3E8A},
        {0x1.fffffep127F, 0x7F80},
        {257.0F, 0x4380},
        {259.0F, 0x4382},
        {0.999F, 0x3F80},
        {1.0F - 0.00196F, 0x3F7F},
        {0x1p-133F, 0x0001},
        {0x1p-134F, 0x0000},
        {0x1.8p-133F, 0x0002},
        {-0.0F, 0x8000},
        {INFINITY, 0x7F80},
        {-INFINITY, 0xFF80},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_msg(from_f32(&bf16, rows[i].x) == rows[i].bits, "%a", (double)rows[i].x);
    ck_assert_uint_eq(mn_bf16_from_f32(mn_f32_from_bits(0x7F800001)).bits, 0x7FC0);
    ck_assert_uint_eq(mn_bf16_from_f32(mn_f32_from_bits(0x7FFF8C22)).bits, 0x7FFF);
    ck_assert_uint_eq(mn_bf16_from_f64(1 + 0x1p-8 + 0x1p-40).bits, 0x3F81);
    ck_assert_uint_eq(mn_bf16_from_f32((float)(1 + 0x1p-8 + 0x1p-40)).bits, 0x3F80);
    mn_bf16 sum = {0};
    for (int i = 0; i < 4096; i++)
        sum = mn_bf16_from_f32(mn_bf16_to_f32(sum) + 1.0F);
    ck_assert(mn_bf16_to_f32(sum) == 256.0F);
}
END_TEST

static void check_round_trip(const format *f)
{
    for (unsigned i = 0; i < 65536; i++) {
        uint16_t bits = (uint16_t)i, want = bits;
        unsigned magnitude = i & 0x7FFF;
        float wide = to_f32(f, bits);
        if (magnitude > f->infinity) {
            ck_assert(isnan(wide));
            want = (uint16_t)(bits | 1U << (f->mantissa_bits - 1));
        } else {
            double value =
                magnitude == f->infinity ? (double)INFINITY : pattern_value(f, magnitude);
            ck_assert_msg(fabs((double)wide) == value, "%s 0x%04X", f->name, i);
            ck_assert_int_eq(signbit(wide) != 0, i >> 15);
        }
        ck_assert_msg(from_f32(f, wide) == want, "%s 0x%04X", f->name, i);
        ck_assert_msg(from_f64(f, (double)wide) == want, "%s 0x%04X from f64", f->name, i);
    }
    /* NaN: sign and payload, in place. */
    ck_assert_uint_eq(mn_f32_bits(mn_f16_to_f32((mn_f16){0xFC01})), 0xFFC02000);
    ck_assert_uint_eq(mn_f32_bits(mn_f16_to_f32((mn_f16){0x7E55})), 0x7FCAA000);
    ck_assert_uint_eq(mn_f32_bits(mn_bf16_to_f32((mn_bf16){0xFFD5})), 0xFFD50000);
}

START_TEST(round_trip)
{
    check_round_trip(&f16);
    check_round_trip(&bf16);
}
END_TEST

static void check_one_f32(const format *f, uint32_t bits)
{
    float x = mn_f32_from_bits(bits);
    unsigned from = isnan(x) ? 0 : lower_bound(f, fabs((double)x));
    uint16_t want = oracle(f, (double)x, nan_bits_f32(f, bits), &from);
    uint16_t got = from_f32(f, x);
    if (got != want)
        ck_abort_msg("%s of 0x%08X: 0x%04X, not 0x%04X", f->name, bits, got, want);
}

/* Every exponent with mantissas at every rounding border. */
static size_t border_values(uint32_t *out)
{
    static const uint32_t mantissas[] = {
        0,        1,        0x0FFF,   0x1000,   0x1001,   0x1FFF,   0x2000,   0x2001,   0x3000,
        0x7FFF,   0x8000,   0x8001,   0xFFFF,   0x10000,  0x18000,  0x18001,  0x3FFFFF, 0x400000,
        0x400001, 0x7FDFFF, 0x7FEFFF, 0x7FF000, 0x7F7FFF, 0x7F8000, 0x7FFFFF, 0x555555, 0x2AAAAA};
    size_t n = 0;
    for (uint32_t top = 0; top < 512; top++) {
        for (size_t i = 0; i < sizeof mantissas / sizeof *mantissas; i++)
            out[n++] = top << 23 | mantissas[i];
    }
    return n;
}
#define BORDERS (512 * 27)

START_TEST(against_oracle)
{
    uint32_t *border = malloc(BORDERS * sizeof *border);
    ck_assert_ptr_nonnull(border);
    ck_assert_uint_eq(border_values(border), BORDERS);
    uint32_t random = 7;
    for (int i = 0; i < BORDERS; i++) {
        check_one_f32(&f16, border[i]);
        check_one_f32(&bf16, border[i]);
    }
    for (int i = 0; i < 1 << 20; i++) {
        check_one_f32(&f16, next_random(&random));
        check_one_f32(&bf16, next_random(&random));
        /* Exponents around f16's range are rare among random bits. */
        check_one_f32(&f16, (100U << 23) + next_random(&random) % (44U << 23));
    }
    free(border);
}
END_TEST

/* Every midpoint and its neighbours in f64: what going through f32 would get wrong. */
static void check_f64(const format *f)
{
    for (unsigned i = 0; i < f->infinity; i++) {
        double middle = f->middle[i];
        uint16_t even = (uint16_t)(i + (i & 1));
        ck_assert_uint_eq(from_f64(f, middle), even);
        ck_assert_uint_eq(from_f64(f, nextafter(middle, 0)), i);
        ck_assert_uint_eq(from_f64(f, nextafter(middle, HUGE_VAL)), i + 1);
        ck_assert_uint_eq(from_f64(f, -nextafter(middle, HUGE_VAL)), 0x8000 | (i + 1));
    }
    uint32_t random = 3;
    for (int i = 0; i < 1 << 20; i++) {
        uint64_t bits = (uint64_t)next_random(&random) << 32 | next_random(&random);
        if (i & 1) /* near the range of the formats */
            bits = (bits & UINT64_C(0x800FFFFFFFFFFFFF)) | (uint64_t)(1023 - 140 + i % 280) << 52;
        double x;
        memcpy(&x, &bits, sizeof x);
        unsigned from = isnan(x) ? 0 : lower_bound(f, fabs(x));
        uint64_t payload = (bits & UINT64_C(0xFFFFFFFFFFFFF)) >> (52 - f->mantissa_bits);
        uint16_t top = (uint16_t)((bits >> 48 & 0x8000) | payload);
        if (from_f64(f, x) != oracle(f, x, top, &from))
            ck_abort_msg("%s of %a", f->name, x);
    }
    ck_assert_uint_eq(from_f64(f, HUGE_VAL), f->infinity);
    ck_assert_uint_eq(from_f64(f, -1e308), 0x8000 | f->infinity);
    ck_assert_uint_eq(from_f64(f, 0x1p-1074), 0);
    ck_assert_uint_eq(from_f64(f, -0.0), 0x8000);
}

START_TEST(from_doubles)
{
    check_f64(&f16);
    check_f64(&bf16);
}
END_TEST

/* ---- rows ------------------------------------------------------------------------------------ */

static const mn_converter *tables[3]; /* portable and those of vectors that can run */
static int table_count;

static void list_tables(void)
{
    set_up();
    tables[0] = mn_converters(MN_KERNELS_PORTABLE);
    table_count = 1;
    ck_assert_ptr_eq(mn_converters(MN_KERNELS_REFERENCE), tables[0]);
    for (int set = MN_KERNELS_PORTABLE + 1; set < MN_KERNELS_COUNT; set++)
        if (mn_cpu_has_kernels((mn_kernel_set)set)) {
            tables[table_count++] = mn_converters((mn_kernel_set)set);
            ck_assert_ptr_ne(tables[table_count - 1], tables[table_count - 2]);
        }
    ck_assert_ptr_eq(mn_converters(MN_KERNELS_AUTO), mn_converters(mn_cpu_best_kernels()));
}

START_TEST(table_entries)
{
    for (int t = 0; t < table_count; t++) {
        for (int d = 0; d < MN_DTYPE_COUNT; d++) {
            bool there = d == MN_F32 || d == MN_F16 || d == MN_BF16;
            ck_assert_int_eq(tables[t][d].to_f32 != NULL, there);
            ck_assert_int_eq(tables[t][d].from_f32 != NULL, there);
            if (there) {
                tables[t][d].to_f32(0, NULL, NULL);
                tables[t][d].from_f32(0, NULL, NULL);
            }
        }
        uint32_t in[5] = {0x7F800001, 0x80000000, 1, 0xFFFFFFFF, 0x3F800000}, out[5], back[5];
        tables[t][MN_F32].from_f32(5, (const float *)(const void *)in, out);
        tables[t][MN_F32].to_f32(5, out, (float *)(void *)back);
        ck_assert_mem_eq(in, out, sizeof in);
        ck_assert_mem_eq(in, back, sizeof in);
    }
}
END_TEST

static void check_rows(const format *f, size_t n, const uint32_t *bits)
{
    float *wide = malloc(n * sizeof *wide);
    uint16_t *half = malloc(n * sizeof *half);
    ck_assert(wide && half);
    for (int t = 0; t < table_count; t++) {
        memcpy(wide, bits, n * sizeof *wide);
        tables[t][f->dtype].from_f32(n, wide, half);
        for (size_t i = 0; i < n; i++) {
            uint16_t want = from_f32(f, mn_f32_from_bits(bits[i]));
            if (half[i] != want)
                ck_abort_msg("table %d: %s of 0x%08X", t, f->name, bits[i]);
        }
        for (size_t i = 0; i < n; i++)
            half[i] = (uint16_t)i;
        tables[t][f->dtype].to_f32(n, half, wide);
        for (size_t i = 0; i < n; i++) {
            uint32_t want = mn_f32_bits(to_f32(f, half[i]));
            if (mn_f32_bits(wide[i]) != want)
                ck_abort_msg("table %d: %s 0x%04X", t, f->name, half[i]);
        }
    }
    free(wide);
    free(half);
}

START_TEST(long_rows)
{
    const size_t n = 1 << 22;
    uint32_t *bits = malloc((n + BORDERS) * sizeof *bits);
    ck_assert_ptr_nonnull(bits);
    uint32_t random = 11;
    for (size_t i = 0; i < n; i++)
        bits[i] = i & 1 ? next_random(&random) : (100U << 23) + next_random(&random) % (44U << 23);
    border_values(bits + n);
    check_rows(&f16, n + BORDERS, bits);
    check_rows(&bf16, n + BORDERS, bits);
    free(bits);
}
END_TEST

/* One row at one misalignment, in blocks that end with the row, so that a sanitizer sees a read or
 * write outside; bytes around the result are watched in any build. */
static void check_tail(const mn_converter *converter, const format *f, size_t n, size_t shift)
{
    float *wide = malloc((n + shift) * sizeof *wide + 1);
    uint16_t *half = malloc((n + shift + 8) * sizeof *half);
    uint16_t *exact = malloc((n + shift) * sizeof *exact + 1);
    float *back = malloc((n + shift + 8) * sizeof *back);
    ck_assert(wide && half && exact && back);
    memset(half, 0x5A, (n + shift + 8) * sizeof *half);
    memset(back, 0x5A, (n + shift + 8) * sizeof *back);
    for (size_t i = 0; i < n; i++)
        wide[shift + i] = 0.37F * (float)(i + 1) - 3.0F;
    converter->from_f32(n, wide + shift, half + shift);
    memcpy(exact, half, (n + shift) * sizeof *exact);
    converter->to_f32(n, exact + shift, back + shift);
    for (size_t i = 0; i < n + shift + 8; i++) {
        bool inside = i >= shift && i < n + shift;
        uint16_t want = inside ? from_f32(f, wide[i]) : 0x5A5A;
        uint32_t want_back = inside ? mn_f32_bits(to_f32(f, want)) : 0x5A5A5A5A;
        if (half[i] != want || mn_f32_bits(back[i]) != want_back)
            ck_abort_msg("%s n %zu shift %zu at %zu", f->name, n, shift, i);
    }
    free(wide);
    free(half);
    free(exact);
    free(back);
}

START_TEST(tails)
{
    for (int t = 0; t < table_count; t++) {
        for (size_t n = 0; n <= 40; n++) {
            for (size_t shift = 0; shift < 16; shift++) {
                check_tail(&tables[t][MN_F16], &f16, n, shift);
                check_tail(&tables[t][MN_BF16], &bf16, n, shift);
            }
        }
    }
}
END_TEST

/* The caller's rounding mode and flushing must not show. */
START_TEST(any_mode)
{
    enum { N = BORDERS };
    static uint32_t bits[N];
    static uint16_t want[2][N], got[N];
    static float wide[65536], want_wide[2][65536];
    static uint16_t all[65536];
    format *formats[2] = {&f16, &bf16};
    const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    border_values(bits);
    for (unsigned i = 0; i < 65536; i++)
        all[i] = (uint16_t)i;
    for (int k = 0; k < 2; k++) {
        tables[0][formats[k]->dtype].from_f32(N, (const float *)(const void *)bits, want[k]);
        tables[0][formats[k]->dtype].to_f32(65536, all, want_wide[k]);
    }
    for (int m = 0; m < 8; m++) {
        for (int t = 0; t < table_count; t++) {
            for (int k = 0; k < 2; k++) {
                const mn_converter *converter = &tables[t][formats[k]->dtype];
                fesetround(modes[m % 4]);
#if defined(__x86_64__)
                if (m >= 4)
                    _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
                if (m >= 4) { /* flushing, one NaN for all, the other format of halves */
                    uint64_t mode;
                    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
                    mode |= UINT64_C(1) << (24 + m % 3);
                    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
                }
#endif
                converter->from_f32(N, (const float *)(const void *)bits, got);
                converter->to_f32(65536, all, wide);
                mn_fp_enter();
                ck_assert_msg(memcmp(got, want[k], sizeof got) == 0, "narrowing");
                ck_assert_msg(memcmp(wide, want_wide[k], sizeof wide) == 0, "widening");
            }
        }
    }
}
END_TEST

/* ---- all of f32 ------------------------------------------------------------------------------ */

#define CHUNK (1U << 16)

typedef struct sweep {
    const format *format;
    _Atomic(uint64_t) checked, wrong;
} sweep;

static void sweep_chunk(void *arg, int64_t index, int slot)
{
    sweep *s = arg;
    const format *f = s->format;
    uint32_t first = (uint32_t)index * CHUNK;
    float *wide = malloc(CHUNK * sizeof *wide);
    uint16_t *half = malloc(CHUNK * sizeof *half);
    uint64_t wrong = wide && half ? 0 : 1;
    (void)slot;
    for (int t = 0; t < table_count && wide && half; t++) {
        for (uint32_t i = 0; i < CHUNK; i++)
            wide[i] = mn_f32_from_bits(first + i);
        tables[t][f->dtype].from_f32(CHUNK, wide, half);
        double start = fabs((double)wide[0]);
        unsigned from = isnan(start) ? 0 : lower_bound(f, start);
        for (uint32_t i = 0; i < CHUNK; i++)
            wrong += half[i] != oracle(f, (double)wide[i], nan_bits_f32(f, first + i), &from);
    }
    atomic_fetch_add(&s->checked, CHUNK);
    atomic_fetch_add(&s->wrong, wrong);
    free(wide);
    free(half);
}

START_TEST(every_f32)
{
    mn_error error = {MN_OK, ""};
    mn_workers *workers = mn_workers_create(NULL, 2, NULL, NULL, &error);
    ck_assert_msg(workers != NULL, "%s", error.message);
    format *formats[2] = {&f16, &bf16};
    for (int k = 0; k < 2; k++) {
        sweep s = {formats[k], 0, 0};
        mn_workers_run(workers, 65536, sweep_chunk, &s);
        ck_assert_uint_eq(atomic_load(&s.checked), UINT64_C(1) << 32);
        ck_assert_uint_eq(atomic_load(&s.wrong), 0);
    }
    mn_workers_free(workers);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("convert");
    TCase *single = tcase_create("single values");
    tcase_add_checked_fixture(single, set_up, tear_down);
    tcase_add_test(single, dtypes);
    tcase_add_test(single, known_f16);
    tcase_add_test(single, known_bf16);
    tcase_add_test(single, round_trip);
    tcase_add_test(single, against_oracle);
    tcase_add_test(single, from_doubles);
    tcase_set_timeout(single, 100);
    suite_add_tcase(suite, single);
    TCase *rows = tcase_create("rows");
    tcase_add_checked_fixture(rows, list_tables, tear_down);
    tcase_add_test(rows, table_entries);
    tcase_add_test(rows, long_rows);
    tcase_add_test(rows, tails);
    tcase_add_test(rows, any_mode);
    tcase_set_timeout(rows, 100);
    suite_add_tcase(suite, rows);
    const char *slow = getenv("MINIM_SLOW_TESTS");
    if (slow && strcmp(slow, "1") == 0) {
        TCase *all = tcase_create("all of f32");
        tcase_add_checked_fixture(all, list_tables, tear_down);
        tcase_add_test(all, every_f32);
        tcase_set_timeout(all, 3600);
        suite_add_tcase(suite, all);
    }
    return mn_test_run(suite, CK_FORK_GETENV);
}
