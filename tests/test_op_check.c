/* mn_op_check: a sound op passes with every cast rule, planted faults are each found and named, the
 * caller's context stays as it was; records count only where they were made. */
#include "core/core.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- a sound op: y = a b, with a kernel for f32 and f16 ---------------------------------------
 */

static mn_status product_infer(mn_infer *call)
{
    if (!mn_dtype_is_float(call->in[0].dtype) || call->in[0].dtype != call->in[1].dtype)
        return mn_infer_error(call, MN_ERR_DTYPE, "wants two of one floating dtype");
    call->out[0] = call->in[0];
    if (call->f32_output)
        call->out[0].dtype = MN_F32;
    return MN_OK;
}

static void product_reference(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->out[0].numel; i++)
        out[0][i] = in[0][i] * in[1][i];
}

static float element(const mn_view *view, int64_t i)
{
    return view->dtype == MN_F32 ? ((const float *)view->data)[i]
                                 : mn_f16_to_f32(((const mn_f16 *)view->data)[i]);
}

static void put(const mn_view *view, int64_t i, float value)
{
    if (view->dtype == MN_F32)
        ((float *)view->data)[i] = value;
    else
        ((mn_f16 *)view->data)[i] = mn_f16_from_f32(value);
}

static void product_run(const mn_call *call)
{
    for (int64_t i = 0; i < call->out[0].numel; i++)
        put(&call->out[0], i, element(&call->in[0], i) * element(&call->in[1], i));
}

/* factor g b and factor g a, in the dtype of the inputs. */
static mn_status give_gradients(mn_backward_call *call, double factor)
{
    for (int i = 0; i < 2; i++) {
        mn_tensor *grad = mn_mul_scalar(mn_mul(call->grad_out[0], call->in[1 - i]), factor);
        if (call->needs[i])
            call->grad_in[i] = mn_cast(grad, call->in_view[i].dtype);
    }
    return mn_error_status(call->context);
}

static mn_status product_backward(mn_backward_call *call)
{
    return give_gradients(call, 1);
}

static mn_op product(mn_cast_rule rule)
{
    return (mn_op){
        .size = sizeof(mn_op),
        .name = "product",
        .summary = "y = a b",
        .min_inputs = 2,
        .max_inputs = 2,
        .outputs = 1,
        .differentiable = 3,
        .saves_inputs = 3,
        .rule = {rule, rule},
        .refuse_hint = rule == MN_CAST_REFUSE ? "the sum of logarithms" : NULL,
        .infer = product_infer,
        .backward = product_backward,
        .reference = product_reference,
        .kernels[MN_DEVICE_CPU] = {.dtypes = 1u << MN_F32 | 1u << MN_F16, .run = product_run}};
}

static const double first_values[6] = {0.3, -1.7, 2.1, 0.9, -0.4, 1.2};
static const double second_values[6] = {1.1, 0.6, -0.7, 3.3, 1.9, -2.3};

static mn_status check_in(mn_context *ctx, const mn_op *op, mn_op_check_report *report)
{
    mn_scope scope = mn_scope_begin(ctx);
    const int64_t shape[2] = {2, 3};
    mn_tensor *in[2] = {mn_tensor_from(ctx, MN_F64, 2, shape, first_values),
                        mn_tensor_from(ctx, MN_F64, 2, shape, second_values)};
    mn_status status = mn_op_check(ctx, op, in, 2, NULL, report);
    mn_scope_end(ctx, scope);
    return status;
}

/* The check fails so, and both the error and the report say it. */
static void expect_fault(const mn_op *op, mn_status status, const char *text)
{
    mn_context *ctx = mn_test_open();
    mn_op_check_report report;
    ck_assert_msg(check_in(ctx, op, &report) == status, "%s: %s", text, mn_error_message(ctx));
    ck_assert_int_eq(report.failure.status, status);
    ck_assert_str_eq(report.failure.message, mn_error_message(ctx));
    ck_assert_str_eq(report.record, "");
    mn_test_expect(ctx, status, text);
    mn_context_free(ctx);
}

