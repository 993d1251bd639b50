/* Elementwise ops: special values, ties, promotion, what reaches the side that is not chosen, and
 * the same bits from every kernel set. That each op and gradient is right is test_op_cases. */
#include "core/cpu.h"
#include "core/half.h"
#include "ops/cpu/body_table.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"

#include <check.h>
#include <float.h>
#include <math.h>

static const double infinity = (double)INFINITY, not_a_number = (double)NAN;

static mn_tensor *vector(mn_context *ctx, mn_dtype dtype, int64_t count, const double *values)
{
    mn_tensor *x = mn_tensor_create(ctx, dtype, 1, &count);
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    return x;
}

static mn_tensor *leaf(mn_context *ctx, mn_dtype dtype, int64_t count, const double *values)
{
    mn_tensor *x = vector(ctx, dtype, count, values);
    ck_assert_int_eq(mn_set_requires_grad(x, true), MN_OK);
    return x;
}

static bool same(double a, double b)
{
    return isnan(a) ? isnan(b) : a == b && signbit(a) == signbit(b);
}

/* Exactly these elements, signs of zeros as well. */
static void expect(const mn_tensor *tensor, int64_t count, const double *want)
{
    double got[32];
    ck_assert_ptr_nonnull(tensor);
    ck_assert_int_eq(mn_tensor_numel(tensor), count);
    ck_assert_int_eq(mn_tensor_read_f64(tensor, got, count), MN_OK);
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(same(got[i], want[i]), "element %lld is %g, not %g", (long long)i, got[i],
                      want[i]);
}

/* The gradient of the sum of y in x. */
static mn_tensor *gradient(mn_tensor *y, const mn_tensor *x)
{
    ck_assert_int_eq(mn_backward(mn_sum(y, 0, NULL, false), 1), MN_OK);
    return mn_grad(x);
}

/* f64 runs on the reference kernels, the others on those of the CPU. */
static const mn_dtype dtypes[] = {MN_F64, MN_F32, MN_F16, MN_BF16};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

/* ---- one operand ----------------------------------------------------------------------------- */

static mn_tensor *leaky(mn_tensor *x)
{
    return mn_leaky_relu(x, 0.25);
}

static mn_tensor *clamped(mn_tensor *x)
{
    return mn_clamp(x, -4, 4);
}

static mn_tensor *squared(mn_tensor *x)
{
    return mn_pow_scalar(x, 2);
}

static mn_tensor *to_the_zero(mn_tensor *x)
{
    return mn_pow_scalar(x, 0);
}

static mn_tensor *times_zero(mn_tensor *x)
{
    return mn_mul_scalar(x, 0);
}

static mn_tensor *plus_two(mn_tensor *x)
{
    return mn_add_scalar(x, 2);
}

#define INF  ((double)INFINITY)
#define NONE ((double)NAN)

enum { SPECIAL = 7 };
static const double special[SPECIAL] = {0, -0.0, 4, -4, INF, -INF, NONE};

