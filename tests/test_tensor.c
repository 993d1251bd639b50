/* Scopes, references, layer names and tensors. */
#include "core/core.h"
#include "support_counting.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t shape23[] = {2, 3};

/* ---- scopes and references ------------------------------------------------------------------- */

START_TEST(scopes_free_tensors)
{
    mn_context *context = mn_test_open();
    mn_scope scope = mn_scope_begin(context);
    mn_tensor *retained = mn_retain(mn_full(context, MN_F32, 2, shape23, 7));
    mn_full(context, MN_F32, 2, shape23, 8);
    ck_assert_uint_eq(mn_memory_stats_get(context).live_bytes, 128);
    mn_scope_end(context, scope);
    ck_assert_uint_eq(mn_memory_stats_get(context).live_bytes, 64);
    double value[6];
    ck_assert_int_eq(mn_tensor_read_f64(retained, value, 6), MN_OK);
    ck_assert(value[5] == 7);
    mn_release(retained);
    ck_assert_uint_eq(mn_memory_stats_get(context).live_bytes, 0);
    mn_scope_end(context, scope);
    mn_test_expect(context, MN_ERR_STATE, "not open");
    mn_scope_end(context, (mn_scope){0});
    mn_test_expect(context, MN_ERR_STATE, "not open");
    mn_context_free(context);
}
END_TEST

static int ended_depth = -1;

static void note_scope_end(mn_context *context, void *state, int depth)
{
    (void)context;
    *(int *)state = depth;
}

START_TEST(outer_end_ends_inner)
{
    mn_context *context = mn_test_open();
    context->slots[MN_SLOT_AMP] = (mn_slot){.state = &ended_depth, .scope_end = note_scope_end};
    mn_scope outer = mn_scope_begin(context);
    mn_name_push(context, "a");
    mn_scope_begin(context);
    mn_name_push(context, "b");
    mn_scope innermost = mn_scope_begin(context);
    mn_full(context, MN_F32, 2, shape23, 8);
    ck_assert_int_eq(context->scope_depth, 3);
    mn_scope_end(context, innermost);
    ck_assert_int_eq(ended_depth, 2);
    ck_assert_str_eq(mn_name_path(context), "a.b");
    mn_scope_end(context, outer);
    ck_assert_int_eq(ended_depth, 0);
    ck_assert_int_eq(context->scope_depth, 0);
    ck_assert_str_eq(mn_name_path(context), "");
    ck_assert_uint_eq(mn_memory_stats_get(context).live_bytes, 0);
    ck_assert(mn_ok(context));
    mn_scope_end(context, innermost);
    mn_test_expect(context, MN_ERR_STATE, "not open");
    context->slots[MN_SLOT_AMP] = (mn_slot){.state = NULL};
    mn_context_free(context);
}
END_TEST

START_TEST(keep_moves_one_scope_up)
{
    mn_context *context = mn_test_open();
    mn_scope outer = mn_scope_begin(context);
    mn_tensor *before = mn_full(context, MN_F32, 2, shape23, 1);
    mn_scope inner = mn_scope_begin(context);
    mn_tensor *a = mn_full(context, MN_F32, 2, shape23, 2);
    mn_tensor *b = mn_full(context, MN_F32, 2, shape23, 3);
    mn_tensor *c = mn_full(context, MN_F32, 2, shape23, 4);
    ck_assert_ptr_eq(mn_scope_keep(b), b);
    ck_assert_ptr_eq(mn_scope_keep(before), before);
    ck_assert_ptr_null(mn_scope_keep(NULL));
    ck_assert(a && c);
    mn_scope_end(context, inner);
    ck_assert_uint_eq(mn_memory_stats_get(context).live_bytes, 128);
    double values[6];
    ck_assert_int_eq(mn_tensor_read_f64(b, values, 6), MN_OK);
    ck_assert(values[0] == 3);
    mn_scope_end(context, outer);
    ck_assert_uint_eq(mn_memory_stats_get(context).live_bytes, 0);
    ck_assert_ptr_nonnull(mn_scope_keep(mn_full(context, MN_F32, 2, shape23, 1)));
    mn_context_free(context);
}
END_TEST

