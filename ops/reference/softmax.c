/* Reference kernels of softmax and log-softmax. */
#include "ops/reference/reference.h"

/* A line along the call's axis: x, and g where there is a gradient, to y, elements `step` apart. */
typedef void (*line_fn)(const double *x, const double *g, double *y, int64_t n, int64_t step);

static void each_line(const mn_call *call, const double *x, const double *g, double *y,
                      line_fn line)
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_split split = mn_split_at(&call->in[0], a->axis);
    /* Empty lines may be more than can be counted. */
    const int64_t lines = split.size > 0 ? split.outer * split.inner : 0;
    for (int64_t i = 0; i < lines; i++) {
        const int64_t at = i / split.inner * split.size * split.inner + i % split.inner;
        line(x + at, g ? g + at : NULL, y + at, split.size, split.inner);
    }
}

/* y_i = x_i - log(sum_j exp(x_j)) */
static void log_softmax(const double *x, const double *g, double *y, int64_t n, int64_t step)
{
    const double lse = mn_ref_log_sum_exp(x, n, step);
    (void)g;
    for (int64_t i = 0; i < n * step; i += step)
        y[i] = x[i] - lse;
}

/* dx_i = g_i - exp(y_i) sum_j g_j   (inputs g, y) */
static void log_softmax_backward(const double *y, const double *g, double *dx, int64_t n,
                                 int64_t step)
{
    double sum = 0;
    for (int64_t i = 0; i < n * step; i += step)
        sum += g[i];
    for (int64_t i = 0; i < n * step; i += step)
        dx[i] = g[i] - exp(y[i]) * sum;
}

/* That, or y_i = exp(x_i) / sum_j exp(x_j) */
void mn_ref_softmax(const mn_call *call, double *const in[], double *const out[])
{
    each_line(call, in[0], NULL, out[0], log_softmax);
    for (int64_t i = 0; i < call->out[0].numel && call->op == &mn_ops[MN_OP_softmax]; i++)
        out[0][i] = exp(out[0][i]);
}

/* dx_i = y_i (g_i - sum_j g_j y_j)   (inputs g, y) */
static void softmax_backward(const double *y, const double *g, double *dx, int64_t n, int64_t step)
{
    double sum = 0;
    for (int64_t i = 0; i < n * step; i += step)
        sum += g[i] * y[i];
    for (int64_t i = 0; i < n * step; i += step)
        dx[i] = y[i] * (g[i] - sum);
}

void mn_ref_softmax_backward(const mn_call *call, double *const in[], double *const out[])
{
    const bool is_log = call->op == &mn_ops[MN_OP_log_softmax_backward];
    each_line(call, in[1], in[0], out[0], is_log ? log_softmax_backward : softmax_backward);
}
