/* Average pooling, resizing, layer and group normalisation: values worked out by hand, mistakes,
 * and kernels against the reference on shapes that the op cases are too small for. */
#include "tests/support_kernels.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"

#include <check.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>

/* ---- values; each test runs with the reference kernels (_i is 0) and with the best ones --------
 */

static mn_context *ctx;

static void open_context(int index)
{
    static const mn_kernel_set sets[] = {MN_KERNELS_REFERENCE, MN_KERNELS_AUTO};
    ctx = mn_test_op_context("cpu", sets[index]);
}

/* [1,height,width,1] with these elements. */
static mn_tensor *image(int64_t height, int64_t width, const double *values)
{
    const int64_t shape[4] = {1, height, width, 1};
    mn_tensor *x = mn_tensor_create(ctx, MN_F32, 4, shape);
    ck_assert_int_eq(mn_tensor_write_f64(x, values, height * width), MN_OK);
    return x;
}

static void expect(mn_tensor *y, int64_t count, const double *values)
{
    double got[64];
    ck_assert_msg(y != NULL, "%s", mn_error_message(ctx));
    ck_assert_int_eq(mn_tensor_read_f64(y, got, count), MN_OK);
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(fabs(got[i] - values[i]) < 1e-6, "element %lld is %.9g, not %.9g",
                      (long long)i, got[i], values[i]);
}