static const struct {
    const char *name;
    mn_tensor *(*function)(mn_tensor *x);
    double values[SPECIAL], slopes[SPECIAL];
    int exact; /* so many of them, for what is rounded comes last; else all */
} functions[] = {
    {"neg", mn_neg, {-0.0, 0, -4, 4, -INF, INF, NONE}, {-1, -1, -1, -1, -1, -1, -1}, 0},
    {"abs", mn_abs, {0, 0, 4, 4, INF, INF, NONE}, {0, 0, 1, -1, 1, -1, 1}, 0},
    {"plus", plus_two, {2, 2, 6, -2, INF, -INF, NONE}, {1, 1, 1, 1, 1, 1, 1}, 0},
    {"times 0", times_zero, {0, -0.0, 0, -0.0, NONE, NONE, NONE}, {0, 0, 0, 0, 0, 0, 0}, 0},
    {"sqrt",
     mn_sqrt,
     {0, -0.0, 2, NONE, INF, NONE, NONE},
     {INF, -INF, 0.25, NONE, 0, NONE, NONE},
     0},
    {"rsqrt",
     mn_rsqrt,
     {INF, -INF, 0.5, NONE, 0, NONE, NONE},
     {-INF, INF, -0.0625, NONE, -0.0, NONE, NONE},
     0},
    {"exp", mn_exp, {1, 1}, {1, 1}, 2},
    {"log", mn_log, {-INF, -INF}, {INF, -INF}, 2},
    {"tanh", mn_tanh, {0, -0.0}, {1, 1}, 2},
    {"sigmoid", mn_sigmoid, {0.5, 0.5}, {0.25, 0.25}, 2},
    {"silu", mn_silu, {0, -0.0}, {0.5, 0.5}, 2},
    {"gelu", mn_gelu, {0, -0.0}, {0.5, 0.5}, 2},
    {"leaky", leaky, {0, -0.0, 4, -1, INF, -INF, NONE}, {0.25, 0.25, 1, 0.25, 1, 0.25, 1}, 0},
    {"clamp", clamped, {0, -0.0, 4, -4, 4, -4, NONE}, {1, 1, 1, 1, 0, 0, 1}, 0},
    {"square", squared, {0, 0, 16, 16, INF, INF, NONE}, {0, -0.0, 8, -8, INF, -INF, NONE}, 0},
    {"x^0", to_the_zero, {1, 1, 1, 1, 1, 1, 1}, {0, 0, 0, 0, 0, 0, 0}, 0},
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

START_TEST(special_values)
{
    mn_context *ctx = mn_test_open();
    for (int i = 0; i < FUNCTIONS; i++) {
        mn_tensor *x = leaf(ctx, dtypes[_i], SPECIAL, special);
        mn_tensor *y = functions[i].function(x);
        mn_name_push(ctx, functions[i].name);
        ck_assert_int_eq(mn_tensor_dtype(y), dtypes[_i]);
        double got[2][SPECIAL];
        ck_assert_int_eq(mn_tensor_read_f64(y, got[0], SPECIAL), MN_OK);
        ck_assert_int_eq(mn_tensor_read_f64(gradient(y, x), got[1], SPECIAL), MN_OK);
        for (int j = 0; j < (functions[i].exact ? functions[i].exact : SPECIAL); j++)
            ck_assert_msg(same(got[0][j], functions[i].values[j]) &&
                              same(got[1][j] + 0.0, functions[i].slopes[j] + 0.0),
                          "%s at %g is %g with slope %g", functions[i].name, special[j], got[0][j],
                          got[1][j]);
        mn_name_pop(ctx);
    }
    mn_context_free(ctx);
}
END_TEST

/* What the saturating functions do far out, and that NaN goes through all of them. */
START_TEST(far_out)
{
    static mn_tensor *(*const all[])(mn_tensor *) = {
        mn_exp, mn_log, mn_sqrt, mn_rsqrt, mn_tanh, mn_silu, mn_sigmoid, mn_gelu, squared};
    const double far[] = {INF, -INF, 1000, -1000}, nan[] = {NONE};
    mn_context *ctx = mn_test_open();
    mn_tensor *x = vector(ctx, dtypes[_i], 4, far);
    expect(mn_exp(x), 4, (double[]){INF, 0, INF, 0});
    expect(mn_tanh(x), 4, (double[]){1, -1, 1, -1});
    expect(mn_sigmoid(x), 4, (double[]){1, 0, 1, 0});
    expect(mn_silu(x), 4, (double[]){INF, NONE, 1000, -0.0});
    expect(mn_gelu(x), 4, (double[]){INF, NONE, 1000, -0.0});
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        mn_tensor *unknown = leaf(ctx, dtypes[_i], 1, nan);
        mn_tensor *y = all[i](unknown);
        expect(y, 1, nan);
        expect(gradient(y, unknown), 1, nan);
    }
    ck_assert_ptr_null(mn_clamp(x, not_a_number, 1));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "clamp: a bound is NaN");
    ck_assert_ptr_null(mn_exp(NULL));
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