START_TEST(release_of_scope_owned_is_an_error)
{
    mn_context *context = mn_test_open();
    mn_tensor *tensor = mn_full(context, MN_F32, 2, shape23, 1);
    mn_release(tensor);
    mn_test_expect(context, MN_ERR_STATE, "scope");
    mn_release(mn_retain(tensor));
    ck_assert(mn_ok(context));
    mn_release(NULL);
    ck_assert_ptr_null(mn_retain(NULL));
    ck_assert_int_eq(mn_tensor_fill(tensor, 3), MN_OK);
    mn_context_free(context);
}
END_TEST

START_TEST(names_balance_and_grow)
{
    mn_context *context = mn_test_open();
    for (int i = 0; i < 500; i++)
        mn_name_push(context, "layer");
    ck_assert_uint_eq(strlen(mn_name_path(context)), 500 * 6 - 1);
    for (int i = 0; i < 499; i++)
        mn_name_pop(context);
    ck_assert_str_eq(mn_name_path(context), "layer");
    mn_name_push(context, NULL);
    mn_test_expect(context, MN_ERR_ARGUMENT, "NULL");
    mn_name_pop(context);
    mn_name_pop(context);
    ck_assert_str_eq(mn_name_path(context), "");
    mn_name_pop(context);
    mn_test_expect(context, MN_ERR_STATE, "no name");
    mn_context_free(context);
}
END_TEST

START_TEST(context_lives_until_its_last_object)
{
    mn_test_counter counter = {0};
    mn_context_options options = mn_context_options_default();
    options.threads = 1;
    options.allocator = mn_test_counting(&counter);
    mn_context *context = mn_context_create(&options, NULL);
    mn_tensor *parameter = mn_parameter_create(context, "w", MN_F32, 2, shape23, MN_LAYOUT_PLAIN);
    mn_context_free(context);
    ck_assert_int_eq(mn_tensor_fill(parameter, 1), MN_ERR_STATE);
    mn_error_clear(context);
    ck_assert_int_eq(mn_error_status(context), MN_ERR_STATE);
    ck_assert_ptr_null(mn_full(context, MN_F32, 2, shape23, 1));
    mn_scope_end(context, mn_scope_begin(context));
    mn_name_push(context, "x");
    mn_name_pop(context);
    ck_assert_ptr_null(mn_tensor_data(parameter));
    mn_context_free(context);
    ck_assert_int_gt(counter.blocks, 0);
    mn_release(parameter);
    ck_assert_int_eq(counter.blocks, 0);
}
END_TEST

/* ---- tensors --------------------------------------------------------------------------------- */

START_TEST(shapes_are_checked)
{
    mn_context *context = mn_test_open();
    const int64_t negative[] = {2, -1};
    const int64_t huge[] = {INT64_MAX, 3};
    const int64_t hidden[] = {INT64_MAX, INT64_MAX, 0};
    const int64_t large[] = {INT64_MAX / 2};
    const int64_t long_and_empty[] = {INT64_MAX / 2, 0}; /* eight of them, joined, would overflow */
    const int64_t seven[] = {1, 1, 1, 1, 1, 1, 1};
    ck_assert_ptr_null(mn_tensor_create(context, MN_F32, 2, negative));
    mn_test_expect(context, MN_ERR_SHAPE, "axis 1");
    ck_assert_ptr_null(mn_tensor_create(context, MN_F32, 2, huge));
    mn_test_expect(context, MN_ERR_MEMORY, "elements");
    ck_assert_ptr_null(mn_tensor_create(context, MN_F32, 3, hidden));
    mn_test_expect(context, MN_ERR_MEMORY, "elements");
    ck_assert_ptr_null(mn_tensor_create(context, MN_F64, 1, large));
    mn_test_expect(context, MN_ERR_MEMORY, "elements");
    ck_assert_ptr_null(mn_tensor_create(context, MN_U8, 2, long_and_empty));
    mn_test_expect(context, MN_ERR_MEMORY, "elements");
    ck_assert_ptr_null(mn_tensor_create(context, MN_F32, 7, seven));
    mn_test_expect(context, MN_ERR_SHAPE, "axes");
    ck_assert_ptr_null(mn_tensor_create(context, MN_F32, 1, NULL));
    mn_test_expect(context, MN_ERR_ARGUMENT, "NULL");
    ck_assert_ptr_null(mn_tensor_create(context, (mn_dtype)9, 0, NULL));
    mn_test_expect(context, MN_ERR_DTYPE, "9");
    ck_assert_ptr_null(mn_tensor_create(NULL, MN_F32, 0, NULL));
    mn_context_free(context);
}
END_TEST

