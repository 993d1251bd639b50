/* Steps with a gradient penalty, alone and under AMP: against f64 and differences, bit for bit on
 * threads and devices, states of gradients, and running out of memory at every allocation. */
#include "autograd/autograd.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <math.h>
#include <string.h>

/* ---- steps with a gradient penalty ----------------------------------------------------------- */

enum { SIDE = 5, BATCH = 3, PARAMETERS = 4 };

typedef struct setting {
    const char *device;
    int threads;
    mn_dtype dtype;   /* of parameters and images */
    mn_dtype compute; /* of autocast; f32: none */
    double scale;     /* 0: no scaler */
} setting;

/* Convolution, relu, product with a weight; loss and |d(loss)/dx|^2, one backward of their sum.
 * Leaves the parameters' true gradients in `gradients`. */
typedef struct net {
    mn_context *ctx;
    mn_tensor *x, *p[PARAMETERS]; /* images; filter, bias, weight, bias */
    mn_grad_scaler *scaler;
} net;

static mn_tensor *pattern(mn_context *ctx, mn_dtype dtype, int ndim, const int64_t *shape, int seed)
{
    double values[4 * 7 * SIDE * SIDE]; /* the largest of them */
    mn_tensor *x = mn_tensor_create(ctx, dtype, ndim, shape);
    for (int64_t i = 0; i < mn_tensor_numel(x); i++)
        values[i] = (double)((i * 37 + seed * 11) % 64 - 31) / 64; /* exact in every dtype */
    mn_tensor_write_f64(x, values, mn_tensor_numel(x));
    mn_set_requires_grad(x, true);
    return x;
}

static net open_net(mn_context *ctx, const setting *s)
{
    static const int64_t image[4] = {BATCH, SIDE, SIDE, 2}, filter[4] = {7, 3, 3, 2}, c[1] = {7},
                         weight[2] = {4, 7 * SIDE * SIDE}, k[1] = {4};
    net n = {.ctx = ctx, .x = pattern(ctx, s->dtype, 4, image, 1)};
    n.p[0] = pattern(ctx, s->dtype, 4, filter, 2);
    n.p[1] = pattern(ctx, s->dtype, 1, c, 3);
    n.p[2] = pattern(ctx, s->dtype, 2, weight, 4);
    n.p[3] = pattern(ctx, s->dtype, 1, k, 5);
    mn_grad_scaler_options options = mn_grad_scaler_options_default();
    options.init_scale = s->scale;
    n.scaler = s->scale > 0 ? mn_grad_scaler_create(ctx, &options) : NULL;
    return n;
}

static mn_tensor *wide(mn_tensor *x)
{
    return mn_tensor_dtype(x) == MN_F64 ? x : mn_cast(x, MN_F32);
}

static mn_tensor *loss_of(const net *n, const setting *s)
{
    static const int64_t flat[2] = {BATCH, 7 * SIDE * SIDE};
    mn_conv2d_options o = mn_conv2d_options_default();
    o.padding[0] = o.padding[1] = 1;
    mn_autocast_begin(n->ctx, s->compute);
    mn_tensor *h = mn_reshape(mn_relu(mn_conv2d(n->x, n->p[0], n->p[1], &o)), 2, flat);
    mn_tensor *y = wide(mn_linear(h, n->p[2], n->p[3]));
    mn_autocast_end(n->ctx);
    return mn_mean(mn_mul(y, y), 0, NULL, false);
}

static mn_status penalty_step(const net *n, const setting *s)
{
    mn_tensor *const inputs[2] = {n->x, n->p[1]};
    mn_tensor *gradients[2], *loss = loss_of(n, s);
    mn_tensor *root = n->scaler ? mn_grad_scaler_scale(n->scaler, loss, 1) : loss;
    mn_status status = mn_gradients(root, inputs, 2, true, gradients);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(gradients[i] == NULL, status != MN_OK);
    mn_tensor *g = gradients[0];
    g = n->scaler ? mn_grad_scaler_unscale_tensor(n->scaler, g) : wide(g);
    mn_tensor *total = mn_add(loss, mn_sum(mn_mul(g, g), 0, NULL, false));
    return n->scaler ? mn_grad_scaler_backward(n->scaler, total, 1) : mn_backward(total, 1);
}

