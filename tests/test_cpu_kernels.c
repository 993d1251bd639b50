/* CPU kernels of elementwise ops, copies, reductions and softmax against the reference kernels: odd
 * and empty shapes, every 16-bit type, NaN and infinity at the end. */
#include "tests/support_kernels.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- elementwise. Loop tests run once per type in lowp: _i is its index. --------------------- */

static const int64_t sizes[] = {0, 1, 7, 511, 512, 513, 16385, 50021};

START_TEST(maps)
{
    static const kernel all[] = {KERNEL(relu, 0), KERNEL(relu_backward, 0), KERNEL(add, 0.01),
                                 KERNEL(mul, 0.01)};
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (size_t o = 0; o < COUNT(all); o++) {
            fixture f;
            mn_fixture_start(&f, NULL, 0);
            mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], 1, &sizes[s]));
            if (o > 0)
                mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], 1, &sizes[s]));
            mn_fixture_output(&f, mn_lowp[_i], 1, &sizes[s]);
            mn_fixture_check(&f, &all[o]);
        }
}
END_TEST

static const mn_blend_attributes sum = {1, 1}, average = {0.75, -0.3};

/* Sums to the last bit, as gradients need them; and any factors. */
START_TEST(blend)
{
    static const kernel exact = KERNEL(blend, 0), close = KERNEL(blend, 3);
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (int o = 0; o < 4; o++) {
            fixture f;
            mn_fixture_start(&f, o == 0 ? &sum : &average, sizeof sum);
            mn_fixture_input(&f, o < 2 ? MN_F32 : mn_lowp[_i], 1, &sizes[s]);
            mn_view_poison(mn_fixture_input(&f, o == 2 ? MN_F32 : mn_lowp[_i], 1, &sizes[s]));
            mn_fixture_check(&f, o == 0 ? &exact : &close);
        }
}
END_TEST

/* Limits that are met, and none. */
START_TEST(adjust)
{
    static const kernel k = KERNEL(adjust, 3);
    static const mn_adjust_attributes all[] = {
        {1, 0, -0.5, 0.75},
        {-2.5, 0.1, -(double)INFINITY, (double)INFINITY},
        {1, 0, 1, (double)INFINITY},
    };
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (size_t o = 0; o < COUNT(all); o++) {
            fixture f;
            mn_fixture_start(&f, &all[o], sizeof all[o]);
            mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], 1, &sizes[s]));
            mn_fixture_check(&f, &k);
        }
}
END_TEST

/* Both operands in one place, as in x + x, x * x and x += x. */
START_TEST(aliased_operands)
{
    static const kernel all[] = {KERNEL(add, 0.01), KERNEL(mul, 0.01), KERNEL(blend, 0)};
    for (size_t o = 0; o < COUNT(all); o++) {
        fixture f;
        mn_fixture_start(&f, o == 2 ? &sum : NULL, o == 2 ? sizeof sum : 0);
        const mn_view *x = mn_fixture_input(&f, o == 2 ? MN_F32 : mn_lowp[_i], DIMS(1031));
        f.call.in[f.call.input_count++] = *x;
        if (o < 2)
            mn_fixture_output(&f, mn_lowp[_i], DIMS(1031));
        mn_fixture_reference(&f, &all[o]);
        mn_fixture_check_sets(&f, &all[o]);
        f.call.in[1].data = NULL; /* freed once */
        mn_fixture_free(&f);
    }
}
END_TEST

typedef struct trio {
    int ndim[3];
    int64_t shape[3][4]; /* a, b, y */
} trio;

static const trio broadcasts[] = {
    {{2, 1, 2}, {{37, 10}, {10}, {37, 10}}},
    {{2, 2, 2}, {{1, 3}, {9001, 3}, {9001, 3}}},
    {{2, 1, 2}, {{3, 700}, {700}, {3, 700}}},
    {{0, 2, 2}, {{0}, {5, 1031}, {5, 1031}}},
    {{2, 0, 2}, {{5, 7001}, {0}, {5, 7001}}},
    {{4, 4, 4}, {{2, 1, 3, 1}, {1, 5, 3, 4}, {2, 5, 3, 4}}},
    {{3, 3, 3}, {{6, 1, 700}, {6, 5, 1}, {6, 5, 700}}},
    {{0, 0, 0}, {{0}, {0}, {0}}},
    {{2, 1, 2}, {{0, 3}, {3}, {0, 3}}},
};

