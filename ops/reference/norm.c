/* Reference kernels of batch normalisation (Ioffe and Szegedy 2015, arXiv 1502.03167). The channel
 * is the last axis; everything else are the rows. */
#include "ops/reference/reference.h"

#include <math.h>

typedef struct rows {
    int64_t count, channels;
} rows;

static rows rows_of(const mn_view *x)
{
    const mn_ref_axis split = mn_ref_split(x, x->ndim - 1);
    return (rows){split.outer, split.size};
}

static double mean_of(const double *x, rows n, int64_t c)
{
    double sum = 0;
    for (int64_t i = 0; i < n.count; i++)
        sum += x[i * n.channels + c];
    return sum / (double)n.count;
}

/* sum_i (x_i - mean)^2 */
static double squares_of(const double *x, rows n, int64_t c, double mean)
{
    double sum = 0;
    for (int64_t i = 0; i < n.count; i++) {
        const double d = x[i * n.channels + c] - mean;
        sum += d * d;
    }
    return sum;
}

/* running = (1 - momentum) running + momentum statistic, with the unbiased variance; nothing moves
 * unless the statistics of all channels are finite. */
static void update_running(const mn_call *call, double *const in[], rows n)
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    const double freedom = n.count > 1 ? (double)(n.count - 1) : 1;
    for (int64_t c = 0; c < n.channels; c++) {
        const double mean = mean_of(in[0], n, c);
        const double variance = squares_of(in[0], n, c, mean) / freedom;
        if (!isfinite((float)mean) || !isfinite((float)variance))
            return;
    }
    for (int64_t c = 0; c < n.channels; c++) {
        const double mean = mean_of(in[0], n, c);
        const double variance = squares_of(in[0], n, c, mean) / freedom;
        in[3][c] = (1 - a->momentum) * in[3][c] + a->momentum * mean;
        in[4][c] = (1 - a->momentum) * in[4][c] + a->momentum * variance;
    }
    if (call->input_count > 5 && call->in[5].present)
        in[5][0] += 1;
}

/* mean = 1/n sum x; rstd = 1 / sqrt(1/n sum (x - mean)^2 + eps); y = (x - mean) rstd w + b
 * (inputs x, w, b, running mean, running var, count; outputs y, mean, rstd) */
void mn_ref_batch_norm(const mn_call *call, double *const in[], double *const out[])
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    const rows n = rows_of(&call->in[0]);
    for (int64_t c = 0; c < n.channels; c++) {
        const double mean = mean_of(in[0], n, c);
        const double variance = squares_of(in[0], n, c, mean) / (double)n.count;
        const double rstd = 1 / sqrt(variance + a->eps);
        for (int64_t i = c; i < call->in[0].numel; i += n.channels)
            out[0][i] = (in[0][i] - mean) * rstd * in[1][c] + in[2][c];
        out[1][c] = mean;
        out[2][c] = rstd;
    }
    update_running(call, in, n);
}

/* With xhat = (x - mean) rstd:  db = sum g;  dw = sum g xhat;
 * dx = w rstd (g - db / n - xhat dw / n)   (inputs g, x, w, mean, rstd) */
void mn_ref_batch_norm_backward(const mn_call *call, double *const in[], double *const out[])
{
    const rows n = rows_of(&call->in[1]);
    const double *g = in[0], *x = in[1];
    for (int64_t c = 0; c < n.channels; c++) {
        const double mean = in[3][c], rstd = in[4][c];
        double db = 0, dw = 0;
        for (int64_t i = c; i < call->in[1].numel; i += n.channels) {
            db += g[i];
            dw += g[i] * (x[i] - mean) * rstd;
        }
        for (int64_t i = c; i < call->in[1].numel; i += n.channels) {
            const double xhat = (x[i] - mean) * rstd;
            out[0][i] = in[2][c] * rstd * (g[i] - (db + xhat * dw) / (double)n.count);
        }
        out[1][c] = dw;
        out[2][c] = db;
    }
}

/* y = (x - mean) / sqrt(var + eps) w + b   (inputs x, w, b, running mean, running var) */
void mn_ref_batch_norm_inference(const mn_call *call, double *const in[], double *const out[])
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    const int64_t C = rows_of(&call->in[0]).channels;
    for (int64_t i = 0; i < call->in[0].numel; i++) {
        const int64_t c = i % C;
        out[0][i] = (in[0][i] - in[3][c]) / sqrt(in[4][c] + a->eps) * in[1][c] + in[2][c];
    }
}

/* With rstd = 1 / sqrt(var + eps):  dx = g w rstd;  dw = sum g (x - mean) rstd;  db = sum g
 * (inputs g, x, w, running mean, running var) */
void mn_ref_batch_norm_inference_backward(const mn_call *call, double *const in[],
                                          double *const out[])
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    const int64_t C = rows_of(&call->in[1]).channels;
    for (int64_t i = 0; i < call->in[1].numel; i++) {
        const int64_t c = i % C;
        const double rstd = 1 / sqrt(in[4][c] + a->eps);
        out[0][i] = in[0][i] * in[2][c] * rstd;
        out[1][c] += in[0][i] * (in[1][i] - in[3][c]) * rstd;
        out[2][c] += in[0][i];
    }
}