START_TEST(getters)
{
    mn_context *context = mn_test_open();
    mn_tensor *tensor = mn_full(context, MN_BF16, 2, shape23, 1);
    ck_assert_ptr_eq(mn_tensor_context(tensor), context);
    ck_assert_int_eq(mn_tensor_dtype(tensor), MN_BF16);
    ck_assert_int_eq(mn_tensor_ndim(tensor), 2);
    ck_assert_int_eq(mn_tensor_shape(tensor)[1], 3);
    ck_assert_int_eq(mn_tensor_numel(tensor), 6);
    ck_assert_uint_eq(mn_tensor_bytes(tensor), 12);
    ck_assert_str_eq(mn_tensor_name(tensor), "");
    ck_assert_ptr_null(mn_tensor_context(NULL));
    ck_assert_ptr_null(mn_tensor_shape(NULL));
    ck_assert_int_eq(mn_tensor_ndim(NULL), 0);
    ck_assert_uint_eq(mn_tensor_bytes(NULL), 0);
    ck_assert_int_eq(mn_tensor_check(context, NULL, "x"), MN_ERR_ARGUMENT);
    mn_test_expect(context, MN_ERR_ARGUMENT, "x is NULL");
    mn_context *other = mn_test_open();
    ck_assert_int_eq(mn_tensor_check(other, tensor, "x"), MN_ERR_ARGUMENT);
    mn_test_expect(other, MN_ERR_ARGUMENT, "another context");
    mn_context_free(other);
    mn_context_free(context);
}
END_TEST

START_TEST(read_and_write)
{
    mn_context *context = mn_test_open();
    const double values[6] = {0, -1.5, 65504, (double)INFINITY, 1e-7, 3};
    const double halves[6] = {0,       -1.5, 65504, (double)INFINITY,
                              0x1p-23, 3}; /* 2^-24 is the grain */
    double back[6];
    float raw[6];
    mn_tensor *half = mn_tensor_create(context, MN_F16, 2, shape23);
    uint64_t version = mn_tensor_version(half);
    ck_assert_int_eq(mn_tensor_write_f64(half, values, 6), MN_OK);
    ck_assert_uint_eq(mn_tensor_version(half), version + 1);
    ck_assert_int_eq(mn_tensor_read_f64(half, back, 6), MN_OK);
    for (int i = 0; i < 6; i++)
        ck_assert_double_eq(back[i], halves[i]);
    ck_assert_int_eq(mn_tensor_read_f64(half, back, 5), MN_ERR_SHAPE);
    mn_test_expect(context, MN_ERR_SHAPE, "[2,3] f16 has 6 elements, not 5");
    ck_assert_int_eq(mn_tensor_read(half, raw, 13), MN_ERR_SHAPE);
    mn_test_expect(context, MN_ERR_SHAPE, "has 12 bytes, not 13");
    ck_assert_int_eq(mn_tensor_read(half, NULL, 12), MN_ERR_ARGUMENT);
    mn_test_expect(context, MN_ERR_ARGUMENT, "NULL");
    ck_assert_int_eq(mn_tensor_write(NULL, raw, 12), MN_ERR_ARGUMENT);
    ck_assert_ptr_null(mn_tensor_from(context, MN_F32, 2, shape23, NULL));
    mn_test_expect(context, MN_ERR_ARGUMENT, "NULL");
    ck_assert_uint_eq(mn_memory_stats_get(context).live_bytes, 64);
    mn_context_free(context);
}
END_TEST