START_TEST(broadcasting)
{
    static const kernel all[] = {KERNEL(add, 0.01), KERNEL(mul, 0.01)};
    for (size_t s = 0; s < COUNT(broadcasts); s++)
        for (size_t o = 0; o < 2; o++) {
            const trio *t = &broadcasts[s];
            fixture f;
            mn_fixture_start(&f, NULL, 0);
            mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], t->ndim[0], t->shape[0]));
            mn_fixture_input(&f, s % 2 ? MN_F32 : mn_lowp[_i], t->ndim[1], t->shape[1]);
            mn_fixture_output(&f, mn_lowp[_i], t->ndim[2], t->shape[2]);
            mn_fixture_check(&f, &all[o]);
        }
}
END_TEST

/* expand from b's shape to y's, and back. */
START_TEST(expand_and_reduce_to)
{
    static const kernel expand = KERNEL(expand, 0.01), reduce = KERNEL(reduce_to, 8);
    const mn_shape_attributes a = {.scale = 0.375};
    for (size_t s = 0; s < COUNT(broadcasts); s++)
        for (int o = 0; o < 2; o++) {
            const trio *t = &broadcasts[s];
            fixture f;
            mn_fixture_start(&f, &a, sizeof a);
            mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], t->ndim[2 - o], t->shape[2 - o]));
            mn_fixture_output(&f, mn_lowp[_i], t->ndim[1 + o], t->shape[1 + o]);
            mn_fixture_check(&f, o ? &expand : &reduce);
        }
}
END_TEST

/* ---- copies ---------------------------------------------------------------------------------- */

static void cast_case(mn_dtype from, mn_dtype to, int64_t n)
{
    static const kernel cast = KERNEL(cast, 0), assign = KERNEL(assign, 0);
    for (int o = 0; o < 2; o++) {
        fixture f;
        mn_fixture_start(&f, NULL, 0);
        if (o)
            mn_fixture_input(&f, to, 1, &n);
        mn_view *x = mn_fixture_input(&f, from, 1, &n);
        for (int64_t i = 0; mn_dtype_is_float(from) && mn_dtype_is_float(to) && i < n; i++)
            mn_view_put(x, i, mn_stream_normal(&f.stream) * exp2(-(double)(i % 32)));
        if (mn_dtype_is_float(to) && mn_dtype_is_float(from))
            mn_view_poison(x);
        for (int64_t i = 0; !mn_dtype_is_float(to) && i < n; i++)
            mn_view_put(x, i, (double)(i % 100) + (mn_dtype_is_float(from) ? 0 : 1));
        if (!o)
            mn_fixture_output(&f, to, 1, &n);
        mn_fixture_check(&f, o ? &assign : &cast);
    }
}

START_TEST(casts)
{
    static const int64_t lengths[] = {0, 1, 513, 20011};
    for (int from = 0; from < MN_DTYPE_COUNT; from++)
        for (int to = 0; to < MN_DTYPE_COUNT; to++)
            for (size_t s = 0; s < COUNT(lengths); s++)
                cast_case((mn_dtype)from, (mn_dtype)to, lengths[s]);
}
END_TEST

/* What integers cannot hold: the nearest they can, and 0 for NaN. */
START_TEST(casts_to_integers_saturate)
{
    static const double from[] = {1e30,        -1e30, (double)NAN, -1.9, 300.7, (double)INFINITY,
                                  2147483648.0};
    static const int64_t as_i64[] = {INT64_MAX, INT64_MIN, 0, -1, 300, INT64_MAX, 2147483648};
    static const int32_t as_i32[] = {INT32_MAX, INT32_MIN, 0, -1, 300, INT32_MAX, INT32_MAX};
    static const uint8_t as_u8[] = {255, 0, 0, 0, 255, 255, 255};
    const void *const expected[] = {as_i64, as_i32, as_u8};
    const mn_cpu cpu = mn_fixture_cpu(MN_KERNELS_PORTABLE, 0);
    for (int t = 0; t < 3; t++) {
        fixture f;
        mn_fixture_start(&f, NULL, 0);
        f.call.cpu = &cpu;
        memcpy(mn_fixture_input(&f, MN_F64, DIMS(7))->data, from, sizeof from);
        const mn_view *y = mn_fixture_output(&f, (mn_dtype)(MN_I64 + t), DIMS(7));
        mn_cpu_cast(&f.call);
        ck_assert_mem_eq(y->data, expected[t], mn_view_bytes(y));
        mn_fixture_free(&f);
    }
}
END_TEST

