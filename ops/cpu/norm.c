/* Batch normalisation. Statistics take two passes: sums, then sums about that mean, whose first one
 * corrects the mean and whose second one is free of cancellation. */
#include "ops/cpu/run.h"

#include "core/math.h"

#include <math.h>
#include <string.h>

/* f32 inputs and outputs with one element per channel. */
static const float *vector(const mn_call *call, int input)
{
    return call->in[input].data;
}

/* ---- passes over x that have factors per channel --------------------------------------------- */

typedef struct factors {
    float mean[MN_BLOCK], scale[MN_BLOCK], shift[MN_BLOCK], gradient[MN_BLOCK];
} factors;

typedef struct sweep {
    const mn_call *call;
    const mn_view *x, *g, *y; /* forward without g */
    int64_t rows, channels;
    double eps;
    /* Sums of the backward pass, [2][channels]: g, g xhat; NULL: statistics are constants. */
    const double *sums;
    void (*fill)(const struct sweep *pass, int64_t channel, int64_t n, factors *f);
} sweep;

static mn_norm_tables tables_of(const factors *f)
{
    return (mn_norm_tables){f->mean, f->scale, f->shift, f->gradient};
}

/* n elements from start on, whose channels the factors have in order. */
static void apply(const sweep *pass, const factors *f, int64_t start, int64_t n)
{
    const mn_bodies *bodies = mn_bodies_of(pass->call);
    const mn_norm_tables tables = tables_of(f);
    float row[MN_BLOCK], other[MN_BLOCK], result[MN_BLOCK];
    const float *x = mn_row_load(pass->call, pass->x, start, n, row);
    float *y = mn_row_place(pass->y, start, result);
    if (pass->g) {
        const float *g = mn_row_load(pass->call, pass->g, start, n, other);
        bodies->normalize_backward((size_t)n, g, x, &tables, y);
    } else {
        bodies->normalize((size_t)n, x, &tables, y);
    }
    mn_row_store(pass->call, pass->y, start, n, y);
}

/* Fills `width` elements of each table with the first n repeated. */
static void repeat(factors *f, int64_t n, int64_t width)
{
    float *const table[4] = {f->mean, f->scale, f->shift, f->gradient};
    for (int k = 0; k < 4; k++)
        for (int64_t i = n; i < width; i += n)
            memcpy(table[k] + i, table[k], (size_t)mn_min64(n, width - i) * sizeof(float));
}

static void run_pass(void *arg, int64_t begin, int64_t end)
{
    const sweep *pass = arg;
    const int64_t C = pass->channels;
    factors f;
    memset(&f, 0, sizeof f);
    if (C <= MN_BLOCK) { /* whole rows, as many as fit */
        const int64_t width = mn_min64(MN_BLOCK / C, end - begin) * C;
        pass->fill(pass, 0, C, &f);
        repeat(&f, C, width);
        for (int64_t i = begin * C; i < end * C; i += width)
            apply(pass, &f, i, mn_min64(width, end * C - i));
        return;
    }
    for (int64_t c = 0; c < C; c += MN_BLOCK) {
        const int64_t n = mn_min64(MN_BLOCK, C - c);
        pass->fill(pass, c, n, &f);
        for (int64_t r = begin; r < end; r++)
            apply(pass, &f, r * C + c, n);
    }
}

static void run(const sweep *pass)
{
    sweep copy = *pass;
    if (pass->channels > 0)
        mn_run_ranges(pass->call, pass->rows, mn_max64(1, MN_CHUNK / pass->channels), run_pass,
                      &copy);
}

static double eps_of(const mn_call *call)
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    return a->eps;
}

/* ---- forward --------------------------------------------------------------------------------- */

/* mean, then sum of squares about it, per channel in f64. */
static mn_status two_vectors(const mn_call *call, const mn_view *x, size_t *bytes)
{
    const size_t channels = (size_t)x->shape[x->ndim - 1];
    (void)call;
    return mn_size_mul(channels, 2 * sizeof(double), bytes) ? MN_OK : MN_ERR_MEMORY;
}

mn_status mn_cpu_batch_norm_prepare(const mn_call *call, mn_plan *plan, size_t *workspace_bytes)
{
    (void)plan;
    return two_vectors(call, &call->in[0], workspace_bytes);
}

typedef struct statistics {
    const mn_call *call;
    int64_t rows, channels;
    double *mean, *square;
} statistics;