/* An infinite gradient does not come through where nothing shall. */
START_TEST(masks)
{
    mn_context *ctx = mn_test_open();
    const double x_values[] = {-2, 0.5, 2}, huge[] = {INF, INF, INF};
    mn_tensor *x = leaf(ctx, dtypes[_i], 3, x_values), *g = vector(ctx, dtypes[_i], 3, huge);
    expect(gradient(mn_mul(mn_clamp(x, 0, 1), g), x), 3, (double[]){0, INF, 0});
    x = leaf(ctx, dtypes[_i], 3, x_values);
    expect(gradient(mn_mul(mn_pow_scalar(x, 0), g), x), 3, (double[]){0, 0, 0});
    x = leaf(ctx, dtypes[_i], 3, x_values);
    const double mask_values[] = {1, 0, 1};
    mn_tensor *mask = vector(ctx, MN_U8, 3, mask_values);
    expect(gradient(mn_mul(mn_where(mask, x, mn_neg(g)), g), x), 3, (double[]){INF, 0, INF});
    mn_context_free(ctx);
}
END_TEST

/* ---- two operands ---------------------------------------------------------------------------- */

START_TEST(comparisons)
{
    static mn_tensor *(*const ops[])(mn_tensor *, mn_tensor *) = {mn_eq, mn_ne, mn_lt,
                                                                  mn_le, mn_gt, mn_ge};
    enum { PAIRS = 7 };
    static const double a[PAIRS] = {1, 2, 1, NONE, 1, NONE, INF},
                        b[PAIRS] = {2, 1, 1, 1, NONE, NONE, INF};
    static const double want[6][PAIRS] = {{0, 0, 1, 0, 0, 0, 1}, {1, 1, 0, 1, 1, 1, 0},
                                          {1, 0, 0, 0, 0, 0, 0}, {1, 0, 1, 0, 0, 0, 1},
                                          {0, 1, 0, 0, 0, 0, 0}, {0, 1, 1, 0, 0, 0, 1}};
    mn_context *ctx = mn_test_open();
    mn_tensor *x = leaf(ctx, dtypes[_i], PAIRS, a), *y = vector(ctx, dtypes[_i], PAIRS, b);
    for (int i = 0; i < 6; i++) {
        mn_tensor *result = ops[i](x, y);
        ck_assert_int_eq(mn_tensor_dtype(result), MN_U8);
        ck_assert(!mn_requires_grad(result));
        expect(result, PAIRS, want[i]);
    }
    /* whichever repeats, the operands stay apart */
    mn_tensor *one = mn_full(ctx, dtypes[_i], 0, NULL, 1.5);
    expect(mn_gt(one, y), PAIRS, (double[]){0, 1, 1, 1, 0, 0, 0});
    expect(mn_lt(y, one), PAIRS, (double[]){0, 1, 1, 1, 0, 0, 0});
    expect(mn_ge(y, one), PAIRS, (double[]){1, 0, 0, 0, 0, 0, 1});
    mn_context_free(ctx);
}
END_TEST

START_TEST(ties_and_nan)
{
    enum { PAIRS = 5 };
    static const double a_values[PAIRS] = {1, 2, 3, NONE, 1}, b_values[PAIRS] = {2, 1, 3, 1, NONE};
    mn_context *ctx = mn_test_open();
    for (int largest = 0; largest < 2; largest++) {
        mn_tensor *a = leaf(ctx, dtypes[_i], PAIRS, a_values);
        mn_tensor *b = leaf(ctx, dtypes[_i], PAIRS, b_values);
        mn_tensor *y = largest ? mn_maximum(a, b) : mn_minimum(a, b);
        expect(y, PAIRS,
               largest ? (double[]){2, 2, 3, NONE, NONE} : (double[]){1, 1, 3, NONE, NONE});
        gradient(y, a);
        const double first[PAIRS] = {!largest, largest, 0.5, 1, 1};
        const double second[PAIRS] = {largest, !largest, 0.5, 1, 1};
        expect(mn_grad(a), PAIRS, first);
        expect(mn_grad(b), PAIRS, second);
    }
    mn_context_free(ctx);
}
END_TEST

