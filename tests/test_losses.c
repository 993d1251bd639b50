/* tests/test_losses.c: losses against numbers worked out here in double, for every combination of
 * options; extreme inputs, autocast, and what is refused. */
#include "ops/ops.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { ROWS = 4, CLASSES = 3, CELLS = ROWS * CLASSES };

#define NO  ((double)NAN)
#define INF ((double)INFINITY)

static const int64_t cells_shape[2] = {ROWS, CLASSES}, rows_shape[1] = {ROWS};
static const mn_kernel_set sets[] = {MN_KERNELS_REFERENCE, MN_KERNELS_PORTABLE, MN_KERNELS_AUTO};
enum { SETS = sizeof sets / sizeof *sets };

static mn_tensor *floats(mn_context *ctx, mn_dtype dtype, int ndim, const int64_t *shape,
                         const double *values)
{
    mn_tensor *x = mn_tensor_create(ctx, dtype, ndim, shape);
    ck_assert_int_eq(mn_tensor_write_f64(x, values, mn_tensor_numel(x)), MN_OK);
    return x;
}

static mn_tensor *leaf(mn_context *ctx, mn_dtype dtype, int ndim, const int64_t *shape,
                       const double *values)
{
    mn_tensor *x = floats(ctx, dtype, ndim, shape, values);
    ck_assert_int_eq(mn_set_requires_grad(x, true), MN_OK);
    return x;
}

static void check_values(const mn_tensor *x, const double *want, double bound)
{
    double got[64];
    const int64_t n = mn_tensor_numel(x);
    ck_assert_int_eq(mn_tensor_read_f64(x, got, n), MN_OK);
    for (int64_t i = 0; i < n; i++) {
        const bool same = (isnan(got[i]) && isnan(want[i])) || got[i] == want[i];
        ck_assert_msg(same || fabs(got[i] - want[i]) <= bound * fmax(1e-30, fabs(want[i])),
                      "element %d is %.9g, must be %.9g", (int)i, got[i], want[i]);
    }
}

static void check_value(const mn_tensor *x, double want, double bound)
{
    ck_assert_int_eq(mn_tensor_numel(x), 1);
    check_values(x, &want, bound);
}

/* ---- losses over classes: every combination -------------------------------------------------- */

static const double logits[CELLS] = {0.5, -1.25, 2, 0, 0.25, -3, 1.5, 1.5, -0.75, -2, 0.125, 1};
static const double soft[CELLS] = {0.25, 0.5, 0.25, 1, 0, 0, 0.5, 0.75, 0.125, 0, 0.5, 0.5};
static const double weights[CLASSES] = {0.5, 2, 1.25};
static const int64_t labels[ROWS] = {2, 0, 1, 1};

typedef struct combination {
    bool soft, weighted;
    int64_t ignore_index;
    double smoothing;
    mn_reduction reduction;
} combination;

static combination combination_at(int i)
{
    static const int64_t ignored[3] = {-100, 1, 0};
    const int kind = i / 12; /* 0 to 2: labels, 3: probabilities */
    return (combination){.soft = kind == 3,
                         .weighted = i % 2,
                         .ignore_index = kind == 3 ? -100 : ignored[kind],
                         .smoothing = i / 2 % 2 ? 0.1 : 0,
                         .reduction = (mn_reduction)(i / 4 % 3)};
}

/* As PyTorch composes them: the loss of the target and the mean of all classes' losses, each
 * weighted. Fills in the rows' losses; returns the divisor of their mean. */
static double expected_rows(const combination *c, const double *x, double rows[ROWS])
{
    double divisor = 0;
    for (int n = 0; n < ROWS; n++) {
        const bool ignored = !c->soft && labels[n] == c->ignore_index;
        double total = 0, nll = 0, smooth = 0;
        for (int k = 0; k < CLASSES; k++)
            total += exp(x[n * CLASSES + k]);
        for (int k = 0; k < CLASSES; k++) {
            const double w = c->weighted ? weights[k] : 1;
            const double loss = -w * log(exp(x[n * CLASSES + k]) / total);
            nll += loss * (c->soft ? soft[n * CLASSES + k] : labels[n] == k);
            smooth += loss / CLASSES;
            if (!c->soft && labels[n] == k && !ignored)
                divisor += w;
        }
        rows[n] = ignored ? 0 : (1 - c->smoothing) * nll + c->smoothing * smooth;
    }
    return c->soft ? ROWS : divisor;
}

