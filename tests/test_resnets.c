/* Residual modules and the networks made of them: what they compute, their names and sizes,
 * training in every precision, resuming, memory; and what the summary of a model says. */
#include "models/module.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static mn_context *ctx;

static void setup(void)
{
    mn_error error;
    mn_context_options options = mn_context_options_default();
    options.threads = 2;
    ctx = mn_context_create(&options, &error);
    ck_assert_msg(ctx != NULL, "%s", error.message);
}

static void teardown(void)
{
    mn_context_free(ctx);
}

static mn_module *model(const char *name, int height, int width, int channels, int classes)
{
    mn_model_options o = mn_model_options_default();
    o.height = height;
    o.width = width;
    o.channels = channels;
    o.classes = classes;
    return mn_model_create(ctx, name, &o);
}

static mn_tensor *ramp(int ndim, const int64_t *shape)
{
    static float values[8 * 32 * 32 * 3];
    mn_tensor *x = mn_tensor_create(ctx, MN_F32, ndim, shape);
    int64_t count = mn_tensor_numel(x);
    ck_assert_int_le(count, (int64_t)(sizeof values / sizeof *values));
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(i * 37 % 101) / 101.0F - 0.5F;
    ck_assert_int_eq(mn_tensor_write(x, values, (size_t)count * sizeof *values), MN_OK);
    return x;
}

static void same_bits(const mn_tensor *a, const mn_tensor *b)
{
    ck_assert_msg(a != NULL && b != NULL, "%s", mn_error_message(ctx));
    ck_assert_uint_eq(mn_tensor_bytes(a), mn_tensor_bytes(b));
    ck_assert_int_eq(memcmp(mn_tensor_data(a), mn_tensor_data(b), mn_tensor_bytes(a)), 0);
}

/* ---- the module ------------------------------------------------------------------------------ */

static mn_tensor *by_hand(mn_tensor *const *p, mn_tensor *x, bool shortcut)
{
    mn_tensor *chain = mn_linear(mn_relu(mn_linear(x, p[0], NULL)), p[1], NULL);
    return mn_relu(mn_add(chain, shortcut ? mn_linear(x, p[2], NULL) : x));
}

/* Result and gradients against the ops themselves, bit for bit; with the shortcut between the
 * chain's layers (1), after them (2), before them (3), and with none (0). */
START_TEST(residual_is_relu_of_the_sum)
{
    mn_module *net = mn_residual(ctx);
    for (int i = 1; i <= 3; i++) {
        if (i == 1 + _i % 3 && _i > 0)
            mn_residual_shortcut(net, "around", mn_linear_layer(ctx, 5, 5, false));
        if (i < 3)
            mn_sequential_add(net, i == 1 ? "a" : "b", mn_linear_layer(ctx, 5, 5, false));
        if (i == 1)
            mn_sequential_add(net, "relu", mn_relu_layer(ctx));
    }
    ck_assert_msg(mn_module_init(net) == MN_OK, "%s", mn_error_message(ctx));
    int count;
    mn_tensor *const *list = mn_module_parameters(net, &count), *p[3] = {NULL};
    ck_assert_int_eq(count, _i > 0 ? 3 : 2);
    for (int i = 0; i < count; i++) {
        const char *name = mn_tensor_name(list[i]);
        p[strcmp(name, "a.weight") == 0 ? 0 : strcmp(name, "b.weight") == 0 ? 1 : 2] = list[i];
    }
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *x = ramp(2, (int64_t[]){3, 5}), *gradients[4];
    mn_set_requires_grad(x, true);
    mn_tensor *leaves[4] = {x, p[0], p[1], p[2]};
    mn_tensor *want = by_hand(p, x, _i > 0), *got = mn_module_forward(net, x);
    same_bits(got, want);
    mn_backward(mn_sum(mn_mul(want, want), 0, NULL, false), 1.0);
    for (int i = 0; i < 1 + count; i++) {
        gradients[i] = mn_clone(mn_grad(leaves[i]));
        mn_zero_grad(leaves[i]);
    }
    mn_backward(mn_sum(mn_mul(got, got), 0, NULL, false), 1.0);
    for (int i = 0; i < 1 + count; i++)
        same_bits(mn_grad(leaves[i]), gradients[i]);
    mn_scope_end(ctx, scope);
    mn_module_free(net);
}
END_TEST