/* As torch.pow: the gradient in the base is 0 for exponent 0, that in the exponent is 0 for base 0
 * with exponent >= 0. */
START_TEST(pow_gradients)
{
    enum { PAIRS = 6 };
    static const double a_values[PAIRS] = {0, 0, 2, 0, -2, 1},
                        b_values[PAIRS] = {0, 2, 0, -1, 3, 5};
    mn_context *ctx = mn_test_open();
    mn_tensor *a = leaf(ctx, dtypes[_i], PAIRS, a_values);
    mn_tensor *b = leaf(ctx, dtypes[_i], PAIRS, b_values);
    mn_tensor *y = mn_pow(a, b);
    expect(y, PAIRS, (double[]){1, 0, 1, INF, -8, 1});
    gradient(y, a);
    expect(mn_grad(a), PAIRS, (double[]){0, 0, 0, -INF, 12, 5});
    double slopes[PAIRS];
    ck_assert_int_eq(mn_tensor_read_f64(mn_grad(b), slopes, PAIRS), MN_OK);
    ck_assert(slopes[0] == 0 && slopes[1] == 0 && slopes[5] == 0);
    ck_assert_double_eq_tol(slopes[2], log(2), 0.002);
    ck_assert(slopes[3] == -infinity && isnan(slopes[4]));
    mn_context_free(ctx);
}
END_TEST

/* NaN on the side that is not chosen is not seen, in either direction. */
START_TEST(where_nan)
{
    static const double a_values[] = {1, NONE, 3, NONE}, b_values[] = {NONE, 5, NONE, 7};
    static const double choice[] = {1, 0, 255, 0};
    mn_context *ctx = mn_test_open();
    mn_tensor *a = leaf(ctx, dtypes[_i], 4, a_values), *b = leaf(ctx, dtypes[_i], 4, b_values);
    mn_tensor *condition = vector(ctx, MN_U8, 4, choice);
    mn_tensor *y = mn_where(condition, a, b);
    expect(y, 4, (double[]){1, 5, 3, 7});
    gradient(mn_mul(y, y), a);
    expect(mn_grad(a), 4, (double[]){2, 0, 6, 0});
    expect(mn_grad(b), 4, (double[]){0, 10, 0, 14});
    ck_assert_ptr_null(mn_where(condition, a, NULL));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "where: argument 3 is NULL");
    mn_context_free(ctx);
}
END_TEST

/* Tasks that begin within a row. */
START_TEST(where_long_rows)
{
    enum { ROWS = 5, COLUMNS = 7001 };
    static double row[COLUMNS], got[ROWS * COLUMNS];
    static const int64_t tall[2] = {ROWS, 1};
    static const double choice[ROWS] = {1, 0, 1, 0, 1};
    mn_context *ctx = mn_test_open();
    for (int i = 0; i < COLUMNS; i++)
        row[i] = i;
    mn_tensor *condition = mn_reshape(vector(ctx, MN_U8, ROWS, choice), 2, tall);
    mn_tensor *a = vector(ctx, dtypes[_i], COLUMNS, row);
    mn_tensor *y = mn_where(condition, a, mn_neg(a));
    ck_assert_int_eq(mn_tensor_read_f64(a, row, COLUMNS), MN_OK);
    ck_assert_int_eq(mn_tensor_read_f64(y, got, (int64_t)ROWS * COLUMNS), MN_OK);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        ck_assert_double_eq(got[i], i / COLUMNS % 2 ? -row[i % COLUMNS] : row[i % COLUMNS]);
    mn_context_free(ctx);
}
END_TEST