START_TEST(integers_are_checked)
{
    mn_context *context = mn_test_open();
    double values[6] = {0, 1, 255, 3, 4, 5};
    double back[6];
    mn_tensor *bytes = mn_tensor_create(context, MN_U8, 2, shape23);
    ck_assert_int_eq(mn_tensor_write_f64(bytes, values, 6), MN_OK);
    ck_assert_int_eq(mn_tensor_read_f64(bytes, back, 6), MN_OK);
    ck_assert(back[2] == 255);
    uint64_t version = mn_tensor_version(bytes);
    values[4] = 256;
    values[0] = 77;
    ck_assert_int_eq(mn_tensor_write_f64(bytes, values, 6), MN_ERR_DTYPE);
    mn_test_expect(context, MN_ERR_DTYPE, "element 4, 256, does not fit u8");
    ck_assert_int_eq(mn_tensor_read_f64(bytes, back, 6), MN_OK);
    ck_assert(back[0] == 0);
    ck_assert_uint_eq(mn_tensor_version(bytes), version);
    mn_context_free(context);
}
END_TEST

typedef struct fill_case {
    mn_dtype dtype;
    double value;
    bool fits;
} fill_case;

static const fill_case fill_cases[] = {
    {MN_F16, 65504, true},
    {MN_F16, 65519.99, true},
    {MN_F16, 65520, false},
    {MN_F16, (double)INFINITY, true},
    {MN_F16, (double)NAN, true},
    {MN_BF16, 3.4e38, false},
    {MN_BF16, 3.38e38, true},
    {MN_F32, 3.5e38, false},
    {MN_F32, -3e38, true},
    {MN_F64, 1e308, true},
    {MN_I64, 0x1p63, false},
    {MN_I64, -0x1p63, true},
    {MN_I64, 1.5, false},
    {MN_I64, (double)NAN, false},
    {MN_I32, 2147483647, true},
    {MN_I32, 2147483648.0, false},
    {MN_I32, -2147483648.0, true},
    {MN_I32, -2147483649.0, false},
    {MN_U8, -1, false},
    {MN_U8, 255, true},
    {MN_U8, 256, false},
    {MN_U8, (double)INFINITY, false},
};

START_TEST(fill_checks_range)
{
    mn_context *context = mn_test_open();
    const fill_case *at = &fill_cases[_i];
    double value;
    mn_tensor *tensor = mn_full(context, at->dtype, 0, NULL, at->value);
    ck_assert_int_eq(tensor != NULL, at->fits);
    if (tensor) {
        ck_assert_int_eq(mn_tensor_item(tensor, &value), MN_OK);
        ck_assert(isnan(at->value) ? isnan(value) : isinf(value) == isinf(at->value));
    } else {
        mn_test_expect(context, MN_ERR_DTYPE, "does not fit");
    }
    mn_context_free(context);
}
END_TEST

START_TEST(fill_covers_every_element)
{
    mn_context *context = mn_test_open();
    for (int dtype = 0; dtype < MN_DTYPE_COUNT; dtype++) {
        for (int64_t count = 0; count < 9000; count = 3 * count + 1) {
            mn_scope scope = mn_scope_begin(context);
            double *values = malloc((size_t)(count + 1) * sizeof *values);
            mn_tensor *tensor = mn_full(context, (mn_dtype)dtype, 1, &count, 1);
            uint64_t version = mn_tensor_version(tensor);
            ck_assert_int_eq(mn_tensor_fill(tensor, 37), MN_OK);
            ck_assert_uint_eq(mn_tensor_version(tensor), version + 1);
            ck_assert_int_eq(mn_tensor_read_f64(tensor, values, count), MN_OK);
            for (int64_t i = 0; i < count; i++)
                ck_assert(values[i] == 37);
            free(values);
            mn_scope_end(context, scope);
        }
    }
    mn_context_free(context);
}
END_TEST

START_TEST(empty_tensors_are_legal)
{
    mn_context *context = mn_test_open();
    const int64_t shape[] = {3, 0, 2};
    mn_tensor *tensor = mn_full(context, MN_F32, 3, shape, 1);
    ck_assert_ptr_nonnull(tensor);
    ck_assert_int_eq(mn_tensor_numel(tensor), 0);
    ck_assert_ptr_null(mn_tensor_data(tensor));
    ck_assert_int_eq(mn_tensor_read(tensor, NULL, 0), MN_OK);
    ck_assert_int_eq(mn_tensor_write_f64(tensor, NULL, 0), MN_OK);
    ck_assert_ptr_nonnull(mn_tensor_from(context, MN_F16, 3, shape, NULL));
    double value;
    ck_assert_int_eq(mn_tensor_item(tensor, &value), MN_ERR_SHAPE);
    mn_context_free(context);
}
END_TEST

