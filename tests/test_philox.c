/* tests/test_philox.c: the generator's known answers, and streams. */
#include "core/philox.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

START_TEST(known_answers)
{
    /* Test vectors that Random123 publishes for philox4x32-10. */
    const struct {
        uint32_t counter[4], key[2], out[4];
    } rows[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}},
        {{0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF},
         {0xFFFFFFFF, 0xFFFFFFFF},
         {0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}},
        {{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344},
         {0xA4093822, 0x299F31D0},
         {0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        mn_philox4x32(rows[i].key, rows[i].counter, out);
        ck_assert_mem_eq(out, rows[i].out, sizeof out);
    }
}
END_TEST

static bool same_stream(mn_stream a, mn_stream b)
{
    for (int i = 0; i < 8; i++) {
        if (mn_stream_u32(&a) != mn_stream_u32(&b))
            return false;
    }
    return true;
}

START_TEST(identity)
{
    const mn_stream base = mn_stream_open(1, MN_STREAM_PARAMETER, "conv1.weight", 0);
    ck_assert(same_stream(base, mn_stream_open(1, MN_STREAM_PARAMETER, "conv1.weight", 0)));
    ck_assert(!same_stream(base, mn_stream_open(2, MN_STREAM_PARAMETER, "conv1.weight", 0)));
    ck_assert(!same_stream(base, mn_stream_open(1, MN_STREAM_ROUNDING, "conv1.weight", 0)));
    ck_assert(!same_stream(base, mn_stream_open(1, MN_STREAM_PARAMETER, "conv2.weight", 0)));
    ck_assert(!same_stream(base, mn_stream_open(1, MN_STREAM_PARAMETER, "conv1.weight", 1)));
    ck_assert(same_stream(mn_stream_open(1, MN_STREAM_SHUFFLE, NULL, 3),
                          mn_stream_open(1, MN_STREAM_SHUFFLE, "", 3)));
    /* High bits of seed and index count. */
    ck_assert(!same_stream(mn_stream_open(1, MN_STREAM_TEST, NULL, 0),
                           mn_stream_open(1 | UINT64_C(1) << 63, MN_STREAM_TEST, NULL, 0)));
    ck_assert(!same_stream(mn_stream_open(1, MN_STREAM_TEST, NULL, 0),
                           mn_stream_open(1, MN_STREAM_TEST, NULL, UINT64_C(1) << 40)));
}
END_TEST

/* The argument for disjoint streams: one key per seed, purpose and name, and the index as it is. */
START_TEST(disjoint)
{
    const mn_stream a = mn_stream_open(9, MN_STREAM_DROPOUT, "x", UINT64_C(0x123456789ABCDEF0));
    const mn_stream b = mn_stream_open(9, MN_STREAM_DROPOUT, "x", 0);
    ck_assert_mem_eq(a.key, b.key, sizeof a.key);
    ck_assert_uint_eq(a.counter[2], 0x9ABCDEF0);
    ck_assert_uint_eq(a.counter[3], 0x12345678);
    ck_assert_uint_eq(a.counter[0], 0);
    ck_assert_uint_eq(a.counter[1], 0);
    for (int purpose = 1; purpose <= 7; purpose++) {
        for (int other = 1; other < purpose; other++) {
            mn_stream p = mn_stream_open(9, (mn_stream_purpose)purpose, "x", 0);
            mn_stream q = mn_stream_open(9, (mn_stream_purpose)other, "x", 0);
            ck_assert_mem_ne(p.key, q.key, sizeof p.key);
        }
    }
}
END_TEST

START_TEST(blocks_in_order)
{
    mn_stream stream = mn_stream_open(5, MN_STREAM_TEST, "order", 2);
    stream.counter[0] = 0xFFFFFFFE; /* the carry must reach word 1 and no other */
    uint32_t counter[4] = {0xFFFFFFFE, 0, 2, 0};
    for (int block = 0; block < 5; block++) {
        uint32_t want[4];
        mn_philox4x32(stream.key, counter, want);
        for (int i = 0; i < 4; i++)
            ck_assert_uint_eq(mn_stream_u32(&stream), want[i]);
        counter[1] += ++counter[0] == 0;
    }
    ck_assert_uint_eq(counter[1], 1);
    ck_assert_uint_eq(stream.counter[1], 1);
    ck_assert_uint_eq(stream.counter[2], 2);
    stream.counter[0] = stream.counter[1] = 0xFFFFFFFF;
    for (int i = 0; i < 4; i++)
        mn_stream_u32(&stream);
    ck_assert_uint_eq(stream.counter[0] | stream.counter[1] | stream.counter[3], 0);
    ck_assert_uint_eq(stream.counter[2], 2);
}
END_TEST

/* Streams are part of checkpoints and published results: these values may not change. */
START_TEST(pinned)
{
    mn_stream stream = mn_stream_open(1, MN_STREAM_PARAMETER, "fc.weight", 0);
    const uint32_t want[4] = {0x2FC0DB5E, 0xC3F08027, 0x86395C81, 0xF791D168};
    for (int i = 0; i < 4; i++)
        ck_assert_uint_eq(mn_stream_u32(&stream), want[i]);
}
END_TEST

