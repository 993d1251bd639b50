/* The shadow check: what it finds, what it compares, and that it changes nothing. */
#include "tests/support_counting.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include "train/train.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t shape8[1] = {8};

/* The row of an op, the first one; fails if there is none. */
static const mn_shadow_row *row_of(const mn_shadow_report *r, const char *layer, const char *op)
{
    ck_assert_ptr_nonnull(r);
    for (int64_t i = 0; i < r->row_count; i++)
        if (strcmp(r->rows[i].op, op) == 0 && strcmp(r->rows[i].layer, layer) == 0)
            return &r->rows[i];
    ck_abort_msg("no row of %s %s", layer, op);
    return NULL;
}

static mn_shadow_options options_of(mn_dtype dtype)
{
    mn_shadow_options o = mn_shadow_options_default();
    o.dtype = dtype;
    return o;
}

/* Eight values around 1 that f16 and bf16 must round, and a parameter of a 4 by 8 layer. */
static mn_tensor *input(mn_context *ctx)
{
    double values[8];
    mn_tensor *x = mn_tensor_create(ctx, MN_F32, 1, shape8);
    for (int i = 0; i < 8; i++)
        values[i] = 1 + i / 7.0;
    mn_tensor_write_f64(x, values, 8);
    return x;
}

/* ---- a model --------------------------------------------------------------------------------- */

enum { CLASSES = 3, SIDE = 8, IMAGES = 4 };

typedef struct net {
    mn_context *ctx;
    mn_module *model;
    mn_dtype seen[8]; /* autocast dtypes of the calls */
    int calls;
} net;

static net open_net(mn_context *ctx)
{
    mn_conv2d_layer_options conv = mn_conv2d_layer_options_default();
    conv.out_channels = 4;
    conv.kernel[0] = conv.kernel[1] = 3;
    mn_module *m = mn_sequential(ctx);
    mn_sequential_add(m, "conv", mn_conv2d_layer(ctx, &conv));
    mn_sequential_add(m, "bn", mn_batch_norm_layer(ctx, 4));
    mn_sequential_add(m, "relu", mn_relu_layer(ctx));
    mn_sequential_add(m, "drop", mn_dropout_layer(ctx, 0.5));
    mn_sequential_add(m, "flatten", mn_flatten_layer(ctx));
    mn_sequential_add(m, "fc", mn_linear_layer(ctx, 4 * 36, CLASSES, true));
    mn_module_init(m);
    return (net){.ctx = ctx, .model = m};
}

static mn_tensor *net_loss(mn_context *ctx, int64_t batch, void *user)
{
    net *n = user;
    float pixels[IMAGES * SIDE * SIDE];
    int64_t labels[IMAGES];
    for (int i = 0; i < IMAGES * SIDE * SIDE; i++)
        pixels[i] = (float)((i * 37 + (int)batch * 11) % 101) / 101.0F;
    for (int i = 0; i < IMAGES; i++)
        labels[i] = (i + batch) % CLASSES;
    if (n->calls < 8)
        n->seen[n->calls++] = mn_autocast_dtype(ctx);
    mn_tensor *x = mn_tensor_from(ctx, MN_F32, 4, (int64_t[]){IMAGES, SIDE, SIDE, 1}, pixels);
    mn_tensor *y = mn_tensor_from(ctx, MN_I64, 1, (int64_t[]){IMAGES}, labels);
    return mn_cross_entropy(mn_module_forward(n->model, x), y, NULL);
}

static bool same_bytes(const mn_state_dict *a, const mn_state_dict *b)
{
    mn_state_entry p, q;
    for (int64_t i = 0; mn_state_dict_entry(a, i, &p); i++)
        if (!mn_state_dict_entry(b, i, &q) || memcmp(p.data, q.data, p.bytes) != 0)
            return false;
    return mn_state_dict_count(a) == mn_state_dict_count(b);
}

