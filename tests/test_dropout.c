/* Dropout: how many elements are kept, and what the mask depends on. */
#include "core/philox.h"
#include "ops/ops.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The mask as bytes: 1 where a tensor of ones is kept. */
enum { COUNT = 4 * 16384 + 3 };
typedef struct mask {
    unsigned char kept[COUNT];
} mask;

static double scratch[COUNT];

static void read_mask(const mn_tensor *y, mask *m)
{
    ck_assert_ptr_nonnull(y);
    ck_assert_int_eq(mn_tensor_read_f64(y, scratch, COUNT), MN_OK);
    for (int i = 0; i < COUNT; i++)
        m->kept[i] = scratch[i] != 0;
}

static void draw(mn_context *ctx, mn_dtype dtype, double p, mask *m)
{
    mn_scope scope = mn_scope_begin(ctx);
    read_mask(mn_dropout(mn_test_vector(ctx, dtype, COUNT, 1), p, true), m);
    mn_scope_end(ctx, scope);
}

static bool same(const mask *a, const mask *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Kept elements and pairs of neighbours at several distances, each within 5 sigma. */
START_TEST(statistics)
{
    static const double ps[] = {0.01, 0.1, 0.3, 0.5, 0.75, 0.99};
    static const int64_t sizes[] = {1000, 4099, COUNT};
    static const int distances[] = {1, 2, 3, 4, 64, 512};
    mn_context *ctx = mn_test_open();
    mask m;
    for (int i = 0; i < 6; i++) {
        const double keep = 1 - ps[i];
        draw(ctx, MN_F32, ps[i], &m);
        for (int j = 0; j < 3; j++) {
            const double n = (double)sizes[j];
            double kept = 0;
            for (int64_t k = 0; k < sizes[j]; k++)
                kept += m.kept[k];
            ck_assert_double_le(fabs(kept - n * keep), 5 * sqrt(n * keep * ps[i]));
        }
        for (int j = 0; j < 6; j++) {
            double sum = 0; /* of the products of what deviates from the mean: no correlation */
            const double n = COUNT - distances[j], spread = keep * ps[i];
            for (int k = distances[j]; k < COUNT; k++)
                sum += (m.kept[k] - keep) * (m.kept[k - distances[j]] - keep);
            ck_assert_double_le(fabs(sum), 5 * spread * sqrt(n));
        }
    }
    mn_context_free(ctx);
}
END_TEST

/* Over many masks, kept counts vary as a binomial's do: their variance within 5 sigma. */
START_TEST(variance_of_counts)
{
    enum { MASKS = 400, SIZE = 256 };
    const double p = 0.3, expected = SIZE * p * (1 - p);
    mn_context *ctx = mn_test_open();
    double squares = 0, values[SIZE];
    for (int i = 0; i < MASKS; i++) {
        double deviation = -SIZE * (1 - p);
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *y = mn_dropout(mn_test_vector(ctx, MN_F32, SIZE, 1), p, true);
        ck_assert_int_eq(mn_tensor_read_f64(y, values, SIZE), MN_OK);
        for (int j = 0; j < SIZE; j++)
            deviation += values[j] != 0;
        squares += deviation * deviation;
        mn_scope_end(ctx, scope);
    }
    ck_assert_double_le(fabs(squares / MASKS - expected), 5 * expected * sqrt(2.0 / MASKS));
    mn_context_free(ctx);
}
END_TEST

/* Element i is kept if word i of the stream is at least floor(p 2^32). */
START_TEST(documented_stream)
{
    const double p = 0.37;
    mn_context *ctx = mn_test_open();
    mask m;
    ck_assert_int_eq(mn_seed(ctx, 77), MN_OK);
    ck_assert_int_eq(mn_random_position(ctx, 5, 2), MN_OK);
    mn_name_push(ctx, "drop");
    draw(ctx, MN_F32, p, &m);
    draw(ctx, MN_F32, p, &m);
    mn_name_pop(ctx);
    mn_stream stream = mn_stream_open(77, MN_STREAM_DROPOUT, "drop", UINT64_C(5) << 24 | 2);
    stream.counter[1] = 1; /* the second call */
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(m.kept[i], mn_stream_u32(&stream) >= (uint32_t)(p * 0x1p32));
    ck_assert_double_eq(mn_test_first(mn_dropout(mn_test_vector(ctx, MN_F64, 1, 3), 0x1p-40, true)),
                        3 / (1 - 0x1p-40));
    mn_context_free(ctx);
}
END_TEST

START_TEST(same_mask_everywhere)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16, MN_F64};
    mask want, got;
    for (int set = MN_KERNELS_AUTO; set <= MN_KERNELS_PORTABLE; set++)
        for (int threads = 1; threads <= 3; threads++)
            for (int d = 0; d < 4; d++) {
                mn_context_options options = mn_context_options_default();
                options.kernels = (mn_kernel_set)set;
                options.threads = threads;
                mn_context *ctx = mn_context_create(&options, NULL);
                draw(ctx, dtypes[d], 0.4, &got);
                if (set == MN_KERNELS_AUTO && threads == 1 && d == 0)
                    want = got;
                ck_assert(same(&got, &want));
                mn_context_free(ctx);
            }
}
END_TEST