START_TEST(below)
{
    mn_stream stream = mn_stream_open(1, MN_STREAM_TEST, "below", 0);
    const uint64_t bounds[] = {1, 2, 3, 10, 1000, UINT64_C(1) << 33, UINT64_MAX};
    for (int b = 0; b < 7; b++) {
        for (int i = 0; i < 1000; i++)
            ck_assert(mn_stream_below(&stream, bounds[b]) < bounds[b]);
    }
    ck_assert_uint_eq(mn_stream_below(&stream, 1), 0);
    /* With a bound of 3/4 of the range a plain remainder would give the first third twice as often
     * as it should: 1/2, not 1/3. */
    const uint64_t bound = UINT64_C(3) << 62;
    int first_third = 0;
    for (int i = 0; i < 30000; i++)
        first_third += mn_stream_below(&stream, bound) < bound / 3;
    ck_assert_int_lt(abs(first_third - 10000), 410); /* 5 sigma */
    int counts[10] = {0};
    for (int i = 0; i < 100000; i++)
        counts[mn_stream_below(&stream, 10)]++;
    double chi = 0;
    for (int i = 0; i < 10; i++)
        chi += (counts[i] - 1e4) * (counts[i] - 1e4) / 1e4;
    ck_assert_double_lt(chi, 33.7); /* one in 10^4, 9 degrees of freedom */
}
END_TEST

START_TEST(uniform)
{
    enum { N = 200000, BINS = 64 };
    mn_stream stream = mn_stream_open(1, MN_STREAM_TEST, "uniform", 0);
    int bins[BINS] = {0};
    double sum = 0;
    bool odd = false;
    for (int i = 0; i < N; i++) {
        float u = mn_stream_uniform(&stream);
        ck_assert(u >= 0.0F && u < 1.0F);
        double units = (double)u * 0x1p24;
        ck_assert(units == floor(units));
        odd = odd || fmod(units, 2) == 1;
        bins[(int)(u * BINS)]++;
        sum += (double)u;
    }
    ck_assert(odd); /* all 24 bits are in use */
    ck_assert_double_lt(fabs(sum / N - 0.5), 5 * 0.2887 / sqrt(N));
    double chi = 0, mean = (double)N / BINS;
    for (int i = 0; i < BINS; i++)
        chi += (bins[i] - mean) * (bins[i] - mean) / mean;
    ck_assert_double_lt(chi, 112); /* one in 10^4, 63 degrees of freedom */
}
END_TEST

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

START_TEST(normal)
{
    enum { N = 200000 };
    mn_stream stream = mn_stream_open(1, MN_STREAM_TEST, "normal", 0);
    double *x = malloc(N * sizeof *x);
    ck_assert_ptr_nonnull(x);
    double sum = 0, squares = 0;
    for (int i = 0; i < N; i++) {
        x[i] = mn_stream_normal(&stream);
        sum += x[i];
        squares += x[i] * x[i];
    }
    ck_assert_double_lt(fabs(sum / N), 5 / sqrt(N));
    ck_assert_double_lt(fabs(squares / N - 1), 5 * sqrt(2.0 / N));
    /* Kolmogorov-Smirnov: largest gap to the normal distribution; 2.23 is one in 10^4. */
    qsort(x, N, sizeof *x, compare_doubles);
    double gap = 0;
    for (int i = 0; i < N; i++) {
        double p = erfc(-x[i] / sqrt(2.0)) / 2;
        gap = fmax(gap, fmax(fabs(p - (double)i / N), fabs((i + 1.0) / N - p)));
    }
    ck_assert_double_lt(gap * sqrt(N), 2.23);
    ck_assert(x[0] < -3.5 && x[N - 1] > 3.5);
    free(x);
}
END_TEST

START_TEST(permutation)
{
    enum { N = 1000 };
    int64_t order[N];
    bool seen[N] = {false};
    mn_stream stream = mn_stream_open(1, MN_STREAM_SHUFFLE, NULL, 0);
    mn_stream again = stream;
    mn_stream_permutation(&stream, N, order);
    int fixed = 0;
    for (int i = 0; i < N; i++) {
        ck_assert(order[i] >= 0 && order[i] < N && !seen[order[i]]);
        seen[order[i]] = true;
        fixed += order[i] == i;
    }
    ck_assert_int_lt(fixed, 10); /* one is expected */
    int64_t second[N];
    mn_stream_permutation(&again, N, second);
    ck_assert_mem_eq(order, second, sizeof order);
    mn_stream_permutation(&again, 0, NULL);
    mn_stream_permutation(&again, 1, second);
    ck_assert_int_eq(second[0], 0);
    /* All six orders of three, equally often. */
    int counts[27] = {0};
    for (int i = 0; i < 60000; i++) {
        mn_stream_permutation(&stream, 3, second);
        counts[second[0] * 9 + second[1] * 3 + second[2]]++;
    }
    const int orders[6] = {5, 7, 11, 15, 19, 21};
    for (int i = 0; i < 6; i++)
        ck_assert_int_lt(abs(counts[orders[i]] - 10000), 460); /* 5 sigma */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("philox");
    TCase *tests = tcase_create("philox");
    tcase_add_test(tests, known_answers);
    tcase_add_test(tests, identity);
    tcase_add_test(tests, disjoint);
    tcase_add_test(tests, blocks_in_order);
    tcase_add_test(tests, pinned);
    tcase_add_test(tests, below);
    tcase_add_test(tests, uniform);
    tcase_add_test(tests, normal);
    tcase_add_test(tests, permutation);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
