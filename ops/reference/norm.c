/* Reference kernels of normalisation. Batch normalisation (Ioffe and Szegedy 2015, arXiv
 * 1502.03167): the channel is the last axis; everything else are the rows. */
#include "ops/reference/reference.h"

#include <string.h>

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

/* As mean_of; of a call with moments of x these. */
static double moments_of(const mn_call *call, double *const in[], int64_t c, double *squares)
{
    if (!mn_has_input(call, 7))
        return mean_of(&call->in[0], in[0], c, squares);
    *squares = in[7][channels_of(&call->in[0]) + c];
    return in[7][c];
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
        if (!mn_isfinite_f64((double)(float)moments_of(call, in, c, &squares)) ||
            !mn_isfinite_f64((double)(float)(squares / freedom)))
            return;
    for (int64_t c = 0; c < C; c++) {
        const double mean = moments_of(call, in, c, &squares);
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
    update_running(call, in); /* while x is there: y may take its place */
    for (int64_t c = 0; c < C; c++) {
        double squares;
        const double mean = moments_of(call, in, c, &squares);
        const double rstd = 1 / sqrt(squares / (double)(x->numel / C) + a->eps);
        for (int64_t i = c; i < x->numel; i += C)
            out[0][i] = (in[0][i] - mean) * rstd * in[1][c] + in[2][c];
        out[1][c] = mean;
        out[2][c] = rstd;
    }
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

/* ---- with a residual and ReLU: rounded after each of the three, as the ops alone do ------------
 */

static double rounded(mn_dtype dtype, double value)
{
    double number[1];
    mn_from_f64(dtype, false, 1, &value, number);
    mn_to_f64(dtype, 1, number, &value);
    return value;
}

void mn_ref_finish_relu(const mn_call *call, const double *residual, double *y)
{
    const mn_dtype dtype = call->out[0].dtype;
    for (int64_t i = 0; i < call->out[0].numel; i++) {
        const double sum = residual ? rounded(dtype, y[i]) + residual[i] : y[i];
        y[i] = sum <= 0 ? 0 : sum;
    }
}

/* mean and sum (y - mean)^2 per channel of y as it is stored */
void mn_ref_conv2d_moments(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *y = &call->out[0];
    const int64_t C = channels_of(y);
    mn_ref_conv2d(call, in, out);
    for (int64_t i = 0; i < y->numel; i++)
        out[0][i] = rounded(y->dtype, out[0][i]);
    for (int64_t c = 0; c < C; c++)
        out[1][c] = mean_of(y, out[0], c, &out[1][C + c]);
}

void mn_ref_batch_norm_relu(const mn_call *call, double *const in[], double *const out[])
{
    mn_ref_batch_norm(call, in, out);
    mn_ref_finish_relu(call, mn_has_input(call, 6) ? in[6] : NULL, out[0]);
}

void mn_ref_batch_norm_inference_relu(const mn_call *call, double *const in[], double *const out[])
{
    mn_ref_batch_norm_inference(call, in, out);
    mn_ref_finish_relu(call, mn_has_input(call, 5) ? in[5] : NULL, out[0]);
}

/* y = max((x - mean) rstd w + b, 0)   (inputs x, w, b, mean, rstd) */
void mn_ref_batch_norm_relu_again(const mn_call *call, double *const in[], double *const out[])
{
    const int64_t C = channels_of(&call->in[0]);
    for (int64_t i = 0; i < call->in[0].numel; i++) {
        const int64_t c = i % C;
        out[0][i] = (in[0][i] - in[3][c]) * in[4][c] * in[1][c] + in[2][c];
    }
    mn_ref_finish_relu(call, NULL, out[0]);
}

/* y before ReLU, as it was rounded   (inputs g, x, w, b, mean, rstd) */
static double normalized(const mn_call *call, double *const in[], int64_t c, int64_t i)
{
    return rounded(call->in[1].dtype, (in[1][i] - in[4][c]) * in[5][c] * in[2][c] + in[3][c]);
}

/* dresidual = y <= 0 ? 0 : g; the rest is batch_norm's with it for g
 * (inputs g, x, w, b or none, mean, rstd, y or none: y is what x gives) */
void mn_ref_batch_norm_relu_backward(const mn_call *call, double *const in[], double *const out[])
{
    double *const inputs[5] = {in[0], in[1], in[2], in[4], in[5]};
    const bool given = mn_has_input(call, 6);
    const int64_t C = channels_of(&call->in[1]);
    for (int64_t i = 0; i < call->in[0].numel; i++) {
        const double y = given ? in[6][i] : normalized(call, in, i % C, i);
        in[0][i] = y <= 0 ? 0 : in[0][i];
        if (!mn_has_input(call, 3))
            out[3][i] = in[0][i];
    }
    mn_ref_batch_norm_backward(call, inputs, out);
}

/* ---- with ReLU and pooling --------------------------------------------------------------------
 */

static mn_call pooling_of(const mn_call *call)
{
    static const mn_pool2d_attributes two = {.kernel = {2, 2}, .stride = {2, 2}};
    mn_call pooling = *call;
    memcpy(pooling.attributes.bytes, &two, sizeof two);
    return pooling;
}

/* ReLU takes its turn when what was pooled is there: it keeps the order of numbers. */
void mn_ref_batch_norm_relu_pool(const mn_call *call, double *const in[], double *const out[])
{
    const mn_call pooling = pooling_of(call);
    double *const whole[3] = {in[0], out[1], out[2]};
    mn_ref_batch_norm(call, in, whole);
    mn_ref_max_pool2d(&pooling, whole, out);
    mn_ref_finish_relu(call, NULL, out[0]);
}

void mn_ref_batch_norm_inference_relu_pool(const mn_call *call, double *const in[],
                                           double *const out[])
{
    const mn_call pooling = pooling_of(call);
    mn_ref_batch_norm_inference(call, in, in);
    mn_ref_max_pool2d(&pooling, in, out);
    mn_ref_finish_relu(call, NULL, out[0]);
}

/* g goes to the first largest y of each window, if that is positive; the rest is batch_norm's
 * (inputs g, x, w, b, mean, rstd) */
void mn_ref_batch_norm_relu_pool_backward(const mn_call *call, double *const in[],
                                          double *const out[])
{
    double *const inputs[5] = {out[0], in[1], in[2], in[4], in[5]};
    const mn_view *g = &call->in[0], *x = &call->in[1];
    const int64_t C = g->shape[3], Q = g->shape[2], P = g->shape[1], W = x->shape[2];
    for (int64_t i = 0; i < g->numel; i++) {
        const int64_t row = i / C / Q / P * x->shape[1] + i / C / Q % P * 2;
        const int64_t first = (row * W + i / C % Q * 2) * C + i % C;
        int64_t best = first;
        double largest = normalized(call, in, i % C, first);
        for (int k = 1; k < 4; k++) {
            const int64_t at = first + (k / 2 * W + k % 2) * C;
            const double y = normalized(call, in, i % C, at);
            if (mn_isnan_f64(largest) || y <= largest)
                continue;
            largest = y;
            best = at;
        }
        out[0][best] = largest <= 0 ? 0 : in[0][i];
    }
    mn_ref_batch_norm_backward(call, inputs, out);
}

/* ---- layer and group normalisation (arXiv 1607.06450, 1803.08494) ---------------------------- */

/* Element j of group k of outer index o: x is [outer, positions, groups, size]. */
static int64_t element_of(const mn_grouping *is, int64_t o, int64_t k, int64_t j)
{
    return ((o * is->positions + j / is->size) * is->groups + k) * is->size + j % is->size;
}

/* As batch_norm, per outer index and group   (inputs x, w, b; outputs y, mean, rstd) */
void mn_ref_group_norm(const mn_call *call, double *const in[], double *const out[])
{
    const mn_group_norm_attributes *a = (const void *)call->attributes.bytes;
    const mn_grouping is = mn_grouping_of(&call->in[0], a);
    const int64_t n = is.positions * is.size;
    for (int64_t i = 0; i < is.outer * is.groups; i++) {
        const int64_t o = i / is.groups, k = i % is.groups;
        double mean = 0, squares = 0;
        for (int64_t j = 0; j < n; j++)
            mean += in[0][element_of(&is, o, k, j)] / (double)n;
        for (int64_t j = 0; j < n; j++)
            squares += pow(in[0][element_of(&is, o, k, j)] - mean, 2);
        out[1][i] = mean;
        out[2][i] = 1 / sqrt(squares / (double)n + a->eps);
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = element_of(&is, o, k, j), c = k * is.size + j % is.size;
            const double weight = mn_has_input(call, 1) ? in[1][c] : 1;
            const double bias = mn_has_input(call, 2) ? in[2][c] : 0;
            out[0][at] = (in[0][at] - mean) * out[2][i] * weight + bias;
        }
    }
}

/* With xhat = (x - mean) rstd, means over a group:  db = sum g;  dw = sum g xhat;
 * dx = rstd (g w - mean(g w) - xhat mean(g w xhat))   (inputs g, x, w, mean, rstd) */
void mn_ref_group_norm_backward(const mn_call *call, double *const in[], double *const out[])
{
    const mn_grouping is = mn_grouping_of(&call->in[1], (const void *)call->attributes.bytes);
    const int64_t n = is.positions * is.size;
    for (int64_t i = 0; i < is.outer * is.groups; i++) {
        const int64_t o = i / is.groups, k = i % is.groups;
        double mean[2] = {0};
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = 0; j < n; j++) {
                const int64_t at = element_of(&is, o, k, j), c = k * is.size + j % is.size;
                const double xhat = (in[1][at] - in[3][i]) * in[4][i];
                const double g = in[0][at] * (mn_has_input(call, 2) ? in[2][c] : 1);
                if (pass == 1) {
                    out[0][at] = in[4][i] * (g - mean[0] - xhat * mean[1]);
                    continue;
                }
                mean[0] += g / (double)n;
                mean[1] += g * xhat / (double)n;
                out[1][c] += in[0][at] * xhat;
                out[2][c] += in[0][at];
            }
    }
}
