/* Runs every op case: finite differences in f64 of the result and of its gradients, each dtype and
 * kernel set against the f64 reference, thread counts and the deferred device bit for bit, NaN in
 * the tail, and whether each op has a case.
 *
 * Bounds, relative to the largest magnitude of the tensor (forward result or gradient): f32 2e-6,
 * f16 2^-9, bf16 2^-6: a few roundings of the result's and the intermediate gradients' dtype. */
#include "tests/support_cases.h"

#include "ops/ops.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct setting {
    const char *device;
    mn_kernel_set kernels;
    int threads;
    mn_dtype dtype;   /* of the case's floating inputs */
    mn_dtype rounded; /* whose values the inputs take */
    bool nan_tail;
} setting;

/* Forward result, then the gradient of each input that has one. */
typedef struct outcome {
    int count;
    int64_t sizes[CASE_INPUTS + 1];
    double *values[CASE_INPUTS + 1];
} outcome;

static mn_context *open_context(const setting *s)
{
    mn_context_options options = mn_context_options_default();
    mn_error error;
    options.device = s->device;
    options.kernels = s->kernels;
    options.threads = s->threads;
    mn_context *ctx = mn_context_create(&options, &error);
    ck_assert_msg(ctx != NULL, "%s", error.message);
    return ctx;
}

static void make_inputs(mn_context *ctx, const op_case *c, const setting *s, mn_tensor **in)
{
    for (int i = 0; i < mn_case_inputs(c); i++) {
        const case_input *input = &c->inputs[i];
        in[i] =
            mn_tensor_create(ctx, mn_case_dtype(input->kind, s->dtype), input->ndim, input->shape);
        ck_assert_msg(in[i] != NULL, "%s: %s", c->name, mn_error_message(ctx));
        int64_t count = mn_tensor_numel(in[i]);
        double *values = calloc((size_t)count + 1, sizeof *values);
        mn_case_draw(c, i, s->rounded, count, values);
        if (s->nan_tail && i == 0 && count > 0)
            values[count - 1] = (double)NAN;
        ck_assert_int_eq(mn_tensor_write_f64(in[i], values, count), MN_OK);
        free(values);
        if (mn_case_wants_gradient(c, i))
            ck_assert_int_eq(mn_set_requires_grad(in[i], true), MN_OK);
    }
}

static void keep(outcome *o, mn_tensor *tensor)
{
    int64_t count = mn_tensor_numel(tensor);
    o->sizes[o->count] = count;
    o->values[o->count] = calloc((size_t)count + 1, sizeof(double));
    ck_assert_int_eq(mn_tensor_read_f64(tensor, o->values[o->count], count), MN_OK);
    o->count++;
}