START_TEST(a_sound_op_passes_with_every_rule)
{
    const mn_op op = product((mn_cast_rule)_i);
    mn_context_options options = mn_context_options_default();
    options.device = _i % 2 ? "cpu-deferred" : "cpu";
    mn_context *ctx = mn_context_create(&options, NULL);
    mn_op_check_report report;
    mn_status status = check_in(ctx, &op, &report);
    ck_assert_msg(status == MN_OK, "%s", mn_error_message(ctx));
    const mn_served_by served[4] = {MN_SERVED_REFERENCE, MN_SERVED_KERNEL, MN_SERVED_KERNEL,
                                    MN_SERVED_REFERENCE};
    for (int dtype = MN_F64; dtype <= MN_BF16; dtype++) {
        const mn_op_check_dtype *found = &report.dtypes[dtype];
        ck_assert_int_eq(found->served, served[dtype]);
        ck_assert_uint_eq(found->nan_lost, 0);
        ck_assert_double_ge(found->forward, dtype == MN_F64 ? 0 : 1e-9);
        ck_assert_double_le(found->forward, 0x1p-8);
        ck_assert_double_ge(found->backward, 0);
    }
    ck_assert(report.gradient > 0 && report.gradient < 1e-7);
    ck_assert(report.same_bits && report.autocast);
    ck_assert_int_eq(report.failure.status, MN_OK);
    mn_context_free(ctx);
}
END_TEST

START_TEST(without_f64_f32_is_the_measure)
{
    mn_op op = product(MN_CAST_LOWER);
    op.reference = NULL;
    op.kernels[MN_DEVICE_CPU].dtypes = 1u << MN_F32;
    mn_context *ctx = mn_test_open();
    mn_op_check_report report;
    const int64_t shape = 6;
    mn_tensor *in[2] = {mn_full(ctx, MN_F32, 1, &shape, 0.7), mn_full(ctx, MN_F32, 1, &shape, -3)};
    ck_assert_msg(mn_op_check(ctx, &op, in, 2, NULL, &report) == MN_OK, "%s",
                  mn_error_message(ctx));
    ck_assert_int_eq(report.dtypes[MN_F64].served, MN_SERVED_NONE);
    ck_assert_int_eq(report.dtypes[MN_F32].served, MN_SERVED_KERNEL);
    ck_assert_int_eq(report.dtypes[MN_BF16].served, MN_SERVED_WIDENED);
    ck_assert(isnan(report.gradient) && isnan(report.dtypes[MN_F32].forward));
    ck_assert_int_eq(
        mn_op_check(ctx, &op, (mn_tensor *[]){mn_cast(in[0], MN_F64), in[1]}, 2, NULL, &report),
        MN_ERR_UNSUPPORTED);
    mn_test_expect(ctx, MN_ERR_UNSUPPORTED, "f64: product: no kernel for f64");
    mn_context_free(ctx);
}
END_TEST

/* ---- planted faults ---------------------------------------------------------------------------
 */

static mn_status wrong_backward(mn_backward_call *call)
{
    return give_gradients(call, 1.01);
}

/* Right in f64, so that differences do not show it. */
static mn_status coarse_backward(mn_backward_call *call)
{
    return give_gradients(call, call->in_view[0].dtype == MN_BF16 ? 1.25 : 1);
}

static mn_status f32_backward(mn_backward_call *call)
{
    MN_TRY(give_gradients(call, 1));
    for (int i = 0; i < 2; i++)
        if (call->grad_in[i] && call->in_view[i].dtype != MN_F64)
            call->grad_in[i] = mn_cast(call->grad_in[i], MN_F32);
    return mn_error_status(call->context);
}

static mn_status peeking_backward(mn_backward_call *call)
{
    mn_dtype region = mn_autocast_dtype(call->context);
    if (call->in_view[0].dtype != MN_F64 && region != MN_F32)
        for (int i = 0; i < 2; i++)
            call->in[i] = mn_cast(mn_cast(call->in[i], region), call->in_view[i].dtype);
    return give_gradients(call, 1);
}

static mn_status peeking_infer(mn_infer *call)
{
    MN_TRY(product_infer(call));
    if (mn_autocast_dtype(call->context) == MN_BF16 && call->out[0].dtype == MN_BF16)
        call->out[0].dtype = MN_F32;
    return MN_OK;
}

/* A kernel takes f32 and f16 as they come, whatever the output is. */
static mn_status deaf_infer(mn_infer *call)
{
    call->f32_output = false;
    return product_infer(call);
}