static mn_tensor *pass_on(mn_module *module, mn_tensor *x)
{
    (void)module;
    return x;
}

/* A layer that gives its input back, such as a dropout that is off: first, between, last, alone in
 * a chain in the chain, and as the shortcut. */
START_TEST(a_layer_may_return_its_input)
{
    static const mn_module_class identity = {"identity", pass_on};
    mn_module *net = mn_sequential(ctx), *inner = mn_sequential(ctx), *block = mn_residual(ctx);
    mn_sequential_add(inner, "0", mn_module_new(ctx, &identity));
    mn_sequential_add(block, "0", mn_relu_layer(ctx));
    mn_residual_shortcut(block, "1", mn_module_new(ctx, &identity));
    mn_sequential_add(net, "0", mn_module_new(ctx, &identity));
    mn_sequential_add(net, "1", mn_relu_layer(ctx));
    mn_sequential_add(net, "2", inner);
    mn_sequential_add(net, "3", mn_module_new(ctx, &identity));
    mn_sequential_add(net, "4", block);
    mn_sequential_add(net, "5", mn_module_new(ctx, &identity));
    mn_scope scope = mn_scope_begin(ctx);
    uint64_t live = mn_memory_stats_get(ctx).live_bytes;
    mn_tensor *x = ramp(2, (int64_t[]){3, 5}), *r = mn_relu(x);
    mn_set_requires_grad(x, _i == 1);
    mn_tensor *y = mn_module_forward(net, x);
    same_bits(y, mn_add(r, r));
    if (_i == 1) {
        mn_backward(mn_sum(y, 0, NULL, false), 1.0);
        const float *g = mn_tensor_data(mn_grad(x)); /* x: -0.5, -0.13, 0.23 ... */
        ck_assert(g[1] == 0.0F && g[2] == 2.0F);
    }
    mn_scope_end(ctx, scope);
    ck_assert_uint_eq(mn_memory_stats_get(ctx).live_bytes, live);
    mn_module_free(net);
}
END_TEST

START_TEST(mistakes_are_named)
{
    mn_module *net = mn_residual(ctx), *chain = mn_sequential(ctx);
    ck_assert_int_eq(mn_residual_shortcut(chain, "x", mn_relu_layer(ctx)), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "mn_residual_shortcut: not a residual module");
    ck_assert_int_eq(mn_residual_shortcut(net, "x", net), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "holds this one");
    ck_assert_int_eq(mn_residual_shortcut(net, "x.y", mn_relu_layer(ctx)), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "mn_residual_shortcut: a layer's name");
    ck_assert_int_eq(mn_residual_shortcut(net, "x", NULL), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "layer is NULL");
    ck_assert_int_eq(mn_residual_shortcut(net, "x", mn_relu_layer(ctx)), MN_OK);
    mn_scope scope = mn_scope_begin(ctx);
    ck_assert(mn_module_forward(net, ramp(2, (int64_t[]){3, 5})) == NULL);
    mn_test_expect(ctx, MN_ERR_STATE, "residual: it has no layers");
    ck_assert_int_eq(mn_sequential_add(net, "x", mn_relu_layer(ctx)), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "already");
    ck_assert_int_eq(mn_residual_shortcut(net, "y", mn_relu_layer(ctx)), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "there is a shortcut already");
    mn_module *layer = mn_linear_layer(ctx, 5, 4, true);
    ck_assert_int_eq(mn_sequential_add(layer, "y", mn_relu_layer(ctx)), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "not a sequential or residual module");
    ck_assert_int_eq(mn_sequential_add(net, "fc", layer), MN_OK);
    ck_assert_int_eq(mn_module_init(net), MN_OK);
    ck_assert(mn_module_forward(net, ramp(2, (int64_t[]){3, 5})) == NULL);
    mn_test_expect(ctx, MN_ERR_SHAPE, "add"); /* [3,4] and [3,5] */
    ck_assert_int_eq(mn_residual_shortcut(NULL, "x", mn_relu_layer(ctx)), MN_ERR_ARGUMENT);
    mn_scope_end(ctx, scope);
    mn_module_free(net);
    mn_module_free(chain);
}
END_TEST

