/* Results of batch norm with ReLU that backward makes again for a convolution's weight gradient:
 * the bits of kept ones, whatever else uses, writes, freezes or frees what they are made of. */
#include "ops/ops.h"
#include "tests/support_counting.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <string.h>

enum { X, WEIGHT, BIAS, FILTER, OTHER_FILTER, LEAVES };

typedef struct problem {
    mn_context *context;
    mn_tensor *leaves[LEAVES], *mean, *variance;
    bool fused;
} problem;

/* A convolution of so many filters does much work on each element, or too little. */
static problem open_problem(bool fused, int64_t filters)
{
    const int64_t image[4] = {4, 6, 6, 8}, channels = 8, filter[4] = {filters, 3, 3, 8};
    problem p = {.context = mn_check_context("cpu"), .fused = fused};
    p.leaves[X] = mn_check_draw(p.context, 4, image, 1);
    p.leaves[WEIGHT] = mn_check_draw(p.context, 1, &channels, 2);
    p.leaves[BIAS] = mn_check_draw(p.context, 1, &channels, 3);
    p.leaves[FILTER] = mn_check_draw(p.context, 4, filter, 4);
    p.leaves[OTHER_FILTER] = mn_check_draw(p.context, 4, filter, 5);
    for (int i = 0; i < LEAVES; i++)
        ck_assert_int_eq(mn_set_requires_grad(p.leaves[i], true), MN_OK);
    p.mean = mn_full(p.context, MN_F32, 1, &channels, 0);
    p.variance = mn_full(p.context, MN_F32, 1, &channels, 1);
    return p;
}

static mn_tensor *normalize(problem *p)
{
    mn_tensor *const running[3] = {p->mean, p->variance, NULL}, *const *l = p->leaves;
    mn_batch_norm_options options = mn_batch_norm_options_default();
    options.training = true;
    return p->fused ? mn_batch_norm_relu(l[X], l[WEIGHT], l[BIAS], running, NULL, &options)
                    : mn_relu(mn_batch_norm(l[X], l[WEIGHT], l[BIAS], running, &options));
}

static mn_tensor *squares(mn_tensor *x)
{
    return mn_check_total(mn_mul(x, x));
}

static mn_tensor *loss_of(problem *p, mn_tensor *y, int filter)
{
    mn_conv2d_options options = mn_conv2d_options_default();
    return squares(mn_conv2d(y, p->leaves[filter], NULL, &options));
}

static void write_to(mn_tensor *x, double factor)
{
    ck_assert_int_eq(mn_tensor_scale(mn_detach(x), factor, 0), MN_OK);
}

/* What happens to the result y of batch norm, and how often it is made again. */
enum {
    ONCE,
    CONV_WITH_RELU,
    TWO_LOSSES,
    SAME_FILTER_TWICE,
    ACCUMULATED,
    SCOPE_ENDED,
    RUNNING_WRITTEN,
    BEHIND_ANOTHER_OP,
    LITTLE_WORK,
    DETACHED,
    WRITTEN_BEFORE,
    FILTER_FROZEN,
    NORM_FROZEN,
    GRADIENT_OF_FILTER,
    GRAPH,
    WAYS
};
static const unsigned times[WAYS] = {[ONCE] = 1,
                                     [CONV_WITH_RELU] = 1,
                                     [TWO_LOSSES] = 2,
                                     [ACCUMULATED] = 3,
                                     [SAME_FILTER_TWICE] = 2,
                                     [SCOPE_ENDED] = 1,
                                     [RUNNING_WRITTEN] = 1,
                                     [GRADIENT_OF_FILTER] = 1,
                                     [GRAPH] = 2};

