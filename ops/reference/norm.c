/* Reference kernels of batch normalisation (Ioffe and Szegedy 2015, arXiv 1502.03167). The channel
 * is the last axis; everything else are the rows. */
#include "ops/reference/reference.h"

static int64_t channels_of(const mn_view *x)
{
    return x->shape[x->ndim - 1];
}

/* Mean of channel c, and sum_i (x_i - mean)^2. */
static double mean_of(const mn_view *view, const double *x, int64_t c, double *squares)
{
    const int64_t C = channels_of(view);
    double mean = 0;
    *squares = 0;
    for (int64_t i = c; i < view->numel; i += C)
        mean += x[i];
    mean /= (double)(view->numel / C);
    for (int64_t i = c; i < view->numel; i += C)
        *squares += (x[i] - mean) * (x[i] - mean);
    return mean;
}

/* running = (1 - momentum) running + momentum statistic, with the unbiased variance; nothing moves
 * unless the statistics of all channels are finite. */
static void update_running(const mn_call *call, double *const in[])
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *x = &call->in[0];
    const int64_t C = channels_of(x), rows = C > 0 ? x->numel / C : 0;
    const double freedom = rows > 1 ? (double)(rows - 1) : 1;
    double squares;
    for (int64_t c = 0; c < C; c++)
        if (!isfinite((float)mean_of(x, in[0], c, &squares)) ||
            !isfinite((float)(squares / freedom)))
            return;
    for (int64_t c = 0; c < C; c++) {
        const double mean = mean_of(x, in[0], c, &squares);
        in[3][c] = (1 - a->momentum) * in[3][c] + a->momentum * mean;
        in[4][c] = (1 - a->momentum) * in[4][c] + a->momentum * (squares / freedom);
    }
    if (mn_has_input(call, 5))
        in[5][0] += 1;
}

/* mean = 1/n sum x; rstd = 1 / sqrt(1/n sum (x - mean)^2 + eps); y = (x - mean) rstd w + b
 * (inputs x, w, b, running mean, running var, count; outputs y, mean, rstd) */
void mn_ref_batch_norm(const mn_call *call, double *const in[], double *const out[])
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *x = &call->in[0];
    const int64_t C = channels_of(x);
    for (int64_t c = 0; c < C; c++) {
        double squares;
        const double mean = mean_of(x, in[0], c, &squares);
        const double rstd = 1 / sqrt(squares / (double)(x->numel / C) + a->eps);
        for (int64_t i = c; i < x->numel; i += C)
            out[0][i] = (in[0][i] - mean) * rstd * in[1][c] + in[2][c];
        out[1][c] = mean;
        out[2][c] = rstd;
    }
    update_running(call, in);
}

/* With xhat = (x - mean) rstd:  db = sum g;  dw = sum g xhat;
 * dx = w rstd (g - db / n - xhat dw / n)   (inputs g, x, w, mean, rstd) */
void mn_ref_batch_norm_backward(const mn_call *call, double *const in[], double *const out[])
{
    const int64_t C = channels_of(&call->in[1]), numel = call->in[1].numel;
    const double *g = in[0], *x = in[1];
    for (int64_t c = 0; c < C; c++) {
        const double mean = in[3][c], rstd = in[4][c];
        double db = 0, dw = 0;
        for (int64_t i = c; i < numel; i += C) {
            db += g[i];
            dw += g[i] * (x[i] - mean) * rstd;
        }
        for (int64_t i = c; i < numel; i += C) {
            const double xhat = (x[i] - mean) * rstd;
            out[0][i] = in[2][c] * rstd * (g[i] - (db + xhat * dw) / (double)(numel / C));
        }
        out[1][c] = dw;
        out[2][c] = db;
    }
}

/* y = (x - mean) / sqrt(var + eps) w + b   (inputs x, w, b, running mean, running var) */
void mn_ref_batch_norm_inference(const mn_call *call, double *const in[], double *const out[])
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    const int64_t C = channels_of(&call->in[0]);
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
    const int64_t C = channels_of(&call->in[1]);
    for (int64_t i = 0; i < call->in[1].numel; i++) {
        const int64_t c = i % C;
        const double rstd = 1 / sqrt(in[4][c] + a->eps);
        out[0][i] = in[0][i] * in[2][c] * rstd;
        out[1][c] += in[0][i] * (in[1][i] - in[3][c]) * rstd;
        out[2][c] += in[0][i];
    }
}
