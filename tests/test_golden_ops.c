/* Results and gradients of ops against PyTorch's: golden/ops.inc. */
#include "tests/support_golden.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct value_case {
    const char *name;
    int inputs;
    int gradients; /* so many inputs get one */
    int domain;    /* of inputs: 0: [-2, 2]; 1: [0.1, 1]; 2: pairs of special values */
    int ndim[2];
    int64_t shape[2][4];
    int count;           /* elements of the result */
    const float *values; /* they, then the gradients */
} value_case;
static const value_case cases[] = {
#include "tests/golden/ops.inc"
};
enum { CASES = (int)(sizeof cases / sizeof cases[0]) };

static const double special[8] = {0,          -0.0, 1, -1.5, 2, (double)INFINITY, -(double)INFINITY,
                                  (double)NAN};

static mn_tensor *leaf(mn_context *ctx, int ndim, const int64_t *shape, int salt, int domain)
{
    mn_tensor *x = mn_tensor_create(ctx, MN_F32, ndim, shape);
    double values[512];
    const int64_t count = mn_tensor_numel(x);
    ck_assert(count <= 512);
    for (int64_t i = 0; i < count; i++) {
        const double v = mn_golden_value(i, salt);
        values[i] = domain == 1 ? 0.55 + 0.45 * v : 2 * v;
        if (domain == 2)
            values[i] = special[salt > 1 ? i / 8 : i % 8];
    }
    ck_assert_int_eq(mn_tensor_write_f64(x, values, count), MN_OK);
    return x;
}

/* Where minim differs on purpose: an element of a gradient at special values. */
typedef struct difference {
    const char *call;
    int element;
    const char *reason;
} difference;
static const difference differences[] = {
    {"leaky_relu", 7, "at NaN the gradient passes unchanged; PyTorch: times the slope"},
    {"clamp", 7, "likewise; PyTorch: 0, as if NaN were out of bounds"},
    {"abs", 7, "likewise; PyTorch: 0"},
    {"pow_scalar", 6, "1.5 (-inf)^0.5 is infinite, as C's pow says; PyTorch takes a root: NaN"},
};
enum { DIFFERENCES = (int)(sizeof differences / sizeof differences[0]) };

static int64_t skipped(const value_case *c)
{
    for (int i = 0; i < DIFFERENCES && c->domain == 2; i++)
        if (strcmp(differences[i].call, c->name) == 0)
            return differences[i].element;
    return -1;
}

START_TEST(test_values)
{
    const value_case *c = &cases[_i];
    mn_context *ctx = mn_check_context("cpu");
    mn_tensor *inputs[2] = {NULL, NULL};
    for (int i = 0; i < c->inputs; i++) {
        inputs[i] = leaf(ctx, c->ndim[i], c->shape[i], i + 1, c->domain);
        mn_set_requires_grad(inputs[i], i < c->gradients);
    }
    mn_tensor *y = mn_golden_call(c->name, inputs);
    ck_assert_msg(y != NULL, "%s: %s", c->name, mn_error_message(ctx));
    ck_assert_int_eq(mn_tensor_numel(y), c->count);
    char text[64];
    snprintf(text, sizeof text, "case %d, %s", _i, c->name);
    mn_golden_compare(y, c->values, 1e-5, -1, text);
    if (c->gradients > 0) {
        mn_tensor *weights = leaf(ctx, mn_tensor_ndim(y), mn_tensor_shape(y), 9, 0);
        ck_assert_int_eq(mn_backward(mn_sum(mn_mul(y, weights), 0, NULL, false), 1), MN_OK);
    }
    const float *expected = c->values + c->count;
    for (int i = 0; i < c->gradients; i++) {
        snprintf(text, sizeof text, "case %d, %s, gradient %d", _i, c->name, i);
        mn_golden_compare(mn_grad(inputs[i]), expected, 1e-5, skipped(c), text);
        expected += mn_tensor_numel(inputs[i]);
    }
    mn_check_done(ctx);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("golden_ops");
    TCase *tc = tcase_create("golden_ops");
    tcase_add_loop_test(tc, test_values, 0, CASES);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
