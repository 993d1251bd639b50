/* Traces: what they keep of each call, with how much memory, and the graph made of them. */
#include "amp/internal.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t square[2] = {2, 2};

static mn_tensor *weight(mn_context *ctx, const char *name)
{
    return mn_parameter_create(ctx, name, MN_F32, 2, square, MN_LAYOUT_PLAIN);
}

/* "conv1: linear LOWER f16 f16 f16 > f16", a line per entry: layer, op, rule (outside of regions
 * "-", overridden "*", of casts that autocast made "+"), dtypes of inputs and outputs, and how it
 * was served if not by a kernel. */
static const char *lines_of(const mn_trace *trace, char *text, size_t size)
{
    size_t used = 0;
    mn_trace_entry e;
    text[0] = '\0';
    for (int64_t i = 0; mn_trace_get(trace, i, &e); i++) {
        const char *kind = e.is_cast ? "+" : "";
        used += (size_t)snprintf(text + used, size - used, "%s: %s %s%s%s", e.layer, e.op, kind,
                                 e.in_region ? mn_cast_rule_name(e.rule) : "-",
                                 e.overridden ? "*" : "");
        for (int k = 0; k < e.input_count + e.output_count; k++) {
            const mn_trace_tensor *t = &e.inputs[k];
            ck_assert(used + 100 < size);
            ck_assert_int_eq(t->present || k < e.input_count, 1);
            used +=
                (size_t)snprintf(text + used, size - used, "%s %s", k == e.input_count ? " >" : "",
                                 t->present ? mn_dtype_name(t->dtype) : "-");
        }
        bool plain = e.served == MN_SERVED_KERNEL || e.served == MN_SERVED_REFERENCE;
        used += (size_t)snprintf(text + used, size - used, "%s%s\n", plain ? "" : " ",
                                 plain ? "" : mn_served_by_name(e.served));
    }
    return text;
}

static void expect_lines(const mn_trace *trace, const char *wanted)
{
    char text[8192];
    ck_assert_str_eq(lines_of(trace, text, sizeof text), wanted);
}

/* ---- what is kept ---------------------------------------------------------------------------- */

/* Loss of a linear layer on x: sum(relu(x w^T)). */
static mn_tensor *forward(mn_context *ctx, mn_tensor *w, mn_tensor *x)
{
    mn_name_push(ctx, "fc");
    mn_tensor *y = mn_relu(mn_linear(x, w, NULL));
    mn_name_pop(ctx);
    return mn_check_total(y);
}

