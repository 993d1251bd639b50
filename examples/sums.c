/* Why sums are made in f32. Ones added one by one in 16 bit stop counting; the library's sum,
 * product and mean accumulate in f32 and round once. Then the statistics of values around 1000,
 * worked out in 16 bit and by batch norm, and what an infinity does to the running ones. */
#include <math.h>
#include <minim.h>
#include <stdio.h>

enum { ONES = 4096 };

static double item(mn_tensor *x)
{
    double value = 0;
    mn_tensor_item(x, &value);
    return value;
}

static void count_ones(mn_context *ctx, mn_dtype dtype)
{
    mn_tensor *ones = mn_full(ctx, dtype, 2, (int64_t[]){1, ONES}, 1);
    mn_tensor *total = mn_full(ctx, dtype, 0, NULL, 0);
    mn_tensor *many = mn_full(ctx, dtype, 1, (int64_t[]){20 * ONES}, 1);
    for (int i = 0; i < ONES; i++)
        mn_tensor_add(total, mn_full(ctx, dtype, 0, NULL, 1), 1);
    printf("%-4s 4096 ones: one by one %g, mn_sum %g, mn_linear %g; ", mn_dtype_name(dtype),
           item(total), item(mn_sum(ones, 0, NULL, false)), item(mn_linear(ones, ones, NULL)));
    mn_autocast_begin(ctx, MN_F16);
    mn_tensor *wide = mn_sum(many, 0, NULL, false); /* its result is f32 in a region */
    mn_autocast_end(ctx);
    printf("81920 ones: mn_sum %g, in a region %g, mn_mean %g\n",
           item(mn_sum(many, 0, NULL, false)), item(wide), item(mn_mean(many, 0, NULL, false)));
}

/* Half of the values are `low`, half 1008; with 992, all exact, mean 1000 and variance 64. */
static void statistics(mn_context *ctx, mn_dtype dtype, float low)
{
    float values[64];
    for (int i = 0; i < 64; i++)
        values[i] = i % 2 ? low : 1008;
    mn_tensor *x = mn_cast(mn_tensor_from(ctx, MN_F32, 2, (int64_t[]){64, 1}, values), dtype);
    mn_tensor *mean = mn_mean(x, 0, NULL, false);
    mn_tensor *squares = mn_mean(mn_mul(x, x), 0, NULL, false);
    mn_tensor *weight = mn_full(ctx, MN_F32, 1, (int64_t[]){1}, 1);
    mn_tensor *bias = mn_full(ctx, MN_F32, 1, (int64_t[]){1}, 0);
    mn_tensor *running[3] = {mn_clone(bias), mn_clone(weight), NULL};
    mn_batch_norm_options options = mn_batch_norm_options_default();
    options.training = true;
    for (int i = 0; i < 100; i++) /* the running ones come up to the batch's */
        mn_batch_norm(x, weight, bias, running, &options);
    printf("%-4s %g and 1008: mean of squares %.8g, square of mean %.8g, running mean %.5g and "
           "unbiased variance %.5g\n",
           mn_dtype_name(dtype), (double)low, item(squares), item(mn_mul(mean, mean)),
           item(running[0]), item(running[1]));
}

int main(void)
{
    static const mn_dtype dtypes[] = {MN_F32, MN_F16, MN_BF16};
    mn_context *ctx = mn_context_create(NULL, NULL);
    for (int i = 0; i < 3; i++)
        count_ones(ctx, dtypes[i]);
    for (int i = 0; i < 3; i++)
        statistics(ctx, dtypes[i], 992);
    statistics(ctx, MN_F16, INFINITY);
    mn_status status = mn_error_status(ctx);
    if (status != MN_OK)
        printf("%s\n", mn_error_message(ctx));
    mn_context_free(ctx);
    return status != MN_OK;
}
