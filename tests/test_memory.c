/* Running out of memory in the middle of steps and loads: nothing is half-applied, what is left can
 * go on, nothing leaks. */
#include "tests/support_counting.h"
#include "tests/support_training.h"
#include "tests/support_suite.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 6, BATCH = 3, CLASSES = 4, STATE_BYTES = 1 << 16 };

/* A convolution with batch norm, its optimizer with momentum, and a scaler that grows every other
 * step. */
typedef struct training {
    mn_test_counter counter;
    mn_context *ctx;
    mn_module *net;
    mn_optimizer *sgd;
    mn_grad_scaler *scaler;
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

static void open_training(training *t, const char *device, mn_kernel_set kernels)
{
    memset(t, 0, sizeof *t);
    mn_context_options options = mn_context_options_default();
    options.device = device;
    options.kernels = kernels;
    options.threads = 1;
    options.allocator = mn_test_counting(&t->counter);
    t->ctx = mn_context_create(&options, NULL);
    ck_assert_ptr_nonnull(t->ctx);
    t->net = make_net(t->ctx);
    int count = 0;
    mn_tensor *const *parameters = mn_module_parameters(t->net, &count);
    mn_sgd_options sgd = mn_sgd_options_default();
    sgd.momentum = 0.9;
    sgd.lr = 0.1;
    t->sgd = mn_sgd_create(t->ctx, parameters, count, &sgd);
    mn_grad_scaler_options scaling = mn_grad_scaler_options_default();
    scaling.init_scale = 256;
    scaling.growth_interval = 2;
    t->scaler = mn_grad_scaler_create(t->ctx, &scaling);
    t->counter.for_good = true;
    ck_assert_msg(mn_ok(t->ctx), "%s", mn_error_message(t->ctx));
}

static void close_training(training *t)
{
    mn_grad_scaler_free(t->scaler);
    mn_optimizer_free(t->sgd);
    mn_module_free(t->net);
    mn_context_free(t->ctx);
    ck_assert_int_eq(t->counter.blocks, 0);
}

/* ---- the parts of a step --------------------------------------------------------------------- */

enum { BACKWARD, UNSCALE, CLIP, STEP, UPDATE, PARTS };

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

static void run_part(training *t, int part)
{
    switch (part) {
    case BACKWARD:
        backward(t);
        break;
    case UNSCALE:
        mn_grad_scaler_unscale(t->scaler, t->sgd);
        break;
    case CLIP:
        mn_clip_grad_norm(t->sgd, 1, NULL);
        break;
    case STEP:
        mn_grad_scaler_step(t->scaler, t->sgd, NULL);
        break;
    default:
        mn_grad_scaler_update(t->scaler);
    }
}

/* A step in which allocation `fail` (from 1; 0: none) of the given part fails, and all later ones.
 * Nothing is cached before, so that every request reaches the allocator. */
static mn_status whole_step(training *t, int part, long fail)
{
    mn_scope scope = mn_scope_begin(t->ctx);
    for (int i = 0; i < PARTS; i++) {
        mn_memory_trim(t->ctx);
        t->counter.fail_at = i == part && fail > 0 ? t->counter.calls + fail : 0;
        run_part(t, i);
        t->counter.fail_at = 0;
    }
    mn_optimizer_zero_grad(t->sgd);
    mn_scope_end(t->ctx, scope);
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

static void check_state(training *t, const unsigned char *wanted, size_t size, int part, long fail)
{
    unsigned char now[STATE_BYTES];
    ck_assert_uint_eq(state_of(t, now), size);
    ck_assert_msg(memcmp(now, wanted, size) == 0, "part %d, allocation %ld: the state differs",
                  part, fail);
}

static const struct {
    const char *device;
    mn_kernel_set kernels;
} kinds[] = {
    {"cpu", MN_KERNELS_AUTO}, {"cpu", MN_KERNELS_REFERENCE}, {"cpu-deferred", MN_KERNELS_AUTO}};

/* Fails one allocation of a part after a whole step. True if the part made fewer. */
static bool fail_once(int kind, int part, long fail, const unsigned char *before, size_t size,
                      const unsigned char *after)
{
    training t;
    open_training(&t, kinds[kind].device, kinds[kind].kernels);
    ck_assert_int_eq(whole_step(&t, 0, 0), MN_OK);
    mn_status status = whole_step(&t, part, fail);
    bool done = status == MN_OK;
    if (!done) {
        ck_assert_msg(status == MN_ERR_MEMORY, "%s", mn_error_message(t.ctx));
        mn_error_clear(t.ctx);
        ck_assert_int_eq(mn_optimizer_zero_grad(t.sgd), MN_OK);
        if (part != UPDATE) /* then the step is done, and the update is made up for */
            check_state(&t, before, size, part, fail);
        if (part != UPDATE)
            ck_assert_int_eq(whole_step(&t, 0, 0), MN_OK);
    }
    check_state(&t, after, size, part, fail);
    close_training(&t);
    return done;
}

START_TEST(test_step_is_whole_or_not_at_all)
{
    static unsigned char before[STATE_BYTES], after[STATE_BYTES];
    training t;
    open_training(&t, kinds[_i].device, kinds[_i].kernels);
    ck_assert_int_eq(whole_step(&t, 0, 0), MN_OK);
    size_t size = state_of(&t, before);
    ck_assert_int_eq(whole_step(&t, 0, 0), MN_OK);
    ck_assert_uint_eq(state_of(&t, after), size);
    close_training(&t);
    for (int part = BACKWARD; part < PARTS; part++) {
        /* Forward and backward make many requests alike. */
        for (long fail = 1; !fail_once(_i, part, fail, before, size, after);)
            fail += part == BACKWARD ? 7 : 1;
    }
}
END_TEST

/* ---- loading --------------------------------------------------------------------------------- */

START_TEST(test_load_is_whole_or_not_at_all)
{
    static unsigned char before[STATE_BYTES];
    training from, to;
    open_training(&from, "cpu", MN_KERNELS_AUTO);
    ck_assert_int_eq(whole_step(&from, 0, 0), MN_OK);
    open_training(&to, kinds[_i].device, kinds[_i].kernels);
    size_t size = state_of(&to, before);
    mn_state_dict *dict = mn_state_dict_create(to.ctx);
    mn_state_dict *source = mn_state_dict_create(from.ctx);
    mn_module_save_state(from.net, source);
    mn_optimizer_save_state(from.sgd, source);
    mn_state_entry entry;
    for (int64_t i = 0; mn_state_dict_entry(source, i, &entry); i++)
        ck_assert_int_eq(mn_state_dict_put(dict, &entry), MN_OK);
    mn_status status = MN_ERR_MEMORY;
    for (long fail = 1; status != MN_OK; fail++) {
        mn_memory_trim(to.ctx);
        to.counter.fail_at = to.counter.calls + fail;
        status = mn_optimizer_load_state(to.sgd, dict);
        if (status == MN_OK)
            status = mn_module_load_state(to.net, dict);
        to.counter.fail_at = 0;
        mn_error_clear(to.ctx);
        if (status == MN_OK)
            break;
        ck_assert_int_eq(status, MN_ERR_MEMORY);
        check_state(&to, before, size, -1, fail);
    }
    mn_state_dict_free(source);
    mn_state_dict_free(dict);
    close_training(&from);
    close_training(&to);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory");
    TCase *tc = tcase_create("whole or not at all");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_step_is_whole_or_not_at_all, 0, 3);
    tcase_add_loop_test(tc, test_load_is_whole_or_not_at_all, 0, 3);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK_GETENV);
}