START_TEST(integers)
{
    static const mn_dtype whole[] = {MN_I64, MN_I32, MN_U8};
    const double a_values[] = {7, 2, 5}, b_values[] = {3, 4, 5}, choice[] = {1, 0, 1};
    mn_context *ctx = mn_test_open();
    mn_tensor *a = vector(ctx, whole[_i], 3, a_values), *b = vector(ctx, whole[_i], 3, b_values);
    mn_tensor *condition = vector(ctx, MN_U8, 3, choice);
    expect(mn_minimum(a, b), 3, (double[]){3, 2, 5});
    expect(mn_maximum(a, b), 3, (double[]){7, 4, 5});
    expect(mn_sub(b, a), 3, (double[]){whole[_i] == MN_U8 ? 252 : -4, 2, 0});
    expect(mn_ge(a, b), 3, (double[]){1, 0, 1});
    expect(mn_where(condition, a, b), 3, (double[]){7, 4, 5});
    ck_assert_int_eq(mn_tensor_dtype(mn_where(condition, a, b)), whole[_i]);
    ck_assert_ptr_null(mn_div(a, b));
    mn_test_expect(ctx, MN_ERR_DTYPE, "div: dtype of a is");
    ck_assert_ptr_null(mn_neg(a));
    mn_test_expect(ctx, MN_ERR_DTYPE, "affine: dtype of the input is");
    mn_context_free(ctx);
}
END_TEST

