/* Tests of dispatch with a custom op: plan cache, widening, versions, faults, aliases, and that
 * failures leave nothing behind. */
#include "ops/internal.h"
#include "tests/support_counting.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"

#include <check.h>
#include <stdlib.h>

/* ---- custom ops ------------------------------------------------------------------------------ */

/* y = x + 1; the second input, if there, is counted up in place. */
static int prepared;

static mn_status bump_infer(mn_infer *infer)
{
    mn_output_like(infer, 0, 0);
    return MN_OK;
}

static mn_status bump_prepare(const mn_call *call, mn_plan *plan, size_t *workspace_bytes)
{
    prepared++;
    plan->words[0] = (uint64_t)call->in[0].numel;
    *workspace_bytes = 64;
    return call->in[0].numel == 13 ? MN_ERR_UNSUPPORTED : MN_OK;
}

static void bump_run(const mn_call *call)
{
    const float *x = call->in[0].data;
    float *y = call->out[0].data;
    if (call->plan.words[0] != (uint64_t)call->in[0].numel || !call->workspace) {
        mn_call_fault(call, MN_ERR_INTERNAL, "a plan of %lld", (long long)call->plan.words[0], 0);
        return;
    }
    for (int64_t i = 0; i < call->in[0].numel; i++)
        y[i] = x[i] + 1;
    if (call->in[1].present)
        *(float *)call->in[1].data += 1;
    if (call->in[0].numel == 7)
        mn_call_fault(call, MN_ERR_DEVICE, "seven of %lld", 7, 0);
}

static const mn_op bump = {.size = sizeof(mn_op),
                           .name = "bump",
                           .min_inputs = 1,
                           .max_inputs = 2,
                           .outputs = 1,
                           .attribute_bytes = sizeof(int64_t),
                           .mutates = 2,
                           .infer = bump_infer,
                           .kernels = {{1u << MN_F32, bump_prepare, bump_run}}};

static mn_tensor *apply_bump(mn_context *ctx, mn_tensor *x, mn_tensor *counter)
{
    mn_tensor *const inputs[2] = {x, counter};
    mn_tensor *outputs[MN_MAX_OUTPUTS] = {NULL};
    mn_dispatch(ctx, &bump, inputs, 2, NULL, false, outputs);
    return outputs[0];
}

START_TEST(plan_cache)
{
    mn_context *ctx = mn_test_reference();
    prepared = 0;
    for (int i = 0; i < 5; i++)
        ck_assert_double_eq(mn_test_first(apply_bump(ctx, mn_test_vector(ctx, MN_F32, 3, i), NULL)),
                            i + 1);
    ck_assert_int_eq(prepared, 1);
    ck_assert_uint_eq(mn_ops_state_get(ctx)->hits, 4);
    apply_bump(ctx, mn_test_vector(ctx, MN_F32, 4, 0), NULL);
    apply_bump(ctx, mn_test_vector(ctx, MN_F32, 3, 0), mn_test_vector(ctx, MN_F32, 1, 0));
    ck_assert_int_eq(prepared, 3);
    for (int64_t i = 0; i < MN_PLAN_LIMIT + 10; i++) {
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *x = mn_test_vector(ctx, MN_F32, 20, 0), *outputs[MN_MAX_OUTPUTS];
        mn_dispatch(ctx, &bump, &x, 1, &i, false, outputs);
        mn_scope_end(ctx, scope);
    }
    mn_test_expect_ok(ctx);
    ck_assert_int_eq(prepared, 3 + MN_PLAN_LIMIT + 10);
    ck_assert_ptr_null(apply_bump(ctx, mn_test_vector(ctx, MN_F32, 13, 0), NULL));
    mn_test_expect(ctx, MN_ERR_UNSUPPORTED, "bump: the kernel does not take these arguments");
    mn_context_free(ctx);
}
END_TEST