START_TEST(fill_and_copy)
{
    static const kernel fill = KERNEL(fill, 0), copy = KERNEL(cast, 0);
    const mn_value_attributes a = {.value = 3.0};
    for (int d = 0; d < MN_DTYPE_COUNT; d++)
        for (size_t s = 0; s < COUNT(sizes); s++) {
            fixture f;
            mn_fixture_start(&f, &a, sizeof a);
            mn_fixture_input(&f, (mn_dtype)d, 1, &sizes[s]);
            mn_fixture_check(&f, &fill);
            mn_fixture_start(&f, NULL, 0);
            mn_fixture_input(&f, (mn_dtype)d, 1, &sizes[s]);
            mn_fixture_output(&f, (mn_dtype)d, 1, &sizes[s]);
            mn_fixture_check(&f, &copy);
        }
}
END_TEST

static void permute_case(mn_dtype dtype, int ndim, const int64_t *shape, const int64_t *axes)
{
    static const kernel k = KERNEL(permute, 0);
    mn_permute_attributes a = {{0}};
    int64_t to[MN_MAX_DIMS];
    for (int i = 0; i < ndim; i++) {
        a.axes[i] = axes[i];
        to[i] = shape[axes[i]];
    }
    fixture f;
    mn_fixture_start(&f, &a, sizeof a);
    mn_fixture_input(&f, dtype, ndim, shape);
    mn_fixture_output(&f, dtype, ndim, to);
    mn_fixture_check(&f, &k);
}

START_TEST(permutations)
{
    static const mn_dtype dtypes[] = {MN_F64, MN_F32, MN_F16, MN_U8};
    for (size_t d = 0; d < COUNT(dtypes); d++) {
        permute_case(dtypes[d], DIMS(3, 17, 13, 35), (int64_t[]){0, 3, 1, 2});
        permute_case(dtypes[d], DIMS(3, 35, 17, 13), (int64_t[]){0, 2, 3, 1});
        permute_case(dtypes[d], DIMS(129, 67), (int64_t[]){1, 0});
        permute_case(dtypes[d], DIMS(5, 4, 700), (int64_t[]){1, 0, 2});
        permute_case(dtypes[d], DIMS(2, 3, 4, 5, 2, 3), (int64_t[]){5, 2, 0, 4, 1, 3});
        permute_case(dtypes[d], DIMS(1, 1, 1), (int64_t[]){2, 0, 1});
        permute_case(dtypes[d], DIMS(0, 3), (int64_t[]){1, 0});
        permute_case(dtypes[d], DIMS(9), (int64_t[]){0});
    }
    permute_case(MN_F32, 0, NULL, NULL);
}
END_TEST

/* ---- reductions ------------------------------------------------------------------------------ */

typedef struct reduction {
    int ndim;
    int64_t shape[4], axes;
} reduction;

static const reduction reductions[] = {
    {1, {1}, 1},           {1, {513}, 1},          {1, {300007}, 1},      {2, {4001, 10}, 1},
    {2, {20011, 3}, 1},    {2, {9, 700}, 1},       {2, {300, 11}, 2},     {2, {3, 40009}, 2},
    {3, {4, 49, 6}, 2},    {4, {5, 3, 7, 4}, 5},   {4, {5, 3, 7, 4}, 10}, {4, {5, 3, 7, 4}, 13},
    {4, {5, 3, 7, 4}, 15}, {4, {3, 1, 2, 1}, 0},   {2, {0, 3}, 1},        {2, {3, 0}, 1},
    {2, {0, 3}, 2},        {3, {2, 30011, 20}, 2}, {2, {70000, 2}, 0},    {3, {3, 2, 20000}, 5},
};

START_TEST(sums_and_means)
{
    static const kernel all[] = {KERNEL(sum, 64), KERNEL(mean, 2)};
    for (size_t s = 0; s < COUNT(reductions); s++)
        for (int o = 0; o < 4; o++) {
            const reduction *r = &reductions[s];
            const mn_reduce_attributes a = {.axes = r->axes};
            int64_t shape[4];
            int ndim = 0;
            for (int i = 0; i < r->ndim; i++)
                if (!(r->axes >> i & 1))
                    shape[ndim++] = r->shape[i];
            fixture f;
            mn_fixture_start(&f, &a, sizeof a);
            mn_view *x = mn_fixture_input(&f, mn_lowp[_i], r->ndim, r->shape);
            if (o >= 2)
                mn_view_poison(x);
            mn_fixture_output(&f, o % 2 ? mn_lowp[_i] : MN_F32, ndim, shape);
            mn_fixture_check(&f, &all[o % 2]);
        }
}
END_TEST