/* ---- the networks ---------------------------------------------------------------------------- */

/* Counted by hand: 3x3 convolutions 9*from*to, batch norms 2*to, shortcuts from*to + 2*to. */
START_TEST(parameter_counts)
{
    static const struct {
        const char *name;
        int channels, classes, tensors;
        int64_t numbers;
    } rows[] = {{"resnet8", 3, 10, 3 + 3 * 6 + 2 * 3 + 2, 78042},
                {"resnet20", 3, 10, 3 + 9 * 6 + 2 * 3 + 2, 272474},
                {"resnet20", 1, 100, 3 + 9 * 6 + 2 * 3 + 2, 272474 - 288 + 90 * 65},
                {"resnet18", 3, 10, 3 + 8 * 6 + 3 * 3 + 2, 11173962}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        mn_module *net = model(rows[i].name, 32, 32, rows[i].channels, rows[i].classes);
        int count;
        int64_t numbers = 0;
        mn_tensor *const *p = mn_module_parameters(net, &count);
        ck_assert_int_eq(count, rows[i].tensors);
        for (int j = 0; j < count; j++)
            numbers += mn_tensor_numel(p[j]);
        ck_assert_int_eq(numbers, rows[i].numbers);
        mn_module_free(net);
    }
}
END_TEST

START_TEST(names_are_torchvisions)
{
    static const char *const names[] = {"conv1.weight",
                                        "bn1.weight",
                                        "bn1.bias",
                                        "layer1.0.conv1.weight",
                                        "layer1.0.bn1.weight",
                                        "layer1.0.bn1.bias",
                                        "layer1.0.conv2.weight",
                                        "layer1.0.bn2.weight",
                                        "layer1.0.bn2.bias",
                                        "layer2.0.conv1.weight",
                                        "layer2.0.bn1.weight",
                                        "layer2.0.bn1.bias",
                                        "layer2.0.conv2.weight",
                                        "layer2.0.bn2.weight",
                                        "layer2.0.bn2.bias",
                                        "layer2.0.downsample.0.weight",
                                        "layer2.0.downsample.1.weight",
                                        "layer2.0.downsample.1.bias"};
    mn_module *net = model("resnet8", 32, 32, 3, 10);
    mn_state_dict *dict = mn_state_dict_create(ctx);
    mn_state_entry entry;
    int count;
    mn_tensor *const *p = mn_module_parameters(net, &count);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        ck_assert_str_eq(mn_tensor_name(p[i]), names[i]);
    ck_assert_str_eq(mn_tensor_name(p[count - 2]), "fc.weight");
    ck_assert_str_eq(mn_tensor_name(p[count - 1]), "fc.bias");
    ck_assert_int_eq(mn_module_save_state(net, dict), MN_OK);
    ck_assert_int_eq(mn_state_dict_count(dict), count + 3 * 9);
    ck_assert(mn_state_dict_find(dict, "layer3.0.downsample.1.running_var", &entry));
    ck_assert(mn_state_dict_find(dict, "layer3.0.downsample.0.weight", &entry));
    ck_assert(entry.shape[0] == 64 && entry.shape[1] == 32 && entry.shape[2] == 1);
    mn_state_dict_free(dict);
    mn_module_free(net);
}
END_TEST