/* What a step plans, the next one finds. */
START_TEST(plans_stay)
{
    mn_context *ctx = mn_test_reference();
    prepared = 0;
    for (int64_t i = 0; i < 3 * 300; i++) {
        const int64_t attribute = i % 300;
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *x = mn_test_vector(ctx, MN_F32, 20, 0), *outputs[MN_MAX_OUTPUTS];
        mn_dispatch(ctx, &bump, &x, 1, &attribute, false, outputs);
        mn_scope_end(ctx, scope);
    }
    mn_test_expect_ok(ctx);
    ck_assert_int_eq(prepared, 300);
    mn_context_free(ctx);
}
END_TEST

START_TEST(widening)
{
    static const mn_dtype dtypes[] = {MN_F16, MN_BF16};
    mn_context *ctx = mn_test_reference();
    ck_assert_int_eq(mn_op_served_by(ctx, &bump, MN_F32), MN_SERVED_KERNEL);
    ck_assert_int_eq(mn_op_served_by(ctx, &bump, MN_BF16), MN_SERVED_WIDENED);
    ck_assert_int_eq(mn_op_served_by(ctx, &bump, MN_F64), MN_SERVED_NONE);
    ck_assert_int_eq(mn_op_served_by(ctx, &mn_ops[MN_OP_add], MN_F32), MN_SERVED_REFERENCE);
    for (int i = 0; i < 2; i++) {
        mn_tensor *counter = mn_test_vector(ctx, dtypes[i], 1, 3);
        uint64_t version = mn_tensor_version(counter);
        mn_tensor *y = apply_bump(ctx, mn_test_vector(ctx, dtypes[i], 3, 1.5), counter);
        ck_assert_double_eq(mn_test_first(y), 2.5);
        ck_assert_int_eq(mn_tensor_dtype(y), dtypes[i]);
        ck_assert_double_eq(mn_test_first(counter), 4);
        ck_assert_uint_eq(mn_tensor_version(counter), version + 1);
        ck_assert_uint_eq(mn_widened_calls(ctx), (uint64_t)i + 1);
    }
    ck_assert_ptr_null(apply_bump(ctx, mn_test_vector(ctx, MN_F64, 3, 1), NULL));
    mn_test_expect(ctx, MN_ERR_UNSUPPORTED, "bump: no kernel for f64 on device cpu");
    ck_assert_uint_eq(mn_widened_calls(ctx), 2);
    mn_context_free(ctx);
}
END_TEST

/* ---- versions, faults, aliases --------------------------------------------------------------- */

START_TEST(versions)
{
    mn_context *ctx = mn_test_reference();
    mn_tensor *a = mn_test_vector(ctx, MN_F32, 3, 1), *b = mn_test_vector(ctx, MN_F16, 3, 2);
    uint64_t of_a = mn_tensor_version(a), of_b = mn_tensor_version(b);
    const mn_value_attributes nine = {.value = 9};
    ck_assert_int_eq(mn_tensor_copy(a, b), MN_OK);
    ck_assert_double_eq(mn_test_first(a), 2);
    ck_assert_uint_eq(mn_tensor_version(a), of_a + 1);
    ck_assert_uint_eq(mn_tensor_version(b), of_b);
    mn_dispatch1(ctx, MN_OP_fill, &a, 1, &nine);
    ck_assert_double_eq(mn_test_first(a), 9);
    ck_assert_uint_eq(mn_tensor_version(a), of_a + 2);
    ck_assert_int_eq(mn_tensor_copy(a, mn_test_vector(ctx, MN_F32, 4, 0)), MN_ERR_SHAPE);
    ck_assert_int_eq(mn_tensor_copy(a, b), MN_ERR_SHAPE); /* still pending */
    mn_test_expect(ctx, MN_ERR_SHAPE, "assign: ");
    ck_assert_uint_eq(mn_tensor_version(a), of_a + 2);
    ck_assert_double_eq(mn_test_first(a), 9);
    ck_assert_ptr_nonnull(mn_add(a, a));
    ck_assert_uint_eq(mn_tensor_version(a), of_a + 2);
    mn_context_free(ctx);
}
END_TEST