/* Lets pairs through that the kernel takes for others. */
static mn_status careless_infer(mn_infer *call)
{
    call->in[1].dtype = call->in[0].dtype;
    return product_infer(call);
}

/* Only in a region, and only f64. */
static mn_status shy_infer(mn_infer *call)
{
    MN_TRY(product_infer(call));
    if (mn_autocast_dtype(call->context) != MN_F32 && call->out[0].dtype == MN_F64)
        call->out[0].dtype = MN_F32;
    return MN_OK;
}

static mn_status raising_infer(mn_infer *call)
{
    call->f32_output = call->in[0].dtype != MN_F64;
    return product_infer(call);
}

static mn_status narrowing_infer(mn_infer *call)
{
    MN_TRY(product_infer(call));
    if (call->in[0].dtype == MN_F32)
        call->out[0].dtype = MN_F16;
    return MN_OK;
}

static void spoil(const mn_call *call, int64_t i, float factor)
{
    product_run(call);
    put(&call->out[0], i, factor * element(&call->out[0], i));
}

static void wrong_f16_run(const mn_call *call)
{
    spoil(call, 2, call->in[0].dtype == MN_F16 ? 1.125F : 1);
}

static void threaded_run(const mn_call *call)
{
    spoil(call, 0, (float)mn_call_threads(call));
}

static int runs;

static void moody_run(const mn_call *call)
{
    spoil(call, 5, ++runs % 2 == 0 ? 1.5F : 1);
}

static void swallowing_run(const mn_call *call)
{
    product_run(call);
    const int64_t last = call->out[0].numel - 1;
    if (isnan(element(&call->in[1], last)))
        put(&call->out[0], last, 0);
}

/* What runs later sees another stage. */
static int stage;

static mn_status staging_infer(mn_infer *call)
{
    stage = 1;
    return product_infer(call);
}

static mn_status staging_backward(mn_backward_call *call)
{
    stage = 2;
    return give_gradients(call, 1);
}

static void staging_run(const mn_call *call)
{
    spoil(call, 1, (float)stage);
}

START_TEST(faults_of_backward_are_found)
{
    mn_op op = product(MN_CAST_LOWER);
    op.backward = wrong_backward;
    expect_fault(&op, MN_ERR_MISMATCH, "f64: gradient check: input 0, element 0");
    op.backward = coarse_backward;
    expect_fault(&op, MN_ERR_MISMATCH, "product: bf16: the gradient of input 0 is off by 0.25");
    op.backward = f32_backward;
    expect_fault(&op, MN_ERR_SHAPE, "f16: backward: product: the gradient of input 0 is [2,3] f32");
    op.backward = peeking_backward;
    expect_fault(&op, MN_ERR_MISMATCH,
                 "region of f16, f32 inputs, rule LOWER: the gradient of input 0 depends on the "
                 "region that backward is called in");
    op.differentiable = 1; /* only says that it is none of input 1 */
    op.backward = product_backward;
    mn_context *ctx = mn_test_open();
    mn_op_check_report report;
    ck_assert_int_eq(check_in(ctx, &op, &report), MN_OK);
    mn_context_free(ctx);
}
END_TEST

START_TEST(faults_of_kernels_are_found)
{
    mn_op op = product(MN_CAST_LOWER);
    op.kernels[MN_DEVICE_CPU].run = wrong_f16_run;
    expect_fault(&op, MN_ERR_MISMATCH, "product: f16: output 0 is off by");
    op.kernels[MN_DEVICE_CPU].run = threaded_run;
    expect_fault(&op, MN_ERR_MISMATCH, "product: f32: output 0 depends on the threads");
    runs = 0;
    op.kernels[MN_DEVICE_CPU].run = moody_run;
    expect_fault(&op, MN_ERR_MISMATCH, "product: f32: output 0 differs from run to run");
    op.infer = staging_infer;
    op.backward = staging_backward;
    op.kernels[MN_DEVICE_CPU].run = staging_run;
    expect_fault(&op, MN_ERR_MISMATCH, "output 0 differs on the device cpu-deferred");
    op = product(MN_CAST_LOWER);
    mn_context *ctx = mn_test_open();
    mn_op_check_report report;
    op.kernels[MN_DEVICE_CPU].run = swallowing_run;
    ck_assert_int_eq(check_in(ctx, &op, &report), MN_OK);
    ck_assert_uint_eq(report.dtypes[MN_F32].nan_lost, 2);
    ck_assert_uint_eq(report.dtypes[MN_F16].nan_lost, 2);
    ck_assert_uint_eq(report.dtypes[MN_BF16].nan_lost, 0);
    mn_context_free(ctx);
}
END_TEST