/* sum of (i + 1) loss[i] over what the reduction leaves. */
static double expected_total(const combination *c, const double *x)
{
    double rows[ROWS], total = 0;
    const double divisor = expected_rows(c, x, rows);
    for (int n = 0; n < ROWS; n++)
        total += c->reduction == MN_REDUCTION_NONE   ? (n + 1) * rows[n]
                 : c->reduction == MN_REDUCTION_MEAN ? rows[n] / divisor
                                                     : rows[n];
    return total;
}

static mn_tensor *total_of(mn_context *ctx, mn_tensor *loss)
{
    static const double factors[ROWS] = {1, 2, 3, 4};
    if (mn_tensor_ndim(loss) == 0)
        return loss;
    return mn_dot(loss, floats(ctx, mn_tensor_dtype(loss), 1, rows_shape, factors));
}

static void check_combination(mn_context *ctx, mn_dtype dtype, const combination *c)
{
    const int64_t classes[1] = {CLASSES};
    const double bound = dtype == MN_F64 ? 1e-12 : 1e-6;
    double gradient[CELLS], got[CELLS], x[CELLS];
    mn_tensor *in = leaf(ctx, dtype, 2, cells_shape, logits);
    mn_tensor *target = c->soft ? floats(ctx, dtype, 2, cells_shape, soft)
                                : mn_tensor_from(ctx, MN_I64, 1, rows_shape, labels);
    mn_cross_entropy_options o = mn_cross_entropy_options_default();
    o.weight = c->weighted ? floats(ctx, dtype, 1, classes, weights) : NULL;
    o.ignore_index = c->ignore_index;
    o.label_smoothing = c->smoothing;
    o.reduction = c->reduction;
    mn_tensor *total = total_of(ctx, mn_cross_entropy(in, target, &o));
    mn_test_expect_ok(ctx);
    ck_assert_int_eq(mn_tensor_dtype(total), dtype);
    check_value(total, expected_total(c, logits), bound);
    ck_assert_int_eq(mn_backward(total, 1), MN_OK);
    ck_assert_int_eq(mn_tensor_read_f64(mn_grad(in), got, CELLS), MN_OK);
    for (int i = 0; i < CELLS; i++) {
        memcpy(x, logits, sizeof x);
        x[i] += 1e-5;
        gradient[i] = expected_total(c, x);
        x[i] -= 2e-5;
        gradient[i] = (gradient[i] - expected_total(c, x)) / 2e-5;
        ck_assert_msg(fabs(got[i] - gradient[i]) <= 1e-6, "gradient %d is %g, must be %g", i,
                      got[i], gradient[i]);
    }
}

START_TEST(combinations)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    for (int i = 0; i < 48; i++) {
        const combination c = combination_at(i);
        check_combination(ctx, MN_F32, &c);
        check_combination(ctx, MN_F64, &c);
    }
    mn_context_free(ctx);
}
END_TEST