static const double up_to_9[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

START_TEST(average_pool_values)
{
    static const double whole[] = {0.25, 1.25, 2.75, 7}, inside[] = {1, 2.5, 5.5, 7};
    open_context(_i);
    mn_pool2d_options o = mn_pool2d_options_default();
    o.padding[0] = o.padding[1] = 1;
    expect(mn_avg_pool2d(image(3, 3, up_to_9), &o), 4, whole);
    o.exclude_padding = true;
    expect(mn_avg_pool2d(image(3, 3, up_to_9), &o), 4, inside);
    /* A caller that was built before there was exclude_padding. */
    o.size = offsetof(mn_pool2d_options, exclude_padding);
    expect(mn_avg_pool2d(image(3, 3, up_to_9), &o), 4, whole);
    mn_context_free(ctx);
}
END_TEST

/* What a window costs is bounded by the image, also where the reference kernel serves. */
START_TEST(windows_far_larger_than_the_image)
{
    open_context(_i);
    mn_pool2d_options o = mn_pool2d_options_default();
    o.kernel[0] = o.kernel[1] = INT_MAX;
    o.padding[0] = o.padding[1] = INT_MAX / 2;
    o.exclude_padding = true;
    mn_tensor *x = mn_cast(image(1, 1, up_to_9 + 6), MN_F64);
    ck_assert_int_eq(mn_set_requires_grad(x, true), MN_OK);
    mn_tensor *average = mn_avg_pool2d(x, &o);
    o.exclude_padding = false;
    mn_tensor *largest = mn_max_pool2d(x, &o);
    expect(average, 1, up_to_9 + 6);
    expect(largest, 1, up_to_9 + 6);
    ck_assert_int_eq(mn_backward(mn_add(average, largest), 1), MN_OK);
    expect(mn_grad(x), 1, up_to_9 + 1);
    mn_context_free(ctx);
}
END_TEST

typedef struct resizing {
    int64_t from[2];
    double x[9];
    int to[2];
    mn_upsample_mode mode;
    bool align_corners;
    double y[16];
} resizing;

/* The two of 4 x 4 are examples of PyTorch's documentation. */
static const resizing resizings[] = {
    {{1, 3}, {1, 2, 3}, {1, 5}, MN_UPSAMPLE_NEAREST, false, {1, 1, 2, 2, 3}},
    {{1, 5}, {1, 2, 3, 4, 5}, {1, 3}, MN_UPSAMPLE_NEAREST, false, {1, 2, 4}},
    {{3, 1}, {1, 2, 3}, {5, 2}, MN_UPSAMPLE_NEAREST, false, {1, 1, 1, 1, 2, 2, 2, 2, 3, 3}},
    {{2, 2},
     {1, 2, 3, 4},
     {4, 4},
     MN_UPSAMPLE_BILINEAR,
     false,
     {1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4}},
    {{2, 2},
     {1, 2, 3, 4},
     {4, 4},
     MN_UPSAMPLE_BILINEAR,
     true,
     {1, 4 / 3.0, 5 / 3.0, 2, 5 / 3.0, 2, 7 / 3.0, 8 / 3.0, 7 / 3.0, 8 / 3.0, 3, 10 / 3.0, 3,
      10 / 3.0, 11 / 3.0, 4}},
    {{1, 2}, {0, 1}, {1, 3}, MN_UPSAMPLE_BILINEAR, false, {0, 0.5, 1}},
    {{3, 1}, {0, 1, 4}, {2, 1}, MN_UPSAMPLE_BILINEAR, false, {0.25, 3.25}},
    {{1, 3}, {0, 1, 4}, {1, 5}, MN_UPSAMPLE_BILINEAR, true, {0, 0.5, 1, 2.5, 4}},
    {{1, 3}, {2, 1, 4}, {2, 1}, MN_UPSAMPLE_BILINEAR, true, {2, 2}},
    {{1, 3}, {2, 1, 4}, {1, 1}, MN_UPSAMPLE_BILINEAR, false, {1}},
};

START_TEST(upsample_values)
{
    open_context(_i);
    for (size_t i = 0; i < COUNT(resizings); i++) {
        const resizing *r = &resizings[i];
        mn_upsample2d_options o = mn_upsample2d_options_default();
        o.height = r->to[0];
        o.width = r->to[1];
        o.mode = r->mode;
        o.align_corners = r->align_corners;
        expect(mn_upsample2d(image(r->from[0], r->from[1], r->x), &o), o.height * o.width, r->y);
    }
    mn_context_free(ctx);
}
END_TEST

/* Where 11 * 26 / 22 is 13, the f32 product is below it, and PyTorch takes pixel 12. Pixels of
 * weight 0 pass no infinity on. */
START_TEST(upsample_edges)
{
    static const double ends[] = {1, (double)INFINITY, 3}, kept[] = {1, 3};
    double count[26], got[22];
    open_context(_i);
    mn_upsample2d_options o = mn_upsample2d_options_default();
    for (int i = 0; i < 26; i++)
        count[i] = i;
    o.height = 1;
    o.width = 22;
    mn_tensor *y = mn_upsample2d(image(1, 26, count), &o);
    ck_assert_int_eq(mn_tensor_read_f64(y, got, 22), MN_OK);
    ck_assert_double_eq(got[11], 12);
    o.width = 2;
    o.mode = MN_UPSAMPLE_BILINEAR;
    o.align_corners = true;
    expect(mn_upsample2d(image(1, 3, ends), &o), 2, kept);
    mn_context_free(ctx);
}
END_TEST

START_TEST(norm_values)
{
    static const int64_t shape[2] = {2, 4}, groups[3] = {1, 2, 4}, channels[1] = {4};
    static const double x[] = {1, 3, -2, 2, 5, 5, 7, 7};
    static const double layer[] = {0, 2, -3, 1, -1, -1, 1, 1};
    static const double weight[] = {1, 2, 3, 4}, bias[] = {0, 0, 0, 10};
    double want[8];
    open_context(_i);
    mn_tensor *rows = mn_tensor_create(ctx, MN_F64, 2, shape);
    mn_tensor *w = mn_tensor_create(ctx, MN_F64, 1, channels);
    mn_tensor *b = mn_tensor_create(ctx, MN_F64, 1, channels);
    mn_tensor_write_f64(rows, x, 8);
    mn_tensor_write_f64(w, weight, 4);
    mn_tensor_write_f64(b, bias, 4);
    for (int i = 0; i < 8; i++) /* variances 3.5 and 1 */
        want[i] = layer[i] / (i < 4 ? sqrt(4) : sqrt(1.5)) * weight[i % 4] + bias[i % 4];
    expect(mn_layer_norm(rows, 1, w, b, 0.5), 8, want);
    /* Groups {1,3,5,5} and {-2,2,7,7}. */
    static const double mean[] = {3.5, 3.5}, variance[] = {2.75, 14.25};
    for (int i = 0; i < 8; i++) {
        const int k = i % 4 / 2;
        want[i] = (x[i] - mean[k]) / sqrt(variance[k] + 1) * weight[i % 4];
    }
    expect(mn_group_norm(mn_reshape(rows, 3, groups), 2, w, NULL, 1), 8, want);
    mn_context_free(ctx);
}
END_TEST

/* Two neighbouring f32 values far from 0 come apart, although their mean lies between them; a NaN
 * stays in its group. */
START_TEST(norms_are_robust)
{
    static const int64_t shape[3] = {1, 375, 4};
    double x[1500], y[1500], worst = 0;
    open_context(_i);
    for (int i = 0; i < 1500; i++)
        x[i] = 1e4 + (i % 3 == 0 ? 0x1p-10 : 0);
    mn_tensor *image_of = mn_tensor_create(ctx, MN_F32, 3, shape);
    mn_tensor_write_f64(image_of, x, 1500);
    ck_assert_int_eq(mn_tensor_read_f64(mn_group_norm(image_of, 1, NULL, NULL, 0), y, 1500), MN_OK);
    for (int i = 0; i < 1500; i++) { /* not by fmax, whose loop ends gcc 12 for AArch64 */
        const double off = fabs(y[i] - (i % 3 == 0 ? sqrt(2) : -sqrt(0.5)));
        worst = off > worst ? off : worst;
    }
    ck_assert_msg(worst < 1e-5, "off by %g", worst);
    x[5] = (double)NAN;
    mn_tensor_write_f64(image_of, x, 1500);
    ck_assert_int_eq(mn_tensor_read_f64(mn_group_norm(image_of, 2, NULL, NULL, 0), y, 1500), MN_OK);
    for (int i = 0; i < 1500; i++)
        ck_assert(isnan(y[i]) == (i % 4 < 2));
    mn_context_free(ctx);
}
END_TEST

START_TEST(autocast_runs_them_in_f32)
{
    static const int64_t shape[4] = {2, 3, 3, 4}, channels[1] = {4};
    open_context(_i);
    mn_upsample2d_options o = mn_upsample2d_options_default();
    o.height = o.width = 2;
    mn_tensor *x = mn_full(ctx, MN_F16, 4, shape, 1);
    mn_tensor *w = mn_full(ctx, MN_F32, 1, channels, 1);
    ck_assert_int_eq(mn_tensor_dtype(mn_group_norm(x, 2, w, w, 1e-5)), MN_F16);
    ck_assert_int_eq(mn_autocast_begin(ctx, MN_F16), MN_OK);
    ck_assert_int_eq(mn_tensor_dtype(mn_upsample2d(x, &o)), MN_F32);
    ck_assert_int_eq(mn_tensor_dtype(mn_layer_norm(x, 1, w, w, 1e-5)), MN_F32);
    ck_assert_int_eq(mn_tensor_dtype(mn_group_norm(x, 2, w, w, 1e-5)), MN_F32);
    ck_assert_int_eq(mn_tensor_dtype(mn_avg_pool2d(x, NULL)), MN_F16);
    mn_autocast_end(ctx);
    mn_test_expect_ok(ctx);
    mn_context_free(ctx);
}
END_TEST

/* ---- adjoints, whose gradients are the ops themselves ------------------------------------------
 */

typedef struct adjoint {
    mn_op_id op;
    const void *attributes;
    int ndim;
    int64_t shape[4];
} adjoint;

static const mn_pool2d_attributes pooled = {
    .kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}, .exclude_padding = 1, .extent = {5, 4}};