START_TEST(faults_of_rules_are_found)
{
    mn_op op = product(MN_CAST_KEEP);
    op.infer = peeking_infer;
    expect_fault(&op, MN_ERR_MISMATCH, "output 0 is not what the rule's casts give outside of it");
    op.infer = shy_infer;
    expect_fault(&op, MN_ERR_MISMATCH,
                 "region of f16, f64 inputs, rule KEEP: output 0 is not what");
    op.infer = careless_infer;
    expect_fault(&op, MN_ERR_MISMATCH, "f16 and bf16 inputs, rule KEEP: output 0 is off by");
    op = product(MN_CAST_FP32_OUT);
    op.infer = deaf_infer;
    expect_fault(&op, MN_ERR_MISMATCH,
                 "region of f16, 16-bit inputs, rule FP32_OUT: output 0 is not f32");
    op = product(MN_CAST_LOWER);
    op.infer = raising_infer;
    expect_fault(
        &op, MN_ERR_MISMATCH,
        "region of f16, f32 inputs, rule LOWER: output 0 does not have the region's dtype");
    op = product(MN_CAST_FP32);
    op.infer = narrowing_infer;
    expect_fault(&op, MN_ERR_MISMATCH, "product: f32: output 0 is off by");
    op = product(MN_CAST_REFUSE);
    op.refuse_hint = NULL;
    expect_fault(&op, MN_ERR_MISMATCH, "product: rule REFUSE without refuse_hint");
}
END_TEST

/* ---- an op that writes ------------------------------------------------------------------------
 */

static double growth = 2;

/* y = a b; a = 2 a */
static void growing_reference(const mn_call *call, double *const in[], double *const out[])
{
    product_reference(call, in, out);
    for (int64_t i = 0; i < call->in[0].numel; i++)
        in[0][i] *= call->in[0].dtype == MN_F16 ? growth : 2;
}

static mn_status growing_backward(mn_backward_call *call)
{
    call->grad_in[1] = mn_div(mn_mul(call->grad_out[0], call->out[0]), call->in[1]);
    return mn_error_status(call->context);
}

START_TEST(written_inputs_are_looked_at)
{
    mn_op op = product(MN_CAST_KEEP);
    mn_context *ctx = mn_test_open();
    mn_op_check_report report;
    op.kernels[MN_DEVICE_CPU].run = NULL;
    op.reference = growing_reference;
    op.backward = growing_backward;
    op.mutates = 1;
    op.differentiable = op.saves_inputs = 2;
    op.saves_outputs = 1;
    ck_assert_msg(check_in(ctx, &op, &report) == MN_OK, "%s", mn_error_message(ctx));
    growth = 2.5;
    ck_assert_int_eq(check_in(ctx, &op, &report), MN_ERR_MISMATCH);
    growth = 2;
    mn_test_expect(ctx, MN_ERR_MISMATCH, "f16: written input 0 is off by");
    mn_context_free(ctx);
}
END_TEST

/* ---- calls ------------------------------------------------------------------------------------
 */