START_TEST(promotion)
{
    const double two[] = {2, 4}, three[] = {8, 3};
    mn_context *ctx = mn_test_open();
    mn_tensor *half = leaf(ctx, MN_F16, 2, two), *brain = leaf(ctx, MN_BF16, 2, three);
    mn_tensor *whole = vector(ctx, MN_I64, 2, two), *wide = leaf(ctx, MN_F64, 2, three);
    mn_tensor *y = mn_div(brain, half);
    ck_assert_int_eq(mn_tensor_dtype(y), MN_F32);
    expect(y, 2, (double[]){4, 0.75});
    expect(gradient(y, half), 2, (double[]){-2, -0.1875});
    expect(mn_grad(brain), 2, (double[]){0.5, 0.25});
    ck_assert_int_eq(mn_tensor_dtype(mn_div(brain, whole)), MN_BF16);
    ck_assert_int_eq(mn_tensor_dtype(mn_pow(half, whole)), MN_F16);
    ck_assert_int_eq(mn_tensor_dtype(mn_maximum(half, wide)), MN_F64);
    ck_assert_int_eq(mn_tensor_dtype(mn_where(mn_lt(half, wide), half, brain)), MN_F32);
    expect(mn_eq(half, whole), 2, (double[]){1, 1});
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

/* Quotients in half precision are differentiated in f32: 300^2 is beyond f16. */
START_TEST(half_gradients)
{
    const double a_values[] = {1}, b_values[] = {300};
    mn_context *ctx = mn_test_open();
    mn_tensor *a = leaf(ctx, MN_F16, 1, a_values), *b = leaf(ctx, MN_F16, 1, b_values);
    mn_tensor *y = mn_mul_scalar(mn_div(mn_mul_scalar(a, 30000), b), 300);
    double slope;
    ck_assert_int_eq(mn_tensor_item(gradient(y, b), &slope), MN_OK);
    ck_assert_double_eq_tol(slope, -100, 0.1);
    mn_context_free(ctx);
}
END_TEST

START_TEST(autocast)
{
    static mn_tensor *(*const keep[])(mn_tensor *) = {
        mn_neg, mn_abs, mn_sqrt, mn_tanh, leaky, clamped, mn_sigmoid, mn_silu, mn_gelu, plus_two};
    static mn_tensor *(*const full[])(mn_tensor *) = {mn_exp, mn_log, mn_rsqrt, squared};
    const double values[] = {1, 2};
    mn_context *ctx = mn_test_open();
    mn_tensor *x = vector(ctx, MN_BF16, 2, values);
    mn_autocast_begin(ctx, MN_BF16);
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++)
        ck_assert_int_eq(mn_tensor_dtype(keep[i](x)), MN_BF16);
    for (size_t i = 0; i < sizeof full / sizeof *full; i++)
        ck_assert_int_eq(mn_tensor_dtype(full[i](x)), MN_F32);
    ck_assert_int_eq(mn_tensor_dtype(mn_pow(x, x)), MN_F32);
    ck_assert_int_eq(mn_tensor_dtype(mn_div(x, x)), MN_BF16);
    ck_assert_int_eq(mn_tensor_dtype(mn_sub(x, x)), MN_BF16);
    ck_assert_int_eq(mn_tensor_dtype(mn_maximum(x, x)), MN_BF16);
    ck_assert_int_eq(mn_tensor_dtype(mn_lt(x, x)), MN_U8);
    ck_assert_int_eq(mn_tensor_dtype(mn_where(mn_lt(x, x), x, x)), MN_BF16);
    mn_autocast_end(ctx);
    ck_assert_int_eq(mn_tensor_dtype(mn_exp(x)), MN_BF16);
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

/* ---- derivatives ----------------------------------------------------------------------------- */

/* Beyond the second there are none, and the op says so. */
START_TEST(third_derivative)
{
    const double values[] = {0.5, -1};
    mn_context *ctx = mn_test_open();
    mn_function_attributes attributes = {.function = MN_OP_tanh, .order = 2};
    mn_tensor *inputs[2] = {leaf(ctx, MN_F32, 2, values), vector(ctx, MN_F32, 2, values)};
    mn_tensor *y = mn_apply1(MN_OP_unary_backward, inputs, 2, &attributes);
    expect(y, 2, (double[]){-0.5, -2});
    expect(gradient(y, inputs[0]), 2, (double[]){-1, 2});
    inputs[1] = leaf(ctx, MN_F32, 2, values);
    y = mn_apply1(MN_OP_unary_backward, inputs, 2, &attributes);
    mn_backward(mn_sum(y, 0, NULL, false), 1);
    mn_test_expect(ctx, MN_ERR_UNSUPPORTED, "tanh has no derivatives beyond the second");
    mn_context_free(ctx);
}
END_TEST

/* Those of a bent line have a gradient in g alone. */
START_TEST(bent_lines)
{
    static const mn_op_id bent[] = {MN_OP_abs, MN_OP_leaky_relu, MN_OP_clamp, MN_OP_relu};
    static const double values[] = {-3, 0.5, 3},
                        want[4][3] = {{-1, 1, 1}, {-1, 1, 1}, {0, 1, 0}, {0, 1, 1}};
    mn_context *ctx = mn_test_open();
    const mn_function_attributes attributes = {.function = bent[_i], .order = 1, .a = -1, .b = 1};
    mn_tensor *inputs[2] = {leaf(ctx, dtypes[1], 3, values), leaf(ctx, dtypes[1], 3, values)};
    mn_tensor *y = bent[_i] == MN_OP_relu ? mn_apply1(MN_OP_relu_backward, inputs, 2, NULL)
                                          : mn_apply1(MN_OP_unary_backward, inputs, 2, &attributes);
    expect(gradient(y, inputs[0]), 3, want[_i]);
    ck_assert_ptr_null(mn_grad(inputs[1]));
    mn_context_free(ctx);
}
END_TEST

/* ---- kernel sets ----------------------------------------------------------------------------- */

enum { ROW = 1021 };

static const mn_op_id ids[] = {MN_OP_affine,    MN_OP_abs,   MN_OP_exp,   MN_OP_log,
                               MN_OP_sqrt,      MN_OP_rsqrt, MN_OP_tanh,  MN_OP_sigmoid,
                               MN_OP_silu,      MN_OP_gelu,  MN_OP_clamp, MN_OP_leaky_relu,
                               MN_OP_pow_scalar};

static void compare_rows(const float *a, const float *b, const float *x, mn_op_id id)
{
    for (int i = 0; i < ROW; i++)
        ck_assert_msg(mn_f32_bits(a[i]) == mn_f32_bits(b[i]) || (isnan(a[i]) && isnan(b[i])),
                      "%s at %a: %a and %a", mn_ops[id].name, (double)x[i], (double)a[i],
                      (double)b[i]);
}

/* Values of all sizes give the same bits alone, in a row, and with AVX2. */
START_TEST(same_bits)
{
    static float x[ROW], g[ROW], y[3][ROW];
    const mn_op_id id = ids[_i];
    mn_function_attributes f = {.function = id, .a = 0.75, .b = 1.25};
    for (uint32_t round = 0, bits = 0; round < 96; round++) {
        f.order = round % 3;
        for (int i = 0; i < ROW; i++, bits += 43789) {
            x[i] = mn_f32_from_bits(bits);
            g[i] = (float)(i % 7) - 2.5F;
        }
        mn_bodies_portable.function(ROW, &f, g, x, y[0]);
        for (int i = 0; i < ROW; i++)
            mn_bodies_portable.function(1, &f, g + i, x + i, y[1] + i);
        compare_rows(y[0], y[1], x, id);
#if defined(MINIM_AVX2)
        if (mn_cpu_has_kernels(MN_KERNELS_AVX2)) {
            mn_bodies_avx2.function(ROW, &f, g, x, y[2]);
            compare_rows(y[0], y[2], x, id);
        }
#endif
    }
}
END_TEST

/* Exponents that take no logarithm, for values of all sizes and the special ones. */
START_TEST(simple_powers)
{
    static const double exponents[] = {-2, -1, -0.5, 0, 0.5, 1, 2, 3};
    static const float extremes[] = {0, -0.0F, INFINITY, -INFINITY, NAN, 1, -1, FLT_MIN, FLT_MAX};
    const mn_function_attributes f = {.function = MN_OP_pow_scalar, .a = exponents[_i]};
    for (uint32_t i = 0; i < 100000; i++) {
        const float x = i < 9 ? extremes[i] : mn_f32_from_bits(i * 42949U);
        const float want = (float)pow((double)x, f.a);
        float y;
        mn_bodies_portable.function(1, &f, NULL, &x, &y);
        const int64_t off = (int64_t)mn_f32_bits(want) - (int64_t)mn_f32_bits(y);
        ck_assert_msg((isnan(want) && isnan(y)) || (off >= -2 && off <= 2), "%a ^ %g: %a, not %a",
                      (double)x, f.a, (double)y, (double)want);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("elementwise");
    TCase *tests = tcase_create("elementwise");
    tcase_add_loop_test(tests, special_values, 0, DTYPES);
    tcase_add_loop_test(tests, far_out, 0, DTYPES);
    tcase_add_loop_test(tests, masks, 0, DTYPES);
    tcase_add_loop_test(tests, comparisons, 0, DTYPES);
    tcase_add_loop_test(tests, ties_and_nan, 0, DTYPES);
    tcase_add_loop_test(tests, pow_gradients, 0, DTYPES);
    tcase_add_loop_test(tests, where_nan, 0, DTYPES);
    tcase_add_loop_test(tests, where_long_rows, 0, DTYPES);
    tcase_add_loop_test(tests, integers, 0, 3);
    tcase_add_test(tests, promotion);
    tcase_add_test(tests, half_gradients);
    tcase_add_test(tests, autocast);
    tcase_add_test(tests, third_derivative);
    tcase_add_loop_test(tests, bent_lines, 0, 4);
    tcase_add_loop_test(tests, same_bits, 0, sizeof ids / sizeof *ids);
    tcase_add_loop_test(tests, simple_powers, 0, 8);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