/* Probabilities 1/4 and 3/4 in both rows, by hand. */
START_TEST(by_hand)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    const int64_t two[2] = {2, 2}, both[2] = {0, 1};
    const double x[4] = {0, log(3), 0, log(3)}, w[2] = {2, 1}, a = log(4), b = log(4.0 / 3);
    mn_tensor *in = floats(ctx, MN_F32, 2, two, x);
    mn_tensor *target = mn_tensor_from(ctx, MN_I64, 1, two, both);
    mn_cross_entropy_options o = mn_cross_entropy_options_default();
    check_value(mn_cross_entropy(in, target, NULL), (a + b) / 2, 1e-6);
    o.label_smoothing = 0.5;
    check_value(mn_cross_entropy(in, target, &o), (a + b) / 2, 1e-6);
    o.weight = floats(ctx, MN_F32, 1, two, w);
    check_value(mn_cross_entropy(in, target, &o),
                (2 * a * 0.75 + b * 0.25 + 2 * a * 0.25 + b * 0.75) / 3, 1e-6);
    o.label_smoothing = 0;
    check_value(mn_cross_entropy(in, target, &o), (2 * a + b) / 3, 1e-6);
    o.ignore_index = 0;
    check_value(mn_cross_entropy(in, target, &o), b, 1e-6);
    check_value(mn_nll_loss(mn_log_softmax(in, 1), target, &o), b, 1e-6);
    o.ignore_index = -100;
    check_value(mn_nll_loss(mn_log_softmax(in, 1), target, &o), (2 * a + b) / 3, 1e-6);
    o.weight = NULL;
    check_value(mn_nll_loss(mn_log_softmax(in, 1), target, NULL), (a + b) / 2, 1e-6);
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

/* ---- losses over classes: edges -------------------------------------------------------------- */

/* A row that is ignored counts for nothing, whatever its label's value and its logits. */
START_TEST(ignored_rows)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    static const int64_t values[3] = {INT64_MIN, INT64_MAX, 7};
    const int64_t shape[2] = {2, 2};
    const double x[4] = {NO, INF, 0, 0}, no_gradient[4] = {0};
    for (int i = 0; i < 3; i++) {
        int64_t target[2] = {values[i], 1};
        mn_cross_entropy_options o = mn_cross_entropy_options_default();
        o.ignore_index = values[i];
        mn_tensor *in = leaf(ctx, MN_F32, 2, shape, x);
        mn_tensor *one = mn_tensor_from(ctx, MN_I64, 1, shape, target);
        mn_tensor *loss = mn_cross_entropy(in, one, &o);
        check_value(loss, log(2), 1e-6);
        ck_assert_int_eq(mn_backward(loss, 1), MN_OK);
        check_values(mn_grad(in), (const double[4]){0, 0, 0.5, -0.5}, 1e-6);
        mn_zero_grad(in);
        target[1] = values[i];
        mn_tensor *all = mn_tensor_from(ctx, MN_I64, 1, shape, target);
        ck_assert(isnan(mn_test_first(mn_cross_entropy(in, all, &o))));
        o.reduction = MN_REDUCTION_SUM;
        o.label_smoothing = 0.25;
        loss = mn_cross_entropy(in, all, &o);
        check_value(loss, 0, 0);
        ck_assert_int_eq(mn_backward(loss, 1), MN_OK);
        check_values(mn_grad(in), no_gradient, 0);
    }
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

START_TEST(extreme_logits)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    static const struct {
        double x[2];
        int64_t label;
        double loss, slope; /* in x[0] */
    } cases[] = {
        {{1e4, -1e4}, 0, 0, 0}, {{1e4, -1e4}, 1, 2e4, 1}, {{-60000, 60000}, 0, 120000, -1},
        {{0, -INF}, 0, 0, 0},   {{0, -INF}, 1, INF, 1},   {{INF, 0}, 1, NO, NO},
        {{INF, 0}, 0, NO, NO},  {{NO, 0}, 1, NO, NO},
    };
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_F64};
    const int64_t shape[2] = {1, 2};
    for (size_t i = 0; i < 3 * sizeof cases / sizeof *cases; i++) {
        const mn_dtype dtype = dtypes[i % 3];
        mn_tensor *in = leaf(ctx, dtype, 2, shape, cases[i / 3].x);
        mn_tensor *target = mn_tensor_from(ctx, MN_I64, 1, shape, &cases[i / 3].label);
        mn_tensor *loss = mn_cross_entropy(in, target, NULL);
        ck_assert_int_eq(mn_tensor_dtype(loss), dtype == MN_F64 ? MN_F64 : MN_F32);
        check_value(loss, cases[i / 3].loss, 1e-3);
        ck_assert_int_eq(mn_backward(loss, 1), MN_OK);
        double got[2];
        ck_assert_int_eq(mn_tensor_read_f64(mn_grad(in), got, 2), MN_OK);
        ck_assert_msg(isnan(cases[i / 3].slope) ? isnan(got[0]) : got[0] == cases[i / 3].slope,
                      "%g", got[0]);
    }
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

