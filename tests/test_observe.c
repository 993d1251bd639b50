/* Observers: what they are told of each call, in which order, and what they may do meanwhile. */
#include "ops/internal.h"
#include "tests/support_ops.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

enum { MOST = 200 };

/* Writes down what it is told. The letter stands for it in `order`: upper case before, lower case
 * after a call. */
typedef struct watcher {
    mn_observer observer; /* first */
    char letter;
    char *order;
    int befores, rehearsals, count;
    struct {
        const mn_op *op, *backward_of;
        char layer[32];
        mn_direction direction;
        mn_cast_choice cast;
        mn_served_by served;
        const mn_storage *output;
    } seen[MOST];
    bool refuse, apply;            /* before: fails; after: applies an op itself */
    mn_observer *remove, *removed; /* in before; in after */
    mn_observer *add;              /* in before */
    mn_store_counts *stores;
} watcher;

static void note(watcher *w, char letter)
{
    if (w->order)
        strncat(w->order, &letter, 1);
}

static mn_status before(mn_observer *observer, mn_context *context, mn_observed *call)
{
    watcher *w = (watcher *)observer;
    note(w, w->letter);
    w->befores++;
    w->rehearsals += call->rehearsing;
    for (int i = 0; i < call->op->outputs; i++)
        ck_assert_ptr_null(call->outputs[i]);
    if (w->remove)
        mn_observer_remove(context, w->remove);
    if (w->add)
        mn_observer_add(context, w->add);
    w->add = NULL;
    if (w->stores)
        call->stores = w->stores;
    return w->refuse ? mn_fail(context, MN_ERR_CANCELLED, "refused") : MN_OK;
}

static void after(mn_observer *observer, mn_context *context, const mn_observed *call)
{
    watcher *w = (watcher *)observer;
    note(w, (char)(w->letter + 'a' - 'A'));
    ck_assert(!call->rehearsing && w->count < MOST);
    w->seen[w->count].op = call->op;
    w->seen[w->count].backward_of = call->backward_of;
    snprintf(w->seen[w->count].layer, sizeof w->seen[w->count].layer, "%s", call->layer);
    w->seen[w->count].direction = call->direction;
    w->seen[w->count].cast = call->cast;
    w->seen[w->count].served = call->served;
    w->seen[w->count].output = call->op->outputs > 0 ? call->outputs[0]->storage : NULL;
    w->count++;
    if (w->removed)
        mn_observer_remove(context, w->removed);
    if (w->apply)
        ck_assert_ptr_nonnull(mn_relu(call->outputs[0]));
}

static void watch(mn_context *ctx, watcher *w, char letter, char *order)
{
    *w =
        (watcher){.observer = {.before = before, .after = after}, .letter = letter, .order = order};
    if (ctx)
        mn_observer_add(ctx, &w->observer);
}

static int count_op(const watcher *w, const mn_op *op)
{
    int count = 0;
    for (int i = 0; i < w->count; i++)
        count += w->seen[i].op == op;
    return count;
}

START_TEST(test_order)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = mn_test_vector(ctx, MN_F32, 3, 1);
    char order[64] = "";
    watcher a, b;
    watch(ctx, &a, 'A', order);
    watch(ctx, &b, 'B', order);
    mn_neg(x);
    ck_assert_str_eq(order, "BAba");
    b.apply = true; /* what an observer applies is told to nobody */
    mn_neg(x);
    ck_assert_str_eq(order, "BAbaBAba");
    mn_observer_remove(ctx, &b.observer);
    mn_observer_remove(ctx, &b.observer);
    mn_neg(x);
    ck_assert_str_eq(order, "BAbaBAbaAa");
    a.observer.before = NULL;
    mn_neg(x);
    a.observer.after = NULL;
    mn_neg(x);
    ck_assert_str_eq(order, "BAbaBAbaAaa");
    mn_observer_remove(ctx, &a.observer);
    ck_assert_ptr_null(ctx->observers);
    mn_check_done(ctx);
}
END_TEST

/* One that is removed while a call is told of hears no more of it, the others do. */
START_TEST(test_removed_inside)
{
    static const char *const orders[] = {"CBAba", "CAca", "CBAcba", "CBAca"};
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *x = mn_test_vector(ctx, MN_F32, 3, 1);
    char order[64] = "";
    watcher a, b, c;
    watch(ctx, &a, 'A', order);
    watch(ctx, &b, 'B', order);
    watch(ctx, &c, 'C', order);
    *(_i < 2 ? &c.remove : &c.removed) = _i % 2 ? &b.observer : &c.observer;
    mn_neg(x);
    ck_assert_str_eq(order, orders[_i]);
    order[0] = '\0';
    mn_neg(x);
    ck_assert_str_eq(order, _i % 2 ? "CAca" : "BAba");
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_added_inside)
{
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *x = mn_test_vector(ctx, MN_F32, 3, 1);
    char order[64] = "";
    watcher a, b;
    watch(ctx, &a, 'A', order);
    watch(NULL, &b, 'B', order);
    a.add = &b.observer;
    mn_neg(x);
    ck_assert_int_eq(b.befores, 0);
    order[0] = '\0';
    mn_neg(x);
    ck_assert_str_eq(order, "BAba");
    mn_check_done(ctx);
}
END_TEST