START_TEST(test_net)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = weight(ctx, "fc.weight"), *x = mn_full(ctx, MN_F32, 2, square, 1);
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *loss = forward(ctx, w, x);
    mn_autocast_end(ctx);
    expect_lines(trace, "fc: cast +LOWER f32 > f16\n"
                        "fc: cast +LOWER f32 > f16\n"
                        "fc: linear LOWER f16 f16 - > f16\n"
                        "fc: relu KEEP f16 > f16\n"
                        ": sum FP32_OUT f16 > f32\n");
    mn_trace_free(trace);
    trace = mn_trace_begin(ctx, NULL);
    ck_assert_int_eq(mn_backward(loss, 1), MN_OK);
    expect_lines(trace, ": fill - f32\n"
                        ": cast - f32 > f16\n"
                        ": reshape - f16 > f16 view\n"
                        ": expand - f16 > f16\n"
                        "fc: relu_backward - f16 f16 > f16\n"
                        "fc: reshape - f16 > f16 view\n"
                        "fc: reshape - f16 > f16 view\n"
                        "fc: matmul - f16 f16 > f16\n"
                        "fc: cast - f16 > f32\n"
                        "fc: assign - f32 f32\n");
    mn_trace_free(trace);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_entries)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *w = weight(ctx, "fc.weight"), *x = mn_full(ctx, MN_F32, 2, square, 1);
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    mn_trace_entry e[16];
    mn_autocast_begin(ctx, MN_F16);
    mn_backward(forward(ctx, w, x), 1); /* the hook is off in backward, also inside of a region */
    mn_autocast_end(ctx);
    mn_trace_end(trace);
    mn_trace_end(trace);
    ck_assert_int_eq(mn_trace_count(trace), 15);
    for (int i = 0; i < 15; i++)
        ck_assert(mn_trace_get(trace, i, &e[i]));
    ck_assert_str_eq(e[0].inputs[0].parameter, "");
    ck_assert_str_eq(e[1].inputs[0].parameter, "fc.weight");
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(e[i].outputs[0].storage, e[2].inputs[i].storage);
    ck_assert(!e[2].inputs[2].present && *e[2].inputs[2].parameter == '\0');
    ck_assert(e[2].inputs[0].ndim == 2 && e[2].inputs[0].shape[1] == 2 && !e[2].inputs[0].written);
    ck_assert(e[2].outputs[0].written && e[2].region == MN_F16);
    ck_assert(e[2].direction == MN_FORWARD && *e[2].backward_of == '\0');
    /* Backward of relu reads what relu has made; views share their storage. */
    ck_assert_str_eq(e[9].op, "relu_backward");
    ck_assert_uint_eq(e[9].inputs[1].storage, e[3].outputs[0].storage);
    ck_assert_str_eq(e[9].backward_of, "relu");
    ck_assert(e[9].direction == MN_BACKWARD && !e[9].in_region && e[9].region == MN_F32);
    ck_assert_uint_eq(e[10].inputs[0].storage, e[10].outputs[0].storage);
    ck_assert_str_eq(e[14].op, "assign");
    ck_assert(e[14].inputs[0].written && !e[14].inputs[1].written && e[14].output_count == 0);
    ck_assert(!mn_trace_get(trace, 15, e) && !mn_trace_get(trace, -1, e));
    ck_assert(!mn_trace_get(trace, 0, NULL) && !mn_trace_get(NULL, 0, e));
    ck_assert_int_eq(mn_trace_lost(trace), 0);
    mn_trace_free(trace);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_regions_and_rules)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *x = mn_full(ctx, MN_F32, 2, square, 1);
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    mn_autocast_set_rules(ctx, "exp=KEEP,relu=FP32");
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *y = mn_matmul(x, x);
    mn_autocast_begin(ctx, MN_BF16);
    mn_relu(mn_matmul(x, y));
    mn_autocast_begin(ctx, MN_F32);
    mn_matmul(x, x);
    mn_autocast_end(ctx);
    mn_autocast_end(ctx);
    mn_exp(y);
    mn_autocast_reset_rules(ctx);
    mn_exp(y);
    mn_autocast_end(ctx);
    expect_lines(trace, ": cast +LOWER f32 > f16\n"
                        ": cast +LOWER f32 > f16\n"
                        ": matmul LOWER f16 f16 > f16\n"
                        ": cast +LOWER f32 > bf16\n"
                        ": cast +LOWER f16 > bf16\n"
                        ": matmul LOWER bf16 bf16 > bf16\n"
                        ": cast +FP32* bf16 > f32\n"
                        ": relu FP32* f32 > f32\n"
                        ": matmul - f32 f32 > f32\n"
                        ": exp KEEP* f16 > f16\n"
                        ": cast +FP32 f16 > f32\n"
                        ": exp FP32 f32 > f32\n");
    mn_trace_free(trace);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_shadow)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = weight(ctx, "w"), *x = mn_full(ctx, MN_F16, 2, square, 1);
    mn_autocast_begin(ctx, MN_F16);
    mn_matmul(x, w);
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    mn_matmul(x, w);
    mn_autocast_end(ctx);
    expect_lines(trace, ": cast +LOWER f32 > f16 shadow\n"
                        ": matmul LOWER f16 f16 > f16\n");
    mn_trace_free(trace);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_double_backward)
{
    const double two[1] = {2};
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *w = mn_check_parameter(ctx, "w", 1, two), *first;
    mn_tensor *y = mn_reshape(mn_exp(w), 0, NULL);
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    ck_assert_int_eq(mn_gradients(y, &w, 1, true, &first), MN_OK);
    ck_assert_int_eq(mn_backward(mn_check_total(first), 1), MN_OK);
    int backward = 0, of_exp = 0;
    mn_trace_entry e;
    for (int64_t i = 0; mn_trace_get(trace, i, &e); i++) {
        backward += e.direction == MN_BACKWARD;
        of_exp += strcmp(e.backward_of, "exp") == 0;
    }
    ck_assert_int_ge(backward, 4);
    ck_assert_int_ge(of_exp, 1);
    mn_trace_free(trace);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_step)
{
    mn_check_run r = mn_check_run_open(mn_check_devices[_i], NULL);
    mn_check_backward(&r, 0.5);
    mn_trace *trace = mn_trace_begin(r.ctx, NULL);
    mn_grad_scaler_step(r.scaler, r.sgd, NULL);
    mn_grad_scaler_update(r.scaler);
    mn_trace_entry e;
    const char *const ops[] = {"grad_unscale", "sgd_step", "optimizer_finish", "scaler_update"};
    ck_assert_int_eq(mn_trace_count(trace), 4);
    for (int i = 0; i < 4; i++) {
        ck_assert(mn_trace_get(trace, i, &e));
        ck_assert_str_eq(e.op, ops[i]);
        ck_assert_int_eq(e.direction, MN_UPDATE);
    }
    ck_assert_ptr_null(trace->spare); /* what the rehearsal made room for has come */
    mn_trace_free(trace);
    mn_check_run_close(&r);
}
END_TEST

