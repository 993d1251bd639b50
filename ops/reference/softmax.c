/* Reference kernels of softmax, log-softmax and cross entropy. Subtracting the largest element
 * first keeps exp from overflowing and changes nothing else. */
#include "ops/reference/reference.h"

#include <math.h>

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

/* Calls line(input lines, output line, size, step) for each line along the call's axis. */
static void each_line(const mn_call *call, double *const in[], double *out,
                      void (*line)(const double *const x[2], double *y, int64_t n, int64_t step))
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_ref_axis split = mn_ref_split(&call->in[0], a->axis);
    for (int64_t o = 0; o < split.outer; o++)
        for (int64_t i = 0; i < split.inner; i++) {
            const int64_t start = o * split.size * split.inner + i;
            const double *x[2] = {in[0] + start, call->input_count > 1 ? in[1] + start : NULL};
            line(x, out + start, split.size, split.inner);
        }
}

/* y_i = x_i - log(sum_j exp(x_j)) */
static void log_softmax_line(const double *const x[2], double *y, int64_t n, int64_t step)
{
    const double lse = log_sum_exp(x[0], n, step);
    for (int64_t i = 0; i < n; i++)
        y[i * step] = x[0][i * step] - lse;
}

void mn_ref_log_softmax(const mn_call *call, double *const in[], double *const out[])
{
    each_line(call, in, out[0], log_softmax_line);
}

/* dx_i = g_i - exp(y_i) sum_j g_j   (inputs g, y) */
static void log_softmax_backward_line(const double *const in[2], double *dx, int64_t n,
                                      int64_t step)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += in[0][i * step];
    for (int64_t i = 0; i < n; i++)
        dx[i * step] = in[0][i * step] - exp(in[1][i * step]) * sum;
}

void mn_ref_log_softmax_backward(const mn_call *call, double *const in[], double *const out[])
{
    each_line(call, in, out[0], log_softmax_backward_line);
}

/* y_i = exp(x_i) / sum_j exp(x_j) */
static void softmax_line(const double *const x[2], double *y, int64_t n, int64_t step)
{
    log_softmax_line(x, y, n, step);
    for (int64_t i = 0; i < n; i++)
        y[i * step] = exp(y[i * step]);
}

void mn_ref_softmax(const mn_call *call, double *const in[], double *const out[])
{
    each_line(call, in, out[0], softmax_line);
}

/* dx_i = y_i (g_i - sum_j g_j y_j)   (inputs g, y) */
static void softmax_backward_line(const double *const in[2], double *dx, int64_t n, int64_t step)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += in[0][i * step] * in[1][i * step];
    for (int64_t i = 0; i < n; i++)
        dx[i * step] = in[1][i * step] * (in[0][i * step] - sum);
}

void mn_ref_softmax_backward(const mn_call *call, double *const in[], double *const out[])
{
    each_line(call, in, out[0], softmax_backward_line);
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
        if (mn_ref_label(call, label, C))
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