/* A call that an observer refuses does not run, nor is anybody told that it has. */
START_TEST(test_refused)
{
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = mn_test_vector(ctx, MN_F32, 3, 1);
    char order[64] = "";
    watcher a, b;
    watch(ctx, &a, 'A', order);
    watch(ctx, &b, 'B', order);
    b.refuse = true;
    uint64_t version = mn_tensor_version(x), calls = mn_op_calls(ctx, MN_OP_affine);
    ck_assert_ptr_null(mn_neg(x));
    mn_check_expect(ctx, MN_ERR_CANCELLED, "refused");
    ck_assert_int_eq(mn_tensor_fill(x, 2), MN_ERR_CANCELLED);
    mn_error_clear(ctx);
    ck_assert_uint_eq(mn_tensor_version(x), version);
    ck_assert_uint_eq(mn_op_calls(ctx, MN_OP_affine), calls);
    ck_assert_str_eq(order, "BB");
    ck_assert_double_eq(mn_check_at(x, 0), 1);
    b.refuse = false;
    ck_assert_double_eq(mn_check_at(mn_neg(x), 0), -1);
    ck_assert_str_eq(order, "BBBAba");
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_failed_call)
{
    mn_context *ctx = mn_check_context("cpu");
    char order[64] = "";
    watcher a;
    watch(ctx, &a, 'A', order);
    mn_tensor *x = mn_test_vector(ctx, MN_F32, 2, 1), *index = mn_test_vector(ctx, MN_I64, 2, 9);
    order[0] = '\0';
    ck_assert_ptr_null(mn_gather(x, 0, index)); /* seen when the kernel has run */
    mn_check_expect(ctx, MN_ERR_ARGUMENT, "gather");
    mn_neg(x);
    ck_assert_str_eq(order, "AAa");
    mn_check_done(ctx);
}
END_TEST

/* A step is rehearsed call by call; nothing of that has run. */
START_TEST(test_rehearsal)
{
    mn_check_run r = mn_check_run_open(mn_check_devices[_i], NULL);
    watcher a;
    mn_check_backward(&r, 0.5);
    watch(r.ctx, &a, 'A', NULL);
    ck_assert_int_eq(mn_grad_scaler_step(r.scaler, r.sgd, NULL), MN_OK);
    ck_assert_int_eq(a.rehearsals, 2);
    ck_assert_int_eq(a.befores, a.count + a.rehearsals);
    ck_assert_int_eq(count_op(&a, &mn_ops[MN_OP_sgd_step]), 1);
    ck_assert_int_eq(count_op(&a, &mn_ops[MN_OP_optimizer_finish]), 1);
    for (int i = 0; i < a.count; i++)
        ck_assert_int_eq(a.seen[i].direction, MN_UPDATE);
    mn_observer_remove(r.ctx, &a.observer);
    mn_check_run_close(&r);
}
END_TEST

START_TEST(test_shadow)
{
    static const int64_t square[2] = {2, 2};
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = mn_parameter_create(ctx, "w", MN_F32, 2, square, MN_LAYOUT_PLAIN);
    mn_tensor *x = mn_full(ctx, MN_F16, 2, square, 1);
    char order[64] = "";
    watcher a;
    watch(ctx, &a, 'A', order);
    mn_autocast_begin(ctx, MN_F16);
    mn_matmul(x, w);
    mn_matmul(x, w);
    mn_autocast_end(ctx);
    ck_assert_str_eq(order, "AaAaAaAa");
    const mn_served_by served[4] = {a.seen[0].served, a.seen[1].served, a.seen[2].served,
                                    a.seen[3].served};
    ck_assert_int_eq(served[0], served[1]);
    ck_assert_int_eq(served[2], MN_SERVED_SHADOW);
    ck_assert_int_eq(served[3], served[1]);
    ck_assert_ptr_eq(a.seen[0].output, a.seen[2].output);
    for (int i = 0; i < 4; i++) {
        const mn_cast_choice *cast = &a.seen[i].cast;
        ck_assert_ptr_eq(a.seen[i].op, &mn_ops[i % 2 ? MN_OP_matmul : MN_OP_cast]);
        ck_assert(cast->active && cast->is_cast == (i % 2 == 0));
        ck_assert(cast->rule == MN_CAST_LOWER && cast->region == MN_F16 && !cast->overridden);
    }
    mn_autocast_begin(ctx, MN_F16);
    a.refuse = true; /* a cast that needs no work can be refused as well */
    ck_assert_ptr_null(mn_matmul(x, w));
    mn_check_expect(ctx, MN_ERR_CANCELLED, "refused");
    ck_assert_int_eq(a.count, 4);
    mn_autocast_end(ctx);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

/* y = x, with an f32 kernel only. */
static mn_status same_infer(mn_infer *infer)
{
    mn_output_like(infer, 0, 0);
    return MN_OK;
}

static void same_run(const mn_call *call)
{
    memcpy(call->out[0].data, call->in[0].data, (size_t)call->in[0].numel * sizeof(float));
}

static mn_status same_backward(mn_backward_call *call)
{
    call->grad_in[0] = mn_mul_scalar(call->grad_out[0], 1);
    return mn_error_status(call->context);
}

static const mn_op same = {.size = sizeof(mn_op),
                           .name = "same",
                           .min_inputs = 1,
                           .max_inputs = 1,
                           .outputs = 1,
                           .differentiable = 1,
                           .infer = same_infer,
                           .backward = same_backward,
                           .kernels = {{1u << MN_F32, NULL, same_run}}};

START_TEST(test_widened_once)
{
    static const mn_served_by served[2] = {MN_SERVED_WIDENED, MN_SERVED_KERNEL};
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x[2] = {mn_test_vector(ctx, MN_F16, 3, 5), mn_test_vector(ctx, MN_F32, 3, 5)}, *y;
    watcher a;
    watch(ctx, &a, 'A', NULL);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(mn_apply(ctx, &same, &x[i], 1, NULL, &y), MN_OK);
        ck_assert_double_eq(mn_check_at(y, 2), 5);
        ck_assert_int_eq(a.count, i + 1);
        ck_assert_ptr_eq(a.seen[i].op, &same);
        ck_assert_int_eq(a.seen[i].served, served[i]);
    }
    mn_check_done(ctx);
}
END_TEST