/* ---- several, limits, ends ------------------------------------------------------------------- */

START_TEST(test_several)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *x = mn_full(ctx, MN_F32, 2, square, 1);
    mn_trace *all = mn_trace_begin(ctx, NULL), *part[2];
    mn_exp(x);
    for (int i = 0; i < 2; i++) {
        part[i] = mn_trace_begin(ctx, NULL);
        mn_relu(x);
    }
    mn_trace_end(part[0]);
    mn_exp(x);
    mn_trace_free(part[1]);
    mn_exp(x);
    ck_assert_int_eq(mn_trace_count(all), 5);
    ck_assert_int_eq(mn_trace_count(part[0]), 2);
    mn_trace_free(part[0]);
    mn_trace_free(all);
    ck_assert_ptr_null(ctx->observers);
    mn_trace_free(NULL);
    mn_trace_end(NULL);
    ck_assert_int_eq(mn_trace_count(NULL), 0);
    ck_assert_int_eq(mn_trace_lost(NULL), 0);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_limit)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_trace_options options = mn_trace_options_default();
    mn_tensor *x = mn_full(ctx, MN_F32, 2, square, 1);
    options.limit = _i;
    mn_trace *trace = mn_trace_begin(ctx, &options);
    for (int i = 0; i < 5; i++)
        mn_exp(x);
    ck_assert_ptr_null(mn_gather(x, 0, x)); /* no call: the shape rule refuses */
    mn_check_expect(ctx, MN_ERR_DTYPE, "gather");
    ck_assert_int_eq(mn_trace_count(trace), _i);
    ck_assert_int_eq(mn_trace_lost(trace), 5 - _i);
    mn_trace_free(trace);
    options.limit = -1;
    ck_assert_ptr_null(mn_trace_begin(ctx, &options));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "limit");
    options.size++;
    ck_assert_ptr_null(mn_trace_begin(ctx, &options));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "mn_trace");
    ck_assert_ptr_null(mn_trace_begin(NULL, NULL));
    mn_check_done(ctx);
}
END_TEST