static const mn_resize_attributes resized = {
    .size = {3, 7}, .mode = MN_UPSAMPLE_BILINEAR, .extent = {5, 4}};

static const adjoint adjoints[] = {
    {MN_OP_avg_pool2d_backward, &pooled, 4, {2, 3, 5, 3}},
    {MN_OP_upsample2d_backward, &resized, 4, {2, 3, 7, 3}},
};

static mn_tensor *apply_adjoint(mn_context *context, mn_tensor **inputs, int count, void *user)
{
    const adjoint *a = user;
    (void)context;
    return mn_apply1(a->op, inputs, count, a->attributes);
}

START_TEST(adjoints_are_differentiable)
{
    open_context(1);
    for (size_t i = 0; i < COUNT(adjoints); i++) {
        adjoint a = adjoints[i];
        mn_tensor *g = mn_full(ctx, MN_F64, a.ndim, a.shape, 0.5);
        ck_assert_int_eq(mn_set_requires_grad(g, true), MN_OK);
        mn_gradcheck(ctx, apply_adjoint, &a, &g, 1, NULL);
        mn_test_expect_ok(ctx);
    }
    mn_context_free(ctx);
}
END_TEST

/* ---- mistakes -------------------------------------------------------------------------------- */

static mn_tensor *zeros(int ndim, const int64_t *shape)
{
    return mn_full(ctx, MN_F32, ndim, shape, 0);
}