START_TEST(what_the_mask_depends_on)
{
    mn_context *ctx = mn_test_open();
    mask base, other;
    mn_random_position(ctx, 1, 0);
    draw(ctx, MN_F32, 0.5, &base);
    draw(ctx, MN_F32, 0.5, &other); /* the next call */
    ck_assert(!same(&base, &other));
    static const int64_t positions[][2] = {{0, 0}, {2, 0}, {1, 1}, {INT64_C(1) << 33, 0}};
    for (int i = 0; i < 4; i++) {
        mn_random_position(ctx, positions[i][0], positions[i][1]);
        draw(ctx, MN_F32, 0.5, &other);
        ck_assert(!same(&base, &other));
    }
    mn_random_position(ctx, 1, 0);
    mn_name_push(ctx, "layer");
    draw(ctx, MN_F32, 0.5, &other);
    mn_name_pop(ctx);
    ck_assert(!same(&base, &other));
    mn_random_position(ctx, 1, 0);
    mn_seed(ctx, 2);
    draw(ctx, MN_F32, 0.5, &other);
    ck_assert(!same(&base, &other));
    mn_seed(ctx, 1);
    mn_random_position(ctx, 1, 0); /* a retry, or a run that was resumed */
    mn_dropout(mn_test_vector(ctx, MN_F32, 3, 1), 0.5, false); /* draws nothing */
    mn_dropout(mn_test_vector(ctx, MN_F32, 3, 1), 0, true);
    draw(ctx, MN_F32, 0.5, &other);
    ck_assert(same(&base, &other));
    mn_context_free(ctx);
}
END_TEST

START_TEST(same_mask_in_backward)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16, MN_F64};
    mn_context *ctx = mn_test_open();
    mask forward, backward;
    mn_tensor *x = mn_test_vector(ctx, dtypes[_i], COUNT, 1);
    ck_assert_int_eq(mn_set_requires_grad(x, true), MN_OK);
    mn_tensor *y = mn_dropout(x, 0.25, true);
    mn_dropout(x, 0.25, true); /* calls in between change nothing */
    mn_random_position(ctx, 9, 9);
    read_mask(y, &forward);
    mn_tensor *sum = mn_sum(mn_cast(y, MN_F32), 0, NULL, false);
    ck_assert_int_eq(mn_backward(sum, 1), MN_OK);
    read_mask(mn_grad(x), &backward);
    ck_assert(same(&forward, &backward));
    ck_assert_double_eq_tol(fabs(scratch[0] - 2.0 / 3), 2.0 / 3 * (1 - forward.kept[0]), 0.01);
    mn_context_free(ctx);
}
END_TEST