/* A trace may be read and freed after its context and tensors. */
START_TEST(test_outlives)
{
    mn_test_counter counter = {.fail_at = 0};
    mn_context_options options = mn_context_options_default();
    mn_trace_entry e;
    options.threads = 1;
    options.allocator = mn_test_counting(&counter);
    mn_context *ctx = mn_context_create(&options, NULL);
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    mn_tensor *w = weight(ctx, "gone");
    mn_name_push(ctx, "layer");
    mn_exp(w);
    mn_name_pop(ctx);
    mn_release(w);
    mn_context_free(ctx);
    ck_assert(mn_trace_get(trace, mn_trace_count(trace) - 1, &e));
    ck_assert_str_eq(e.layer, "layer");
    ck_assert_str_eq(e.inputs[0].parameter, "gone");
    ck_assert_int_gt(counter.blocks, 0);
    mn_trace_free(trace);
    ck_assert_int_eq(counter.blocks, 0);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static void trace_step(mn_context *ctx)
{
    mn_tensor *w = weight(ctx, "w"), *x;
    mn_optimizer *sgd = mn_sgd_create(ctx, &w, w ? 1 : 0, NULL);
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    mn_scope scope = mn_scope_begin(ctx);
    char *text;
    size_t bytes;
    x = mn_full(ctx, MN_F32, 2, square, 1);
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *loss = mn_check_total(mn_matmul(mn_matmul(x, w), w));
    mn_autocast_end(ctx);
    mn_backward(loss, 1);
    mn_optimizer_step(sgd);
    if (mn_trace_dot(trace, NULL, &text, &bytes) == MN_OK)
        mn_buffer_free(ctx, text, bytes);
    mn_scope_end(ctx, scope);
    mn_trace_free(trace);
    mn_optimizer_free(sgd);
    mn_release(w);
}

START_TEST(test_exhaust)
{
    mn_test_exhaust(trace_step);
}
END_TEST

/* Whichever allocation of a traced step fails, of two parameters both are updated or none; and the
 * rehearsals of steps that failed do not pile up. */
START_TEST(test_step_stays_whole)
{
    bool reached = true;
    for (long k = 1; k < 500 && reached; k++) {
        mn_test_counter counter = {.fail_at = 0};
        mn_context_options options = mn_context_options_default();
        options.threads = 1;
        options.allocator = mn_test_counting(&counter);
        mn_context *ctx = mn_context_create(&options, NULL);
        mn_tensor *w[2] = {weight(ctx, "a"), weight(ctx, "a name that makes another block")};
        mn_optimizer *sgd = mn_sgd_create(ctx, w, 2, NULL);
        mn_backward(mn_check_total(mn_add(w[0], w[1])), 1);
        mn_trace *trace = mn_trace_begin(ctx, NULL);
        mn_memory_trim(ctx);
        counter.fail_at = counter.calls + k;
        mn_status status = mn_optimizer_step(sgd);
        reached = counter.calls >= counter.fail_at;
        counter.fail_at = 0;
        ck_assert(status == MN_OK || (status == MN_ERR_MEMORY && reached));
        mn_error_clear(ctx);
        for (int i = 0; i < 2; i++)
            ck_assert_double_eq(mn_check_at(w[i], 0), status == MN_OK ? (double)-0.01f : 0);
        ck_assert_int_eq(mn_trace_count(trace), status == MN_OK ? 3 : 0);
        mn_exp(w[0]);
        if (status != MN_OK)
            ck_assert_int_eq(mn_optimizer_step(sgd), MN_OK);
        ck_assert_int_eq(trace->spare_count, 0);
        ck_assert_int_eq(mn_trace_count(trace), 4);
        mn_trace_free(trace);
        mn_optimizer_free(sgd);
        for (int i = 0; i < 2; i++)
            mn_release(w[i]);
        mn_context_free(ctx);
        ck_assert_int_eq(counter.blocks, 0);
    }
    ck_assert(!reached);
}
END_TEST

/* ---- the graph ------------------------------------------------------------------------------- */

static bool has_dot(void)
{
    return system("dot -V >/dev/null 2>&1") == 0;
}

/* Graphviz, where it is there, takes the text without a word. */
static void check_dot(const char *text)
{
    char name[] = "/tmp/minim-trace-XXXXXX", command[100];
    int file = has_dot() ? mkstemp(name) : -1;
    if (file < 0)
        return;
    FILE *out = fdopen(file, "w");
    ck_assert_int_ge(fputs(text, out), 0);
    ck_assert_int_eq(fclose(out), 0);
    snprintf(command, sizeof command, "test -z \"$(dot -Tsvg -o /dev/null %s 2>&1)\"", name);
    ck_assert_int_eq(system(command), 0);
    remove(name);
}

static char *dot_of(mn_context *ctx, const mn_trace *trace, const mn_trace_dot_options *options,
                    size_t *bytes)
{
    char *text;
    ck_assert_msg(mn_trace_dot(trace, options, &text, bytes) == MN_OK, "%s", mn_error_message(ctx));
    ck_assert_uint_eq(strlen(text) + 1, *bytes);
    check_dot(text);
    return text;
}

static void has(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "no \"%s\" in: %s", part, text);
}

START_TEST(test_dot)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = weight(ctx, "fc.weight"), *x = mn_full(ctx, MN_F32, 2, square, 1);
    mn_optimizer *sgd = mn_check_sgd_of(ctx, &w, 1);
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    mn_autocast_set_rules(ctx, "relu=FP32");
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *loss = forward(ctx, w, x);
    mn_autocast_end(ctx);
    mn_backward(loss, 1);
    mn_optimizer_step(sgd);
    char edge[80];
    size_t bytes;
    mn_trace_entry first;
    char *text = dot_of(ctx, trace, NULL, &bytes);
    ck_assert(mn_trace_get(trace, 1, &first));
    ck_assert_str_eq(first.inputs[0].parameter, "fc.weight");
    snprintf(edge, sizeof edge, "s%llu -> n1 [label=\"[2,2] f32\"]",
             (unsigned long long)first.inputs[0].storage);
    has(text, edge); /* parameter, its cast, the layer, another cast, relu */
    has(text, "n1 -> n2 [label=\"[2,2] f16\"]");
    has(text, "n2 -> n3 [label=\"[2,2] f16\"]");
    has(text, "n3 -> n4 [label=\"[2,2] f32\"]");
    has(text, "n4 -> n5 [label=\"[2,2] f32\"]");
    has(text, "label=\"linear\\nLOWER");
    has(text, "label=\"relu\\nFP32 (override)");
    has(text, "label=\"cast f16");
    has(text, "label=\"fc.weight\\n[2,2] f32\"");
    has(text, "label=\"fc\"");
    has(text, "label=\"backward of fc\"");
    has(text, "shape=hexagon,style=filled");
    has(text, "style=dotted,label="); /* saved for backward */
    has(text, "cluster_legend");
    mn_buffer_free(ctx, text, bytes);
    mn_trace_free(trace);
    mn_optimizer_free(sgd);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