/* sum(c * y) with c = +-1, +-2 by position: exact in every dtype. */
static mn_tensor *weigh(mn_context *ctx, mn_tensor *y)
{
    int64_t count = mn_tensor_numel(y);
    double *values = calloc((size_t)count + 1, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(1 + i * 7 % 2) * (i * 5 % 3 == 0 ? -1.0 : 1.0);
    mn_tensor *weights =
        mn_tensor_create(ctx, mn_tensor_dtype(y), mn_tensor_ndim(y), mn_tensor_shape(y));
    ck_assert_int_eq(mn_tensor_write_f64(weights, values, count), MN_OK);
    free(values);
    mn_tensor *product = mn_mul(y, weights);
    /* the sum in f32: its own overflow or rounding is not what is tested */
    if (mn_tensor_dtype(product) == MN_F16 || mn_tensor_dtype(product) == MN_BF16)
        product = mn_cast(product, MN_F32);
    return mn_sum(product, 0, NULL, false);
}

/* How often the cases ran each op, and how often before their results were summed up for backward,
 * which runs some ops for every case. */
static uint64_t reached[MN_OP_COUNT], reached_forward[MN_OP_COUNT];

static void count_calls(const mn_context *ctx, uint64_t *counts)
{
    for (int op = 0; op < MN_OP_COUNT; op++)
        counts[op] += mn_op_calls(ctx, (mn_op_id)op);
}

static outcome run_in(mn_context *ctx, const op_case *c, const setting *s)
{
    outcome o = {0};
    mn_tensor *in[CASE_INPUTS];
    mn_scope scope = mn_scope_begin(ctx);
    make_inputs(ctx, c, s, in);
    mn_tensor *y = mn_case_build(ctx, in, c);
    ck_assert_msg(y != NULL, "%s: %s", c->name, mn_error_message(ctx));
    count_calls(ctx, reached_forward);
    keep(&o, y);
    if (!c->forward_only) {
        mn_status status = mn_backward(weigh(ctx, y), 1.0);
        ck_assert_msg(status == MN_OK, "%s: %s", c->name, mn_error_message(ctx));
        for (int i = 0; i < mn_case_inputs(c); i++)
            if (mn_requires_grad(in[i])) {
                ck_assert_msg(mn_grad(in[i]) != NULL, "%s: input %d has no gradient", c->name, i);
                keep(&o, mn_grad(in[i]));
            }
    }
    mn_scope_end(ctx, scope);
    return o;
}

static outcome run_case(const op_case *c, setting s)
{
    mn_context *ctx = open_context(&s);
    outcome o = run_in(ctx, c, &s);
    count_calls(ctx, reached);
    mn_context_free(ctx);
    return o;
}

static void free_outcome(outcome *o)
{
    for (int i = 0; i < o->count; i++)
        free(o->values[i]);
}

static bool same_bits(const outcome *a, const outcome *b)
{
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++)
        same = a->sizes[i] == b->sizes[i] &&
               memcmp(a->values[i], b->values[i], (size_t)a->sizes[i] * sizeof(double)) == 0;
    return same;
}

static void check_close(const char *name, const outcome *got, const outcome *want, double bound)
{
    ck_assert_int_eq(got->count, want->count);
    for (int i = 0; i < got->count; i++) {
        double largest = 1e-30;
        ck_assert_int_eq(got->sizes[i], want->sizes[i]);
        for (int64_t j = 0; j < got->sizes[i]; j++)
            if (fabs(want->values[i][j]) > largest)
                largest = fabs(want->values[i][j]);
        for (int64_t j = 0; j < got->sizes[i]; j++) {
            double a = got->values[i][j], b = want->values[i][j];
            ck_assert_msg((isnan(a) && isnan(b)) || fabs(a - b) <= bound * largest,
                          "%s: %s %d, element %lld is %.9g, reference %.9g", name,
                          i == 0 ? "result" : "gradient", i, (long long)j, a, b);
        }
    }
}

/* ---- the checks, one per case ---------------------------------------------------------------- */

static mn_tensor *as_function(mn_context *ctx, mn_tensor **inputs, int count, void *user)
{
    const op_case *c = user;
    mn_tensor *all[CASE_INPUTS] = {NULL};
    for (int i = 0; i < count; i++)
        all[i] = inputs[i];
    return mn_case_build(ctx, all, c);
}

START_TEST(finite_differences)
{
    const op_case *c = mn_case_at(_i);
    setting s = {"cpu", MN_KERNELS_AUTO, 1, MN_F64, MN_F64, false};
    if (c->forward_only)
        return;
    mn_context *ctx = open_context(&s);
    mn_tensor *in[CASE_INPUTS];
    mn_scope scope = mn_scope_begin(ctx);
    make_inputs(ctx, c, &s, in);
    int64_t elements = 0;
    for (int i = 0; i < mn_case_inputs(c); i++)
        elements += mn_tensor_numel(in[i]);
    if (elements <= 1100) { /* two forward passes an element */
        mn_status status =
            mn_gradcheck(ctx, as_function, (void *)(uintptr_t)c, in, mn_case_inputs(c), NULL);
        ck_assert_msg(status == MN_OK, "%s: %s", c->name, mn_error_message(ctx));
    }
    mn_scope_end(ctx, scope);
    mn_context_free(ctx);
}
END_TEST

