/* Where 16 bit loses what a net needs. A large number is added to a layer's results, and the mean
 * of each row is taken away again before the next layer. Near 1000 BF16 has steps of 4, so that
 * little is left; 100000 is more than FP16 has. The shadow check runs a batch in both precisions
 * and names the ops. */
#include <minim.h>
#include <stdio.h>

enum { ROWS = 64, WIDTH = 16 };

typedef struct net {
    mn_module *chain, *first, *last; /* the chain owns the layers */
    double offset;
} net;

static mn_tensor *loss(mn_context *ctx, int64_t batch, void *user)
{
    const net *n = user;
    float values[ROWS * WIDTH];
    int64_t labels[ROWS];
    unsigned state = (unsigned)batch + 1;
    for (int i = 0; i < ROWS * WIDTH; i++) {
        state = state * 1664525U + 1013904223U;
        values[i] = (float)(state >> 24) / 256.0F;
        labels[i / WIDTH] = i / WIDTH % 2;
    }
    mn_tensor *x = mn_tensor_from(ctx, MN_F32, 2, (int64_t[]){ROWS, WIDTH}, values);
    mn_tensor *y = mn_tensor_from(ctx, MN_I64, 1, (int64_t[]){ROWS}, labels);
    mn_name_push(ctx, "first");
    x = mn_module_forward(n->first, x);
    mn_name_pop(ctx);
    mn_name_push(ctx, "centre");
    x = mn_add_scalar(x, n->offset);
    x = mn_sub(x, mn_mean(x, 1, (int[]){1}, true));
    mn_name_pop(ctx);
    mn_name_push(ctx, "last");
    x = mn_module_forward(n->last, x);
    mn_name_pop(ctx);
    return mn_cross_entropy(x, y, NULL);
}

static void check(mn_context *ctx, net *n, mn_dtype dtype, double offset, const char *title)
{
    mn_shadow_options options = mn_shadow_options_default();
    options.dtype = dtype;
    n->offset = offset;
    mn_shadow_report *r = mn_shadow_check(ctx, loss, n, &options);
    printf("%s\n", title);
    for (int64_t i = 0; r != NULL && i < r->row_count; i++) {
        const mn_shadow_row *row = &r->rows[i];
        if (row->direction == MN_FORWARD)
            printf("  %-17s %-13s %-4s %s%s\n", row->layer, row->op, mn_dtype_name(row->dtype),
                   row->rms > r->tolerance ? "past the tolerance" : "agrees",
                   row->local_error > r->tolerance ? ", by its own doing" : "");
    }
    mn_shadow_report_free(r);
}

int main(void)
{
    mn_context *ctx = mn_context_create(NULL, NULL);
    net n = {mn_sequential(ctx), mn_linear_layer(ctx, WIDTH, WIDTH, true),
             mn_linear_layer(ctx, WIDTH, 2, true), 0};
    mn_sequential_add(n.chain, "first", n.first);
    mn_sequential_add(n.chain, "last", n.last);
    mn_module_init(n.chain);
    check(ctx, &n, MN_BF16, 1e3, "BF16, 1000");
    check(ctx, &n, MN_F16, 1e5, "FP16, 100000");
    mn_autocast_set_rule(ctx, "affine", MN_CAST_FP32);
    check(ctx, &n, MN_BF16, 1e3, "BF16, 1000, affine in FP32");
    mn_status status = mn_error_status(ctx);
    if (status != MN_OK)
        printf("%s\n", mn_error_message(ctx));
    mn_module_free(n.chain), mn_context_free(ctx);
    return status != MN_OK;
}