START_TEST(calls_that_are_refused)
{
    mn_op op = product(MN_CAST_KEEP);
    mn_op_check_report report;
    mn_context *ctx = mn_test_open();
    const int64_t shape = 2;
    mn_tensor *in[2] = {mn_full(ctx, MN_F32, 1, &shape, 1), mn_full(ctx, MN_F16, 1, &shape, 1)};
    ck_assert_int_eq(mn_op_check(NULL, &op, in, 2, NULL, &report), MN_ERR_ARGUMENT);
    mn_op_check(ctx, NULL, in, 2, NULL, &report);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "the op is NULL");
    mn_op_check(ctx, &op, in, 2, NULL, NULL);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "the report is NULL");
    mn_op_check(ctx, &op, NULL, 2, NULL, &report);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "inputs");
    mn_op_check(ctx, &op, in, MN_MAX_INPUTS + 1, NULL, &report);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "not 9");
    mn_op_check(ctx, &op, in, 1, NULL, &report);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "takes 2 to 2 inputs");
    mn_op_check(ctx, &op, in, 2, NULL, &report);
    mn_test_expect(ctx, MN_ERR_DTYPE, "input 1 is f16");
    mn_op_check_options options = mn_op_check_options_default();
    options.size += 8;
    mn_op_check(ctx, &op, in, 2, &options, &report);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "mn_op_check");
    mn_context *other = mn_test_open();
    in[1] = mn_full(other, MN_F32, 1, &shape, 1);
    mn_op_check(ctx, &op, in, 2, NULL, &report);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "op check: an input");
    mn_context_free(other);
    op.infer = NULL;
    in[1] = in[0];
    mn_op_check(ctx, &op, in, 2, NULL, &report);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "infer is missing");
    mn_full(ctx, MN_F32, -1, NULL, 0); /* an error is pending */
    memset(&report, 1, sizeof report);
    ck_assert_int_eq(mn_op_check(ctx, &op, in, 2, NULL, &report), mn_error_status(ctx));
    ck_assert_int_eq(report.record[0], 1); /* not begun */
    mn_context_free(ctx);
}
END_TEST

/* In a region and a no-grad section, with gradients and parameters around. */
START_TEST(the_context_stays_as_it_was)
{
    const mn_op op = product(MN_CAST_LOWER);
    mn_op_check_report report;
    mn_context *ctx = mn_test_open();
    const int64_t shape[2] = {2, 3};
    mn_tensor *a = mn_parameter_create(ctx, "a", MN_F32, 2, shape, MN_LAYOUT_PLAIN);
    ck_assert_int_eq(mn_tensor_write_f64(a, first_values, 6), MN_OK);
    ck_assert_int_eq(mn_backward(mn_sum(a, 0, NULL, false), 2), MN_OK);
    const uint64_t version = mn_tensor_version(a);
    mn_autocast_begin(ctx, MN_BF16);
    mn_no_grad_begin(ctx);
    mn_name_push(ctx, "layer");
    const uint64_t live = mn_memory_stats_get(ctx).live_bytes;
    ck_assert_msg(mn_op_check(ctx, &op, (mn_tensor *[]){a, a}, 2, NULL, &report) == MN_OK, "%s",
                  mn_error_message(ctx));
    ck_assert(report.gradient < 1e-7);
    ck_assert_uint_eq(mn_memory_stats_get(ctx).live_bytes, live);
    ck_assert_uint_eq(mn_tensor_version(a), version);
    ck_assert_int_eq(mn_autocast_dtype(ctx), MN_BF16);
    mn_name_pop(ctx);
    mn_no_grad_end(ctx);
    mn_autocast_end(ctx);
    double gradient[6];
    ck_assert_int_eq(mn_tensor_read_f64(mn_grad(a), gradient, 6), MN_OK);
    ck_assert_double_eq(gradient[5], 2);
    mn_release(a);
    mn_context_free(ctx);
}
END_TEST

static void check_for_exhaustion(mn_context *ctx)
{
    const mn_op op = product(MN_CAST_PROMOTE);
    mn_op_check_report report;
    check_in(ctx, &op, &report);
}

START_TEST(memory_may_run_out)
{
    mn_test_exhaust(check_for_exhaustion);
}
END_TEST

/* ---- records ----------------------------------------------------------------------------------
 */

static void expect_stale(mn_context *ctx, const mn_op *op, const char *record, mn_status status,
                         const char *text)
{
    mn_error error;
    ck_assert_int_eq(mn_op_check_current(ctx, op, record, &error), status);
    ck_assert_int_eq(error.status, status);
    ck_assert_msg(strstr(error.message, text) != NULL, "\"%s\" is not in \"%s\"", text,
                  error.message);
    ck_assert_int_eq(mn_op_check_current(ctx, op, record, NULL), status);
    ck_assert_int_eq(mn_error_status(ctx), MN_OK);
}

/* The record with the value of a part replaced. */
static const char *altered(const char *record, const char *part, const char *value)
{
    static char text[1024];
    const char *at = strstr(record, part);
    ck_assert_ptr_nonnull(at);
    at += strlen(part);
    snprintf(text, sizeof text, "%.*s %s%s", (int)(at - record), record, value,
             at + strcspn(at, ";"));
    return text;
}