START_TEST(copies_into_a_graph_are_refused)
{
    mn_context *ctx = mn_test_reference();
    mn_tensor *leaf = mn_test_vector(ctx, MN_F32, 3, 1), *src = mn_test_vector(ctx, MN_F32, 3, 5);
    mn_set_requires_grad(leaf, true);
    ck_assert_int_eq(mn_tensor_copy(leaf, src), MN_ERR_STATE);
    mn_test_expect(ctx, MN_ERR_STATE, "part of the graph");
    ck_assert_int_eq(mn_tensor_copy(mn_relu(leaf), src), MN_ERR_STATE);
    mn_error_clear(ctx);
    mn_no_grad_begin(ctx);
    ck_assert_int_eq(mn_tensor_copy(leaf, src), MN_OK);
    mn_no_grad_end(ctx);
    ck_assert_double_eq(mn_test_first(leaf), 5);
    ck_assert_int_eq(mn_tensor_copy(NULL, src), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "argument 1 is NULL");
    mn_context_free(ctx);
}
END_TEST

START_TEST(faults)
{
    mn_context *ctx = mn_test_reference();
    ck_assert_ptr_null(apply_bump(ctx, mn_test_vector(ctx, MN_F32, 7, 0), NULL));
    mn_test_expect(ctx, MN_ERR_DEVICE, "bump: seven of 7");
    mn_context_free(ctx);
    ctx = mn_test_op_context("cpu-deferred", MN_KERNELS_REFERENCE);
    mn_tensor *y = apply_bump(ctx, mn_test_vector(ctx, MN_F32, 7, 0), NULL);
    ck_assert_ptr_nonnull(y);
    ck_assert_int_eq(mn_synchronize(ctx), MN_ERR_DEVICE);
    mn_test_expect(ctx, MN_ERR_DEVICE, "bump: seven of 7");
    mn_context_free(ctx);
}
END_TEST

START_TEST(written_inputs_stand_alone)
{
    mn_context *ctx = mn_test_reference();
    mn_tensor *whole = mn_test_vector(ctx, MN_F32, 4, 1);
    const int64_t three = 3;
    mn_tensor *head = mn_tensor_view(whole->storage, 0, MN_F32, 1, &three);
    mn_tensor *tail = mn_tensor_view(whole->storage, 4, MN_F32, 1, &three);
    ck_assert_int_eq(mn_tensor_copy(head, tail), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT,
                   "argument 1 is written, but shares memory with argument 2");
    mn_tensor *const same[2] = {head, head};
    const mn_blend_attributes sum = {1, 1};
    mn_dispatch(ctx, &mn_ops[MN_OP_blend], same, 2, &sum, false, NULL);
    mn_test_expect_ok(ctx);
    ck_assert_double_eq(mn_test_first(head), 2);
    mn_context_free(ctx);
}
END_TEST

/* What an op with outputs writes stands alone, also where it would be the same element. */
START_TEST(running_statistics_stand_alone)
{
    static const int64_t shape[2] = {4, 3};
    mn_context *ctx = mn_test_reference();
    mn_batch_norm_options options = mn_batch_norm_options_default();
    options.training = true;
    mn_tensor *x = mn_full(ctx, MN_F32, 2, shape, 1), *w = mn_test_vector(ctx, MN_F32, 3, 1);
    mn_tensor *b = mn_test_vector(ctx, MN_F32, 3, 0), *v = mn_test_vector(ctx, MN_F32, 3, 1);
    ck_assert_ptr_null(mn_batch_norm(x, w, b, (mn_tensor *[]){w, v, NULL}, &options));
    mn_test_expect(ctx, MN_ERR_ARGUMENT,
                   "argument 4 is written, but shares memory with argument 2");
    ck_assert_ptr_null(mn_batch_norm(x, w, b, (mn_tensor *[]){v, v, NULL}, &options));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "shares memory");
    ck_assert_double_eq(mn_test_first(w), 1);
    mn_context_free(ctx);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

/* Some ops with outputs, workspaces, plans, widening and views; NULL if one failed. */
static mn_tensor *work(mn_context *ctx, mn_tensor *target)
{
    static const int64_t shape[2] = {16, -1};
    mn_tensor *x = mn_test_vector(ctx, MN_F16, 4096, 1), *wide = mn_cast(x, MN_F32);
    mn_tensor *y = mn_reshape(mn_add(wide, x), 2, shape);
    mn_tensor *s = mn_sum(mn_mul(y, y), 0, NULL, false);
    if (s)
        apply_bump(ctx, x, NULL);
    return mn_tensor_copy(target, s) == MN_OK ? s : NULL;
}