/* Parameters, their gradients, running statistics and the place in the random streams stay. */
START_TEST(changes_nothing)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    net n = open_net(ctx);
    mn_shadow_options o = options_of(MN_F16);
    o.batches = 2;
    int count;
    mn_tensor *const *p = mn_module_parameters(n.model, &count);
    mn_scope scope = mn_scope_begin(ctx);
    ck_assert_int_eq(mn_backward(net_loss(ctx, 5, &n), 1), MN_OK);
    mn_scope_end(ctx, scope);
    mn_zero_grad(p[1]);
    mn_state_dict *before = mn_state_dict_create(ctx), *after = mn_state_dict_create(ctx);
    double grad = mn_check_at(mn_grad(p[3]), 3);
    mn_module_save_state(n.model, before);
    uint64_t position = ctx->random_position;
    uint32_t calls = ctx->dropout_calls;
    uint64_t live = mn_memory_stats_get(ctx).live_bytes;
    n.calls = 0;
    mn_shadow_report *r = mn_shadow_check(ctx, net_loss, &n, &o);
    ck_assert_msg(r != NULL, "%s", mn_error_message(ctx));
    mn_module_save_state(n.model, after);
    ck_assert(same_bytes(before, after));
    ck_assert_double_eq(mn_check_at(mn_grad(p[3]), 3), grad);
    ck_assert_int_eq(mn_grad_state_get(p[3]), MN_GRAD_PLAIN);
    ck_assert_int_eq(mn_grad_state_get(p[1]), MN_GRAD_NONE);
    ck_assert_uint_eq(ctx->random_position, position);
    ck_assert_uint_eq(ctx->dropout_calls, calls);
    /* nothing but the parameters' copies in f16 is left */
    ck_assert_uint_le(mn_memory_stats_get(ctx).live_bytes, live + 4096);
    const mn_dtype order[] = {MN_F16, MN_F32, MN_F16, MN_F32, MN_F16};
    ck_assert_int_eq(n.calls, 5); /* the first one looks for the loss scale */
    ck_assert_mem_eq(n.seen, order, sizeof order);
    mn_shadow_report_free(r);
    mn_state_dict_free(before);
    mn_state_dict_free(after);
    mn_module_free(n.model);
    mn_check_done(ctx);
}
END_TEST

/* Every op that computes has one row, in the order of the calls, forward before backward. */
START_TEST(rows_of_a_model)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    net n = open_net(ctx);
    mn_shadow_options o = options_of(_i ? MN_F16 : MN_BF16);
    mn_shadow_report *r = mn_shadow_check(ctx, net_loss, &n, &o);
    static const char *const order[] = {"conv2d_moments", "batch_norm_relu", "dropout"};
    for (int i = 0; i < 3; i++)
        ck_assert_str_eq(r->rows[i].op, order[i]);
    const double step = _i ? 0x1p-10 : 0x1p-7;
    bool backward = false;
    for (int64_t i = 0; i < r->row_count; i++) {
        const mn_shadow_row *row = &r->rows[i];
        ck_assert(row->direction == MN_BACKWARD || !backward);
        backward = row->direction == MN_BACKWARD;
        ck_assert_str_ne(row->op, "cast");
        ck_assert_str_ne(row->op, "reshape");
        ck_assert_int_eq(row->compared, 1);
        ck_assert_int_eq(row->unmatched, 0);
        ck_assert_int_eq(row->nonfinite, 0);
        ck_assert_double_le(row->local_error, step);
        ck_assert(backward || row->error <= 6 * step);
        ck_assert(backward == (row->backward_of[0] != '\0'));
    }
    ck_assert(backward);
    const mn_shadow_row *conv = row_of(r, "conv", "conv2d_moments");
    ck_assert(conv->local_error > 0 && conv->rms > 0 && conv->rms <= conv->error);
    ck_assert_double_eq(conv->error, conv->local_error); /* nothing comes in */
    ck_assert_int_eq(conv->dtype, o.dtype);
    ck_assert_int_eq(row_of(r, "", "cross_entropy")->dtype, MN_F32);
    /* the same elements are dropped, so that dropout itself adds only rounding */
    ck_assert_double_le(row_of(r, "drop", "dropout")->error, 6 * step);
    ck_assert_double_eq(row_of(r, "drop", "dropout")->local_error, 0); /* times 2: exact */
    /* the bias cancels in batch norm: its gradient is rounding */
    ck_assert(isnan(row_of(r, "conv", "sum")->rms));
    ck_assert(fabs(r->loss - r->loss_fp32) < step && r->loss != r->loss_fp32);
    ck_assert_int_eq(r->first, -1);
    ck_assert_int_eq(r->past, 0);
    ck_assert_int_eq(r->unmatched, 0);
    mn_shadow_report_free(r);
    mn_module_free(n.model);
    mn_check_done(ctx);
}
END_TEST