START_TEST(views_share_storage_and_version)
{
    mn_context *context = mn_test_open();
    const double values[6] = {1, 2, 3, 4, 5, 6};
    const int64_t row[] = {3};
    double back[3];
    mn_tensor *tensor = mn_tensor_from(context, MN_F64, 2, shape23, values);
    mn_tensor *view = mn_tensor_view(tensor->storage, 24, MN_F64, 1, row);
    ck_assert_int_eq(mn_tensor_read_f64(view, back, 3), MN_OK);
    ck_assert(back[0] == 4);
    ck_assert_int_eq(mn_tensor_fill(view, 9), MN_OK);
    ck_assert_uint_eq(mn_tensor_version(tensor), mn_tensor_version(view));
    uint64_t version = mn_tensor_version(tensor);
    double *data = mn_tensor_data_mut(tensor);
    ck_assert(data[2] == 3 && data[3] == 9);
    ck_assert_uint_eq(mn_tensor_version(view), version + 1);
    ck_assert_int_eq(mn_tensor_mark_dirty(tensor), MN_OK);
    ck_assert_uint_eq(mn_tensor_version(view), version + 2);
    ck_assert_ptr_null(mn_tensor_view(tensor->storage, 32, MN_F64, 1, row));
    mn_test_expect(context, MN_ERR_INTERNAL, "view");
    mn_context_free(context);
}
END_TEST

START_TEST(parameters)
{
    mn_context *context = mn_test_open();
    const int64_t filter[] = {2, 3, 3, 1};
    double values[18];
    mn_tensor *weight =
        mn_parameter_create(context, "conv.weight", MN_F32, 4, filter, MN_LAYOUT_FILTER);
    ck_assert_str_eq(mn_tensor_name(weight), "conv.weight");
    ck_assert(weight->requires_grad && !weight->scope);
    ck_assert_int_eq(mn_tensor_read_f64(weight, values, 18), MN_OK);
    for (int i = 0; i < 18; i++)
        ck_assert(values[i] == 0);
    ck_assert_ptr_null(mn_parameter_create(context, "w", MN_F32, 2, shape23, MN_LAYOUT_FILTER));
    mn_test_expect(context, MN_ERR_SHAPE, "filter");
    ck_assert_ptr_null(mn_parameter_create(context, "w", MN_I64, 2, shape23, MN_LAYOUT_PLAIN));
    mn_test_expect(context, MN_ERR_DTYPE, "i64");
    ck_assert_ptr_null(mn_parameter_create(context, NULL, MN_F32, 0, NULL, MN_LAYOUT_PLAIN));
    mn_test_expect(context, MN_ERR_ARGUMENT, "NULL");
    mn_release(weight);
    mn_context_free(context);
}
END_TEST

/* ---- suite ----------------------------------------------------------------------------------- */

static void add_cases(Suite *suite)
{
    TCase *tcase = tcase_create("scopes and tensors");
    tcase_add_test(tcase, scopes_free_tensors);
    tcase_add_test(tcase, outer_end_ends_inner);
    tcase_add_test(tcase, keep_moves_one_scope_up);
    tcase_add_test(tcase, release_of_scope_owned_is_an_error);
    tcase_add_test(tcase, names_balance_and_grow);
    tcase_add_test(tcase, context_lives_until_its_last_object);
    tcase_add_test(tcase, shapes_are_checked);
    tcase_add_test(tcase, getters);
    tcase_add_test(tcase, read_and_write);
    tcase_add_test(tcase, integers_are_checked);
    tcase_add_loop_test(tcase, fill_checks_range, 0, (int)(sizeof fill_cases / sizeof *fill_cases));
    tcase_add_test(tcase, fill_covers_every_element);
    tcase_add_test(tcase, empty_tensors_are_legal);
    tcase_add_test(tcase, views_share_storage_and_version);
    tcase_add_test(tcase, parameters);
    suite_add_tcase(suite, tcase);
}

int main(void)
{
    Suite *suite = suite_create("tensor");
    add_cases(suite);
    return mn_test_run(suite, CK_FORK_GETENV);
}