START_TEST(no_memory)
{
    for (long k = 1;; k++) {
        mn_test_counter counter = {.fail_at = 0};
        mn_context_options options = mn_context_options_default();
        options.allocator = mn_test_counting(&counter);
        options.threads = 1;
        mn_context *ctx = mn_context_create(&options, NULL);
        mn_tensor *target = mn_full(ctx, MN_F32, 0, NULL, 1);
        uint64_t version = mn_tensor_version(target);
        counter.fail_at = counter.calls + k;
        mn_tensor *s = work(ctx, target);
        bool failed = counter.calls >= counter.fail_at;
        counter.fail_at = 0;
        if (!s) {
            ck_assert_uint_eq(mn_tensor_version(target), version);
            mn_test_expect(ctx, MN_ERR_MEMORY, "");
            ck_assert_double_eq(mn_test_first(target), 1);
            s = work(ctx, target);
        }
        ck_assert_double_eq(mn_test_first(s), 4 * 4096);
        mn_context_free(ctx);
        ck_assert_int_eq(counter.blocks, 0);
        ck_assert_int_lt(k, 1000);
        if (!failed) {
            ck_assert_int_gt(k, 5);
            return;
        }
    }
}
END_TEST

START_TEST(deferred_reference)
{
    mn_context *ctx = mn_test_op_context("cpu-deferred", MN_KERNELS_REFERENCE);
    mn_tensor *target = mn_full(ctx, MN_F32, 0, NULL, 1);
    mn_scope scope = mn_scope_begin(ctx);
    work(ctx, target);
    uint64_t waits = ctx->device->synchronizations;
    mn_scope_end(ctx, scope); /* everything read is released before the work runs */
    ck_assert_uint_eq(ctx->device->synchronizations, waits);
    ck_assert_double_eq(mn_test_first(target), 4 * 4096);
    mn_context_free(ctx);
}
END_TEST

START_TEST(descriptors_from_outside)
{
    mn_context *ctx = mn_test_reference();
    mn_tensor *x = mn_test_vector(ctx, MN_F32, 3, 0);
    mn_tensor *outputs[MN_MAX_OUTPUTS] = {x};
    mn_op op[6] = {bump, bump, bump, bump, bump, bump};
    op[0].size = 0;
    op[1].name = NULL;
    op[2].outputs = MN_MAX_OUTPUTS + 1;
    op[3].min_inputs = -3;
    op[4].differentiable = 1; /* but no backward: gradients would be lost without a word */
    op[5].max_inputs = MN_MAX_INPUTS + 1;
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(mn_apply(ctx, &op[i], &x, 1, NULL, outputs), MN_ERR_ARGUMENT);
        mn_test_expect(ctx, MN_ERR_ARGUMENT, "");
    }
    ck_assert_int_eq(mn_apply(ctx, NULL, &x, 1, NULL, outputs), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "");
    ck_assert_int_eq(mn_apply(ctx, &bump, NULL, 1, NULL, outputs), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "");
    ck_assert_int_eq(mn_apply(ctx, &bump, &x, 1, NULL, NULL), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "");
    ck_assert_int_eq(mn_apply(ctx, &bump, &x, 1, NULL, outputs), MN_OK);
    mn_context_free(ctx);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dispatch");
    TCase *tc = tcase_create("dispatch");
    tcase_add_test(tc, plan_cache);
    tcase_add_test(tc, plans_stay);
    tcase_add_test(tc, widening);
    tcase_add_test(tc, versions);
    tcase_add_test(tc, copies_into_a_graph_are_refused);
    tcase_add_test(tc, faults);
    tcase_add_test(tc, written_inputs_stand_alone);
    tcase_add_test(tc, running_statistics_stand_alone);
    tcase_add_test(tc, no_memory);
    tcase_add_test(tc, deferred_reference);
    tcase_add_test(tc, descriptors_from_outside);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return mn_test_run(suite(), CK_FORK_GETENV);
}