/* With every op in FP32 the two runs give the same bits. */
START_TEST(fp32_against_fp32)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    net n = open_net(ctx);
    mn_op_info info;
    for (int i = 0; mn_op_info_get(i, &info); i++)
        mn_autocast_set_rule(ctx, info.name, MN_CAST_FP32);
    mn_shadow_options o = options_of(MN_F16);
    o.batches = 3;
    o.tolerance = 0;
    mn_shadow_report *r = mn_shadow_check(ctx, net_loss, &n, &o);
    ck_assert_ptr_nonnull(r);
    ck_assert_int_gt(r->row_count, 12);
    for (int64_t i = 0; i < r->row_count; i++) {
        ck_assert(r->rows[i].error == 0 || isnan(r->rows[i].error));
        ck_assert_double_eq(r->rows[i].local_error, 0);
        ck_assert_int_eq(r->rows[i].dtype, MN_F32);
        ck_assert_int_eq(r->rows[i].compared, 3);
    }
    ck_assert_double_eq(r->loss, r->loss_fp32);
    ck_assert_int_eq(r->first, -1);
    ck_assert_int_eq(r->worst_local, -1);
    mn_shadow_report_free(r);
    mn_module_free(n.model);
    mn_check_done(ctx);
}
END_TEST

/* ---- what it finds --------------------------------------------------------------------------- */

/* 3000 is lost in 16 bit when 1e4 x + 1 has 1e4 x taken away; the mean after it passes it on. */
static mn_tensor *cancelling(mn_context *ctx, int64_t batch, void *user)
{
    (void)batch;
    mn_tensor *one = mn_full(ctx, MN_F32, 1, shape8, 1);
    mn_tensor *x = mn_autocast_dtype(ctx) == MN_F32 ? input(ctx) : mn_cast(input(ctx), MN_BF16);
    mn_name_push(ctx, user);
    mn_tensor *large = mn_mul_scalar(x, 1e4);
    mn_tensor *near = mn_add(large, mn_cast(one, mn_tensor_dtype(large)));
    mn_tensor *rest = mn_sub(near, large);
    mn_name_pop(ctx);
    return mn_mean(rest, 0, NULL, false);
}

START_TEST(finds_a_cancellation)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    char layer[] = "block.2";
    mn_shadow_report *r = mn_shadow_check(ctx, cancelling, layer, NULL);
    ck_assert_ptr_nonnull(r);
    ck_assert_int_ge(r->first, 0);
    ck_assert_str_eq(r->rows[r->first].op, "sub");
    ck_assert_str_eq(r->rows[r->first].layer, "block.2");
    ck_assert_double_eq(r->rows[r->first].local_error, 0); /* exact: the loss came in */
    ck_assert_str_eq(r->rows[r->worst_local].op, "affine");
    ck_assert_double_le(row_of(r, "block.2", "add")->error, 0x1p-7);
    ck_assert_int_eq(r->past, 2);         /* and the mean */
    memset(layer, 'x', sizeof layer - 1); /* the report has its own copy */
    ck_assert_str_eq(r->rows[r->first].layer, "block.2");
    mn_check_done(ctx); /* and outlives the context */
    ck_assert_str_eq(r->rows[r->first].layer, "block.2");
    mn_shadow_report_free(r);
}
END_TEST