START_TEST(refused_arguments)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    const int64_t four[1] = {CLASSES + 1}, wrong[ROWS] = {0, 3, -100, 1};
    mn_tensor *x = floats(ctx, MN_F32, 2, cells_shape, logits);
    mn_tensor *target = mn_tensor_from(ctx, MN_I64, 1, rows_shape, labels);
    mn_cross_entropy_options o = mn_cross_entropy_options_default();
    ck_assert_ptr_null(mn_cross_entropy(x, NULL, NULL));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "cross_entropy: argument 2 is NULL");
    ck_assert_ptr_null(mn_nll_loss(NULL, target, NULL));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "nll_loss: argument 1 is NULL");
    ck_assert_ptr_null(mn_cross_entropy(NULL, NULL, NULL));
    ck_assert_ptr_null(mn_huber_loss(x, NULL, 1, MN_REDUCTION_SUM));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "huber_loss: argument 2 is NULL");
    ck_assert_ptr_null(mn_huber_loss(x, x, NO, MN_REDUCTION_SUM));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "must be above 0");
    o.size = 3;
    ck_assert_ptr_null(mn_cross_entropy(x, target, &o));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "mn_cross_entropy: options.size");
    o = mn_cross_entropy_options_default();
    o.label_smoothing = NO;
    ck_assert_ptr_null(mn_cross_entropy(x, target, &o));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "must be in [0, 1]");
    o.label_smoothing = -0.125;
    ck_assert_ptr_null(mn_cross_entropy(x, target, &o));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "must be in [0, 1]");
    o.label_smoothing = 0;
    o.weight = mn_full(ctx, MN_F32, 1, four, 1);
    ck_assert_ptr_null(mn_cross_entropy(x, target, &o));
    mn_test_expect(ctx, MN_ERR_SHAPE, "the class weights is [4], must be [3]");
    o.weight = mn_full(ctx, MN_F64, 1, cells_shape + 1, 1);
    ck_assert_ptr_null(mn_cross_entropy(x, target, &o));
    mn_test_expect(ctx, MN_ERR_DTYPE, "the class weights is f64, must be f32");
    o.weight = mn_full(ctx, MN_F32, 1, cells_shape + 1, 1); /* -100 is ignored, 3 is not a class */
    ck_assert_ptr_null(mn_cross_entropy(x, mn_tensor_from(ctx, MN_I64, 1, rows_shape, wrong), &o));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "label 3 is not in [0, 3)");
    mn_context_free(ctx);
}
END_TEST

/* ---- losses element by element --------------------------------------------------------------- */

typedef mn_tensor *(*pair_fn)(mn_tensor *x, mn_tensor *target, mn_reduction reduction);

static mn_tensor *huber(mn_tensor *x, mn_tensor *target, mn_reduction reduction)
{
    return mn_huber_loss(x, target, 0.5, reduction);
}

/* Loss and slope of three elements; and the slope that the target gets. */
typedef struct pair_case {
    pair_fn loss;
    double x[3], t[3], y[3], slope[3];
    bool both;
} pair_case;

