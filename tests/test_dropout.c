/* Dropout: how many elements are kept, what the mask depends on, and training with it. */
#include "core/philox.h"
#include "ops/ops.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The mask as bytes: 1 where a tensor of ones is kept. */
enum { COUNT = 4 * 16384 + 3 };
typedef struct mask {
    unsigned char kept[COUNT];
} mask;

static double scratch[COUNT];

static void read_mask(const mn_tensor *y, mask *m)
{
    ck_assert_ptr_nonnull(y);
    ck_assert_int_eq(mn_tensor_read_f64(y, scratch, COUNT), MN_OK);
    for (int i = 0; i < COUNT; i++)
        m->kept[i] = scratch[i] != 0;
}

static void draw(mn_context *ctx, mn_dtype dtype, double p, mask *m)
{
    mn_scope scope = mn_scope_begin(ctx);
    read_mask(mn_dropout(mn_test_vector(ctx, dtype, COUNT, 1), p, true), m);
    mn_scope_end(ctx, scope);
}

static bool same(const mask *a, const mask *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* Kept elements and pairs of neighbours at several distances, each within 5 sigma. */
START_TEST(statistics)
{
    static const double ps[] = {0.01, 0.1, 0.3, 0.5, 0.75, 0.99};
    static const int64_t sizes[] = {1000, 4099, COUNT};
    static const int distances[] = {1, 2, 3, 4, 64, 512};
    mn_context *ctx = mn_test_open();
    mask m;
    for (int i = 0; i < 6; i++) {
        const double keep = 1 - ps[i];
        draw(ctx, MN_F32, ps[i], &m);
        for (int j = 0; j < 3; j++) {
            const double n = (double)sizes[j];
            double kept = 0;
            for (int64_t k = 0; k < sizes[j]; k++)
                kept += m.kept[k];
            ck_assert_double_le(fabs(kept - n * keep), 5 * sqrt(n * keep * ps[i]));
        }
        for (int j = 0; j < 6; j++) {
            double sum = 0; /* of the products of what deviates from the mean: no correlation */
            const double n = COUNT - distances[j], spread = keep * ps[i];
            for (int k = distances[j]; k < COUNT; k++)
                sum += (m.kept[k] - keep) * (m.kept[k - distances[j]] - keep);
            ck_assert_double_le(fabs(sum), 5 * spread * sqrt(n));
        }
    }
    mn_context_free(ctx);
}
END_TEST

/* Over many masks, kept counts vary as a binomial's do: their variance within 5 sigma. */
START_TEST(variance_of_counts)
{
    enum { MASKS = 400, SIZE = 256 };
    const double p = 0.3, expected = SIZE * p * (1 - p);
    mn_context *ctx = mn_test_open();
    double squares = 0, values[SIZE];
    for (int i = 0; i < MASKS; i++) {
        double deviation = -SIZE * (1 - p);
        mn_scope scope = mn_scope_begin(ctx);
        mn_tensor *y = mn_dropout(mn_test_vector(ctx, MN_F32, SIZE, 1), p, true);
        ck_assert_int_eq(mn_tensor_read_f64(y, values, SIZE), MN_OK);
        for (int j = 0; j < SIZE; j++)
            deviation += values[j] != 0;
        squares += deviation * deviation;
        mn_scope_end(ctx, scope);
    }
    ck_assert_double_le(fabs(squares / MASKS - expected), 5 * expected * sqrt(2.0 / MASKS));
    mn_context_free(ctx);
}
END_TEST

/* Element i is kept if word i of the stream is at least floor(p 2^32). */
START_TEST(documented_stream)
{
    const double p = 0.37;
    mn_context *ctx = mn_test_open();
    mask m;
    ck_assert_int_eq(mn_seed(ctx, 77), MN_OK);
    ck_assert_int_eq(mn_random_position(ctx, 5, 2), MN_OK);
    mn_name_push(ctx, "drop");
    draw(ctx, MN_F32, p, &m);
    draw(ctx, MN_F32, p, &m);
    mn_name_pop(ctx);
    mn_stream stream = mn_stream_open(77, MN_STREAM_DROPOUT, "drop", UINT64_C(5) << 24 | 2);
    stream.counter[1] = 1; /* the second call */
    for (int i = 0; i < COUNT; i++)
        ck_assert_int_eq(m.kept[i], mn_stream_u32(&stream) >= (uint32_t)(p * 0x1p32));
    ck_assert_double_eq(mn_test_first(mn_dropout(mn_test_vector(ctx, MN_F64, 1, 3), 0x1p-40, true)),
                        3 / (1 - 0x1p-40));
    mn_context_free(ctx);
}
END_TEST

START_TEST(same_mask_everywhere)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16, MN_F64};
    mask want, got;
    for (int set = MN_KERNELS_AUTO; set <= MN_KERNELS_PORTABLE; set++)
        for (int threads = 1; threads <= 3; threads++)
            for (int d = 0; d < 4; d++) {
                mn_context_options options = mn_context_options_default();
                options.kernels = (mn_kernel_set)set;
                options.threads = threads;
                mn_context *ctx = mn_context_create(&options, NULL);
                draw(ctx, dtypes[d], 0.4, &got);
                if (set == MN_KERNELS_AUTO && threads == 1 && d == 0)
                    want = got;
                ck_assert(same(&got, &want));
                mn_context_free(ctx);
            }
}
END_TEST