/* Products overflow in FP16; the cast to FP16 that comes before a linear layer does, too. */
static mn_tensor *overflowing(mn_context *ctx, int64_t batch, void *user)
{
    const bool early = *(bool *)user;
    mn_tensor *w = mn_full(ctx, MN_F32, 2, (int64_t[]){4, 8}, early ? 1 : 300);
    mn_tensor *x = mn_mul_scalar(input(ctx), (early ? 1e5 : 300) * (double)(batch == 1));
    mn_set_requires_grad(w, true);
    mn_name_push(ctx, "wide");
    mn_tensor *y = mn_linear(x, w, NULL);
    mn_name_pop(ctx);
    return mn_mean(mn_relu(y), 0, NULL, false);
}

START_TEST(finds_an_overflow)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i & 1]);
    bool early = _i > 1;
    mn_shadow_options o = options_of(MN_F16);
    o.batches = 2;
    mn_shadow_report *r = mn_shadow_check(ctx, overflowing, &early, &o);
    const mn_shadow_row *row = row_of(r, "wide", "linear");
    ck_assert_int_eq(row->nonfinite, 4); /* of batch 1 only */
    ck_assert(row->error == HUGE_VAL && row->local_error == HUGE_VAL && row->rms == HUGE_VAL);
    ck_assert_ptr_eq(&r->rows[r->first], row);
    ck_assert_ptr_eq(&r->rows[r->worst_local], row);
    ck_assert_double_eq(row_of(r, "", "relu")->local_error, 0); /* passes it on */
    mn_shadow_report_free(r);
    mn_check_done(ctx);
}
END_TEST

/* A sum whose rule keeps it in f16 loses what a sum in f32 has, in the op itself. */
static mn_tensor *summing(mn_context *ctx, int64_t batch, void *user)
{
    (void)batch, (void)user;
    mn_tensor *w = mn_full(ctx, MN_F32, 2, (int64_t[]){300, 8}, 1);
    mn_tensor *y = mn_linear(mn_mul_scalar(input(ctx), 100), w, NULL);
    return mn_sum(y, 0, NULL, false);
}

START_TEST(finds_a_rule)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_shadow_options o = options_of(MN_F16);
    mn_shadow_report *r = mn_shadow_check(ctx, summing, NULL, &o);
    ck_assert_int_eq(r->first, -1);
    ck_assert_int_eq(row_of(r, "", "sum")->dtype, MN_F32);
    mn_shadow_report_free(r);
    mn_autocast_set_rule(ctx, "sum", MN_CAST_LOWER);
    r = mn_shadow_check(ctx, summing, NULL, &o);
    ck_assert_str_eq(r->rows[r->first].op, "sum");
    ck_assert_double_eq(r->rows[r->first].local_error, HUGE_VAL);
    mn_shadow_report_free(r);
    mn_check_done(ctx);
}
END_TEST

/* ---- calls that do not match ----------------------------------------------------------------- */

/* tanh runs in 16 bit only, sigmoid in FP32 only; abs before and after both. */
static mn_tensor *branching(mn_context *ctx, int64_t batch, void *user)
{
    (void)batch, (void)user;
    mn_tensor *x = mn_abs(input(ctx));
    x = mn_autocast_dtype(ctx) == MN_F32 ? mn_sigmoid(x) : mn_tanh(mn_tanh(x));
    return mn_mean(mn_abs(x), 0, NULL, false);
}