/* A first estimate of the mean, rounded to f32 so that the second pass subtracts just that. */
static void keep_mean(void *arg, int64_t start, int64_t n, const double *sum, const double *unused)
{
    const statistics *s = arg;
    float *mean = s->call->out[1].data;
    (void)unused;
    for (int64_t i = 0; i < n; i++)
        mean[start + i] = (float)(sum[i] / (double)s->rows);
}

/* sum (x - m)^2 is too large by n (mean - m)^2. */
static void keep_squares(void *arg, int64_t start, int64_t n, const double *sum,
                         const double *square)
{
    const statistics *s = arg;
    float *mean = s->call->out[1].data, *rstd = s->call->out[2].data;
    const double eps = eps_of(s->call), count = (double)s->rows;
    for (int64_t i = 0; i < n; i++) {
        const double correction = sum[i] / count;
        const double about_mean = square[i] - correction * sum[i];
        s->mean[start + i] = (double)mean[start + i] + correction;
        s->square[start + i] = about_mean < 0 ? 0 : about_mean; /* NaN stays */
        mean[start + i] = (float)s->mean[start + i];
        rstd[start + i] = (float)(1 / sqrt(s->square[start + i] / count + eps));
    }
}

/* The unbiased variance has one degree less than rows; a single row has no spread. */
static double degrees_of_freedom(const statistics *s)
{
    return s->rows > 1 ? (double)(s->rows - 1) : 1;
}

static bool all_finite(const statistics *s)
{
    const double freedom = degrees_of_freedom(s);
    for (int64_t c = 0; c < s->channels; c++)
        if (!mn_isfinite_f32((float)s->mean[c]) ||
            !mn_isfinite_f32((float)(s->square[c] / freedom)))
            return false;
    return true;
}

/* running = (1 - momentum) running + momentum statistic */
static void update_running(const statistics *s)
{
    const mn_batch_norm_attributes *a = (const void *)s->call->attributes.bytes;
    const double keep = 1 - a->momentum, freedom = degrees_of_freedom(s);
    float *mean = s->call->in[3].data, *variance = s->call->in[4].data;
    if (!all_finite(s))
        return;
    for (int64_t c = 0; c < s->channels; c++) {
        const double unbiased = s->square[c] / freedom;
        mean[c] = (float)(keep * (double)mean[c] + a->momentum * s->mean[c]);
        variance[c] = (float)(keep * (double)variance[c] + a->momentum * unbiased);
    }
    if (mn_has_input(s->call, 5))
        *(int64_t *)s->call->in[5].data += 1;
}

static void fill_forward(const sweep *pass, int64_t channel, int64_t n, factors *f)
{
    const float *mean = pass->call->out[1].data, *rstd = pass->call->out[2].data;
    const float *weight = vector(pass->call, 1), *bias = vector(pass->call, 2);
    for (int64_t i = 0; i < n; i++) {
        f->mean[i] = mean[channel + i];
        f->scale[i] = rstd[channel + i] * weight[channel + i];
        f->shift[i] = bias[channel + i];
    }
}

static sweep forward_pass(const mn_call *call,
                          void (*fill)(const sweep *pass, int64_t channel, int64_t n, factors *f))
{
    const mn_split split = mn_split_at(&call->in[0], call->in[0].ndim - 1);
    return (sweep){.call = call,
                   .x = &call->in[0],
                   .y = &call->out[0],
                   .rows = split.outer,
                   .channels = split.size,
                   .eps = eps_of(call),
                   .fill = fill};
}

void mn_cpu_batch_norm(const mn_call *call)
{
    const sweep pass = forward_pass(call, fill_forward);
    statistics s = {.call = call, .rows = pass.rows, .channels = pass.channels};
    s.mean = call->workspace;
    s.square = s.mean + s.channels;
    mn_sums sums = {.call = call,
                    .term = MN_TERM_X,
                    .rows = s.rows,
                    .channels = s.channels,
                    .x = &call->in[0],
                    .finish = keep_mean,
                    .arg = &s};
    if (s.channels == 0)
        return;
    mn_run_sums(&sums);
    sums.term = MN_TERM_MOMENTS;
    sums.mean = call->out[1].data;
    sums.finish = keep_squares;
    mn_run_sums(&sums);
    update_running(&s);
    run(&pass);
}

static void fill_inference(const sweep *pass, int64_t channel, int64_t n, factors *f)
{
    const float *weight = vector(pass->call, 1), *bias = vector(pass->call, 2);
    const float *mean = vector(pass->call, 3), *variance = vector(pass->call, 4);
    for (int64_t i = 0; i < n; i++) {
        const double rstd = 1 / sqrt((double)variance[channel + i] + pass->eps);
        f->mean[i] = mean[channel + i];
        f->scale[i] = (float)(rstd * (double)weight[channel + i]);
        f->shift[i] = bias[channel + i];
    }
}