enum { MOST = 4 * 7 * SIDE * SIDE + 7 * 9 * 2 + 7 + 4 };

static void run_penalty(const setting *s, double *gradients, int64_t *count)
{
    mn_context_options options = mn_context_options_default();
    options.device = s->device;
    options.threads = s->threads;
    mn_context *ctx = mn_context_create(&options, NULL);
    net n = open_net(ctx, s);
    mn_status status = penalty_step(&n, s);
    ck_assert_msg(status == MN_OK, "%s", mn_error_message(ctx));
    *count = 0;
    for (int i = 0; i < PARAMETERS; i++) {
        int64_t numel = mn_tensor_numel(n.p[i]);
        ck_assert_int_eq(mn_grad_state_get(n.p[i]), s->scale > 0 ? MN_GRAD_SCALED : MN_GRAD_PLAIN);
        ck_assert_int_eq(mn_tensor_read_f64(mn_grad(n.p[i]), gradients + *count, numel), MN_OK);
        *count += numel;
    }
    for (int64_t i = 0; i < *count && s->scale > 0; i++)
        gradients[i] /= s->scale;
    mn_grad_scaler_free(n.scaler);
    mn_check_done(ctx);
}

static const struct {
    setting s;
    double bound; /* relative to the largest magnitude */
} kinds[] = {
    {{"cpu", 1, MN_F32, MN_F32, 0}, 2e-6},    {{"cpu", 1, MN_F16, MN_F32, 0}, 0x1p-8},
    {{"cpu", 1, MN_BF16, MN_F32, 0}, 0x1p-5}, {{"cpu", 1, MN_F32, MN_F16, 1024}, 0x1p-8},
    {{"cpu", 1, MN_F32, MN_BF16, 1}, 0x1p-5}, {{"cpu", 1, MN_F32, MN_F32, 4096}, 2e-6},
};

/* Every dtype, and AMP, against f64; the same bits on threads and on the deferred device. */
START_TEST(test_penalty_step)
{
    static double want[MOST], got[MOST], again[MOST];
    static const int threads[4] = {2, 3, 5, 2};
    const setting oracle = {"cpu", 1, MN_F64, MN_F32, 0};
    double largest = 0;
    int64_t count;
    run_penalty(&oracle, want, &count);
    run_penalty(&kinds[_i].s, got, &count);
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(fabs(got[i] - want[i]) <= kinds[_i].bound * largest,
                      "element %d is %.9g, reference %.9g", (int)i, got[i], want[i]);
    for (int t = 0; t < 4; t++) {
        setting s = kinds[_i].s;
        s.threads = threads[t];
        s.device = t == 3 ? "cpu-deferred" : "cpu";
        run_penalty(&s, again, &count);
        ck_assert_mem_eq(again, got, (size_t)count * sizeof *got);
    }
}
END_TEST

static mn_tensor *loss_function(mn_context *ctx, mn_tensor **in, int count, void *user)
{
    const setting s = {"cpu", 1, MN_F64, MN_F32, 0};
    net n = {.ctx = ctx, .x = user};
    memcpy(n.p, in, (size_t)count * sizeof *in);
    mn_tensor *g, *loss = loss_of(&n, &s);
    mn_gradients(loss, &n.x, 1, true, &g);
    return mn_add(loss, mn_sum(mn_mul(g, g), 0, NULL, false));
}

/* The f64 step that the others are compared with, against central differences. */
START_TEST(test_penalty_differences)
{
    const setting s = {"cpu", 1, MN_F64, MN_F32, 0};
    mn_context *ctx = mn_check_context("cpu");
    net n = open_net(ctx, &s);
    mn_status status = mn_gradcheck(ctx, loss_function, n.x, n.p, PARAMETERS, NULL);
    ck_assert_msg(status == MN_OK, "%s", mn_error_message(ctx));
    mn_check_done(ctx);
}
END_TEST