START_TEST(unmatched_calls)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_shadow_options o = options_of(MN_BF16);
    o.batches = 2;
    mn_shadow_report *r = mn_shadow_check(ctx, branching, NULL, &o);
    ck_assert_ptr_nonnull(r);
    static const struct {
        const char *op;
        int64_t occurrence, compared, unmatched;
    } want[] = {{"abs", 0, 2, 0},     {"tanh", 0, 0, 2}, {"tanh", 1, 0, 2},
                {"sigmoid", 0, 0, 2}, {"abs", 1, 2, 0},  {"mean", 0, 2, 0}};
    ck_assert_int_eq(r->row_count, 6);
    for (int i = 0; i < 6; i++) {
        ck_assert_str_eq(r->rows[i].op, want[i].op);
        ck_assert_int_eq(r->rows[i].occurrence, want[i].occurrence);
        ck_assert_int_eq(r->rows[i].compared, want[i].compared);
        ck_assert_int_eq(r->rows[i].unmatched, want[i].unmatched);
        ck_assert_int_eq(isnan(r->rows[i].error), want[i].unmatched > 0);
    }
    ck_assert_int_eq(r->unmatched, 3);
    mn_shadow_report_free(r);
    mn_check_done(ctx);
}
END_TEST

/* A result that is written after it was made is not what the op gave. */
static mn_tensor *writing(mn_context *ctx, int64_t batch, void *user)
{
    (void)batch;
    mn_tensor *const *written = user, *kept = written[0], *y = mn_abs(input(ctx));
    mn_tensor_scale(written[1], 3, 0);
    mn_tensor_add(kept, y, 1);
    mn_tensor *z = mn_mul(kept, y);
    mn_tensor_scale(y, 3, 0);
    return mn_mean(mn_add(y, z), 0, NULL, false);
}

START_TEST(written_results)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *kept = mn_full(ctx, MN_F32, 1, shape8, 0.25);
    mn_tensor *written[2] = {kept, mn_tensor_create(ctx, MN_F32, 1, (const int64_t[]){0})};
    mn_shadow_report *r = mn_shadow_check(ctx, writing, written, NULL);
    ck_assert_int_eq(row_of(r, "", "abs")->unmatched, 1);
    ck_assert_int_eq(row_of(r, "", "mul")->compared, 1);
    ck_assert_double_eq(row_of(r, "", "mul")->error, 0); /* both began with 0.25 */
    ck_assert_double_eq(mn_check_at(kept, 7), 0.25);
    mn_shadow_report_free(r);
    mn_check_done(ctx);
}
END_TEST

/* ---- loss scale ------------------------------------------------------------------------------ */

/* Gradients of 4 are too much for f16 with a scale above 2^13. */
static mn_tensor *steep(mn_context *ctx, int64_t batch, void *user)
{
    (void)ctx, (void)batch;
    mn_tensor *x = mn_detach(user);
    mn_set_requires_grad(x, true);
    return mn_sum(mn_mul_scalar(mn_cast(x, MN_F16), 4), 0, NULL, false);
}

START_TEST(loss_scale)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = input(ctx);
    mn_shadow_options o = options_of(MN_F16);
    mn_shadow_report *r = mn_shadow_check(ctx, steep, x, &o);
    ck_assert_double_eq(r->loss_scale, 8192);
    ck_assert_int_eq(r->first, -1);
    mn_shadow_report_free(r);
    o.loss_scale = 65536;
    r = mn_shadow_check(ctx, steep, x, &o);
    ck_assert_double_eq(r->loss_scale, 65536);
    mn_shadow_report_free(r);
    o.backward = false;
    r = mn_shadow_check(ctx, steep, x, &o);
    ck_assert_double_eq(r->loss_scale, 1);
    for (int64_t i = 0; i < r->row_count; i++)
        ck_assert_int_eq(r->rows[i].direction, MN_FORWARD);
    mn_shadow_report_free(r);
    r = mn_shadow_check(ctx, steep, x, NULL);
    ck_assert_double_eq(r->loss_scale, 1);
    mn_shadow_report_free(r);
    mn_check_done(ctx);
}
END_TEST