START_TEST(dots)
{
    static const kernel k = KERNEL(dot, 8);
    for (size_t s = 0; s < COUNT(sizes); s++) {
        fixture f;
        mn_fixture_start(&f, NULL, 0);
        mn_fixture_input(&f, mn_lowp[_i], 1, &sizes[s]);
        mn_fixture_input(&f, mn_lowp[_i], 1, &sizes[s]);
        mn_fixture_output(&f, mn_lowp[_i], 0, NULL);
        mn_fixture_check(&f, &k);
    }
}
END_TEST

typedef struct lines_case {
    int64_t shape[3], axis;
} lines_case;

static const lines_case lines[] = {
    {{1, 1, 1}, 2},   {{3, 5, 10}, 2}, {{2, 3, 513}, 2}, {{1, 2, 1300}, 2}, {{3, 17, 5}, 1},
    {{2, 3, 700}, 1}, {{7, 2, 3}, 0},  {{61, 90, 1}, 1}, {{0, 3, 4}, 2},    {{600, 1, 40}, 2},
};

static void check_lines(const kernel *k, mn_dtype dtype, mn_dtype result, bool second, int poisoned)
{
    for (size_t s = 0; s < COUNT(lines); s++) {
        const mn_axis_attributes a = {.axis = lines[s].axis};
        fixture f;
        mn_fixture_start(&f, &a, sizeof a);
        mn_view *x = mn_fixture_input(&f, dtype, 3, lines[s].shape);
        if (second)
            x = mn_fixture_input(&f, dtype, 3, lines[s].shape);
        for (int64_t i = 0; i < x->numel; i++) /* as far as exp of it stays small */
            mn_view_put(x, i, second ? -fabs(mn_view_get(x, i)) : 3 * mn_view_get(x, i));
        if (poisoned && x->numel > 0)
            mn_view_put(x, x->numel - 1, (double)NAN);
        mn_fixture_output(&f, result, 3, lines[s].shape);
        mn_fixture_check(&f, k);
    }
}

START_TEST(softmaxes)
{
    static const kernel forward[] = {KERNEL(softmax, 2), KERNEL(log_softmax, 2)};
    static const kernel backward[] = {KERNEL(softmax_backward, 8), KERNEL(log_softmax_backward, 8)};
    for (int o = 0; o < 2; o++)
        for (int poisoned = 0; poisoned < 2; poisoned++) {
            check_lines(&forward[o], mn_lowp[_i], MN_F32, false, poisoned);
            check_lines(&forward[o], mn_lowp[_i], mn_lowp[_i], false, poisoned);
            check_lines(&backward[o], mn_lowp[_i], mn_lowp[_i], true, poisoned);
        }
}
END_TEST

/* Values in eighths, so that there are ties. */
START_TEST(argmaxes)
{
    static const kernel k = KERNEL(argmax, 0);
    for (size_t s = 0; s < COUNT(lines); s++) {
        const mn_axis_attributes a = {.axis = lines[s].axis};
        int64_t shape[2];
        int ndim = 0;
        fixture f;
        mn_fixture_start(&f, &a, sizeof a);
        mn_view *x = mn_fixture_input(&f, mn_lowp[_i], 3, lines[s].shape);
        for (int64_t i = 0; i < x->numel; i++)
            mn_view_put(x, i, floor(8 * mn_view_get(x, i)) / 8);
        mn_view_poison(x);
        for (int i = 0; i < 3; i++)
            if (i != lines[s].axis)
                shape[ndim++] = lines[s].shape[i];
        mn_fixture_output(&f, MN_I64, 2, shape);
        mn_fixture_check(&f, &k);
    }
}
END_TEST

static const mn_class_loss_attributes labels_only = {.ignore_index = -100};

START_TEST(cross_entropies)
{
    static const kernel forward = KERNEL(cross_entropy, 2);
    static const kernel backward = KERNEL(cross_entropy_backward, 8);
    static const int64_t shapes[][2] = {{1, 1}, {64, 7}, {3, 1300}, {700, 10}, {5000, 7}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        const int64_t *shape = shapes[s];
        fixture f;
        mn_fixture_start(&f, &labels_only, sizeof labels_only);
        mn_fixture_input(&f, mn_lowp[_i], 2, shape);
        mn_view *labels = mn_fixture_input(&f, MN_I64, 1, shape);
        for (int64_t i = 0; i < shape[0]; i++)
            mn_view_put(labels, i, (double)mn_stream_below(&f.stream, (uint64_t)shape[1]));
        mn_fixture_output(&f, MN_F32, 0, NULL);
        mn_fixture_output(&f, MN_F32, 1, shape);
        mn_fixture_check(&f, &forward);
        mn_fixture_start(&f, &labels_only, sizeof labels_only);
        mn_view_put(mn_fixture_input(&f, MN_F32, 0, NULL), 0, (double)shape[0]);
        mn_fixture_input(&f, mn_lowp[_i], 2, shape);
        mn_view_put(mn_fixture_input(&f, MN_I64, 1, shape), 0, 0);
        mn_fixture_input(&f, MN_F32, 1, shape);
        mn_fixture_output(&f, mn_lowp[_i], 2, shape);
        mn_fixture_check(&f, &backward);
    }
}
END_TEST