START_TEST(records_count_where_they_were_made)
{
    const mn_op op = product(MN_CAST_LOWER);
    mn_op_check_report report;
    mn_context *ctx = mn_test_open();
    ck_assert_int_eq(check_in(ctx, &op, &report), MN_OK);
    const char *record = report.record;
    ck_assert_int_eq(mn_op_check_current(ctx, &op, record, NULL), MN_OK);
    static const char *const parts[] = {"minim", "compiler", "device", "kernels", "features"};
    for (int i = 0; i < 5; i++) {
        char text[64];
        snprintf(text, sizeof text, "was not made with \"%s ", parts[i]);
        expect_stale(ctx, &op, altered(record, parts[i], "else"), MN_ERR_MISMATCH, text);
        expect_stale(ctx, &op, altered(record, parts[i], ""), MN_ERR_MISMATCH, text);
        expect_stale(ctx, &op, altered(record, parts[i], "\033[2J%n%s"), MN_ERR_MISMATCH, text);
    }
    mn_op other[6];
    for (int i = 0; i < 6; i++)
        other[i] = op;
    other[0].name = "produce";
    other[1].summary = "y = a b, version 2";
    other[2].rule[0] = MN_CAST_KEEP;
    other[3].saves_outputs = 1;
    other[4].kernels[MN_DEVICE_CPU].dtypes = 1u << MN_F32;
    other[5].reference = NULL;
    for (int i = 0; i < 6; i++)
        expect_stale(ctx, &other[i], record, MN_ERR_MISMATCH, "was not made with \"op produc");
    mn_context_options options = mn_context_options_default();
    options.kernels = MN_KERNELS_REFERENCE;
    mn_context *reference = mn_context_create(&options, NULL);
    expect_stale(reference, &op, record, MN_ERR_MISMATCH, "\"kernels reference\" and does not");
    mn_context_free(reference);
    mn_context_free(ctx);
}
END_TEST

START_TEST(records_may_be_anything)
{
    const mn_op op = product(MN_CAST_LOWER);
    mn_op_check_report report;
    mn_context *ctx = mn_test_open();
    ck_assert_int_eq(check_in(ctx, &op, &report), MN_OK);
    const char *const record = report.record;
    char text[sizeof report.record + 8], large[4096];
    for (size_t length = 0; length < strlen(record); length++) { /* cut off, or changed, anywhere */
        snprintf(text, sizeof text, "%.*s", (int)length, record);
        expect_stale(ctx, &op, text, MN_ERR_MISMATCH, "was not made with");
        snprintf(text, sizeof text, "%s", record);
        text[length] = '\n';
        expect_stale(ctx, &op, text, MN_ERR_MISMATCH, "was not made with");
    }
    snprintf(text, sizeof text, "%s; x", record);
    expect_stale(ctx, &op, text, MN_ERR_MISMATCH, "was not made with \"features");
    memset(large, 'x', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    expect_stale(ctx, &op, large, MN_ERR_MISMATCH, "was not made with \"op product ");
    expect_stale(ctx, &op, NULL, MN_ERR_ARGUMENT, "missing");
    expect_stale(ctx, NULL, record, MN_ERR_ARGUMENT, "missing");
    mn_context_free(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("op check");
    TCase *cases = tcase_create("check");
    tcase_set_timeout(cases, 120);
    tcase_add_loop_test(cases, a_sound_op_passes_with_every_rule, MN_CAST_KEEP, MN_CAST_REFUSE + 1);
    tcase_add_test(cases, without_f64_f32_is_the_measure);
    tcase_add_test(cases, faults_of_backward_are_found);
    tcase_add_test(cases, faults_of_kernels_are_found);
    tcase_add_test(cases, faults_of_rules_are_found);
    tcase_add_test(cases, written_inputs_are_looked_at);
    tcase_add_test(cases, calls_that_are_refused);
    tcase_add_test(cases, the_context_stays_as_it_was);
    tcase_add_test(cases, memory_may_run_out);
    tcase_add_test(cases, records_count_where_they_were_made);
    tcase_add_test(cases, records_may_be_anything);
    suite_add_tcase(suite, cases);
    return mn_test_run(suite, CK_NOFORK);
}
