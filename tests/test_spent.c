/* Gradients whose memory the next op's result takes: the same bits as in memory of its own, whoever
 * else has the gradient; and no more memory. */
#include "ops/ops.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <string.h>

enum { IMAGE, OTHER, WEIGHT, BIAS, FILTER, LEAVES };

typedef struct problem {
    mn_context *context;
    mn_observer observer;
    mn_tensor *leaves[LEAVES], *mean, *variance;
} problem;

/* Who looks on may read what would be overwritten: with an observer nothing is. */
static void open_problem(problem *p, mn_kernel_set kernels, bool watched)
{
    const int64_t image[4] = {3, 5, 7, 11}, channels = 11, filter[4] = {11, 3, 3, 11};
    mn_context_options options = mn_context_options_default();
    options.kernels = kernels;
    options.threads = 1;
    *p = (problem){.context = mn_context_create(&options, NULL)};
    ck_assert_ptr_nonnull(p->context);
    if (watched)
        mn_observer_add(p->context, &p->observer);
    p->leaves[IMAGE] = mn_check_draw(p->context, 4, image, 1);
    p->leaves[OTHER] = mn_check_draw(p->context, 4, image, 2);
    p->leaves[WEIGHT] = mn_check_draw(p->context, 1, &channels, 3);
    p->leaves[BIAS] = mn_check_draw(p->context, 1, &channels, 4);
    p->leaves[FILTER] = mn_check_draw(p->context, 4, filter, 5);
    for (int i = 0; i < LEAVES; i++)
        ck_assert_int_eq(mn_set_requires_grad(p->leaves[i], true), MN_OK);
    p->mean = mn_full(p->context, MN_F32, 1, &channels, 0);
    p->variance = mn_full(p->context, MN_F32, 1, &channels, 1);
}

static mn_tensor *norm(problem *p, mn_tensor *x, bool relu, mn_tensor *residual)
{
    mn_tensor *const running[3] = {p->mean, p->variance, NULL}, *const *l = p->leaves;
    mn_batch_norm_options options = mn_batch_norm_options_default();
    options.training = true;
    return relu ? mn_batch_norm_relu(x, l[WEIGHT], l[BIAS], running, residual, &options)
                : mn_batch_norm(x, l[WEIGHT], l[BIAS], running, &options);
}

static mn_tensor *conv(problem *p, mn_tensor *x, bool relu)
{
    mn_conv2d_options options = mn_conv2d_options_default();
    options.padding[0] = options.padding[1] = 1;
    return relu ? mn_conv2d_relu(x, p->leaves[FILTER], NULL, &options)
                : mn_conv2d(x, p->leaves[FILTER], NULL, &options);
}

/* Graphs in which ops have a gradient for themselves, or share it. */
enum {
    RELU,
    NORM,
    NORM_RELU,
    RESIDUAL,
    RESIDUAL_OF_ITSELF,
    CONV_RELU,
    CHAIN,
    USED_TWICE,
    SUM_OF_TWO,
    SUM_OF_ONE,
    OF_LEAF,
    GRAPHS
};

static mn_tensor *result_of(problem *p, int graph)
{
    mn_tensor *x = mn_mul(p->leaves[IMAGE], p->leaves[OTHER]), *y = mn_mul_scalar(x, 0.5);
    switch (graph) {
    case RELU:
        return mn_relu(x);
    case NORM:
        return norm(p, x, false, NULL);
    case NORM_RELU:
        return norm(p, x, true, NULL);
    case RESIDUAL:
        return norm(p, x, true, y);
    case RESIDUAL_OF_ITSELF:
        return norm(p, x, true, x);
    case CONV_RELU:
        return conv(p, norm(p, x, true, NULL), true);
    case CHAIN:
        return mn_relu(norm(p, mn_relu(conv(p, norm(p, x, true, y), true)), true, NULL));
    case USED_TWICE:
        y = norm(p, x, true, NULL);
        return mn_mul(y, conv(p, y, false));
    case SUM_OF_TWO:
        return mn_add(norm(p, x, true, NULL), mn_relu(y));
    case SUM_OF_ONE:
        y = mn_relu(y);
        return mn_add(y, y);
    default:
        return norm(p, p->leaves[IMAGE], true, p->leaves[OTHER]);
    }
}