/* ---- refusals and failures ------------------------------------------------------------------- */

typedef struct fault {
    int kind, call, at; /* which fault, at which call */
    mn_tensor *buffer;
    mn_optimizer *optimizer;
} fault;

static mn_tensor *faulty(mn_context *ctx, int64_t batch, void *user)
{
    fault *f = user;
    mn_tensor_add(f->buffer, input(ctx), 1);
    if (f->call++ == f->at) {
        switch (f->kind) {
        case 0:
            return NULL;
        case 1:
            return mn_add(input(ctx), mn_full(ctx, MN_F32, 1, (int64_t[]){3}, 1));
        case 2:
            return input(ctx);
        case 3:
            mn_autocast_begin(ctx, MN_BF16);
            break;
        case 4:
            mn_optimizer_step(f->optimizer);
            break;
        case 5:
            ck_assert_ptr_null(mn_shadow_check(ctx, faulty, user, NULL));
            break;
        default: /* a label out of range, which the device finds */
            return mn_cross_entropy(mn_full(ctx, MN_F32, 2, (int64_t[]){1, 2}, 1),
                                    mn_full(ctx, MN_I64, 1, (int64_t[]){1}, 7), NULL);
        }
    }
    (void)batch;
    return mn_mean(mn_abs(input(ctx)), 0, NULL, false);
}

START_TEST(faults)
{
    static const struct {
        mn_status status;
        const char *part;
    } want[] = {{MN_ERR_ARGUMENT, "the function's result"},
                {MN_ERR_SHAPE, "add"},
                {MN_ERR_SHAPE, "one element"},
                {MN_ERR_STATE, "must not open an autocast region"},
                {MN_ERR_STATE, "must not step"},
                {MN_ERR_STATE, "inside of another one"},
                {MN_ERR_ARGUMENT, "label"}};
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *p = mn_check_leaf(ctx, "p", MN_F32);
    mn_optimizer *optimizer = mn_check_sgd_of(ctx, &p, 1);
    mn_tensor *buffer = mn_full(ctx, MN_F32, 1, shape8, 0.25);
    mn_check_give_gradient(p, 1, NULL);
    for (int k = 0; k < 7; k++) {
        for (int at = 0; at < (k == 3 ? 1 : 2); at++) {
            fault f = {.kind = k, .at = at, .buffer = buffer, .optimizer = optimizer};
            ck_assert_ptr_null(mn_shadow_check(ctx, faulty, &f, NULL));
            mn_check_expect(ctx, want[k].status, want[k].part);
            ck_assert_double_eq(mn_check_at(buffer, 7), 0.25);
            ck_assert_double_eq(mn_check_at(p, 1), mn_check_start[1]);
            ck_assert_int_eq(mn_autocast_dtype(ctx), MN_F32);
            f.at = -1;
            mn_shadow_report *r = mn_shadow_check(ctx, faulty, &f, NULL);
            ck_assert_msg(r != NULL, "%s", mn_error_message(ctx));
            mn_shadow_report_free(r);
        }
    }
    ck_assert_int_eq(mn_optimizer_step(optimizer), MN_OK);
    mn_optimizer_free(optimizer);
    mn_release(p);
    mn_check_done(ctx);
}
END_TEST

