/* Reference kernels of softmax, log-softmax and cross entropy. Subtracting the largest element
 * first keeps exp from overflowing and changes nothing else. */
#include "ops/reference/reference.h"

/* log(sum_i exp(x_i)) over n elements, `step` apart */
static double log_sum_exp(const double *x, int64_t n, int64_t step)
{
    double largest = -(double)INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        largest = x[i * step] > largest ? x[i * step] : largest;
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i * step] - largest);
    return largest + log(sum);
}

/* A line along the call's axis: x, and g where there is a gradient, to y, elements `step` apart. */
typedef void (*line_fn)(const double *x, const double *g, double *y, int64_t n, int64_t step);

static void each_line(const mn_call *call, const double *x, const double *g, double *y,
                      line_fn line)
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_split split = mn_split_at(&call->in[0], a->axis);
    for (int64_t i = 0; i < split.outer * split.inner; i++) {
        const int64_t at = i / split.inner * split.size * split.inner + i % split.inner;
        line(x + at, g ? g + at : NULL, y + at, split.size, split.inner);
    }
}

/* y_i = x_i - log(sum_j exp(x_j)) */
static void log_softmax(const double *x, const double *g, double *y, int64_t n, int64_t step)
{
    const double lse = log_sum_exp(x, n, step);
    (void)g;
    for (int64_t i = 0; i < n * step; i += step)
        y[i] = x[i] - lse;
}

void mn_ref_log_softmax(const mn_call *call, double *const in[], double *const out[])
{
    each_line(call, in[0], NULL, out[0], log_softmax);
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

void mn_ref_log_softmax_backward(const mn_call *call, double *const in[], double *const out[])
{
    each_line(call, in[1], in[0], out[0], log_softmax_backward);
}

/* y_i = exp(x_i) / sum_j exp(x_j) */
void mn_ref_softmax(const mn_call *call, double *const in[], double *const out[])
{
    mn_ref_log_softmax(call, in, out);
    for (int64_t i = 0; i < call->out[0].numel; i++)
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
    each_line(call, in[1], in[0], out[0], softmax_backward);
}

/* Whether the label is one of `classes`; if not, that is recorded as the call's fault. */
static bool check_label(const mn_call *call, double label, int64_t classes)
{
    if (label >= 0 && label < (double)classes)
        return true;
    /* The largest i64, widened, is one too many for the way back. */
    long long shown = label >= 0x1p63 ? INT64_MAX : (long long)label;
    mn_call_fault(call, MN_ERR_ARGUMENT, "label %lld is not in [0, %lld)", shown, classes);
    return false;
}

/* lse[n] = log(sum_c exp(x[n,c]));  loss = 1/N sum_n lse[n] - x[n, label[n]]; NaN for a label out
 * of range   (inputs x, labels; outputs loss, lse) */
void mn_ref_cross_entropy(const mn_call *call, double *const in[], double *const out[])
{
    const int64_t N = call->in[0].shape[0], C = call->in[0].shape[1];
    double sum = 0;
    for (int64_t n = 0; n < N; n++) {
        const double label = in[1][n];
        out[1][n] = log_sum_exp(in[0] + n * C, C, 1);
        if (check_label(call, label, C))
            sum += out[1][n] - in[0][n * C + (int64_t)label];
        else
            sum = (double)NAN;
    }
    out[0][0] = sum / (double)N;
}

/* dx[n,c] = g (exp(x[n,c] - lse[n]) - [c = label[n]]) / N   (inputs g, x, labels, lse) */
void mn_ref_cross_entropy_backward(const mn_call *call, double *const in[], double *const out[])
{
    const int64_t N = call->in[1].shape[0], C = call->in[1].shape[1];
    for (int64_t i = 0; i < call->in[1].numel; i++) {
        const int64_t n = i / C, c = i % C;
        const double indicator = in[2][n] == (double)c ? 1 : 0;
        out[0][i] = in[0][0] * (exp(in[1][i] - in[3][n]) - indicator) / (double)N;
    }
}