START_TEST(image_mistakes)
{
    static const double x[16] = {0};
    ctx = mn_test_reference();
    mn_pool2d_options pool = mn_pool2d_options_default();
    pool.kernel[1] = 5;
    ck_assert_ptr_null(mn_avg_pool2d(image(4, 4, x), &pool));
    mn_test_expect(ctx, MN_ERR_SHAPE,
                   "width: a kernel of 5 (dilation 1) does not fit an image of 4");
    pool.kernel[1] = 2;
    pool.padding[0] = 2;
    ck_assert_ptr_null(mn_avg_pool2d(image(4, 4, x), &pool));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "padding 2 is more than half the kernel of 2");
    mn_upsample2d_options o = mn_upsample2d_options_default();
    ck_assert_ptr_null(mn_upsample2d(image(4, 4, x), NULL));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "the result is 0 by 0");
    o.height = 3;
    o.width = -1;
    ck_assert_ptr_null(mn_upsample2d(image(4, 4, x), &o));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "the result is 3 by -1");
    o.width = 3;
    o.align_corners = true;
    ck_assert_ptr_null(mn_upsample2d(image(4, 4, x), &o));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "align_corners is for bilinear only");
    o.mode = (mn_upsample_mode)7;
    ck_assert_ptr_null(mn_upsample2d(image(4, 4, x), &o));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "there is no mode 7");
    o.mode = MN_UPSAMPLE_NEAREST;
    o.align_corners = false;
    ck_assert_ptr_null(mn_upsample2d(image(0, 4, x), &o));
    mn_test_expect(ctx, MN_ERR_SHAPE, "the image has no height");
    ck_assert_ptr_null(mn_global_avg_pool2d(image(4, 0, x)));
    mn_test_expect(ctx, MN_ERR_SHAPE, "the input is [1,4,0,1], must be images with pixels");
    ck_assert_ptr_null(mn_global_avg_pool2d(zeros(3, (int64_t[3]){2, 2, 2})));
    mn_test_expect(ctx, MN_ERR_SHAPE, "the input is [2,2,2], must be images with pixels");
    ck_assert_ptr_null(mn_upsample2d(NULL, &o));
    mn_context_free(ctx);
}
END_TEST

START_TEST(norm_mistakes)
{
    static const int64_t shape[3] = {2, 5, 6}, five[] = {5}, none[] = {2, 0, 6};
    ctx = mn_test_reference();
    mn_tensor *x = zeros(3, shape), *w = zeros(1, five), *line = zeros(1, five);
    ck_assert_ptr_null(mn_group_norm(x, 4, NULL, NULL, 1e-5));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "6 channels do not divide into 4 groups");
    ck_assert_ptr_null(mn_group_norm(x, 0, NULL, NULL, 1e-5));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "into 0 groups");
    ck_assert_ptr_null(mn_group_norm(line, 1, NULL, NULL, 1e-5));
    mn_test_expect(ctx, MN_ERR_SHAPE, "the input has 1 axes, must have at least 2");
    ck_assert_ptr_null(mn_group_norm(x, 2, w, NULL, 1e-5));
    mn_test_expect(ctx, MN_ERR_SHAPE, "group_norm: shape of the weight is [5], must be [6]");
    ck_assert_ptr_null(mn_layer_norm(x, 2, NULL, w, 1e-5));
    mn_test_expect(ctx, MN_ERR_SHAPE, "layer_norm: shape of the bias is [5], must be [5,6]");
    ck_assert_ptr_null(mn_layer_norm(x, 0, NULL, NULL, 1e-5));
    mn_test_expect(ctx, MN_ERR_SHAPE, "the input has 3 axes, cannot normalize over the last 0");
    ck_assert_ptr_null(mn_layer_norm(x, 4, NULL, NULL, 1e-5));
    mn_test_expect(ctx, MN_ERR_SHAPE, "over the last 4");
    ck_assert_ptr_null(mn_layer_norm(line, 1, mn_cast(w, MN_F16), NULL, 1e-5));
    mn_test_expect(ctx, MN_ERR_DTYPE, "the weight is f16, must be f32");
    ck_assert_ptr_null(mn_layer_norm(x, 1, NULL, NULL, (double)NAN));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "eps nan must be at least 0");
    ck_assert_ptr_null(mn_group_norm(zeros(3, none), 2, NULL, NULL, 1e-5));
    mn_test_expect(ctx, MN_ERR_SHAPE, "there is nothing to normalize over");
    ck_assert_ptr_null(mn_group_norm(NULL, 2, w, NULL, 1e-5));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "group_norm: argument 1 is NULL");
    mn_context_free(ctx);
}
END_TEST

/* ---- kernels; _i is the type's index in mn_lowp ---------------------------------------------- */

typedef struct norm_shape {
    int64_t outer, positions, channels, groups; /* groups 0: a layer norm */
} norm_shape;

/* Rows side by side, strips of long rows, items of some of the groups, more than 1024 terms in a
 * lane, several tasks. */