/* The first bad label is the fault; no element is touched for it, and the loss is NaN. */
START_TEST(labels_out_of_range)
{
    static const int64_t bad[] = {-1, 5, INT64_MAX, INT64_MIN};
    const mn_cpu cpu = mn_fixture_cpu(MN_KERNELS_PORTABLE, 2);
    for (size_t i = 0; i < COUNT(bad); i++) {
        fixture f;
        mn_fixture_start(&f, &labels_only, sizeof labels_only);
        f.call.cpu = &cpu;
        mn_fixture_input(&f, MN_F32, DIMS(3000, 5));
        mn_view *labels = mn_fixture_input(&f, MN_I64, DIMS(3000));
        for (int64_t r = 0; r < 3000; r++)
            ((int64_t *)labels->data)[r] = r % 5;
        ((int64_t *)labels->data)[1999] = bad[i];
        ((int64_t *)labels->data)[2999] = 77;
        mn_fixture_output(&f, MN_F32, 0, NULL);
        mn_fixture_output(&f, MN_F32, DIMS(3000));
        mn_cpu_cross_entropy(&f.call);
        ck_assert_int_eq(f.fault.status, MN_ERR_ARGUMENT);
        ck_assert_int_eq(f.fault.values[0], bad[i]);
        ck_assert_int_eq(f.fault.values[1], 5);
        ck_assert(isnan(mn_view_get(&f.call.out[0], 0)));
        mn_fixture_free(&f);
    }
}
END_TEST

/* An index out of range is a fault, and moves nothing: not even by one, and not the element behind
 * the row, which may be none of x's. */
START_TEST(indices_out_of_range)
{
    static const kernel gather = KERNEL(gather, 0);
    static const kernel scatter_add = KERNEL(scatter_add, 2);
    static const int64_t indices[] = {5, -1, 4, INT64_MAX, 0, INT64_MIN, 3, 6};
    for (int64_t axis = 0; axis < 2; axis++)
        for (int scatter = 0; scatter < 2; scatter++) {
            const mn_axis_attributes attributes = {.axis = axis};
            fixture f;
            mn_fixture_start(&f, &attributes, sizeof attributes);
            mn_fixture_input(&f, mn_lowp[_i], DIMS(5, 5));
            if (scatter)
                mn_fixture_input(&f, mn_lowp[_i], DIMS(5, 5));
            mn_view *index = mn_fixture_input(&f, MN_I64, DIMS(5, 5));
            for (int64_t i = 0; i < index->numel; i++)
                ((int64_t *)index->data)[i] = indices[i % (int64_t)COUNT(indices)];
            ((int64_t *)index->data)[24] = 5;
            mn_fixture_output(&f, mn_lowp[_i], DIMS(5, 5));
            mn_fixture_check(&f, scatter ? &scatter_add : &gather);
            ck_assert_int_eq(f.fault.status, MN_ERR_ARGUMENT);
            ck_assert_int_eq(f.fault.values[0], 5);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu_kernels");
    TCase *tests = tcase_create("kernels");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, NULL, mn_fixture_teardown);
    tcase_add_loop_test(tests, maps, 0, 3);
    tcase_add_loop_test(tests, blend, 0, 3);
    tcase_add_loop_test(tests, adjust, 0, 3);
    tcase_add_loop_test(tests, aliased_operands, 0, 3);
    tcase_add_loop_test(tests, broadcasting, 0, 3);
    tcase_add_loop_test(tests, expand_and_reduce_to, 0, 3);
    tcase_add_test(tests, casts);
    tcase_add_test(tests, casts_to_integers_saturate);
    tcase_add_test(tests, fill_and_copy);
    tcase_add_test(tests, permutations);
    tcase_add_loop_test(tests, sums_and_means, 0, 3);
    tcase_add_loop_test(tests, dots, 0, 3);
    tcase_add_loop_test(tests, softmaxes, 0, 3);
    tcase_add_loop_test(tests, argmaxes, 0, 3);
    tcase_add_loop_test(tests, cross_entropies, 0, 3);
    tcase_add_test(tests, labels_out_of_range);
    tcase_add_loop_test(tests, indices_out_of_range, 0, 3);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