START_TEST(limits)
{
    mn_context *ctx = mn_test_op_context("cpu", _i == 0 ? MN_KERNELS_REFERENCE : MN_KERNELS_AUTO);
    mn_tensor *x = mn_test_vector(ctx, MN_F16, 3, 2);
    ck_assert_double_eq(mn_test_first(mn_dropout(x, 1, true)), 0);
    ck_assert_ptr_eq(mn_dropout(x, 0.5, false)->storage, x->storage);
    ck_assert_ptr_eq(mn_dropout(x, 0, true)->storage, x->storage);
    ck_assert(isnan(
        mn_test_first(mn_dropout(mn_test_vector(ctx, MN_F32, 1, (double)NAN), 0.999999, true))));
    ck_assert_ptr_null(mn_dropout(x, -0.1, true));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "dropout: p is -0.1, must be in [0, 1]");
    ck_assert_ptr_null(mn_dropout(x, (double)NAN, false));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "dropout: p is");
    ck_assert_ptr_null(mn_dropout(mn_test_vector(ctx, MN_I32, 3, 2), 0.5, true));
    mn_test_expect(ctx, MN_ERR_DTYPE, "dropout: dtype of the input is i32, must be floating");
    ck_assert_ptr_null(mn_dropout(NULL, 0.5, true));
    ck_assert_int_eq(mn_random_position(ctx, -1, 0), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "random_position: step -1");
    ck_assert_int_eq(mn_random_position(ctx, INT64_C(1) << 40, 0), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    ck_assert_int_eq(mn_random_position(ctx, 0, 1 << 24), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    ck_assert_int_eq(mn_random_position(NULL, 0, 0), MN_ERR_ARGUMENT);
    mn_context_free(ctx);
}
END_TEST

/* A step function that notes the first draw of every micro-step. */
typedef struct draws {
    int count;
    double sums[16];
} draws;

static mn_status noting_step(mn_step *step, void *user)
{
    draws *d = user;
    mn_tensor *y = mn_dropout(mn_test_vector(step->context, MN_F32, 64, 1), 0.5, true);
    double values[64], sum = 0;
    MN_TRY(mn_tensor_read_f64(y, values, 64));
    for (int i = 0; i < 64; i++)
        sum = 2 * sum / 3 + values[i];
    d->sums[d->count++] = sum;
    return mn_step_default(step, NULL);
}

START_TEST(training_sets_the_position)
{
    draws d = {0};
    mn_error error = {MN_OK, ""};
    mn_train_options options = mn_train_options_default();
    options.data = "synthetic:8x8x1:2:64";
    options.model = "cnn-small";
    options.batch = 8;
    options.accumulate = 2;
    options.steps = 3;
    options.validation = 0;
    options.step = noting_step;
    options.step_user = &d;
    mn_train_result *result = mn_train(&options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    mn_train_result_free(result);
    ck_assert_int_eq(d.count, 6);
    mn_context *ctx = mn_test_open();
    for (int i = 0; i < 6; i++) {
        double values[64], sum = 0;
        mn_random_position(ctx, 1 + i / 2, i % 2);
        mn_tensor *y = mn_dropout(mn_test_vector(ctx, MN_F32, 64, 1), 0.5, true);
        ck_assert_int_eq(mn_tensor_read_f64(y, values, 64), MN_OK);
        for (int j = 0; j < 64; j++)
            sum = 2 * sum / 3 + values[j];
        ck_assert_double_eq(sum, d.sums[i]);
    }
    mn_context_free(ctx);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dropout");
    TCase *tc = tcase_create("dropout");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, statistics);
    tcase_add_test(tc, variance_of_counts);
    tcase_add_test(tc, documented_stream);
    tcase_add_test(tc, same_mask_everywhere);
    tcase_add_test(tc, what_the_mask_depends_on);
    tcase_add_loop_test(tc, same_mask_in_backward, 0, 4);
    tcase_add_loop_test(tc, limits, 0, 2);
    tcase_add_test(tc, training_sets_the_position);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return mn_test_run(suite(), CK_FORK_GETENV);
}