void mn_cpu_batch_norm_inference(const mn_call *call)
{
    const sweep pass = forward_pass(call, fill_inference);
    run(&pass);
}

/* ---- backward -------------------------------------------------------------------------------- */

typedef struct gradients {
    const mn_call *call;
    double *sums; /* [2][channels] */
    int64_t channels;
} gradients;

static void keep_gradients(void *arg, int64_t start, int64_t n, const double *g, const double *gx)
{
    const gradients *s = arg;
    for (int64_t i = 0; i < n; i++) {
        s->sums[start + i] = g[i];
        s->sums[s->channels + start + i] = gx[i];
    }
}

static void fill_backward(const sweep *pass, int64_t channel, int64_t n, factors *f)
{
    const float *weight = vector(pass->call, 2) + channel, *mean = vector(pass->call, 3) + channel;
    const float *rstd = vector(pass->call, 4) + channel;
    const double *g = pass->sums + channel, *gx = g + pass->channels;
    const double count = (double)pass->rows;
    for (int64_t i = 0; i < n; i++) {
        f->mean[i] = mean[i];
        f->scale[i] = weight[i] * rstd[i];
        f->shift[i] = (float)(g[i] / count);
        f->gradient[i] = (float)(gx[i] / count * (double)rstd[i]);
    }
}

/* dx = g w rstd: g takes the place of x, and mean and shift are 0. */
static void fill_inference_backward(const sweep *pass, int64_t channel, int64_t n, factors *f)
{
    const float *weight = vector(pass->call, 2) + channel;
    const float *variance = vector(pass->call, 4) + channel;
    for (int64_t i = 0; i < n; i++)
        f->scale[i] = (float)((double)weight[i] / sqrt((double)variance[i] + pass->eps));
}

static sweep backward_pass(const mn_call *call, const double *sums)
{
    sweep p = forward_pass(call, fill_backward);
    p.g = &call->in[0];
    p.x = &call->in[1];
    p.sums = sums;
    return p;
}

static void store_gradients(const mn_call *call, const gradients *s)
{
    float *dw = call->out[1].data, *db = call->out[2].data;
    for (int64_t c = 0; c < s->channels; c++) {
        db[c] = (float)s->sums[c];
        dw[c] = (float)s->sums[s->channels + c];
    }
}

static void sum_gradients(const mn_call *call, const sweep *pass, const float *rstd, gradients *s)
{
    const mn_sums sums = {.call = call,
                          .term = MN_TERM_GRADIENTS,
                          .rows = pass->rows,
                          .channels = pass->channels,
                          .x = &call->in[1],
                          .g = &call->in[0],
                          .mean = vector(call, 3),
                          .rstd = rstd,
                          .finish = keep_gradients,
                          .arg = s};
    mn_run_sums(&sums);
}

mn_status mn_cpu_batch_norm_backward_prepare(const mn_call *call, mn_plan *plan,
                                             size_t *workspace_bytes)
{
    (void)plan;
    return two_vectors(call, &call->in[1], workspace_bytes);
}

void mn_cpu_batch_norm_backward(const mn_call *call)
{
    const sweep pass = backward_pass(call, call->workspace);
    gradients s = {call, call->workspace, pass.channels};
    if (pass.channels == 0)
        return;
    sum_gradients(call, &pass, vector(call, 4), &s);
    store_gradients(call, &s);
    run(&pass);
}

mn_status mn_cpu_batch_norm_inference_backward_prepare(const mn_call *call, mn_plan *plan,
                                                       size_t *workspace_bytes)
{
    (void)plan;
    return two_vectors(call, &call->in[1], workspace_bytes);
}

void mn_cpu_batch_norm_inference_backward(const mn_call *call)
{
    sweep pass = backward_pass(call, NULL);
    gradients s = {call, call->workspace, pass.channels};
    float *rstd = call->out[1].data; /* until dw takes its place, after the sums */
    const float *variance = vector(call, 4);
    if (pass.channels == 0)
        return;
    for (int64_t c = 0; c < pass.channels; c++)
        rstd[c] = (float)(1 / sqrt((double)variance[c] + pass.eps));
    sum_gradients(call, &pass, rstd, &s);
    store_gradients(call, &s);
    pass.x = pass.g;
    pass.g = NULL;
    pass.fill = fill_inference_backward;
    run(&pass);
}