/* sum(c * y * y) of the case's result y, so that what its backward is given depends on the inputs
 * too; plus sum(c * g) of each gradient g of that. */
static mn_tensor *with_gradients(mn_context *ctx, mn_tensor **inputs, int count, void *user)
{
    const op_case *c = user;
    mn_tensor *wanted[CASE_INPUTS], *gradients[CASE_INPUTS];
    int wanted_count = 0;
    for (int i = 0; i < count; i++)
        if (mn_case_wants_gradient(c, i))
            wanted[wanted_count++] = inputs[i];
    mn_tensor *y = as_function(ctx, inputs, count, user);
    mn_tensor *sum = weigh(ctx, mn_mul(y, y));
    if (mn_gradients(sum, wanted, wanted_count, true, gradients) != MN_OK)
        return NULL;
    for (int i = 0; i < wanted_count; i++)
        sum = mn_add(sum, weigh(ctx, gradients[i]));
    return sum;
}

static void check_refused(mn_context *ctx, const op_case *c, mn_tensor **in)
{
    mn_tensor *sum = with_gradients(ctx, in, mn_case_inputs(c), (void *)(uintptr_t)c);
    if (sum != NULL) /* a derivative itself: once more is once too often */
        ck_assert_int_eq(mn_backward(sum, 1.0), MN_ERR_UNSUPPORTED);
    ck_assert_msg(mn_error_status(ctx) == MN_ERR_UNSUPPORTED, "%s: %s", c->name,
                  mn_error_message(ctx));
    const char *text = mn_error_message(ctx);
    bool named = false;
    for (int op = 0; op < MN_OP_COUNT; op++)
        named = named || (strstr(text, mn_ops[op].name) != NULL && mn_ops[op].backward != NULL);
    ck_assert_msg(named, "%s: %s", c->name, mn_error_message(ctx));
}

/* Backward of backward: finite differences of the gradients, or a clear refusal. */
START_TEST(second_differences)
{
    const op_case *c = mn_case_at(_i);
    setting s = {"cpu", MN_KERNELS_AUTO, 1, MN_F64, MN_F64, false};
    int64_t elements = 0;
    if (c->forward_only)
        return;
    mn_context *ctx = open_context(&s);
    mn_tensor *in[CASE_INPUTS];
    mn_scope scope = mn_scope_begin(ctx);
    make_inputs(ctx, c, &s, in);
    for (int i = 0; i < mn_case_inputs(c); i++)
        elements += mn_tensor_numel(in[i]);
    if (c->once)
        check_refused(ctx, c, in);
    else if (elements <= 600) { /* as above; and larger sums hide a step in their rounding */
        mn_gradcheck_options o = mn_gradcheck_options_default();
        o.step = 1e-5;
        mn_status status =
            mn_gradcheck(ctx, with_gradients, (void *)(uintptr_t)c, in, mn_case_inputs(c), &o);
        ck_assert_msg(status == MN_OK, "%s: %s", c->name, mn_error_message(ctx));
    }
    mn_scope_end(ctx, scope);
    mn_context_free(ctx);
}
END_TEST

START_TEST(dtypes_against_f64)
{
    static const struct {
        mn_dtype dtype;
        double bound;
    } formats[] = {{MN_F32, 2e-6}, {MN_F16, 0x1p-9}, {MN_BF16, 0x1p-6}};
    const op_case *c = mn_case_at(_i);
    for (int f = 0; f < 3; f++) {
        setting oracle = {"cpu", MN_KERNELS_REFERENCE, 1, MN_F64, formats[f].dtype, false};
        outcome want = run_case(c, oracle);
        for (int set = MN_KERNELS_REFERENCE; set < MN_KERNELS_COUNT; set++) {
            if (!mn_cpu_has_kernels((mn_kernel_set)set))
                continue;
            setting s = {"cpu", (mn_kernel_set)set, 2, formats[f].dtype, formats[f].dtype, false};
            outcome got = run_case(c, s);
            char name[96];
            snprintf(name, sizeof name, "%s, %s, kernel set %d", c->name, mn_dtype_name(s.dtype),
                     set);
            check_close(name, &got, &want, formats[f].bound);
            free_outcome(&got);
        }
        free_outcome(&want);
    }
}
END_TEST

