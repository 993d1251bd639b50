/* Running out of memory in the middle of steps, inference, loads and saves: nothing is
 * half-applied, what is left can go on, nothing leaks. */
#include "tests/support_counting.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 6, BATCH = 3, CLASSES = 4, STATE_BYTES = 1 << 16 };

/* With MN_ROUNDING_NEAREST parameters are f32, else bf16. */
static const struct {
    const char *device;
    mn_kernel_set kernels;
    bool adam;
    mn_rounding rounding;
    bool monitor;
} kinds[] = {{"cpu", MN_KERNELS_AUTO, false, MN_ROUNDING_NEAREST, false},
             {"cpu", MN_KERNELS_REFERENCE, false, MN_ROUNDING_NEAREST, false},
             {"cpu-deferred", MN_KERNELS_AUTO, false, MN_ROUNDING_NEAREST, false},
             {"cpu", MN_KERNELS_REFERENCE, true, MN_ROUNDING_NEAREST, false},
             {"cpu", MN_KERNELS_AUTO, true, MN_ROUNDING_MASTER, true},
             {"cpu", MN_KERNELS_REFERENCE, false, MN_ROUNDING_STOCHASTIC, false},
             {"cpu-deferred", MN_KERNELS_REFERENCE, false, MN_ROUNDING_NEAREST, true}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* A convolution with batch norm, its optimizer (SGD with momentum, or Adam), and a scaler that
 * grows every other step. */
typedef struct training {
    mn_test_counter counter;
    mn_context *ctx;
    mn_module *net;
    mn_optimizer *sgd;
    mn_grad_scaler *scaler;
    mn_monitor *monitor; /* NULL: none */
} training;

static mn_module *make_net(mn_context *ctx)
{
    mn_conv2d_layer_options conv = mn_conv2d_layer_options_default();
    conv.in_channels = 2;
    conv.out_channels = 5;
    conv.kernel[0] = conv.kernel[1] = 3;
    mn_module *net = mn_sequential(ctx);
    mn_sequential_add(net, "conv", mn_conv2d_layer(ctx, &conv));
    mn_sequential_add(net, "bn", mn_batch_norm_layer(ctx, 5));
    mn_sequential_add(net, "relu", mn_relu_layer(ctx));
    mn_sequential_add(net, "pool", mn_global_avg_pool2d_layer(ctx));
    mn_sequential_add(net, "fc", mn_linear_layer(ctx, 5, CLASSES, true));
    mn_module_init(net);
    return net;
}

static mn_optimizer *make_optimizer(mn_context *ctx, mn_module *net, int kind)
{
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(net, &count);
    mn_sgd_options sgd = mn_sgd_options_default();
    sgd.momentum = 0.9;
    sgd.lr = 0.1;
    mn_adam_options adam = mn_adam_options_default();
    adam.rounding = sgd.rounding = kinds[kind].rounding;
    return kinds[kind].adam ? mn_adam_create(ctx, parameters, count, &adam)
                            : mn_sgd_create(ctx, parameters, count, &sgd);
}

static void open_training(training *t, const char *device, int kind)
{
    memset(t, 0, sizeof *t);
    mn_context_options options = mn_context_options_default();
    options.device = device;
    options.kernels = kinds[kind].kernels;
    options.threads = 1;
    options.allocator = mn_test_counting(&t->counter);
    t->ctx = mn_context_create(&options, NULL);
    ck_assert_ptr_nonnull(t->ctx);
    t->net = make_net(t->ctx);
    if (kinds[kind].rounding != MN_ROUNDING_NEAREST)
        mn_module_set_parameter_dtype(t->net, MN_BF16);
    t->sgd = make_optimizer(t->ctx, t->net, kind);
    mn_grad_scaler_options scaling = mn_grad_scaler_options_default();
    scaling.init_scale = 256;
    scaling.growth_interval = 2;
    t->scaler = mn_grad_scaler_create(t->ctx, &scaling);
    ck_assert_msg(mn_ok(t->ctx), "%s", mn_error_message(t->ctx));
}

static void close_training(training *t)
{
    mn_monitor_free(t->monitor);
    mn_grad_scaler_free(t->scaler);
    mn_optimizer_free(t->sgd);
    mn_module_free(t->net);
    mn_context_free(t->ctx);
    ck_assert_int_eq(t->counter.blocks, 0);
}

/* ---- a whole step ---------------------------------------------------------------------------- */

static void backward(training *t)
{
    static const int64_t shape[4] = {BATCH, SIDE, SIDE, 2}, rows[1] = {BATCH},
                         labels[BATCH] = {0, 1, 3};
    float images[BATCH * SIDE * SIDE * 2];
    for (int i = 0; i < BATCH * SIDE * SIDE * 2; i++)
        images[i] = (float)(i * 37 % 101) / 101.0f;
    mn_tensor *x = mn_tensor_from(t->ctx, MN_F32, 4, shape, images);
    mn_tensor *y = mn_tensor_from(t->ctx, MN_I64, 1, rows, labels);
    mn_autocast_begin(t->ctx, MN_F16);
    mn_tensor *loss = mn_cross_entropy(mn_module_forward(t->net, x), y, NULL);
    mn_autocast_end(t->ctx);
    mn_grad_scaler_backward(t->scaler, loss, 1);
}

/* From here on allocation number `fail` (0: none) fails, and all after it if for_good. */
static void arm(training *t, long fail, bool for_good)
{
    t->counter.for_good = for_good;
    t->counter.fail_at = fail > 0 ? t->counter.calls + fail : 0;
}

/* Whether that allocation was asked for. */
static bool disarm(training *t)
{
    bool reached = t->counter.fail_at > 0 && t->counter.calls >= t->counter.fail_at;
    t->counter.fail_at = 0;
    return reached;
}

/* One step. Nothing is cached before any part of it, so that requests reach the allocator. */
static mn_status step(training *t)
{
    mn_scope scope = mn_scope_begin(t->ctx);
    mn_memory_trim(t->ctx);
    backward(t);
    mn_memory_trim(t->ctx);
    mn_grad_scaler_unscale(t->scaler, t->sgd);
    mn_memory_trim(t->ctx);
    mn_clip_grad_norm(t->sgd, 1, NULL);
    mn_memory_trim(t->ctx);
    mn_grad_scaler_step(t->scaler, t->sgd, NULL);
    mn_memory_trim(t->ctx);
    mn_grad_scaler_update(t->scaler);
    mn_optimizer_zero_grad(t->sgd);
    mn_scope_end(t->ctx, scope);
    mn_synchronize(t->ctx);
    return mn_error_status(t->ctx);
}

/* Parameters, momenta, counters and scaler, without what batch norm has seen. */
static size_t state_of(training *t, unsigned char bytes[STATE_BYTES])
{
    mn_state_dict *dict = mn_state_dict_create(t->ctx);
    mn_module_save_state(t->net, dict);
    mn_optimizer_save_state(t->sgd, dict);
    mn_grad_scaler_save_state(t->scaler, dict);
    ck_assert_msg(mn_ok(t->ctx), "%s", mn_error_message(t->ctx));
    size_t used = 0;
    mn_state_entry entry;
    for (int64_t i = 0; mn_state_dict_entry(dict, i, &entry); i++) {
        if (strncmp(entry.name, "bn.running", 10) == 0 ||
            strcmp(entry.name, "bn.num_batches_tracked") == 0)
            continue;
        ck_assert(used + entry.bytes <= STATE_BYTES);
        if (entry.bytes > 0)
            memcpy(bytes + used, entry.data, entry.bytes);
        used += entry.bytes;
    }
    mn_state_dict_free(dict);
    return used;
}

typedef struct state {
    unsigned char bytes[STATE_BYTES];
    size_t size;
} state;

static bool is_state(training *t, const state *wanted)
{
    unsigned char now[STATE_BYTES];
    return state_of(t, now) == wanted->size && memcmp(now, wanted->bytes, wanted->size) == 0;
}

/* Allocation `fail` of the second step fails, or all from there on. The states are those that an
 * undisturbed run has after so many steps. False if the step made fewer. */
static bool fail_second_step(int kind, long fail, bool for_good, const state *states)
{
    training t;
    open_training(&t, kinds[kind].device, kind);
    ck_assert_int_eq(step(&t), MN_OK);
    /* Its first step is the one that makes its places. */
    t.monitor = kinds[kind].monitor ? mn_monitor_create(t.ctx, NULL) : NULL;
    arm(&t, fail, for_good);
    mn_status status = step(&t);
    bool reached = disarm(&t);
    ck_assert_msg(status == MN_OK || (status == MN_ERR_MEMORY && reached), "%s",
                  mn_error_message(t.ctx));
    ck_assert(status == MN_ERR_MEMORY || !reached || !for_good);
    mn_error_clear(t.ctx);
    ck_assert_int_eq(mn_optimizer_zero_grad(t.sgd), MN_OK);
    int steps = is_state(&t, &states[2]) ? 2 : 1;
    ck_assert_msg(steps == 2 || (status != MN_OK && is_state(&t, &states[1])),
                  "allocation %ld: a state that no whole step leaves", fail);
    ck_assert_int_eq(step(&t), MN_OK);
    ck_assert_msg(is_state(&t, &states[steps + 1]), "allocation %ld: the next step differs", fail);
    close_training(&t);
    return reached;
}

START_TEST(test_step_is_whole_or_not_at_all)
{
    static state states[4];
    training t;
    open_training(&t, kinds[_i].device, _i);
    for (int i = 1; i < 4; i++) {
        ck_assert_int_eq(step(&t), MN_OK);
        states[i].size = state_of(&t, states[i].bytes);
    }
    ck_assert(!is_state(&t, &states[2]) && !is_state(&t, &states[1]));
    close_training(&t);
    for (int for_good = 0; for_good < 2; for_good++) {
        long fail = 1;
        while (fail_second_step(_i, fail, for_good, states))
            fail++;
        ck_assert_int_gt(fail, 50);
    }
}
END_TEST

/* ---- inference and saving -------------------------------------------------------------------- */

/* A prediction, which does not change anything. */
static mn_status predict(training *t, float logits[BATCH * CLASSES])
{
    static const int64_t shape[4] = {BATCH, SIDE, SIDE, 2};
    float images[BATCH * SIDE * SIDE * 2];
    for (int i = 0; i < BATCH * SIDE * SIDE * 2; i++)
        images[i] = (float)(i * 37 % 101) / 101.0f;
    mn_scope scope = mn_scope_begin(t->ctx);
    mn_no_grad_begin(t->ctx);
    mn_autocast_begin(t->ctx, MN_BF16);
    mn_tensor *y = mn_module_forward(t->net, mn_tensor_from(t->ctx, MN_F32, 4, shape, images));
    y = mn_cast(y, MN_F32);
    mn_tensor_read(y, logits, BATCH * CLASSES * sizeof(float));
    mn_scope_end(t->ctx, scope);
    return mn_error_status(t->ctx);
}

/* The state as a file's bytes; *data is NULL on failure. */
static mn_status save(training *t, void **data, size_t *bytes)
{
    mn_state_dict *dict = mn_state_dict_create(t->ctx);
    mn_module_save_state(t->net, dict);
    mn_optimizer_save_state(t->sgd, dict);
    *data = NULL;
    mn_status status = mn_error_status(t->ctx);
    if (status == MN_OK)
        status = mn_state_dict_to_buffer(dict, data, bytes);
    mn_state_dict_free(dict);
    return status;
}

/* A prediction and a save with allocation `fail` failing give an error or what they always give. */
static bool fail_use(training *t, long fail, bool for_good, const float *logits, size_t size)
{
    float got[BATCH * CLASSES];
    void *data = NULL;
    size_t bytes = 0;
    mn_memory_trim(t->ctx);
    arm(t, fail, for_good);
    mn_status status = predict(t, got);
    if (status == MN_OK) {
        ck_assert_mem_eq(got, logits, sizeof got);
        status = save(t, &data, &bytes);
    }
    bool reached = disarm(t);
    ck_assert((data != NULL) == (status == MN_OK));
    ck_assert(status == MN_OK ? bytes == size : status == MN_ERR_MEMORY && reached);
    ck_assert(status == MN_ERR_MEMORY || !reached || !for_good);
    mn_buffer_free(t->ctx, data, bytes);
    mn_error_clear(t->ctx);
    ck_assert_int_eq(predict(t, got), MN_OK);
    ck_assert_mem_eq(got, logits, sizeof got);
    return reached;
}

START_TEST(test_use_gives_all_or_an_error)
{
    training t;
    float logits[BATCH * CLASSES];
    void *data;
    size_t size;
    open_training(&t, kinds[_i].device, _i);
    ck_assert_int_eq(step(&t), MN_OK);
    ck_assert_int_eq(mn_module_set_training(t.net, false), MN_OK);
    ck_assert_int_eq(predict(&t, logits), MN_OK);
    ck_assert_int_eq(save(&t, &data, &size), MN_OK);
    mn_buffer_free(t.ctx, data, size);
    for (int for_good = 0; for_good < 2; for_good++) {
        long fail = 1;
        while (fail_use(&t, fail, for_good, logits, size))
            fail++;
        ck_assert_int_gt(fail, 20);
    }
    close_training(&t);
}
END_TEST

/* ---- loading --------------------------------------------------------------------------------- */

START_TEST(test_load_is_whole_or_not_at_all)
{
    static state before;
    training from, to;
    void *data;
    size_t bytes;
    open_training(&from, "cpu", _i);
    ck_assert_int_eq(step(&from), MN_OK);
    open_training(&to, kinds[_i].device, _i);
    before.size = state_of(&to, before.bytes);
    ck_assert_int_eq(save(&from, &data, &bytes), MN_OK);
    mn_status status = MN_ERR_MEMORY;
    for (long fail = 1; status != MN_OK; fail++) {
        mn_memory_trim(to.ctx);
        arm(&to, fail, true);
        mn_state_dict *dict = mn_state_dict_from_buffer(to.ctx, data, bytes);
        status = dict ? mn_optimizer_load_state(to.sgd, dict) : mn_error_status(to.ctx);
        if (status == MN_OK)
            status = mn_module_load_state(to.net, dict);
        disarm(&to);
        mn_error_clear(to.ctx);
        mn_state_dict_free(dict);
        if (status == MN_OK)
            break;
        ck_assert_int_eq(status, MN_ERR_MEMORY);
        ck_assert_msg(is_state(&to, &before), "allocation %ld: half loaded", fail);
    }
    mn_buffer_free(from.ctx, data, bytes);
    close_training(&from);
    close_training(&to);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory");
    TCase *tc = tcase_create("whole or not at all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_step_is_whole_or_not_at_all, 0, KINDS);
    tcase_add_loop_test(tc, test_use_gives_all_or_an_error, 0, KINDS);
    tcase_add_loop_test(tc, test_load_is_whole_or_not_at_all, 0, KINDS);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK_GETENV);
}
