/* Modules and models: names, shapes, initialisation, forward passes, state dictionaries. */
#include "core/state_dict.h"
#include "models/models.h"
#include "tests/support_suite.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static mn_module *model(const char *name)
{
    mn_module *net = mn_model_create(ctx, name, NULL);
    ck_assert_msg(net != NULL, "%s", mn_error_message(ctx));
    return net;
}

static mn_tensor *images(int64_t n)
{
    int64_t shape[4] = {n, 28, 28, 1};
    mn_tensor *x = mn_tensor_create(ctx, MN_F32, 4, shape);
    int64_t count = mn_tensor_numel(x);
    double *values = calloc((size_t)count + 1, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(i * 37 % 101) / 101.0 - 0.5;
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    free(values);
    return x;
}

START_TEST(names_are_pytorchs)
{
    static const char *const lenet5[] = {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                         "fc1.weight",   "fc1.bias",   "fc2.weight",   "fc2.bias",
                                         "fc3.weight",   "fc3.bias"};
    mn_module *net = model("lenet5");
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    int64_t elements = 0;
    ck_assert_int_eq(count, 10);
    for (int i = 0; i < count; i++) {
        ck_assert_str_eq(mn_tensor_name(parameters[i]), lenet5[i]);
        ck_assert(mn_requires_grad(parameters[i]));
        elements += mn_tensor_numel(parameters[i]);
    }
    ck_assert_int_eq(elements, 61706);
    mn_module_free(net);
}
END_TEST

START_TEST(file_holds_pytorchs_order_and_buffers)
{
    mn_module *net = model("cnn-small");
    mn_state_dict *dict = mn_state_dict_create(ctx);
    mn_state_entry entry;
    ck_assert_int_eq(mn_module_save_state(net, dict), MN_OK);
    ck_assert_int_eq(mn_state_dict_count(dict), 6 + 15 + 2);
    ck_assert(mn_state_dict_find(dict, "conv2.weight", &entry));
    ck_assert_int_eq(entry.shape[0], 64);
    ck_assert_int_eq(entry.shape[1], 32);
    ck_assert_int_eq(entry.shape[2], 3);
    ck_assert(mn_state_dict_find(dict, "bn2.num_batches_tracked", &entry));
    ck_assert_int_eq(entry.dtype, MN_I64);
    ck_assert(mn_state_dict_find(dict, "bn3.running_var", &entry));
    for (int i = 0; i < 128; i++)
        ck_assert(((const float *)entry.data)[i] == 1.0f);
    /* memory [K,R,S,C], file [K,C,R,S] */
    int count;
    mn_tensor *w = mn_module_parameters(net, &count)[4];
    ck_assert_str_eq(mn_tensor_name(w), "conv2.weight");
    const float *memory = mn_tensor_data(w);
    ck_assert(mn_state_dict_find(dict, "conv2.weight", &entry));
    const float *file = entry.data;
    ck_assert(file[((5 * 32 + 7) * 3 + 1) * 3 + 2] == memory[((5 * 3 + 1) * 3 + 2) * 32 + 7]);
    mn_state_dict_free(dict);
    mn_module_free(net);
}
END_TEST

/* Uniform in +-1/sqrt(fan_in): within the bound, near its edges, mean near 0, deviation b/sqrt(3).
 */
START_TEST(initialisation_is_pytorchs)
{
    mn_module *net = model("lenet5");
    int count;
    mn_tensor *w = mn_module_parameters(net, &count)[4]; /* fc1: 48,000 values, fan_in 400 */
    const float *v = mn_tensor_data(w);
    double bound = 1.0 / 20.0, sum = 0.0, squares = 0.0, largest = 0.0;
    for (int i = 0; i < 48000; i++) {
        sum += (double)v[i];
        squares += (double)v[i] * (double)v[i];
        largest = fmax(largest, fabs((double)v[i]));
    }
    ck_assert(largest <= bound && largest > 0.999 * bound);
    ck_assert(fabs(sum / 48000.0) < 0.02 * bound);
    ck_assert(fabs(sqrt(squares / 48000.0) * sqrt(3.0) / bound - 1.0) < 0.01);
    mn_module_free(net);
}
END_TEST

START_TEST(seed_decides_and_order_does_not)
{
    mn_module *a = model("lenet5"), *other = model("cnn-small"), *b = model("lenet5");
    int count;
    const mn_tensor *wa = mn_module_parameters(a, &count)[8];
    const mn_tensor *wb = mn_module_parameters(b, &count)[8];
    ck_assert_int_eq(memcmp(mn_tensor_data(wa), mn_tensor_data(wb), mn_tensor_bytes(wa)), 0);
    ck_assert_int_eq(mn_seed(ctx, 2), MN_OK);
    mn_module *c = model("lenet5");
    const mn_tensor *wc = mn_module_parameters(c, &count)[8];
    ck_assert_int_ne(memcmp(mn_tensor_data(wa), mn_tensor_data(wc), mn_tensor_bytes(wa)), 0);
    mn_module_free(a);
    mn_module_free(b);
    mn_module_free(c);
    mn_module_free(other);
}
END_TEST

START_TEST(forward_shapes_and_flops)
{
    static const double flops[] = {
        2.0 * (28 * 28 * 6 * 25 + 10 * 10 * 16 * 150 + 48000 + 10080 + 840),
        2.0 * (28 * 28 * 32 * 9 + 28 * 28 * 64 * 288 + 14 * 14 * 128 * 576 + 62720),
        2.0 * (784 * 16 * (9 + 2 * 144) + 196 * 32 * (144 + 288 + 16) + 49 * 64 * (288 + 576 + 32) +
               640),
        2.0 * (784 * 16 * (9 + 6 * 144) + 196 * 32 * (144 + 5 * 288 + 16) +
               49 * 64 * (288 + 5 * 576 + 32) + 640),
        2.0 * (784 * 64 * (9 + 4 * 576) + 196 * 128 * (576 + 3 * 1152 + 64) +
               49 * 256 * (1152 + 3 * 2304 + 128) + 16 * 512 * (2304 + 3 * 4608 + 256) + 5120)};
    for (int i = 0; mn_model_name(i) != NULL; i++) {
        mn_module *net = model(mn_model_name(i));
        ck_assert(mn_module_forward_flops(net, 1) == 0.0);
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *y = mn_module_forward(net, images(3));
        ck_assert_msg(y != NULL, "%s", mn_error_message(ctx));
        ck_assert_int_eq(mn_tensor_ndim(y), 2);
        ck_assert_int_eq(mn_tensor_shape(y)[0], 3);
        ck_assert_int_eq(mn_tensor_shape(y)[1], 10);
        ck_assert_double_eq(mn_module_forward_flops(net, 2), 2.0 * flops[i]);
        mn_scope_end(ctx, scope);
        mn_module_free(net);
    }
}
END_TEST

/* Under no-grad at most two activations are alive beside the parameters. */
START_TEST(evaluation_frees_activations)
{
    mn_module *net = model("cnn-small");
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *x = images(8);
    uint64_t before = mn_memory_stats_get(ctx).live_bytes;
    mn_memory_reset_peak(ctx);
    mn_no_grad_begin(ctx);
    ck_assert_int_eq(mn_module_set_training(net, false), MN_OK);
    ck_assert(mn_module_forward(net, x) != NULL);
    mn_no_grad_end(ctx);
    uint64_t widest = 8ULL * 28 * 28 * 64 * 4;
    ck_assert_uint_le(mn_memory_stats_get(ctx).peak_bytes - before, 2 * widest + (1 << 20));
    mn_scope_end(ctx, scope);
    mn_module_free(net);
}
END_TEST

START_TEST(load_gives_the_same_results)
{
    mn_module *a = model("cnn-small");
    ck_assert_int_eq(mn_seed(ctx, 9), MN_OK);
    mn_module *b = model("cnn-small");
    mn_state_dict *dict = mn_state_dict_create(ctx);
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *x = images(4);
    ck_assert(mn_module_forward(a, x) != NULL); /* moves the running statistics */
    ck_assert_int_eq(mn_module_save_state(a, dict), MN_OK);
    ck_assert_int_eq(mn_module_load_state(b, dict), MN_OK);
    mn_module_set_training(a, false);
    mn_module_set_training(b, false);
    mn_tensor *ya = mn_module_forward(a, x), *yb = mn_module_forward(b, x);
    ck_assert_int_eq(memcmp(mn_tensor_data(ya), mn_tensor_data(yb), mn_tensor_bytes(ya)), 0);
    mn_scope_end(ctx, scope);
    mn_state_dict_free(dict);
    mn_module_free(a);
    mn_module_free(b);
}
END_TEST

/* As PyTorch writes a model made half(), and models older than num_batches_tracked. */
START_TEST(load_takes_16_bit_and_no_counts)
{
    mn_module *a = model("cnn-small"), *b = model("cnn-small");
    mn_state_dict *whole = mn_state_dict_create(ctx), *dict = mn_state_dict_create(ctx);
    mn_state_entry entry;
    ck_assert_int_eq(mn_module_save_state(a, whole), MN_OK);
    for (int64_t i = 0; mn_state_dict_entry(whole, i, &entry); i++) {
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *t = mn_tensor_from(ctx, entry.dtype, entry.ndim, entry.shape, entry.data);
        if (entry.dtype == MN_F32)
            mn_state_dict_put_tensor(dict, entry.name, mn_cast(t, MN_BF16), MN_LAYOUT_PLAIN);
        mn_scope_end(ctx, scope);
    }
    int count;
    mn_tensor *w = mn_module_parameters(a, &count)[0], *v = mn_module_parameters(b, &count)[0];
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *rounded = mn_cast(mn_cast(w, MN_BF16), MN_F32), *x = images(2);
    ck_assert(mn_module_forward(b, x) != NULL); /* counts one batch */
    ck_assert_int_eq(mn_module_load_state(b, dict), MN_OK);
    ck_assert_int_eq(memcmp(mn_tensor_data(rounded), mn_tensor_data(v), mn_tensor_bytes(v)), 0);
    mn_scope_end(ctx, scope);
    mn_state_dict *again = mn_state_dict_create(ctx);
    ck_assert_int_eq(mn_module_save_state(b, again), MN_OK);
    ck_assert(mn_state_dict_find(again, "bn1.num_batches_tracked", &entry));
    ck_assert_int_eq(*(const int64_t *)entry.data, 1);
    mn_state_dict_free(whole);
    mn_state_dict_free(dict);
    mn_state_dict_free(again);
    mn_module_free(a);
    mn_module_free(b);
}
END_TEST

START_TEST(load_refuses_and_changes_nothing)
{
    mn_module *lenet = model("lenet5"), *small = model("cnn-small");
    mn_state_dict *dict = mn_state_dict_create(ctx);
    ck_assert_int_eq(mn_module_save_state(small, dict), MN_OK);
    int count;
    mn_tensor *w = mn_module_parameters(lenet, &count)[0];
    float before[150];
    ck_assert_int_eq(mn_tensor_read(w, before, sizeof before), MN_OK);
    ck_assert_int_eq(mn_module_load_state(lenet, dict), MN_ERR_MISMATCH);
    ck_assert(strstr(mn_error_message(ctx), "conv1.weight") != NULL);
    mn_error_clear(ctx);
    ck_assert_int_eq(memcmp(before, mn_tensor_data(w), sizeof before), 0);
    mn_state_dict_free(dict);
    dict = mn_state_dict_create(ctx);
    ck_assert_int_eq(mn_module_load_state(lenet, dict), MN_ERR_MISMATCH);
    ck_assert(strstr(mn_error_message(ctx), "\"conv1.weight\" is missing") != NULL);
    mn_error_clear(ctx);
    /* all there, and one tensor too many */
    ck_assert_int_eq(mn_module_save_state(lenet, dict), MN_OK);
    ck_assert_int_eq(mn_state_dict_put_i64(dict, "fc9.weight", 1), MN_OK);
    ck_assert_int_eq(mn_module_load_state(lenet, dict), MN_ERR_MISMATCH);
    ck_assert(strstr(mn_error_message(ctx), "fc9.weight") != NULL);
    mn_error_clear(ctx);
    mn_state_dict_free(dict);
    mn_module_free(lenet);
    mn_module_free(small);
}
END_TEST

START_TEST(mistakes_are_named)
{
    ck_assert(mn_model_create(ctx, "lenet6", NULL) == NULL);
    ck_assert_int_eq(mn_error_status(ctx), MN_ERR_ARGUMENT);
    ck_assert(strstr(mn_error_message(ctx), "lenet6") != NULL);
    for (int i = 0; mn_model_name(i) != NULL; i++)
        ck_assert(strstr(mn_error_message(ctx), mn_model_name(i)) != NULL);
    mn_error_clear(ctx);
    mn_model_options tiny = mn_model_options_default();
    tiny.height = tiny.width = 8;
    ck_assert(mn_model_create(ctx, "lenet5", &tiny) == NULL);
    ck_assert_int_eq(mn_error_status(ctx), MN_ERR_SHAPE);
    mn_error_clear(ctx);
    mn_module *net = mn_sequential(ctx);
    ck_assert_int_eq(mn_sequential_add(net, "a", mn_linear_layer(ctx, 4, 3, true)), MN_OK);
    mn_scope scope = mn_scope_begin(ctx);
    int64_t shape[2] = {1, 4};
    ck_assert(mn_module_forward(net, mn_full(ctx, MN_F32, 2, shape, 1.0)) == NULL);
    ck_assert_int_eq(mn_error_status(ctx), MN_ERR_STATE); /* not initialised */
    mn_error_clear(ctx);
    ck_assert_int_eq(mn_sequential_add(net, "a", mn_relu_layer(ctx)), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    ck_assert_int_eq(mn_sequential_add(net, "x.y", mn_relu_layer(ctx)), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    ck_assert_int_eq(mn_sequential_add(net, "b", mn_linear_layer(ctx, 0, 3, true)),
                     MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    ck_assert_int_eq(mn_module_init(net), MN_OK);
    int64_t wrong[2] = {1, 5};
    ck_assert(mn_module_forward(net, mn_full(ctx, MN_F32, 2, wrong, 1.0)) == NULL);
    ck_assert_int_eq(mn_error_status(ctx), MN_ERR_SHAPE);
    ck_assert_msg(strncmp(mn_error_message(ctx), "a: ", 3) == 0, "%s", mn_error_message(ctx));
    mn_error_clear(ctx);
    mn_scope_end(ctx, scope);
    mn_module_free(net);
    mn_module_free(NULL);
}
END_TEST

/* In a chain already, around it, or the chain itself: the tree stays a tree, and nothing is freed
 * twice. */
START_TEST(a_layer_has_one_place)
{
    mn_module *outer = mn_sequential(ctx), *inner = mn_sequential(ctx);
    mn_module *layer = mn_linear_layer(ctx, 2, 2, false);
    ck_assert_int_eq(mn_sequential_add(inner, "layer", layer), MN_OK);
    ck_assert_int_eq(mn_sequential_add(outer, "inner", inner), MN_OK);
    mn_module *const bad[4][2] = {{inner, outer}, {outer, outer}, {outer, layer}, {inner, inner}};
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(mn_sequential_add(bad[i][0], "again", bad[i][1]), MN_ERR_ARGUMENT);
        mn_error_clear(ctx);
    }
    mn_module_free(layer); /* the chain's by now: nothing happens */
    mn_module_free(inner);
    ck_assert_int_eq(mn_module_init(inner), MN_OK);
    ck_assert_int_eq(mn_module_init(outer), MN_OK);
    ck_assert_str_eq(mn_tensor_name(mn_module_parameters(outer, NULL)[0]), "inner.layer.weight");
    ck_assert(mn_module_forward(outer, NULL) == NULL);
    ck_assert_int_eq(mn_error_status(ctx), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    mn_module_free(outer);
}
END_TEST

START_TEST(options_of_other_sizes_are_refused)
{
    const size_t sizes[3] = {0, 4, 4096};
    for (int i = 0; i < 3; i++) {
        mn_conv2d_layer_options conv = mn_conv2d_layer_options_default();
        mn_pool2d_options pool = mn_pool2d_options_default();
        mn_model_options net = mn_model_options_default();
        conv.size = pool.size = net.size = sizes[i];
        for (int kind = 0; kind < 3; kind++) {
            mn_module *made = kind == 0   ? mn_conv2d_layer(ctx, &conv)
                              : kind == 1 ? mn_max_pool2d_layer(ctx, &pool)
                                          : mn_model_create(ctx, "lenet5", &net);
            ck_assert(made == NULL);
            ck_assert_int_eq(mn_error_status(ctx), MN_ERR_ARGUMENT);
            mn_error_clear(ctx);
        }
    }
}
END_TEST

START_TEST(pooling_resizing_and_norm_layers)
{
    static const char *const names[] = {"group.weight", "group.bias", "layer.weight", "layer.bias"};
    mn_upsample2d_options size = mn_upsample2d_options_default();
    size.height = 5;
    size.width = 3;
    mn_module *net = mn_sequential(ctx);
    mn_sequential_add(net, "pool", mn_avg_pool2d_layer(ctx, NULL));
    mn_sequential_add(net, "up", mn_upsample2d_layer(ctx, &size));
    mn_sequential_add(net, "group", mn_group_norm_layer(ctx, 2, 6));
    mn_sequential_add(net, "layer", mn_layer_norm_layer(ctx, 6));
    ck_assert_int_eq(mn_module_init(net), MN_OK);
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    ck_assert_int_eq(count, 4);
    for (int i = 0; i < count; i++) {
        double values[6];
        ck_assert_str_eq(mn_tensor_name(parameters[i]), names[i]);
        ck_assert_int_eq(mn_tensor_read_f64(parameters[i], values, 6), MN_OK);
        ck_assert_double_eq(values[5], i % 2 == 0 ? 1.0 : 0.0);
    }
    const int64_t shape[4] = {2, 4, 4, 6};
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *y = mn_module_forward(net, mn_full(ctx, MN_F32, 4, shape, 3.0));
    ck_assert_msg(y != NULL, "%s", mn_error_message(ctx));
    ck_assert_int_eq(mn_tensor_numel(y), 2 * 5 * 3 * 6);
    mn_scope_end(ctx, scope);
    mn_module_free(net);
    ck_assert(mn_group_norm_layer(ctx, 4, 6) == NULL);
    ck_assert_int_eq(mn_error_status(ctx), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    ck_assert(mn_layer_norm_layer(ctx, 0) == NULL);
    ck_assert_int_eq(mn_error_status(ctx), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
}
END_TEST

/* x = -2, -1, ..., 3 through a layer; it is freed. */
static void run_layer(mn_module *layer, double y[6])
{
    const int64_t six = 6;
    const double x[6] = {-2, -1, 0, 1, 2, 3};
    mn_tensor *input = mn_tensor_create(ctx, MN_F32, 1, &six);
    ck_assert_int_eq(mn_tensor_write_f64(input, x, 6), MN_OK);
    ck_assert_int_eq(mn_module_init(layer), MN_OK);
    ck_assert_int_eq(mn_tensor_read_f64(mn_module_forward(layer, input), y, 6), MN_OK);
    mn_module_free(layer);
}

START_TEST(activation_layers)
{
    static const double at_minus_two[] = {[MN_ACTIVATION_RELU] = 0,
                                          [MN_ACTIVATION_GELU] = -0.0455002639,
                                          [MN_ACTIVATION_SILU] = -0.2384058440,
                                          [MN_ACTIVATION_TANH] = -0.9640275801,
                                          [MN_ACTIVATION_SIGMOID] = 0.1192029220};
    static const double at_three[] = {3, 2.9959503059, 2.8577223805, 0.9950547537, 0.9525741268};
    double y[6];
    for (int i = 0; i < 5; i++) {
        run_layer(mn_activation_layer(ctx, (mn_activation)i), y);
        ck_assert_double_eq_tol(y[0], at_minus_two[i], 1e-6);
        ck_assert_double_eq_tol(y[5], at_three[i], 1e-6);
    }
    run_layer(mn_relu_layer(ctx), y);
    ck_assert(y[1] == 0 && y[4] == 2);
    run_layer(mn_leaky_relu_layer(ctx, 0.25), y);
    ck_assert(y[0] == -0.5 && y[3] == 1);
    static const int wrong[] = {-1, 5, 1 << 30};
    for (int i = 0; i < 3; i++) {
        ck_assert(mn_activation_layer(ctx, (mn_activation)wrong[i]) == NULL);
        ck_assert_int_eq(mn_error_status(ctx), MN_ERR_ARGUMENT);
        mn_error_clear(ctx);
    }
    ck_assert(mn_activation_layer(NULL, MN_ACTIVATION_RELU) == NULL);
}
END_TEST

START_TEST(dropout_layers)
{
    double a[1000], b[1000], c[1000];
    const int64_t count = 1000;
    mn_module *net = mn_sequential(ctx);
    mn_sequential_add(net, "a", mn_dropout_layer(ctx, 0.5));
    mn_sequential_add(net, "b", mn_dropout_layer(ctx, 0.5));
    ck_assert_int_eq(mn_module_init(net), MN_OK);
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *x = mn_full(ctx, MN_F32, 1, &count, 1.0);
    mn_random_position(ctx, 4, 2);
    ck_assert_int_eq(mn_tensor_read_f64(mn_module_forward(net, x), a, 1000), MN_OK);
    mn_module_set_training(net, false); /* draws nothing: x itself */
    ck_assert_int_eq(mn_tensor_read_f64(mn_module_forward(net, x), b, 1000), MN_OK);
    mn_module_set_training(net, true);
    mn_random_position(ctx, 4, 2);
    ck_assert_int_eq(mn_tensor_read_f64(mn_module_forward(net, x), c, 1000), MN_OK);
    int kept = 0; /* a quarter, if the masks of the two are independent: 5 sigma */
    for (int i = 0; i < 1000; i++) {
        ck_assert(a[i] == 0 || a[i] == 4);
        ck_assert(b[i] == 1 && c[i] == a[i]);
        kept += a[i] != 0;
    }
    ck_assert_int_le(abs(kept - 250), 68);
    mn_scope_end(ctx, scope);
    mn_module_free(net);
    static const double wrong[] = {-0.01, 1.01, (double)NAN, (double)INFINITY};
    for (int i = 0; i < 4; i++) {
        ck_assert(mn_dropout_layer(ctx, wrong[i]) == NULL);
        ck_assert_int_eq(mn_error_status(ctx), MN_ERR_ARGUMENT);
        mn_error_clear(ctx);
    }
    mn_module_free(mn_dropout_layer(ctx, 1));
    ck_assert(mn_dropout_layer(NULL, 0.5) == NULL);
}
END_TEST

START_TEST(sizes_do_not_overflow)
{
    mn_model_options huge = mn_model_options_default();
    huge.height = huge.width = INT32_MAX;
    ck_assert(mn_model_create(ctx, mn_model_name(_i), &huge) == NULL);
    ck_assert_int_eq(mn_error_status(ctx), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    mn_conv2d_layer_options conv = mn_conv2d_layer_options_default();
    conv.in_channels = conv.kernel[0] = conv.kernel[1] = INT32_MAX;
    mn_module *layer = mn_conv2d_layer(ctx, &conv);
    ck_assert_int_eq(mn_module_init(layer), MN_ERR_MEMORY);
    mn_error_clear(ctx);
    mn_module_free(layer);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("models");
    TCase *cases = tcase_create("models");
    tcase_add_checked_fixture(cases, setup, teardown);
    tcase_add_test(cases, names_are_pytorchs);
    tcase_add_test(cases, file_holds_pytorchs_order_and_buffers);
    tcase_add_test(cases, initialisation_is_pytorchs);
    tcase_add_test(cases, seed_decides_and_order_does_not);
    tcase_add_test(cases, forward_shapes_and_flops);
    tcase_add_test(cases, evaluation_frees_activations);
    tcase_add_test(cases, load_gives_the_same_results);
    tcase_add_test(cases, load_takes_16_bit_and_no_counts);
    tcase_add_test(cases, load_refuses_and_changes_nothing);
    tcase_add_test(cases, mistakes_are_named);
    tcase_add_test(cases, a_layer_has_one_place);
    tcase_add_test(cases, options_of_other_sizes_are_refused);
    tcase_add_loop_test(cases, sizes_do_not_overflow, 0, 5);
    tcase_add_test(cases, pooling_resizing_and_norm_layers);
    tcase_add_test(cases, activation_layers);
    tcase_add_test(cases, dropout_layers);
    suite_add_tcase(suite, cases);
    return mn_test_run(suite, CK_FORK_GETENV);
}