static void solve(problem *p, int graph, mn_dtype amp)
{
    mn_scope scope = mn_scope_begin(p->context);
    ck_assert_int_eq(mn_autocast_begin(p->context, amp), MN_OK);
    mn_tensor *y = result_of(p, graph);
    mn_autocast_end(p->context);
    y = mn_cast(y, MN_F32);
    mn_backward(mn_check_total(mn_mul(y, y)), 1);
    ck_assert_msg(mn_ok(p->context), "%s", mn_error_message(p->context));
    mn_scope_end(p->context, scope);
}

static void compare(int graph, mn_kernel_set kernels, mn_dtype amp)
{
    problem p, watched;
    open_problem(&p, kernels, false);
    open_problem(&watched, kernels, true);
    solve(&p, graph, amp);
    solve(&watched, graph, amp);
    for (int i = 0; i < LEAVES; i++) {
        const mn_tensor *a = mn_grad(p.leaves[i]), *b = mn_grad(watched.leaves[i]);
        ck_assert_msg((a == NULL) == (b == NULL), "gradient %d: there is one", i);
        ck_assert_msg(!a || memcmp(mn_tensor_data(a), mn_tensor_data(b), mn_tensor_bytes(a)) == 0,
                      "kernels %d, %s, gradient %d differs", kernels, mn_dtype_name(amp), i);
    }
    mn_observer_remove(watched.context, &watched.observer);
    mn_context_free(p.context);
    mn_context_free(watched.context);
}

/* Each kernel set has loops of its own that write where they read. */
START_TEST(gradients_are_the_same)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16};
    for (int k = MN_KERNELS_REFERENCE; k < MN_KERNELS_COUNT; k++) {
        if (!mn_cpu_has_kernels((mn_kernel_set)k))
            continue;
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            compare(_i, (mn_kernel_set)k, dtypes[d]);
    }
}
END_TEST

/* A gradient that was asked for is not overwritten by what is made of it. */
START_TEST(targets_stay)
{
    problem p;
    open_problem(&p, MN_KERNELS_AUTO, false);
    mn_tensor *y = mn_relu(mn_mul_scalar(p.leaves[IMAGE], -1)), *gradients[2];
    mn_tensor *const targets[2] = {y, p.leaves[IMAGE]};
    ck_assert_int_eq(mn_gradients(mn_sum(y, 0, NULL, false), targets, 2, false, gradients), MN_OK);
    const float *of_y = mn_tensor_data(gradients[0]), *of_x = mn_tensor_data(gradients[1]);
    const float *x = mn_tensor_data(p.leaves[IMAGE]);
    for (int64_t i = 0; i < mn_tensor_numel(y); i++) {
        ck_assert_double_eq((double)of_y[i], 1);
        ck_assert_double_eq((double)of_x[i], x[i] < 0 ? -1 : 0);
    }
    mn_check_done(p.context);
}
END_TEST

static uint64_t peak_of(bool watched)
{
    problem p;
    open_problem(&p, MN_KERNELS_AUTO, watched);
    mn_scope scope = mn_scope_begin(p.context);
    mn_tensor *y = mn_relu(mn_relu(mn_mul_scalar(p.leaves[IMAGE], 2)));
    mn_memory_reset_peak(p.context);
    mn_backward(mn_check_total(mn_mul_scalar(y, 2)), 1);
    const uint64_t peak = mn_memory_stats_get(p.context).peak_bytes;
    mn_scope_end(p.context, scope);
    if (watched)
        mn_observer_remove(p.context, &p.observer);
    mn_check_done(p.context);
    return peak;
}

START_TEST(memory_is_taken)
{
    ck_assert_uint_le(peak_of(false) + 3 * 5 * 7 * 11 * sizeof(float), peak_of(true));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("spent");
    TCase *tests = tcase_create("spent");
    tcase_add_loop_test(tests, gradients_are_the_same, 0, GRAPHS);
    tcase_add_test(tests, targets_stay);
    tcase_add_test(tests, memory_is_taken);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