/* Another way to the loss; the gradient of the filter that is asked for by itself, or NULL. */
static mn_tensor *solve_with(problem *p, int way, mn_tensor *y)
{
    mn_conv2d_options options = mn_conv2d_options_default();
    mn_tensor *filter = p->leaves[FILTER], *loss = NULL, *gradient = NULL;
    if (way == BEHIND_ANOTHER_OP)
        y = mn_mul_scalar(y, 1);
    if (way == DETACHED)
        y = mn_detach(y);
    if (way == WRITTEN_BEFORE && p->fused) /* of the ops alone, ReLU keeps it */
        write_to(y, 1);
    if (way == CONV_WITH_RELU)
        loss = squares(mn_conv2d_relu(y, filter, NULL, &options));
    else
        loss = loss_of(p, y, FILTER);
    if (way == TWO_LOSSES || way == SAME_FILTER_TWICE)
        loss = mn_add(loss, loss_of(p, y, way == TWO_LOSSES ? OTHER_FILTER : FILTER));
    if (way == RUNNING_WRITTEN)
        write_to(p->mean, 2);
    for (int i = 1; way == ACCUMULATED && i < 3; i++)
        loss = mn_add(loss, loss_of(p, normalize(p), FILTER));
    if (way == GRADIENT_OF_FILTER || way == GRAPH)
        ck_assert_int_eq(mn_gradients(loss, &filter, 1, way == GRAPH, &gradient), MN_OK);
    if (way == GRAPH)
        loss = mn_add(loss, squares(gradient));
    if (way != GRADIENT_OF_FILTER)
        mn_backward(loss, 1);
    ck_assert_msg(mn_ok(p->context), "%s", mn_error_message(p->context));
    return gradient;
}

static problem solve(int way, bool fused, mn_tensor **gradient)
{
    problem p = open_problem(fused, way == LITTLE_WORK ? 56 : 64);
    const int first = way == FILTER_FROZEN ? FILTER : X;
    const int last = way == FILTER_FROZEN ? FILTER : way == NORM_FROZEN ? BIAS : -1;
    for (int i = first; i <= last; i++)
        ck_assert_int_eq(mn_set_requires_grad(p.leaves[i], false), MN_OK);
    mn_scope scope = mn_scope_begin(p.context);
    mn_tensor *y = mn_retain(normalize(&p));
    if (way == SCOPE_ENDED)
        mn_scope_end(p.context, scope);
    *gradient = solve_with(&p, way, y);
    mn_release(y);
    return p;
}

static void same_bits(const mn_tensor *a, const mn_tensor *b, int which)
{
    ck_assert_msg((a == NULL) == (b == NULL), "gradient %d: there is one", which);
    ck_assert_msg(a == NULL ||
                      (mn_tensor_bytes(a) == mn_tensor_bytes(b) &&
                       memcmp(mn_tensor_data(a), mn_tensor_data(b), mn_tensor_bytes(a)) == 0),
                  "gradient %d differs", which);
}

START_TEST(made_again_or_kept_gradients_are_the_same)
{
    mn_tensor *gradients[2];
    problem one = solve(_i, true, &gradients[0]), three = solve(_i, false, &gradients[1]);
    ck_assert_uint_eq(mn_op_calls(one.context, MN_OP_batch_norm_relu_again), times[_i]);
    ck_assert_uint_eq(mn_op_calls(three.context, MN_OP_batch_norm_relu_again), 0);
    for (int i = 0; i < LEAVES; i++)
        same_bits(mn_grad(one.leaves[i]), mn_grad(three.leaves[i]), i);
    same_bits(gradients[0], gradients[1], LEAVES);
    mn_context_free(one.context);
    mn_context_free(three.context);
}
END_TEST

