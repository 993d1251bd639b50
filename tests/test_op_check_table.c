/* mn_op_check on every differentiable op of the library, with the inputs and attributes that the op
 * cases apply it to; and on inputs of unusual kinds. */
#include "autograd/node.h"
#include "tests/support_cases.h"
#include "tests/support_suite.h"

#include <stdlib.h>
#include <string.h>

/* The calls that a case consists of; the context's root scope keeps their inputs. */
static struct {
    const mn_op *op[64];
    mn_tensor *in[64][MN_MAX_INPUTS];
    int counts[64], calls;
} seen;

static mn_status look_on(mn_context *ctx, const mn_op *op, mn_tensor **inputs, int count,
                         mn_cast_choice *choice)
{
    (void)ctx;
    (void)choice;
    ck_assert_int_lt(seen.calls, 64);
    seen.op[seen.calls] = op;
    memcpy(seen.in[seen.calls], inputs, (size_t)count * sizeof *inputs);
    seen.counts[seen.calls++] = count;
    return MN_OK;
}

static bool checked[MN_OP_COUNT];

static void make_inputs(mn_context *ctx, const op_case *c, mn_tensor **in)
{
    for (int i = 0; i < mn_case_inputs(c); i++) {
        const case_input *input = &c->inputs[i];
        in[i] =
            mn_tensor_create(ctx, mn_case_dtype(input->kind, MN_F32), input->ndim, input->shape);
        int64_t count = mn_tensor_numel(in[i]);
        double *values = calloc((size_t)count + 1, sizeof *values);
        mn_case_draw(c, i, MN_F32, count, values);
        ck_assert_int_eq(mn_tensor_write_f64(in[i], values, count), MN_OK);
        free(values);
        if (mn_case_wants_gradient(c, i))
            ck_assert_int_eq(mn_set_requires_grad(in[i], true), MN_OK);
    }
}

/* Which call the node is of. */
static int call_of(const mn_node *node)
{
    int call = seen.calls;
    for (bool same = false; !same && call-- > 0;) {
        same = seen.op[call] == node->op && seen.counts[call] == node->input_count;
        for (int i = 0; i < node->input_count && same; i++) {
            const mn_node_input *input = &node->inputs[i];
            if (input->producer != NULL || input->leaf != NULL)
                same = seen.in[call][i]->node == input->producer;
        }
    }
    ck_assert_int_ge(call, 0);
    return call;
}

/* Checks the ops behind the node, each on its own inputs, and then its op. */
static void check_node(mn_context *ctx, const op_case *c, const mn_node *node, mn_tensor **in)
{
    mn_op_check_options options = mn_op_check_options_default();
    mn_op_check_report report;
    int64_t elements = 0;
    const int call = call_of(node);
    for (int i = 0; i < node->input_count; i++) {
        elements += mn_tensor_numel(seen.in[call][i]);
        if (node->inputs[i].producer != NULL)
            check_node(ctx, c, node->inputs[i].producer, in);
        for (int j = 0; j < mn_case_inputs(c); j++)
            if (seen.in[call][i] == in[j] && c->inputs[j].kind >= STATE)
                options.keeps_f32 |= 1u << i;
    }
    /* Given moments stay as they are where x alone changes: backward takes them for x's. */
    if (node->input_count == 8 && strncmp(node->op->name, "batch_norm", 10) == 0)
        return;
    if (elements > 1100) /* differences take two runs an element */
        return;
    options.attributes = node->attributes;
    options.constants = 0xE; /* statistics, where there is more than one output */
    mn_status status =
        mn_op_check(ctx, node->op, seen.in[call], node->input_count, &options, &report);
    ck_assert_msg(status == MN_OK, "%s: %s", c->name, mn_error_message(ctx));
    checked[mn_op_id_of(node->op)] = true;
}

/* Which no case differentiates. */
static void check_dropout(void)
{
    const mn_dropout_attributes attributes = {.p = 0.25};
    mn_op_check_options options = mn_op_check_options_default();
    mn_op_check_report report;
    mn_context *ctx = mn_test_open();
    mn_tensor *x = mn_full(ctx, MN_F32, 1, (int64_t[]){20}, 0.7);
    options.attributes = &attributes;
    ck_assert_int_eq(mn_op_check(ctx, &mn_ops[MN_OP_dropout], &x, 1, &options, &report), MN_OK);
    ck_assert_uint_eq(report.dtypes[MN_BF16].nan_lost, 0);
    checked[MN_OP_dropout] = true;
    mn_context_free(ctx);
}

