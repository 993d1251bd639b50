/* Data types of results against PyTorch's: golden/dtypes.inc. */
#include "tests/support_golden.h"
#include "tests/support_suite.h"
#include "tests/support_training.h"

#include <check.h>
#include <string.h>

/* Rows: no region; f16 and bf16 regions by CUDA's lists; f16 and bf16 regions by the CPU's lists,
 * where they say the same. A row holds the letter of the result's dtype for each combination of
 * input dtypes, the last input's varying fastest; - where PyTorch refuses. */
enum { ROWS = 5 };
typedef struct dtype_case {
    const char *name;
    int inputs;
    int ndim[2];
    int64_t shape[2][4];
    const char *rows[ROWS];
} dtype_case;
static const dtype_case cases[] = {
#include "tests/golden/dtypes.inc"
};
enum { CASES = (int)(sizeof cases / sizeof cases[0]) };
static const mn_dtype regions[ROWS] = {MN_F32, MN_F16, MN_BF16, MN_F16, MN_BF16};
static const char letters[] = "dshbliu"; /* by mn_dtype; the first five are inputs */
enum { TYPES = 5 };

/* Where minim differs on purpose: in calls ("*": every one), in rows, for these first and second
 * input dtypes (NULL: there is no second; "=": the same as the first; "!": another one). */
typedef struct difference {
    const char *calls, *rows, *first, *second;
    char result; /* of minim; +: anything where PyTorch refuses */
    const char *reason;
} difference;
static const difference differences[] = {
    {"*", "012", "l", NULL, '-', "integers are cast first, where an op is not said to take them"},
    {"div pow dot matmul linear linear_bias conv2d conv2d_bias huber_loss", "01234", "l", "l", '-',
     "likewise"},
    {"cross_entropy_of", "12", "l", "dshb", '-', "likewise"},
    {"nll_loss cross_entropy", "0", "hb", NULL, 's', "all losses are f32"},
    {"mse_loss l1_loss huber_loss bce_with_logits bce cross_entropy_of", "0", "hb", "=", 's',
     "likewise"},
    {"cross_entropy_of", "01234", "shb", "d", 's', "the loss follows the logits"},
    {"mse_loss l1_loss huber_loss bce_with_logits", "0", "dshbl", "!", '-',
     "a loss wants one dtype after the autocast rule"},
    {"mse_loss l1_loss huber_loss bce_with_logits", "1234", "d", "!", '-', "likewise"},
    {"mse_loss l1_loss huber_loss bce_with_logits", "1234", "shb", "dl", '-', "likewise"},
    {"mse_loss l1_loss huber_loss bce_with_logits", "1234", "l", "!", '-', "likewise"},
    {"layer_norm_affine group_norm_affine", "0", "hb", "=", '-', "weights are f32"},
    {"scatter_add", "0", "dshbl", "!", '+', "x and src promote outside of regions, too"},
    {"scatter_add", "12", "d", "!", '+', "likewise"},
    {"scatter_add", "12", "shb", "dl", '+', "likewise"},
    {"scatter_add", "12", "l", "!", '+', "likewise"},
    {"dot scatter_add", "1", "b", "shb", '+', "f16 and bf16 meet in f32, in any region"},
    {"dot scatter_add", "1", "h", "b", '+', "likewise"},
    {"dot scatter_add", "2", "h", "shb", '+', "likewise"},
    {"dot scatter_add", "2", "b", "h", '+', "likewise"},
    {"matmul linear linear_bias group_norm_affine", "12", "d", "!", '-',
     "a fake tensor's kernel does not look; real ones refuse as well, see rows 3 and 4"},
    {"matmul linear linear_bias group_norm_affine", "12", "shb", "dl", '-', "likewise"},
    {"matmul linear linear_bias", "12", "l", "!", '-', "likewise"},
    {"batch_norm", "12", "d", NULL, '-', "likewise: the weights are f32"},
};
enum { DIFFERENCES = (int)(sizeof differences / sizeof differences[0]) };

static bool has_word(const char *words, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = strstr(words, word); at != NULL; at = strstr(at + 1, word))
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0))
            return true;
    return false;
}

static bool takes(const difference *d, const dtype_case *c, char first, char second)
{
    if (strchr(d->first, first) == NULL || (d->second == NULL) != (c->inputs == 1))
        return false;
    if (d->second == NULL || d->second[0] == '=' || d->second[0] == '!')
        return d->second == NULL || (first == second) == (d->second[0] == '=');
    return strchr(d->second, second) != NULL;
}

/* The difference that explains a result; -1: none does. */
static int explain(const dtype_case *c, int row, const char *input, char expected, char result)
{
    for (int i = 0; i < DIFFERENCES; i++) {
        const difference *d = &differences[i];
        if (d->result != result && !(d->result == '+' && expected == '-'))
            continue;
        if ((d->calls[0] == '*' || has_word(d->calls, c->name)) &&
            strchr(d->rows, '0' + row) != NULL && takes(d, c, input[0], input[1]))
            return i;
    }
    return -1;
}

static char result_of(mn_context *ctx, const dtype_case *c, int row, int combination)
{
    char letter = '-';
    mn_tensor *inputs[2] = {NULL, NULL};
    mn_scope scope = mn_scope_begin(ctx);
    for (int i = c->inputs - 1; i >= 0; i--, combination /= TYPES)
        inputs[i] = mn_full(ctx, (mn_dtype)(combination % TYPES), c->ndim[i], c->shape[i], 1);
    mn_autocast_begin(ctx, regions[row]);
    mn_tensor *y = mn_golden_call(c->name, inputs);
    if (y != NULL)
        letter = letters[mn_tensor_dtype(y)];
    mn_error_clear(ctx);
    mn_scope_end(ctx, scope);
    return letter;
}

static void compare(mn_context *ctx, const dtype_case *c, int row, int *used)
{
    const int count = (int)strlen(c->rows[row]);
    ck_assert(count == 0 || count == (c->inputs == 2 ? TYPES * TYPES : TYPES));
    for (int i = 0; i < count; i++) {
        const char expected = c->rows[row][i], result = result_of(ctx, c, row, i);
        const char input[3] = {letters[c->inputs == 2 ? i / TYPES : i],
                               c->inputs == 2 ? letters[i % TYPES] : 0};
        if (result == expected)
            continue;
        const int why = explain(c, row, input, expected, result);
        ck_assert_msg(why >= 0, "%s of %s, row %d: %c, expected %c", c->name, input, row, result,
                      expected);
        used[why]++;
    }
}

START_TEST(test_dtypes)
{
    mn_context *ctx = mn_check_context("cpu");
    int used[DIFFERENCES] = {0};
    for (int i = 0; i < CASES; i++)
        for (int row = 0; row < ROWS; row++)
            compare(ctx, &cases[i], row, used);
    for (int i = 0; i < DIFFERENCES; i++)
        ck_assert_msg(used[i] > 0, "difference %d is none: %s", i, differences[i].calls);
    mn_check_done(ctx);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("golden_dtypes");
    TCase *tc = tcase_create("golden_dtypes");
    tcase_add_test(tc, test_dtypes);
    suite_add_tcase(suite, tc);
    return suite;
}

int main(void)
{
    return mn_test_run(make_suite(), CK_FORK_GETENV);
}