START_TEST(refusals)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_shadow_options o = options_of(MN_F32);
    ck_assert_ptr_null(mn_shadow_check(NULL, branching, NULL, NULL));
    ck_assert_ptr_null(mn_shadow_check(ctx, NULL, NULL, NULL));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "function is NULL");
    ck_assert_ptr_null(mn_shadow_check(ctx, branching, NULL, &o));
    mn_check_expect(ctx, MN_ERR_DTYPE, "f32, must be f16 or bf16");
    o = mn_shadow_options_default();
    o.batches = 0;
    ck_assert_ptr_null(mn_shadow_check(ctx, branching, NULL, &o));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "batches");
    o = mn_shadow_options_default();
    o.tolerance = -1;
    ck_assert_ptr_null(mn_shadow_check(ctx, branching, NULL, &o));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "tolerance");
    o = mn_shadow_options_default();
    o.loss_scale = HUGE_VAL;
    ck_assert_ptr_null(mn_shadow_check(ctx, branching, NULL, &o));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "loss_scale");
    o.size++;
    ck_assert_ptr_null(mn_shadow_check(ctx, branching, NULL, &o));
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "mn_shadow_check");
    mn_shadow_report_free(NULL);
    mn_check_done(ctx);
}
END_TEST

/* ---- memory ---------------------------------------------------------------------------------- */

static void exhaust(mn_context *ctx)
{
    mn_scope scope = mn_scope_begin(ctx);
    mn_tensor *kept = mn_full(ctx, MN_F32, 1, shape8, 0.25);
    mn_shadow_options o = options_of(MN_F16);
    mn_tensor *w = mn_full(ctx, MN_F32, 2, (int64_t[]){4, 8}, 0.5);
    mn_set_requires_grad(w, true);
    mn_tensor *written[2] = {kept, kept};
    mn_shadow_report_free(mn_shadow_check(ctx, writing, written, &o));
    if (mn_error_status(ctx) == MN_OK)
        ck_assert_double_eq(mn_check_at(kept, 0), 0.25);
    bool early = false;
    mn_shadow_report_free(mn_shadow_check(ctx, overflowing, &early, &o));
    mn_scope_end(ctx, scope);
}

START_TEST(out_of_memory)
{
    mn_test_exhaust(exhaust);
}
END_TEST

/* A limit that a step just fits in, as it was measured without one, but not what is kept of it. */
START_TEST(memory_limit)
{
    mn_context_options options = mn_context_options_default();
    options.threads = 1;
    uint64_t peak = 0;
    for (int i = 0; i < 2; i++) {
        options.memory_limit = peak;
        mn_context *ctx = mn_context_create(&options, NULL);
        net n = open_net(ctx);
        mn_scope scope = mn_scope_begin(ctx);
        ck_assert_int_eq(mn_backward(net_loss(ctx, 0, &n), 1), MN_OK);
        mn_scope_end(ctx, scope);
        peak = mn_memory_stats_get(ctx).peak_bytes;
        uint64_t live = mn_memory_stats_get(ctx).live_bytes;
        mn_shadow_report *r = mn_shadow_check(ctx, net_loss, &n, NULL);
        ck_assert_int_eq(r != NULL, i == 0);
        if (!r) {
            mn_check_expect(ctx, MN_ERR_MEMORY, "");
            ck_assert_uint_le(mn_memory_stats_get(ctx).live_bytes, live + 2048);
        }
        mn_shadow_report_free(r);
        mn_module_free(n.model);
        mn_check_done(ctx);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shadow");
    TCase *tc = tcase_create("shadow");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, changes_nothing, 0, 2);
    tcase_add_loop_test(tc, rows_of_a_model, 0, 2);
    tcase_add_loop_test(tc, fp32_against_fp32, 0, 2);
    tcase_add_loop_test(tc, finds_a_cancellation, 0, 2);
    tcase_add_loop_test(tc, finds_an_overflow, 0, 4);
    tcase_add_loop_test(tc, finds_a_rule, 0, 2);
    tcase_add_loop_test(tc, unmatched_calls, 0, 2);
    tcase_add_loop_test(tc, written_results, 0, 2);
    tcase_add_loop_test(tc, loss_scale, 0, 2);
    tcase_add_loop_test(tc, faults, 0, 2);
    tcase_add_test(tc, refusals);
    tcase_add_test(tc, out_of_memory);
    tcase_add_test(tc, memory_limit);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK_GETENV);
}