/* What it would be made of was written, or freed by the backward of another loss. */
START_TEST(what_is_gone_is_refused)
{
    static const char *const written[] = {
        "batch_norm_relu: input 0 was changed", "batch_norm_relu: input 1 was changed",
        "batch_norm_relu: input 2 was changed", "conv2d: input 1 was changed"};
    problem p = open_problem(true, 64);
    mn_tensor *y = normalize(&p), *loss = loss_of(&p, y, FILTER);
    for (int i = X; i <= FILTER; i++) {
        write_to(p.leaves[i], 1);
        mn_backward(loss, 1);
        mn_check_expect(p.context, MN_ERR_VERSION, written[i]);
        y = normalize(&p);
        loss = loss_of(&p, y, FILTER);
    }
    mn_tensor *other = loss_of(&p, y, OTHER_FILTER), *gradient;
    ck_assert_int_eq(mn_backward(loss, 1), MN_OK);
    mn_backward(other, 1);
    mn_check_expect(p.context, MN_ERR_STATE, "has freed (at batch_norm_relu): run the forward");
    mn_gradients(other, &p.leaves[OTHER_FILTER], 1, true, &gradient);
    mn_check_expect(p.context, MN_ERR_STATE, "has freed (at batch_norm_relu): run the forward");
    mn_backward(loss_of(&p, y, FILTER), 1);
    mn_check_expect(p.context, MN_ERR_STATE, "has freed (at batch_norm_relu): run the forward");
    ck_assert_uint_eq(mn_op_calls(p.context, MN_OP_batch_norm_relu_again), 1);
    mn_check_done(p.context);
}
END_TEST

/* y itself may be written after the convolution: what is made again is what it has read. */
START_TEST(what_was_read_is_made_again)
{
    mn_tensor *gradients[2];
    problem as_read = solve(ONCE, true, &gradients[0]), p = open_problem(true, 64);
    mn_tensor *y = normalize(&p), *loss = loss_of(&p, y, FILTER);
    write_to(y, 2);
    ck_assert_int_eq(mn_backward(loss, 1), MN_OK);
    for (int i = 0; i < LEAVES; i++)
        same_bits(mn_grad(p.leaves[i]), mn_grad(as_read.leaves[i]), i);
    mn_context_free(as_read.context);
    mn_check_done(p.context);
}
END_TEST

/* A step with moments given, a pooling, a result made again and gradients taken over. */
static void step(mn_context *context)
{
    mn_conv2d_layer_options conv = mn_conv2d_layer_options_default();
    conv.in_channels = conv.out_channels = 3;
    conv.kernel[0] = conv.kernel[1] = 3;
    mn_scope scope = mn_scope_begin(context);
    mn_module *net = mn_sequential(context);
    mn_sequential_add(net, "conv1", mn_conv2d_layer(context, &conv));
    mn_sequential_add(net, "bn", mn_batch_norm_layer(context, 3));
    mn_sequential_add(net, "relu", mn_relu_layer(context));
    conv.out_channels = 64;
    mn_sequential_add(net, "conv2", mn_conv2d_layer(context, &conv));
    mn_sequential_add(net, "bn2", mn_batch_norm_layer(context, 64));
    mn_sequential_add(net, "relu2", mn_relu_layer(context));
    mn_sequential_add(net, "pool", mn_max_pool2d_layer(context, NULL));
    mn_module_init(net);
    mn_tensor *x = mn_full(context, MN_F32, 4, (const int64_t[]){2, 6, 6, 3}, 1);
    mn_tensor *loss = mn_module_forward(net, x);
    loss = loss ? mn_sum(loss, 0, NULL, false) : NULL;
    if (mn_backward(loss, 1) == MN_OK)
        ck_assert_uint_ge(mn_op_calls(context, MN_OP_batch_norm_relu_again), 1);
    mn_scope_end(context, scope);
    mn_module_free(net);
}

START_TEST(memory_runs_out)
{
    mn_test_exhaust(step);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("again");
    TCase *tests = tcase_create("again");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, made_again_or_kept_gradients_are_the_same, 0, WAYS);
    tcase_add_test(tests, what_is_gone_is_refused);
    tcase_add_test(tests, what_was_read_is_made_again);
    tcase_add_test(tests, memory_runs_out);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