/* What backward reads is drawn from who made it, not from a view of it that came later. */
START_TEST(test_dot_views)
{
    static const int64_t four[1] = {4};
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *w = weight(ctx, "w");
    size_t bytes;
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    mn_backward(mn_check_total(mn_reshape(mn_relu(w), 1, four)), 1);
    char *text = dot_of(ctx, trace, NULL, &bytes), edge[80];
    mn_trace_entry e;
    int64_t i = 0;
    while (mn_trace_get(trace, i, &e) && strcmp(e.op, "relu_backward") != 0)
        i++;
    snprintf(edge, sizeof edge, "n0 -> n%lld [style=dotted,label=\"[2,2] f32\"]", (long long)i);
    has(text, edge);
    has(text, "n0 -> n1 [label=\"[2,2] f32\"]");
    has(text, "n1 -> n2 [label=\"[4] f32\"]");
    mn_buffer_free(ctx, text, bytes);
    mn_trace_free(trace);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_dot_names)
{
    static const char *const names[] = {"\"];evil [label=\"", "back\\slash\\",     "a\nb\t\x7f",
                                        "<b>&lt;&quot;</b>",  "\xff\xc3 \xc3\xa9", "{|}",
                                        "cluster_legend",     "\\N \\G %s %n"};
    mn_context *ctx = mn_check_context("cpu");
    mn_trace_dot_options options = mn_trace_dot_options_default();
    size_t bytes;
    options.title = "a \"title\" \\";
    options.legend = false;
    mn_trace *trace = mn_trace_begin(ctx, NULL);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        mn_tensor *w = weight(ctx, names[i]);
        mn_name_push(ctx, names[i]);
        mn_exp(w);
        mn_name_pop(ctx);
        mn_release(w);
    }
    char *text = dot_of(ctx, trace, &options, &bytes);
    has(text, "label=\"a \\\"title\\\" \\\\\"");
    has(text, "label=\"\\\"];evil [label=\\\"\"");
    has(text, "label=\"back\\\\slash\\\\\"");
    has(text, "label=\"a?b??\"");
    has(text, "label=\"<b>&amp;lt;&amp;quot;</b>\"");
    has(text, "label=\"?? \xc3\xa9\"");
    ck_assert_ptr_null(strstr(text, "cluster_legend {"));
    mn_buffer_free(ctx, text, bytes);
    mn_trace_free(trace);
    trace = mn_trace_begin(ctx, NULL); /* nothing in it */
    text = dot_of(ctx, trace, NULL, &bytes);
    mn_buffer_free(ctx, text, bytes);
    ck_assert_int_eq(mn_trace_dot(NULL, NULL, &text, &bytes), MN_ERR_ARGUMENT);
    ck_assert(text == NULL && bytes == 0);
    ck_assert_int_eq(mn_trace_dot(trace, NULL, &text, NULL), MN_ERR_ARGUMENT);
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "trace_dot");
    mn_trace_free(trace);
    mn_check_done(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("trace");
    TCase *tc = tcase_create("traces");
    tcase_add_loop_test(tc, test_net, 0, 2);
    tcase_add_test(tc, test_entries);
    tcase_add_test(tc, test_regions_and_rules);
    tcase_add_loop_test(tc, test_shadow, 0, 2);
    tcase_add_test(tc, test_double_backward);
    tcase_add_loop_test(tc, test_step, 0, 2);
    tcase_add_test(tc, test_several);
    tcase_add_loop_test(tc, test_limit, 0, 4);
    tcase_add_test(tc, test_outlives);
    tcase_add_test(tc, test_exhaust);
    tcase_add_test(tc, test_step_stays_whole);
    tcase_add_loop_test(tc, test_dot, 0, 2);
    tcase_add_test(tc, test_dot_views);
    tcase_add_test(tc, test_dot_names);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK);
}