START_TEST(same_bits_on_threads_and_deferred)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16};
    const op_case *c = mn_case_at(_i);
    for (int d = 0; d < 3; d++) {
        setting one = {"cpu", MN_KERNELS_AUTO, 1, dtypes[d], dtypes[d], false};
        outcome want = run_case(c, one);
        static const int threads[] = {2, 3, 5, 2};
        for (int t = 0; t < 4; t++) {
            setting s = one;
            s.threads = threads[t];
            s.device = t == 3 ? "cpu-deferred" : "cpu";
            outcome got = run_case(c, s);
            ck_assert_msg(same_bits(&got, &want), "%s: %s, %d threads, %s differ", c->name,
                          mn_dtype_name(s.dtype), s.threads, s.device);
            free_outcome(&got);
        }
        free_outcome(&want);
    }
}
END_TEST

START_TEST(nan_in_the_tail)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16};
    const op_case *c = mn_case_at(_i);
    if (c->no_tail)
        return;
    for (int d = 0; d < 3; d++) {
        setting oracle = {"cpu", MN_KERNELS_REFERENCE, 1, MN_F64, dtypes[d], true};
        setting s = {"cpu", MN_KERNELS_AUTO, 2, dtypes[d], dtypes[d], true};
        outcome want = run_case(c, oracle), got = run_case(c, s);
        for (int i = 0; i < got.count; i++)
            for (int64_t j = 0; j < got.sizes[i]; j++)
                ck_assert_msg(isnan(got.values[i][j]) == isnan(want.values[i][j]),
                              "%s: %s: output %d, element %lld is %g, reference %g", c->name,
                              mn_dtype_name(dtypes[d]), i, (long long)j, got.values[i][j],
                              want.values[i][j]);
        free_outcome(&want);
        free_outcome(&got);
    }
}
END_TEST

START_TEST(every_op_is_covered)
{
    for (int op = 0; op < MN_OP_COUNT; op++) {
        const mn_op *row = &mn_ops[op];
        mn_op_info info;
        ck_assert(mn_op_info_get(op, &info));
        const uint64_t calls = info.functions[0] ? reached_forward[op] : reached[op];
        ck_assert_msg(calls > 0, "op %s: no case in the list runs it", row->name);
        ck_assert_msg((row->differentiable != 0) == (row->backward != NULL),
                      "op %s: differentiable without a backward, or the reverse", row->name);
        ck_assert_msg(row->summary != NULL && row->summary[0] != '\0', "op %s: no summary",
                      row->name);
        ck_assert_msg(strcmp(mn_cast_rule_name(row->rule[MN_DEVICE_CPU]), "unknown") != 0,
                      "op %s: no autocast rule", row->name);
        ck_assert_msg((row->flags & MN_OP_VIEW) != 0 || row->reference != NULL,
                      "op %s has no reference kernel", row->name);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("op cases");
    TCase *cases = tcase_create("cases");
    tcase_set_timeout(cases, 120);
    tcase_add_loop_test(cases, finite_differences, 0, mn_case_count());
    tcase_add_loop_test(cases, second_differences, 0, mn_case_count());
    tcase_add_loop_test(cases, dtypes_against_f64, 0, mn_case_count());
    tcase_add_loop_test(cases, same_bits_on_threads_and_deferred, 0, mn_case_count());
    tcase_add_loop_test(cases, nan_in_the_tail, 0, mn_case_count());
    tcase_add_test(cases, every_op_is_covered);
    suite_add_tcase(suite, cases);
    return mn_test_run(suite, CK_NOFORK);
}