START_TEST(what_the_mask_depends_on)
{
    mn_context *ctx = mn_test_open();
    mask base, other;
    mn_random_position(ctx, 1, 0);
    draw(ctx, MN_F32, 0.5, &base);
    draw(ctx, MN_F32, 0.5, &other); /* the next call */
    ck_assert(!same(&base, &other));
    static const int64_t positions[][2] = {{0, 0}, {2, 0}, {1, 1}, {INT64_C(1) << 33, 0}};
    for (int i = 0; i < 4; i++) {
        mn_random_position(ctx, positions[i][0], positions[i][1]);
        draw(ctx, MN_F32, 0.5, &other);
        ck_assert(!same(&base, &other));
    }
    mn_random_position(ctx, 1, 0);
    mn_name_push(ctx, "layer");
    draw(ctx, MN_F32, 0.5, &other);
    mn_name_pop(ctx);
    ck_assert(!same(&base, &other));
    mn_random_position(ctx, 1, 0);
    mn_seed(ctx, 2);
    draw(ctx, MN_F32, 0.5, &other);
    ck_assert(!same(&base, &other));
    mn_seed(ctx, 1);
    mn_random_position(ctx, 1, 0); /* a retry, or a run that was resumed */
    mn_dropout(mn_test_vector(ctx, MN_F32, 3, 1), 0.5, false); /* draws nothing */
    mn_dropout(mn_test_vector(ctx, MN_F32, 3, 1), 0, true);
    draw(ctx, MN_F32, 0.5, &other);
    ck_assert(same(&base, &other));
    mn_context_free(ctx);
}
END_TEST

START_TEST(same_mask_in_backward)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16, MN_F64};
    mn_context *ctx = mn_test_open();
    mask forward, backward;
    mn_tensor *x = mn_test_vector(ctx, dtypes[_i], COUNT, 1);
    ck_assert_int_eq(mn_set_requires_grad(x, true), MN_OK);
    mn_tensor *y = mn_dropout(x, 0.25, true);
    mn_dropout(x, 0.25, true); /* calls in between change nothing */
    mn_random_position(ctx, 9, 9);
    read_mask(y, &forward);
    mn_tensor *sum = mn_sum(mn_cast(y, MN_F32), 0, NULL, false);
    ck_assert_int_eq(mn_backward(sum, 1), MN_OK);
    read_mask(mn_grad(x), &backward);
    ck_assert(same(&forward, &backward));
    ck_assert_double_eq_tol(fabs(scratch[0] - 2.0 / 3), 2.0 / 3 * (1 - forward.kept[0]), 0.01);
    mn_context_free(ctx);
}
END_TEST