/* ---- loss scaling ---------------------------------------------------------------------------- */

static mn_tensor *gradient_of(mn_tensor *root, mn_tensor *input, bool create_graph)
{
    mn_tensor *gradient;
    mn_status status = mn_gradients(root, &input, 1, create_graph, &gradient);
    ck_assert_msg(status == MN_OK, "%s", mn_error_message(mn_tensor_context(root)));
    return gradient;
}

/* The penalty before and after a scaled backward of another loss: scaled gradients, which unscale
 * to the true ones: of (w0 + w1) 3 and of |d(sum(w w))/dw|^2 = 4 |w|^2. */
START_TEST(test_scaled_both_orders)
{
    for (int order = 0; order < 2; order++) {
        mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
        if (order == 0)
            ck_assert_int_eq(mn_check_backward(&r, 3), MN_OK);
        mn_tensor *loss = mn_check_total(mn_mul(r.w, r.w));
        uint64_t waits = r.ctx->device->synchronizations;
        mn_tensor *scaled = gradient_of(mn_grad_scaler_scale(r.scaler, loss, 1), r.w, true);
        mn_tensor *g = mn_grad_scaler_unscale_tensor(r.scaler, scaled);
        ck_assert_uint_eq(r.ctx->device->synchronizations, waits);
        ck_assert_double_eq(mn_check_at(scaled, 1), -2048);
        ck_assert_double_eq(mn_check_at(g, 1), -2);
        ck_assert_int_eq(mn_grad_scaler_backward(r.scaler, mn_check_total(mn_mul(g, g)), 1), MN_OK);
        if (order == 1)
            ck_assert_int_eq(mn_check_backward(&r, 3), MN_OK);
        ck_assert_int_eq(mn_grad_state_get(r.w), MN_GRAD_SCALED);
        ck_assert_int_eq(mn_grad_scaler_unscale(r.scaler, r.sgd), MN_OK);
        ck_assert_double_eq(mn_check_at(mn_grad(r.w), 0), 3 + 4);
        ck_assert_double_eq(mn_check_at(mn_grad(r.w), 1), 3 - 8);
        ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_OK);
        ck_assert_int_eq(mn_grad_scaler_update(r.scaler), MN_OK);
        mn_check_run_close(&r);
    }
}
END_TEST

/* A plain backward of an unscaled penalty is plain, and mixes with nothing scaled. */
START_TEST(test_states)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 1024);
    mn_tensor *loss = mn_check_total(mn_mul(r.w, r.w));
    mn_tensor *g = gradient_of(mn_grad_scaler_scale(r.scaler, loss, 1), r.w, true);
    ck_assert_int_eq(mn_grad_state_get(r.w), MN_GRAD_NONE);
    g = mn_grad_scaler_unscale_tensor(r.scaler, g);
    mn_tensor *penalty = mn_check_total(mn_mul(g, g));
    ck_assert_int_eq(mn_check_backward(&r, 1), MN_OK);
    ck_assert_int_eq(mn_backward(penalty, 1), MN_ERR_STATE);
    mn_check_expect(r.ctx, MN_ERR_STATE, "plain backward into scaled");
    mn_zero_grad(r.w);
    ck_assert_int_eq(mn_backward(penalty, 1), MN_OK);
    ck_assert_int_eq(mn_grad_state_get(r.w), MN_GRAD_PLAIN);
    ck_assert_double_eq(mn_check_at(mn_grad(r.w), 1), -8);
    mn_check_run_close(&r);
}
END_TEST