START_TEST(sizes)
{
    static const struct {
        const char *name;
        int height, width, smallest;
    } rows[] = {{"resnet8", 9, 7, 4}, {"resnet20", 4, 13, 4}, {"resnet18", 8, 11, 8}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[64];
        snprintf(text, sizeof text, "%s needs images of at least %dx%d, these are 32x%d",
                 rows[i].name, rows[i].smallest, rows[i].smallest, rows[i].smallest - 1);
        ck_assert(model(rows[i].name, 32, rows[i].smallest - 1, 3, 5) == NULL);
        mn_test_expect(ctx, MN_ERR_SHAPE, text);
        ck_assert(model(rows[i].name, rows[i].smallest - 1, 32, 3, 5) == NULL);
        mn_test_expect(ctx, MN_ERR_SHAPE, "needs images of at least");
        mn_module *net = model(rows[i].name, rows[i].height, rows[i].width, 3, 5);
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *x = ramp(4, (int64_t[]){3, rows[i].height, rows[i].width, 3});
        mn_tensor *y = mn_module_forward(net, x);
        ck_assert_msg(y != NULL, "%s", mn_error_message(ctx));
        ck_assert(mn_tensor_shape(y)[0] == 3 && mn_tensor_shape(y)[1] == 5);
        mn_scope_end(ctx, scope);
        mn_module_free(net);
    }
}
END_TEST

START_TEST(gradients_reach_every_parameter)
{
    static const mn_dtype kinds[] = {MN_F32, MN_BF16, MN_F16};
    const int64_t labels[3] = {0, 4, 2}, three = 3;
    mn_module *net = model("resnet8", 9, 7, 3, 5);
    mn_scope scope = mn_scope_begin(ctx);
    mn_autocast_begin(ctx, kinds[_i]);
    mn_tensor *x = ramp(4, (int64_t[]){3, 9, 7, 3});
    mn_tensor *y = mn_tensor_from(ctx, MN_I64, 1, &three, labels);
    mn_tensor *loss = mn_cross_entropy(mn_module_forward(net, x), y, NULL);
    mn_autocast_end(ctx);
    ck_assert_int_eq(mn_backward(loss, 1024.0), MN_OK);
    int count;
    mn_tensor *const *p = mn_module_parameters(net, &count);
    for (int i = 0; i < count; i++) {
        double norm = 0.0;
        ck_assert_msg(mn_grad(p[i]) != NULL, "%s", mn_tensor_name(p[i]));
        mn_tensor *g = mn_grad(p[i]);
        mn_tensor_item(mn_sum(mn_mul(g, g), 0, NULL, false), &norm);
        ck_assert_msg(norm > 0.0 && isfinite(norm), "%s: %g", mn_tensor_name(p[i]), norm);
    }
    mn_scope_end(ctx, scope);
    mn_module_free(net);
}
END_TEST

START_TEST(load_gives_the_same_results)
{
    mn_module *a = model("resnet20", 9, 7, 3, 5);
    ck_assert_int_eq(mn_seed(ctx, 9), MN_OK);
    mn_module *b = model("resnet20", 9, 7, 3, 5);
    mn_state_dict *dict = mn_state_dict_create(ctx);
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *x = ramp(4, (int64_t[]){4, 9, 7, 3});
    ck_assert(mn_module_forward(a, x) != NULL); /* moves the running statistics */
    ck_assert_int_eq(mn_module_save_state(a, dict), MN_OK);
    ck_assert_int_eq(mn_module_load_state(b, dict), MN_OK);
    mn_module_set_training(a, false);
    mn_module_set_training(b, false);
    same_bits(mn_module_forward(a, x), mn_module_forward(b, x));
    mn_scope_end(ctx, scope);
    mn_state_dict_free(dict);
    mn_module_free(a);
    mn_module_free(b);
}
END_TEST

/* Under no-grad three activations are alive beside the parameters: a block's input, and two of its
 * own. Workspaces take less than one and a half of the widest more. */