static const pair_case pairs[] = {
    {mn_mse_loss, {1, -2, NO}, {1, 1.5, 0}, {0, 12.25, NO}, {0, -7, NO}, true},
    {mn_mse_loss, {INF, INF, 0}, {0, INF, 3}, {INF, NO, 9}, {INF, NO, -6}, true},
    {mn_l1_loss, {1, -2, 4}, {1, 1.5, 1}, {0, 3.5, 3}, {0, -1, 1}, true},
    {mn_l1_loss, {NO, INF, INF}, {0, 1, INF}, {NO, INF, NO}, {NO, 1, NO}, true},
    {huber, {0.25, 2, -2}, {0, 0, 0}, {0.03125, 0.875, 0.875}, {0.25, 0.5, -0.5}, true},
    {huber, {0.5, NO, -INF}, {0, 0, 0}, {0.125, NO, INF}, {0.5, NO, -0.5}, true},
    {mn_binary_cross_entropy_with_logits,
     {0, 1e4, -1e4},
     {0.5, 1, 1},
     {0.69314718055994531, 0, 1e4},
     {0, 0, -1},
     false},
    {mn_binary_cross_entropy_with_logits,
     {20, -20, NO},
     {1, 0, 1},
     {2.061153620314381e-9, 2.061153620314381e-9, NO},
     {-2.061153620314381e-9, 2.061153620314381e-9, NO},
     false},
    {mn_binary_cross_entropy_with_logits,
     {INF, -INF, 2},
     {0, 1, 0.25},
     {INF, INF, 1.6269280110429726},
     {1, -1, 0.63079707797788244},
     false},
    {mn_binary_cross_entropy_with_logits,
     {INF, -INF, NO},
     {1, 0, 0},
     {0, 0, NO},
     {0, 0, NO},
     false},
    {mn_binary_cross_entropy,
     {0.5, 0, 1},
     {0.25, 1, 0},
     {0.69314718055994531, 100, 100},
     {1, -1e12, 1e12},
     false},
    {mn_binary_cross_entropy, {0, 1, NO}, {0, 1, 0.5}, {0, 0, NO}, {0, 0, NO}, false},
    {mn_binary_cross_entropy,
     {0.25, 0x1p-30, 0.75},
     {0.75, 0, 1},
     {1.111641288952863, 9.3132257504915938e-10, 0.28768207245178092},
     {-2.6666666666666667, 1, -1.3333333333333333},
     false},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static void check_pair(mn_context *ctx, mn_dtype dtype, const pair_case *c)
{
    const int64_t three[1] = {3};
    double sum = 0, mean[3], negative[3];
    mn_tensor *x = leaf(ctx, dtype, 1, three, c->x), *t = leaf(ctx, dtype, 1, three, c->t);
    for (int i = 0; i < 3; i++) {
        sum += c->y[i];
        mean[i] = c->slope[i] * 3 / 3;
        negative[i] = -c->slope[i] * 2 / 3;
    }
    check_values(c->loss(x, t, MN_REDUCTION_NONE), c->y, 1e-6);
    check_value(c->loss(x, t, MN_REDUCTION_SUM), sum, 1e-6);
    mn_tensor *loss = c->loss(x, t, MN_REDUCTION_MEAN);
    check_value(loss, sum / 3, 1e-6);
    ck_assert_int_eq(mn_backward(loss, 3), MN_OK);
    check_values(mn_grad(x), mean, 1e-6);
    if (!c->both) {
        ck_assert_ptr_null(mn_grad(t));
        return;
    }
    mn_zero_grad(t);
    ck_assert_int_eq(mn_backward(c->loss(mn_detach(x), t, MN_REDUCTION_MEAN), 2), MN_OK);
    check_values(mn_grad(t), negative, 1e-6);
}

START_TEST(pointwise_losses)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    for (int i = 0; i < PAIRS; i++) {
        check_pair(ctx, MN_F32, &pairs[i]);
        check_pair(ctx, MN_F64, &pairs[i]);
    }
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

/* The result is f32 for 16 bit, where the sum and even an element would overflow. */
START_TEST(half_inputs)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    mn_tensor *x = mn_test_vector(ctx, MN_F16, 5, 1000), *t = mn_test_vector(ctx, MN_F16, 5, 0);
    mn_set_requires_grad(x, true);
    mn_tensor *loss = mn_mse_loss(x, t, MN_REDUCTION_SUM);
    ck_assert_int_eq(mn_tensor_dtype(loss), MN_F32);
    check_value(loss, 5e6, 0);
    ck_assert_int_eq(mn_backward(loss, 1), MN_OK);
    ck_assert_double_eq(mn_test_first(mn_grad(x)), 2000);
    mn_context_free(ctx);
}
END_TEST