/* A small f16 gradient survives, integers are refused, a disabled scaler changes nothing. */
START_TEST(test_unscale_tensor)
{
    mn_check_run r = mn_check_run_scale(mn_check_devices[_i], 65536);
    const int64_t size[1] = {1};
    mn_tensor *small = mn_full(r.ctx, MN_F16, 1, size, 0x1p-14);
    mn_tensor *g = mn_grad_scaler_unscale_tensor(r.scaler, small);
    ck_assert_int_eq(mn_tensor_dtype(g), MN_F32);
    ck_assert_double_eq(mn_check_at(g, 0), 0x1p-30);
    g = mn_grad_scaler_unscale_tensor(r.scaler, mn_full(r.ctx, MN_F64, 0, NULL, 3));
    ck_assert_int_eq(mn_tensor_dtype(g), MN_F64);
    ck_assert_double_eq(mn_check_at(g, 0), 0x3p-16);
    ck_assert_ptr_null(mn_grad_scaler_unscale_tensor(r.scaler, mn_full(r.ctx, MN_I32, 0, NULL, 3)));
    mn_check_expect(r.ctx, MN_ERR_DTYPE, "i32 cannot be unscaled");
    ck_assert_ptr_null(mn_grad_scaler_unscale_tensor(r.scaler, NULL));
    mn_check_expect(r.ctx, MN_ERR_ARGUMENT, "the tensor is NULL");
    ck_assert_ptr_null(mn_grad_scaler_unscale_tensor(NULL, g));
    mn_check_run_close(&r);
    mn_grad_scaler_options off = mn_grad_scaler_options_default();
    off.enabled = false;
    r = mn_check_run_open(mn_check_devices[_i], &off);
    ck_assert_ptr_eq(mn_grad_scaler_unscale_tensor(r.scaler, r.w), r.w);
    mn_check_run_close(&r);
}
END_TEST

/* ---- running out of memory ------------------------------------------------------------------- */

/* Fails allocation `fail` of a step, and all later ones; true if there were fewer. */
static bool fail_at(long fail, const setting *s, const double *want)
{
    static double got[7 * 9 * 2];
    mn_test_counter counter = {.for_good = true};
    mn_context_options options = mn_context_options_default();
    options.device = s->device;
    options.threads = 1;
    options.allocator = mn_test_counting(&counter);
    mn_context *ctx = mn_context_create(&options, NULL);
    net n = open_net(ctx, s);
    mn_scope scope = mn_scope_begin(ctx);
    mn_memory_trim(ctx);
    counter.fail_at = counter.calls + fail;
    mn_status status = penalty_step(&n, s);
    counter.fail_at = 0;
    mn_scope_end(ctx, scope);
    if (status != MN_OK) {
        mn_check_expect(ctx, MN_ERR_MEMORY, "");
        ck_assert(!ctx->in_backward && mn_is_recording(ctx));
        for (int i = 0; i < PARAMETERS; i++)
            mn_zero_grad(n.p[i]);
        mn_zero_grad(n.x);
        ck_assert_int_eq(penalty_step(&n, s), MN_OK);
    }
    ck_assert_int_eq(mn_tensor_read_f64(mn_grad(n.p[0]), got, 7 * 9 * 2), MN_OK);
    for (int i = 0; i < 7 * 9 * 2; i++)
        ck_assert_double_eq(got[i] / s->scale, want[i]);
    mn_grad_scaler_free(n.scaler);
    mn_check_done(ctx);
    ck_assert_int_eq(counter.blocks, 0);
    return status == MN_OK;
}

START_TEST(test_out_of_memory)
{
    static double want[MOST];
    setting s = kinds[3].s;
    int64_t count;
    run_penalty(&s, want, &count);
    s.device = mn_check_devices[_i];
    for (long fail = 1; !fail_at(fail, &s, want);)
        fail++;
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gradient penalty");
    TCase *tc = tcase_create("steps");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, test_penalty_step, 0, (int)(sizeof kinds / sizeof kinds[0]));
    tcase_add_test(tc, test_penalty_differences);
    tcase_add_loop_test(tc, test_scaled_both_orders, 0, 2);
    tcase_add_loop_test(tc, test_states, 0, 2);
    tcase_add_loop_test(tc, test_unscale_tensor, 0, 2);
    tcase_add_loop_test(tc, test_out_of_memory, 0, 2);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK_GETENV);
}