START_TEST(limits)
{
    mn_context *ctx = mn_test_op_context("cpu", _i == 0 ? MN_KERNELS_REFERENCE : MN_KERNELS_AUTO);
    mn_tensor *x = mn_test_vector(ctx, MN_F16, 3, 2);
    ck_assert_double_eq(mn_test_first(mn_dropout(x, 1, true)), 0);
    ck_assert_ptr_eq(mn_dropout(x, 0.5, false)->storage, x->storage);
    ck_assert_ptr_eq(mn_dropout(x, 0, true)->storage, x->storage);
    ck_assert(isnan(
        mn_test_first(mn_dropout(mn_test_vector(ctx, MN_F32, 1, (double)NAN), 0.999999, true))));
    ck_assert_ptr_null(mn_dropout(x, -0.1, true));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "dropout: p is -0.1, must be in [0, 1]");
    ck_assert_ptr_null(mn_dropout(x, (double)NAN, false));
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "dropout: p is");
    ck_assert_ptr_null(mn_dropout(mn_test_vector(ctx, MN_I32, 3, 2), 0.5, true));
    mn_test_expect(ctx, MN_ERR_DTYPE, "dropout: dtype of the input is i32, must be floating");
    ck_assert_ptr_null(mn_dropout(NULL, 0.5, true));
    ck_assert_int_eq(mn_random_position(ctx, -1, 0), MN_ERR_ARGUMENT);
    mn_test_expect(ctx, MN_ERR_ARGUMENT, "random_position: step -1");
    ck_assert_int_eq(mn_random_position(ctx, INT64_C(1) << 40, 0), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    ck_assert_int_eq(mn_random_position(ctx, 0, 1 << 24), MN_ERR_ARGUMENT);
    mn_error_clear(ctx);
    ck_assert_int_eq(mn_random_position(NULL, 0, 0), MN_ERR_ARGUMENT);
    mn_context_free(ctx);
}
END_TEST

/* A step function that notes the first draw of every micro-step. */
typedef struct draws {
    int count;
    double sums[16];
} draws;

static mn_status noting_step(mn_step *step, void *user)
{
    draws *d = user;
    mn_tensor *y = mn_dropout(mn_test_vector(step->context, MN_F32, 64, 1), 0.5, true);
    double values[64], sum = 0;
    MN_TRY(mn_tensor_read_f64(y, values, 64));
    for (int i = 0; i < 64; i++)
        sum = 2 * sum / 3 + values[i];
    d->sums[d->count++] = sum;
    return mn_step_default(step, NULL);
}