/* ---- probabilities out of range, autocast ---------------------------------------------------- */

START_TEST(probabilities_out_of_range)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    static const double wrong[2] = {1.5, -1e-30};
    double p[3] = {0, 1, 0};
    const int64_t three[1] = {3};
    for (int i = 0; i < 2; i++) {
        p[1 + i] = wrong[i];
        mn_tensor *x = floats(ctx, MN_F32, 1, three, p);
        ck_assert_ptr_null(mn_binary_cross_entropy(x, x, MN_REDUCTION_SUM));
        mn_test_expect(ctx, MN_ERR_ARGUMENT,
                       i ? "probability 2 is not in [0, 1]" : "probability 1 is not in [0, 1]");
        p[1 + i] = 1;
    }
    mn_context_free(ctx);
}
END_TEST

START_TEST(autocast)
{
    mn_context *ctx = mn_test_op_context("cpu", sets[_i]);
    mn_tensor *x = floats(ctx, MN_F16, 2, cells_shape, soft), *wide = mn_cast(x, MN_F32);
    mn_tensor *target = mn_tensor_from(ctx, MN_I64, 1, rows_shape, labels);
    mn_scope scope = mn_scope_begin(ctx);
    ck_assert_int_eq(mn_autocast_begin(ctx, MN_F16), MN_OK);
    const uint64_t casts = mn_op_calls(ctx, MN_OP_cast);
    ck_assert_int_eq(mn_tensor_dtype(mn_cross_entropy(x, target, NULL)), MN_F32);
    ck_assert_uint_eq(mn_op_calls(ctx, MN_OP_cast), casts); /* FP32_OUT */
    ck_assert_int_eq(mn_tensor_dtype(mn_nll_loss(x, target, NULL)), MN_F32);
    ck_assert_uint_eq(mn_op_calls(ctx, MN_OP_cast), casts + 1); /* FP32 */
    check_value(mn_mse_loss(x, wide, MN_REDUCTION_SUM), 0, 0);
    mn_name_push(ctx, "head");
    ck_assert_ptr_null(mn_binary_cross_entropy(x, x, MN_REDUCTION_MEAN));
    mn_test_expect(ctx, MN_ERR_UNSUPPORTED,
                   "head: binary_cross_entropy is unsafe inside an autocast region: use "
                   "mn_binary_cross_entropy_with_logits");
    mn_name_pop(ctx);
    ck_assert_ptr_nonnull(mn_binary_cross_entropy_with_logits(x, wide, MN_REDUCTION_MEAN));
    ck_assert_int_eq(mn_autocast_begin(ctx, MN_F32), MN_OK); /* disabled */
    ck_assert_ptr_nonnull(mn_binary_cross_entropy(x, x, MN_REDUCTION_MEAN));
    mn_scope_end(ctx, scope);
    ck_assert_ptr_nonnull(mn_binary_cross_entropy(wide, wide, MN_REDUCTION_MEAN));
    ck_assert_ptr_null(mn_mse_loss(x, wide, MN_REDUCTION_SUM)); /* outside: one dtype */
    mn_test_expect(ctx, MN_ERR_DTYPE, "different dtypes");
    mn_context_free(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("losses");
    TCase *tests = tcase_create("losses");
    tcase_add_loop_test(tests, combinations, 0, SETS);
    tcase_add_loop_test(tests, by_hand, 0, SETS);
    tcase_add_loop_test(tests, ignored_rows, 0, SETS);
    tcase_add_loop_test(tests, extreme_logits, 0, SETS);
    tcase_add_loop_test(tests, refused_arguments, 0, SETS);
    tcase_add_loop_test(tests, pointwise_losses, 0, SETS);
    tcase_add_loop_test(tests, half_inputs, 0, SETS);
    tcase_add_loop_test(tests, probabilities_out_of_range, 0, SETS);
    tcase_add_loop_test(tests, autocast, 0, SETS);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