START_TEST(ops_of_the_library_pass)
{
    for (int i = 0; i < mn_case_count(); i++) {
        const op_case *c = mn_case_at(i);
        mn_context *ctx = mn_test_open();
        mn_tensor *in[CASE_INPUTS];
        if (!c->forward_only) {
            make_inputs(ctx, c, in);
            seen.calls = 0;
            ctx->cast_hook = look_on;
            mn_tensor *y = mn_case_build(ctx, in, c);
            ctx->cast_hook = NULL;
            ck_assert_msg(y != NULL, "%s: %s", c->name, mn_error_message(ctx));
            if (y->node)
                check_node(ctx, c, y->node, in);
        }
        mn_context_free(ctx);
    }
    check_dropout();
    for (int op = 0; op < MN_OP_COUNT; op++) {
        mn_op_info info;
        ck_assert(mn_op_info_get(op, &info));
        bool inside = info.functions[0] == '\0' || op == MN_OP_scaler_scale;
        ck_assert_msg(checked[op] || !info.differentiable || inside, "%s is not checked",
                      info.name);
    }
}
END_TEST

/* ---- custom ops with unusual inputs -----------------------------------------------------------
 */

/* The second of two inputs. */
static mn_status second_infer(mn_infer *call)
{
    call->out[0] = call->in[1];
    return MN_OK;
}

static void second_run(const mn_call *call)
{
    memcpy(call->out[0].data, call->in[1].data, 4 * (size_t)call->in[1].numel);
}

START_TEST(first_input_not_given)
{
    const mn_op op = {.size = sizeof op,
                      .name = "second",
                      .min_inputs = 2,
                      .max_inputs = 2,
                      .outputs = 1,
                      .optional = 1,
                      .infer = second_infer,
                      .kernels = {{1u << MN_F32, NULL, second_run}}};
    mn_op_check_report report;
    mn_context *ctx = mn_test_open();
    mn_tensor *in[2] = {NULL, mn_full(ctx, MN_F32, 1, (int64_t[]){3}, 0.7)};
    ck_assert_msg(mn_op_check(ctx, &op, in, 2, NULL, &report) == MN_OK, "%s",
                  mn_error_message(ctx));
    ck_assert_int_eq(report.dtypes[MN_F64].served, MN_SERVED_NONE);
    ck_assert_int_eq(report.dtypes[MN_F32].served, MN_SERVED_KERNEL);
    ck_assert_int_eq(report.dtypes[MN_BF16].served, MN_SERVED_WIDENED);
    mn_context_free(ctx);
}
END_TEST

static const int64_t large[3] = {INT64_MAX, INT64_MIN, (INT64_C(1) << 53) + 1};

static mn_status same_infer(mn_infer *call)
{
    call->out[0] = call->in[0];
    return MN_OK;
}

static void large_run(const mn_call *call)
{
    if (memcmp(call->in[0].data, large, sizeof large) != 0)
        mn_call_fault(call, MN_ERR_ARGUMENT, "not the example's integers", 0, 0);
    memcpy(call->out[0].data, large, sizeof large);
}

START_TEST(integers_arrive_exactly)
{
    const mn_op op = {.size = sizeof op,
                      .name = "large",
                      .min_inputs = 1,
                      .max_inputs = 1,
                      .outputs = 1,
                      .infer = same_infer,
                      .kernels = {{1u << MN_I64, NULL, large_run}}};
    mn_op_check_report report;
    mn_context *ctx = mn_test_open();
    mn_tensor *x = mn_tensor_from(ctx, MN_I64, 1, (int64_t[]){3}, large);
    ck_assert_msg(mn_op_check(ctx, &op, &x, 1, NULL, &report) == MN_OK, "%s",
                  mn_error_message(ctx));
    mn_context_free(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("op check of the library's ops");
    TCase *cases = tcase_create("check");
    tcase_set_timeout(cases, 120);
    tcase_add_test(cases, ops_of_the_library_pass);
    tcase_add_test(cases, first_input_not_given);
    tcase_add_test(cases, integers_arrive_exactly);
    suite_add_tcase(suite, cases);
    return mn_test_run(suite, CK_NOFORK);
}