START_TEST(training_sets_the_position)
{
    draws d = {0};
    mn_error error = {MN_OK, ""};
    mn_train_options options = mn_train_options_default();
    options.data = "synthetic:8x8x1:2:64";
    options.model = "cnn-small";
    options.batch = 8;
    options.accumulate = 2;
    options.steps = 3;
    options.validation = 0;
    options.step = noting_step;
    options.step_user = &d;
    mn_train_result *result = mn_train(&options, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    mn_train_result_free(result);
    ck_assert_int_eq(d.count, 6);
    mn_context *ctx = mn_test_open();
    for (int i = 0; i < 6; i++) {
        double values[64], sum = 0;
        mn_random_position(ctx, 1 + i / 2, i % 2);
        mn_tensor *y = mn_dropout(mn_test_vector(ctx, MN_F32, 64, 1), 0.5, true);
        ck_assert_int_eq(mn_tensor_read_f64(y, values, 64), MN_OK);
        for (int j = 0; j < 64; j++)
            sum = 2 * sum / 3 + values[j];
        ck_assert_double_eq(sum, d.sums[i]);
    }
    mn_context_free(ctx);
}
END_TEST

/* ---- training with dropout ------------------------------------------------------------------- */

/* Steps of a net of one's own with dropout layers, in f16 with a scale so large that the first ones
 * are skipped, two micro-batches of 8 each. */
typedef struct training {
    mn_context *ctx;
    mn_module *net;
    mn_optimizer *optimizer;
    mn_grad_scaler *scaler;
    mn_dataset *dataset;
    mn_loader *loader;
} training;

enum { STEPS = 7, SIDE = 8, CLASSES = 3 };

static training training_open(const char *device, int threads)
{
    training t = {0};
    mn_context_options options = mn_context_options_default();
    options.device = device;
    options.threads = threads;
    t.ctx = mn_context_create(&options, NULL);
    t.net = mn_sequential(t.ctx);
    mn_sequential_add(t.net, "drop1", mn_dropout_layer(t.ctx, 0.2));
    mn_sequential_add(t.net, "flat", mn_flatten_layer(t.ctx));
    mn_sequential_add(t.net, "fc1", mn_linear_layer(t.ctx, SIDE * SIDE, 600, true));
    mn_sequential_add(t.net, "act", mn_activation_layer(t.ctx, MN_ACTIVATION_GELU));
    mn_sequential_add(t.net, "drop2", mn_dropout_layer(t.ctx, 0.5));
    mn_sequential_add(t.net, "fc2", mn_linear_layer(t.ctx, 600, CLASSES, true));
    ck_assert_int_eq(mn_module_init(t.net), MN_OK);
    int count;
    mn_tensor *const *parameters = mn_module_parameters(t.net, &count);
    mn_adam_options adam = mn_adam_options_default();
    t.optimizer = mn_adam_create(t.ctx, parameters, count, &adam);
    mn_grad_scaler_options scaling = mn_grad_scaler_options_default();
    scaling.init_scale = 0x1p22;
    scaling.growth_interval = 3;
    t.scaler = mn_grad_scaler_create(t.ctx, &scaling);
    mn_loader_options loading = mn_loader_options_default();
    loading.batch = 8;
    t.dataset = mn_dataset_open("synthetic:8x8x1:3:128", true, NULL, NULL);
    t.loader = mn_loader_create(t.dataset, &loading, NULL);
    ck_assert_ptr_nonnull(t.loader);
    return t;
}

static void training_close(training *t)
{
    mn_loader_free(t->loader);
    mn_dataset_free(t->dataset);
    mn_grad_scaler_free(t->scaler);
    mn_optimizer_free(t->optimizer);
    mn_module_free(t->net);
    mn_context_free(t->ctx);
}

static mn_status micro_step(training *t, int step, int micro_step)
{
    mn_batch batch;
    MN_TRY(mn_loader_next(t->loader, &batch, NULL));
    const int64_t shape[4] = {batch.count, SIDE, SIDE, 1};
    MN_TRY(mn_random_position(t->ctx, step, micro_step));
    mn_scope scope = mn_scope_begin(t->ctx);
    MN_TRY(mn_autocast_begin(t->ctx, MN_F16));
    mn_tensor *x = mn_tensor_from(t->ctx, MN_F32, 4, shape, batch.images);
    mn_tensor *labels = mn_tensor_from(t->ctx, MN_I64, 1, shape, batch.labels);
    mn_tensor *loss = mn_cross_entropy(mn_module_forward(t->net, x), labels, NULL);
    MN_TRY(mn_autocast_end(t->ctx));
    mn_status status = mn_grad_scaler_backward(t->scaler, loss, 0.5);
    mn_scope_end(t->ctx, scope);
    return status;
}

static void training_run(training *t, int first, int last, bool evaluate)
{
    mn_metrics metrics;
    for (int step = first; step <= last; step++) {
        ck_assert_int_eq(mn_loader_start(t->loader, 0, (step - 1) * 16, NULL), MN_OK);
        for (int i = 0; i < 2; i++)
            ck_assert_msg(micro_step(t, step, i) == MN_OK, "%s", mn_error_message(t->ctx));
        ck_assert_int_eq(mn_grad_scaler_step(t->scaler, t->optimizer, NULL), MN_OK);
        ck_assert_int_eq(mn_grad_scaler_update(t->scaler), MN_OK);
        ck_assert_int_eq(mn_optimizer_zero_grad(t->optimizer), MN_OK);
        if (evaluate)
            ck_assert_int_eq(mn_evaluate(t->net, t->loader, MN_F32, &metrics, NULL), MN_OK);
    }
}

/* What training comes to, in file order, as bytes of t's allocator. */
static void training_save(training *t, void **data, size_t *bytes)
{
    mn_state_dict *dict = mn_state_dict_create(t->ctx);
    mn_module_save_state(t->net, dict);
    mn_optimizer_save_state(t->optimizer, dict);
    mn_grad_scaler_save_state(t->scaler, dict);
    ck_assert_int_eq(mn_state_dict_to_buffer(dict, data, bytes), MN_OK);
    mn_state_dict_free(dict);
}

static void training_load(training *t, const void *data, size_t bytes)
{
    mn_state_dict *dict = mn_state_dict_from_buffer(t->ctx, data, bytes);
    mn_module_load_state(t->net, dict);
    mn_optimizer_load_state(t->optimizer, dict);
    ck_assert_int_eq(mn_grad_scaler_load_state(t->scaler, dict), MN_OK);
    mn_state_dict_free(dict);
}

/* Stopped after each number of steps and gone on with elsewhere, evaluated or not, skipped steps
 * before and after: the same bits. */
START_TEST(own_loop_resumes)
{
    static const struct {
        const char *device;
        int threads, stop;
        bool evaluate;
    } cases[] = {{"cpu", 3, 0, true},
                 {"cpu", 1, 1, false},
                 {"cpu", 3, 4, true},
                 {"cpu-deferred", 1, 3, false},
                 {"cpu-deferred", 2, 6, true}};
    void *want, *half, *got;
    size_t bytes, half_bytes, got_bytes;
    training whole = training_open("cpu", 1);
    training_run(&whole, 1, STEPS, false);
    training_save(&whole, &want, &bytes);
    mn_optimizer_stats stats;
    ck_assert_int_eq(mn_optimizer_stats_get(whole.optimizer, &stats), MN_OK);
    ck_assert(stats.skipped >= 2 && stats.applied >= 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        training first = training_open("cpu", 2);
        training_run(&first, 1, cases[i].stop, cases[i].evaluate);
        training_save(&first, &half, &half_bytes);
        training rest = training_open(cases[i].device, cases[i].threads);
        training_load(&rest, half, half_bytes);
        training_run(&rest, cases[i].stop + 1, STEPS, cases[i].evaluate);
        training_save(&rest, &got, &got_bytes);
        ck_assert_uint_eq(got_bytes, bytes);
        ck_assert_msg(memcmp(got, want, bytes) == 0, "case %d differs", (int)i);
        mn_buffer_free(first.ctx, half, half_bytes);
        mn_buffer_free(rest.ctx, got, got_bytes);
        training_close(&first);
        training_close(&rest);
    }
    mn_buffer_free(whole.ctx, want, bytes);
    training_close(&whole);
}
END_TEST

/* A layer that was frozen stays frozen when the net is evaluated. */
START_TEST(evaluation_keeps_modes)
{
    double before[4], after[4];
    const int64_t four = 4;
    mn_metrics metrics, same_again;
    training t = training_open("cpu", 1);
    mn_module *frozen = mn_dropout_layer(t.ctx, 0.75);
    mn_sequential_add(t.net, "last", frozen);
    ck_assert_int_eq(mn_module_set_training(frozen, false), MN_OK);
    ck_assert_int_eq(mn_evaluate(t.net, t.loader, MN_F32, &metrics, NULL), MN_OK);
    mn_module_set_training(t.net, false); /* as in evaluation mode: nothing was dropped */
    ck_assert_int_eq(mn_evaluate(t.net, t.loader, MN_F32, &same_again, NULL), MN_OK);
    ck_assert_double_eq(metrics.loss, same_again.loss);
    mn_module_set_training(t.net, true);
    ck_assert_int_eq(mn_module_set_training(frozen, false), MN_OK);
    ck_assert_int_eq(mn_evaluate(t.net, t.loader, MN_F32, &metrics, NULL), MN_OK);
    mn_tensor *x = mn_full(t.ctx, MN_F32, 1, &four, 3);
    ck_assert_int_eq(mn_tensor_read_f64(x, before, 4), MN_OK);
    ck_assert_int_eq(mn_tensor_read_f64(mn_module_forward(frozen, x), after, 4), MN_OK);
    ck_assert(memcmp(before, after, sizeof before) == 0);
    mn_module_set_training(t.net, true);
    mn_tensor *images = mn_full(t.ctx, MN_F32, 4, (int64_t[]){64, SIDE, SIDE, 1}, 1);
    double logits[64 * CLASSES];
    int dropped = 0;
    ck_assert_int_eq(mn_tensor_read_f64(mn_module_forward(t.net, images), logits, 64 * CLASSES),
                     MN_OK);
    for (int i = 0; i < 64 * CLASSES; i++)
        dropped += logits[i] == 0;
    ck_assert_int_gt(dropped, 64);
    training_close(&t);
}
END_TEST

/* mn_train with a step function that drops: a run stopped in the middle of an epoch and gone on
 * with, on other threads and on the deferred device. */
static mn_status dropping_step(mn_step *step, void *user)
{
    mn_name_push(step->context, "input");
    step->images = mn_dropout(mn_dropout(step->images, 0.2, true), 0.1, true);
    mn_name_pop(step->context);
    return mn_step_default(step, user);
}

static void train_to(mn_train_options *o, const char *file)
{
    mn_error error = {MN_OK, ""};
    o->checkpoint = file;
    mn_train_result *result = mn_train(o, &error);
    ck_assert_msg(result != NULL, "%s", error.message);
    if (o->stop_after == 0)
        ck_assert_int_gt(result->epochs[result->epoch_count - 1].skipped_steps, 0);
    mn_train_result_free(result);
}

static size_t read_file(const char *path, char *data, size_t size)
{
    FILE *file = fopen(path, "rb");
    ck_assert_ptr_nonnull(file);
    size_t bytes = fread(data, 1, size, file);
    fclose(file);
    return bytes;
}

START_TEST(train_resumes)
{
    static char want[1 << 20], got[1 << 20];
    char files[3][64];
    mn_train_options o = mn_train_options_default();
    for (int i = 0; i < 3; i++)
        snprintf(files[i], sizeof files[i], "/tmp/minim-dropout-%ld-%d", (long)getpid(), i);
    o.data = "synthetic:12x12x1:4:120"; /* 108: 7 windows an epoch, the last of 12 */
    o.batch = 8;
    o.accumulate = 2;
    o.epochs = 2;
    o.amp = MN_F16;
    o.scaler.init_scale = 0x1p28;
    o.scaler.growth_interval = 3;
    o.step = dropping_step;
    o.context.threads = 1;
    train_to(&o, files[0]);
    o.stop_after = _i == 0 ? 1 : 10; /* in the middle of an epoch */
    o.context.threads = 3;
    train_to(&o, files[1]);
    o.stop_after = 0;
    o.resume = files[1];
    o.context.threads = 1;
    o.context.device = _i == 2 ? "cpu-deferred" : "cpu";
    train_to(&o, files[2]);
    size_t bytes = read_file(files[0], want, sizeof want);
    ck_assert(bytes > 1000 && bytes < sizeof want);
    ck_assert_uint_eq(read_file(files[2], got, sizeof got), bytes);
    ck_assert(memcmp(want, got, bytes) == 0);
    for (int i = 0; i < 3; i++)
        unlink(files[i]);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("dropout");
    TCase *tc = tcase_create("dropout");
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, statistics);
    tcase_add_test(tc, variance_of_counts);
    tcase_add_test(tc, documented_stream);
    tcase_add_test(tc, same_mask_everywhere);
    tcase_add_test(tc, what_the_mask_depends_on);
    tcase_add_loop_test(tc, same_mask_in_backward, 0, 4);
    tcase_add_loop_test(tc, limits, 0, 2);
    tcase_add_test(tc, training_sets_the_position);
    tcase_add_test(tc, own_loop_resumes);
    tcase_add_test(tc, evaluation_keeps_modes);
    tcase_add_loop_test(tc, train_resumes, 0, 3);
    suite_add_tcase(s, tc);
    return s;
}

int main(void)
{
    return mn_test_run(suite(), CK_FORK_GETENV);
}