static const norm_shape norm_shapes[] = {
    {2, 5000, 6, 3},  {1, 1100, 300, 2}, {1, 600, 521, 1}, {40, 7, 64, 8},   {2, 3, 512, 32},
    {2, 3, 600, 200}, {9001, 1, 10, 0},  {70, 1, 1031, 0}, {3, 300, 256, 1}, {1, 1, 3000, 0},
};

START_TEST(norm_kernels)
{
    static const kernel forward = KERNEL(group_norm, 8);
    static const kernel backward = KERNEL(group_norm_backward, 64);
    const mn_dtype dtype = mn_lowp[_i];
    for (size_t i = 0; i < COUNT(norm_shapes); i++) {
        const norm_shape *s = &norm_shapes[i];
        const mn_group_norm_attributes a = {1e-5, s->groups ? s->groups : 1, s->groups ? 0 : 1};
        const int64_t x[3] = {s->outer, s->positions, s->channels};
        const int64_t statistics[2] = {s->outer, a.groups};
        fixture f;
        mn_fixture_start(&f, &a, sizeof a);
        mn_fixture_input(&f, dtype, 3, x);
        mn_fixture_input(&f, MN_F32, 1, &s->channels);
        mn_fixture_input(&f, MN_F32, 1, &s->channels);
        mn_fixture_output(&f, dtype, 3, x);
        mn_fixture_output(&f, MN_F32, 2, statistics);
        mn_fixture_output(&f, MN_F32, 2, statistics);
        mn_fixture_check(&f, &forward);
        mn_fixture_start(&f, &a, sizeof a);
        mn_fixture_input(&f, dtype, 3, x);
        mn_fixture_input(&f, dtype, 3, x);
        mn_fixture_input(&f, MN_F32, 1, &s->channels);
        mn_fixture_input(&f, MN_F32, 2, statistics);
        mn_fixture_input(&f, MN_F32, 2, statistics);
        mn_fixture_output(&f, dtype, 3, x);
        mn_fixture_output(&f, MN_F32, 1, &s->channels);
        mn_fixture_output(&f, MN_F32, 1, &s->channels);
        mn_fixture_check(&f, &backward);
    }
}
END_TEST

START_TEST(resize_kernels)
{
    static const kernel forward = KERNEL(upsample2d, 4);
    static const kernel backward = KERNEL(upsample2d_backward, 16);
    static const int64_t shapes[][6] = {
        {2, 1, 1, 3, 200, 150}, {3, 31, 17, 300, 29, 40}, {5, 64, 64, 4, 7, 9}};
    for (size_t i = 0; i < 3 * COUNT(shapes); i++) {
        const int64_t *s = shapes[i / 3], x[4] = {s[0], s[1], s[2], s[3]};
        const int64_t y[4] = {s[0], s[4], s[5], s[3]};
        const mn_resize_attributes a = {.size = {s[4], s[5]},
                                        .mode = i % 3 ? MN_UPSAMPLE_BILINEAR : MN_UPSAMPLE_NEAREST,
                                        .align_corners = i % 3 == 2,
                                        .extent = {s[1], s[2]}};
        fixture f;
        mn_fixture_start(&f, &a, sizeof a);
        mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], 4, x));
        mn_fixture_output(&f, mn_lowp[_i], 4, y);
        mn_fixture_check(&f, &forward);
        mn_fixture_start(&f, &a, sizeof a);
        mn_fixture_input(&f, mn_lowp[_i], 4, y);
        mn_fixture_output(&f, mn_lowp[_i], 4, x);
        mn_fixture_check(&f, &backward);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("image_ops");
    TCase *tests = tcase_create("image_ops");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, NULL, mn_fixture_teardown);
    tcase_add_loop_test(tests, average_pool_values, 0, 2);
    tcase_add_loop_test(tests, windows_far_larger_than_the_image, 0, 2);
    tcase_add_loop_test(tests, upsample_values, 0, 2);
    tcase_add_loop_test(tests, upsample_edges, 0, 2);
    tcase_add_loop_test(tests, norm_values, 0, 2);
    tcase_add_loop_test(tests, norms_are_robust, 0, 2);
    tcase_add_loop_test(tests, autocast_runs_them_in_f32, 0, 2);
    tcase_add_test(tests, adjoints_are_differentiable);
    tcase_add_test(tests, image_mistakes);
    tcase_add_test(tests, norm_mistakes);
    tcase_add_loop_test(tests, norm_kernels, 0, 3);
    tcase_add_loop_test(tests, resize_kernels, 0, 3);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_NOFORK);
}