START_TEST(evaluation_frees_activations)
{
    const uint64_t widest = 8ULL * 32 * 32 * 16 * 4;
    mn_module *net = model("resnet20", 32, 32, 3, 10);
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *x = ramp(4, (int64_t[]){8, 32, 32, 3});
    uint64_t before = mn_memory_stats_get(ctx).live_bytes;
    mn_memory_reset_peak(ctx);
    mn_no_grad_begin(ctx);
    ck_assert_int_eq(mn_module_set_training(net, false), MN_OK);
    ck_assert(mn_module_forward(net, x) != NULL);
    mn_no_grad_end(ctx);
    ck_assert_uint_le(mn_memory_stats_get(ctx).peak_bytes - before, 4 * widest + widest / 2);
    mn_scope_end(ctx, scope);
    mn_module_free(net);
}
END_TEST

/* ---- training -------------------------------------------------------------------------------- */

static mn_train_result *train(mn_train_options *o)
{
    mn_error error = {MN_OK, ""};
    o->batch = 8;
    o->lr = 0.01;
    o->context.threads = 2;
    mn_train_result *result = mn_train(o, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    return result;
}

START_TEST(one_step_in_every_precision)
{
    static const char *const names[] = {"resnet8", "resnet20", "resnet18"};
    static const mn_dtype kinds[] = {MN_F32, MN_BF16, MN_F16};
    mn_train_options o = mn_train_options_default();
    o.model = names[_i / 3];
    o.data = "synthetic:9x8x3:4:10";
    o.amp = kinds[_i % 3];
    o.steps = 1;
    o.validation = 0.0;
    o.scaler.init_scale = 64.0;
    mn_train_result *r = train(&o);
    ck_assert_int_eq(r->step_count, 1);
    ck_assert(!r->step_results[0].skipped && r->step_results[0].grad_norm > 0.0);
    ck_assert(fabs(r->step_results[0].loss - log(4.0)) < 1.0);
    mn_train_result_free(r);
}
END_TEST

static size_t read_file(const char *path, char *data, size_t size)
{
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s is not there", path);
    size_t got = fread(data, 1, size, file);
    fclose(file);
    ck_assert(got > 0 && got < size);
    remove(path);
    return got;
}

START_TEST(resume_is_exact)
{
    static char whole[1 << 20], resumed[1 << 20];
    char paths[3][64];
    for (int i = 0; i < 3; i++)
        snprintf(paths[i], sizeof paths[i], "/tmp/minim-resnet-%ld-%d", (long)getpid(), i);
    mn_train_options o = mn_train_options_default();
    o.model = "resnet8";
    o.data = "synthetic:9x7x3:4:30";
    o.epochs = 2;
    o.amp = MN_F16;
    o.checkpoint = paths[0];
    mn_train_result_free(train(&o));
    o.stop_after = 3;
    o.checkpoint = paths[1];
    mn_train_result_free(train(&o));
    o.stop_after = 0;
    o.resume = paths[1];
    o.checkpoint = paths[2];
    mn_train_result_free(train(&o));
    size_t size = read_file(paths[0], whole, sizeof whole);
    ck_assert_uint_eq(read_file(paths[2], resumed, sizeof resumed), size);
    ck_assert_int_eq(memcmp(whole, resumed, size), 0);
    ck_assert_uint_ne(read_file(paths[1], resumed, sizeof resumed), 0);
    ck_assert_int_ne(memcmp(whole, resumed, size), 0);
}
END_TEST

START_TEST(bench_runs_every_model)
{
    for (int i = 0; mn_model_name(i) != NULL; i++) {
        mn_bench_options o = mn_bench_options_default();
        mn_bench_result r;
        mn_error error = {MN_OK, ""};
        o.model = mn_model_name(i);
        o.batch = 2;
        o.steps = 2;
        o.warmup = 0;
        o.height = o.width = 12;
        o.amp = MN_BF16;
        ck_assert_msg(mn_bench(&o, &r, &error) == MN_OK, "%s", error.message);
        ck_assert(r.gflop_per_step > 0.0 && r.images_per_s_min <= r.images_per_s_max);
    }
}
END_TEST

/* ---- summaries ------------------------------------------------------------------------------- */

START_TEST(summary_counts_what_is_kept)
{
    mn_model_summary s;
    uint64_t live = mn_memory_stats_get(ctx).live_bytes;
    ck_assert_int_eq(mn_model_summarize(ctx, "cnn-small", NULL, &s), MN_OK);
    ck_assert_int_eq(s.parameters, 155850);
    ck_assert_double_eq(s.forward_flops, 58379776.0);
    /* image, inputs of three batch norms, first pool's result and the flattened second one's; the
     * second convolution's input is made again, and where poolings had their results from */
    ck_assert_uint_eq(s.kept_bytes_f32,
                      4 * (784 + 784 * 32 + 784 * 64 + 196 * 64 + 196 * 128 + 6272));
    /* the image twice: f32, and f16 for the convolution's backward */
    ck_assert_uint_le(s.kept_bytes_16bit, s.kept_bytes_f32 / 2 + 2 * 3136);
    ck_assert_uint_ge(s.kept_bytes_16bit, s.kept_bytes_f32 / 2);
    ck_assert_uint_ge(s.inference_peak_bytes, 2 * 784 * 64 * 4);
    /* with the third convolution's filters in the 36 points of Winograd's F(4x4) */
    ck_assert_uint_lt(s.inference_peak_bytes, s.kept_bytes_f32 + 4 * 36 * 64 * 128);
    ck_assert_uint_eq(mn_memory_stats_get(ctx).live_bytes, live);
}
END_TEST

/* One value a channel is left at the end: too few for batch norm's training mode. */
START_TEST(summary_of_the_smallest_images)
{
    mn_model_options o = mn_model_options_default();
    mn_model_summary s;
    o.height = o.width = 4;
    ck_assert_msg(mn_model_summarize(ctx, "resnet8", &o, &s) == MN_OK, "%s", mn_error_message(ctx));
}
END_TEST

START_TEST(summary_refuses)
{
    mn_model_summary s = {.parameters = -1};
    mn_model_options tiny = mn_model_options_default();
    tiny.height = 7;
    ck_assert_int_eq(mn_model_summarize(ctx, "resnet18", &tiny, &s), MN_ERR_SHAPE);
    mn_test_expect(ctx, MN_ERR_SHAPE, "at least 8x8, these are 7x28");
    ck_assert_int_eq(mn_model_summarize(ctx, NULL, NULL, &s), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "no model \"(null)\"");
    ck_assert_int_eq(mn_model_summarize(ctx, "lenet5", NULL, NULL), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "summary is NULL");
    ck_assert_int_eq(mn_model_summarize(NULL, "lenet5", NULL, &s), MN_ERR_ARGUMENT);
    mn_no_grad_begin(ctx);
    ck_assert_int_eq(mn_model_summarize(ctx, "lenet5", NULL, &s), MN_ERR_STATE);
    mn_test_expect(ctx, MN_ERR_STATE, "no-grad");
    mn_no_grad_end(ctx);
    ck_assert_int_eq(s.parameters, -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resnets");
    TCase *cases = tcase_create("resnets");
    tcase_set_timeout(cases, 120);
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_loop_test(cases, residual_is_relu_of_the_sum, 0, 4);
    tcase_add_loop_test(cases, a_layer_may_return_its_input, 0, 2);
    tcase_add_test(cases, mistakes_are_named);
    tcase_add_test(cases, parameter_counts);
    tcase_add_test(cases, names_are_torchvisions);
    tcase_add_test(cases, sizes);
    tcase_add_loop_test(cases, gradients_reach_every_parameter, 0, 3);
    tcase_add_test(cases, load_gives_the_same_results);
    tcase_add_test(cases, evaluation_frees_activations);
    tcase_add_loop_test(cases, one_step_in_every_precision, 0, 9);
    tcase_add_test(cases, resume_is_exact);
    tcase_add_test(cases, bench_runs_every_model);
    tcase_add_test(cases, summary_counts_what_is_kept);
    tcase_add_test(cases, summary_of_the_smallest_images);
    tcase_add_test(cases, summary_refuses);
    suite_add_tcase(suite, cases);
    return mn_test_run(suite, CK_FORK_GETENV);
}