/* Backward carries the layer of the op whose gradient it makes, also for custom ops. */
START_TEST(test_backward_layers)
{
    const double one[1] = {1};
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *w = mn_check_parameter(ctx, "w", 1, one), *y;
    mn_name_push(ctx, "outer");
    mn_name_push(ctx, "inner");
    ck_assert_int_eq(mn_apply(ctx, &same, &w, 1, NULL, &y), MN_OK);
    mn_name_pop(ctx);
    mn_tensor *z = mn_reshape(mn_exp(y), 0, NULL);
    mn_name_pop(ctx);
    watcher a;
    watch(ctx, &a, 'A', NULL);
    mn_name_push(ctx, "elsewhere");
    ck_assert_int_eq(mn_backward(z, 1), MN_OK);
    mn_name_pop(ctx);
    int of_same = 0, of_exp = 0;
    for (int i = 0; i < a.count; i++) {
        bool custom = a.seen[i].backward_of == &same;
        if (a.seen[i].direction != MN_BACKWARD) {
            ck_assert_str_eq(a.seen[i].layer, "elsewhere"); /* the first gradient */
            continue;
        }
        ck_assert_str_eq(a.seen[i].layer, custom ? "outer.inner" : "outer");
        of_same += custom;
        of_exp += a.seen[i].backward_of == &mn_ops[MN_OP_exp];
    }
    ck_assert_int_ge(of_same, 2); /* its affine, and into the leaf */
    ck_assert_int_ge(of_exp, 1);
    ck_assert_ptr_null(ctx->backward_of);
    mn_release(w);
    mn_check_done(ctx);
}
END_TEST

START_TEST(test_stores)
{
    static const float values[5] = {1e-9f, 1, 0, -1e-30f, 7};
    static const int64_t five[1] = {5};
    mn_context *ctx = mn_check_context(mn_check_devices[_i]);
    mn_tensor *x = mn_tensor_from(ctx, MN_F32, 1, five, values);
    mn_store_counts counts = {0, 0};
    watcher a;
    watch(ctx, &a, 'A', NULL);
    mn_cast(x, MN_F16); /* not counted */
    a.stores = &counts;
    mn_cast(x, MN_F16);
    a.stores = NULL;
    mn_cast(x, MN_F16);
    ck_assert_int_eq(mn_synchronize(ctx), MN_OK);
    ck_assert_uint_eq(counts.stored, 4);
    ck_assert_uint_eq(counts.lost, 2);
    mn_check_done(ctx);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("observe");
    TCase *tc = tcase_create("observers");
    tcase_add_loop_test(tc, test_order, 0, 2);
    tcase_add_loop_test(tc, test_removed_inside, 0, 4);
    tcase_add_test(tc, test_added_inside);
    tcase_add_loop_test(tc, test_refused, 0, 2);
    tcase_add_test(tc, test_failed_call);
    tcase_add_loop_test(tc, test_rehearsal, 0, 2);
    tcase_add_loop_test(tc, test_shadow, 0, 2);
    tcase_add_loop_test(tc, test_widened_once, 0, 2);
    tcase_add_loop_test(tc, test_backward_layers, 0, 2);
    tcase_add_loop_test(tc, test_stores, 0, 2);
    suite_add_tcase(suite, tc);
    return mn_test_run(suite, CK_FORK);
}
