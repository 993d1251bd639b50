/* Batch normalisation. Statistics take two passes: sums, then sums about that mean, whose first one
 * corrects the mean and whose second one is free of cancellation. */
#include "ops/cpu/run.h"

#include "core/math.h"

#include <math.h>
#include <string.h>

typedef struct norm {
    const mn_call *call;
    const mn_view *x, *g, *y; /* forward without g */
    int64_t rows, channels;
    int64_t period; /* length of the tables: as many whole rows as fit a block, at least one */
    double eps, momentum;
    double *sum[2]; /* per channel */
    float *mean, *scale, *shift, *gradient;
} norm;

/* Of all four ops. Input 0 has x's shape. */
mn_status mn_cpu_batch_norm_prepare(const mn_call *call, mn_plan *plan, size_t *workspace_bytes)
{
    const mn_view *x = &call->in[0];
    size_t channels;
    (void)plan;
    bool fits = mn_size_add((size_t)x->shape[x->ndim - 1], MN_BLOCK, &channels) &&
                mn_size_mul(channels, 2 * sizeof(double) + 4 * sizeof(float), workspace_bytes);
    return fits ? MN_OK : MN_ERR_MEMORY;
}

static norm norm_of(const mn_call *call, const mn_view *x, const mn_view *g)
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    const mn_split split = mn_split_at(x, x->ndim - 1);
    const int64_t C = split.size, length = C + MN_BLOCK;
    double *sums = call->workspace;
    float *tables = (float *)(void *)(sums + 2 * C);
    memset(tables, 0, (size_t)(4 * length) * sizeof *tables);
    return (norm){.call = call,
                  .x = x,
                  .g = g,
                  .y = &call->out[0],
                  .rows = split.outer,
                  .channels = C,
                  .period = C > 0 && C <= MN_BLOCK ? MN_BLOCK / C * C : C,
                  .eps = a->eps,
                  .momentum = a->momentum,
                  .sum = {sums, sums + C},
                  .mean = tables,
                  .scale = tables + length,
                  .shift = tables + 2 * length,
                  .gradient = tables + 3 * length};
}

/* f32 inputs with one element per channel. */
static const float *vector(const norm *m, int input)
{
    return m->call->in[input].data;
}

static double rstd_of(const norm *m, double variance)
{
    return 1 / sqrt(variance + m->eps);
}

/* ---- passes over x --------------------------------------------------------------------------- */

static void keep(const void *arg, int64_t start, int64_t n, const double *first,
                 const double *second)
{
    const norm *m = arg;
    for (int64_t i = 0; i < n; i++) {
        m->sum[0][start + i] = first[i];
        m->sum[1][start + i] = second[i];
    }
}

static void add_up(const norm *m, mn_term term, const float *mean, const float *rstd)
{
    const mn_sums sums = {.call = m->call,
                          .term = term,
                          .rows = m->rows,
                          .channels = m->channels,
                          .x = m->x,
                          .g = m->g,
                          .mean = mean,
                          .rstd = rstd,
                          .finish = keep,
                          .arg = m};
    mn_run_sums(&sums);
}

/* n elements from start on, whose channels' factors begin at `at` of the tables. */
static void apply(const norm *m, int64_t at, int64_t start, int64_t n)
{
    const mn_bodies *bodies = mn_bodies_of(m->call);
    const mn_norm_tables tables = {m->mean + at, m->scale + at, m->shift + at, m->gradient + at};
    float row[MN_BLOCK], other[MN_BLOCK], result[MN_BLOCK];
    const float *x = mn_row_load(m->call, m->x, start, n, row);
    float *y = mn_row_place(m->y, start, result);
    if (m->g)
        bodies->normalize_backward((size_t)n, mn_row_load(m->call, m->g, start, n, other), x,
                                   &tables, y);
    else
        bodies->normalize((size_t)n, x, &tables, y);
    mn_row_store(m->call, m->y, start, n, y);
}

static void run_periods(const void *arg, int64_t begin, int64_t end)
{
    const norm *m = arg;
    const int64_t last = mn_min(end * m->period, m->x->numel);
    for (int64_t i = begin * m->period; i < last; i += m->period)
        for (int64_t c = 0; c < m->period && i + c < last; c += MN_BLOCK)
            apply(m, c, i + c, mn_min(mn_min(MN_BLOCK, m->period - c), last - i - c));
}

/* Applies the tables, whose first `channels` elements are filled in. */
static void sweep(const norm *m)
{
    float *const table[4] = {m->mean, m->scale, m->shift, m->gradient};
    if (m->x->numel == 0)
        return;
    for (int k = 0; k < 4; k++)
        for (int64_t i = m->channels; i < m->period; i += m->channels)
            memcpy(table[k] + i, table[k], (size_t)m->channels * sizeof(float));
    mn_run_ranges(m->call, mn_ceil_div(m->x->numel, m->period), mn_max(1, MN_CHUNK / m->period),
                  run_periods, m);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Exact mean and sum of squares about it, into sum[0] and sum[1]. */
static void find_statistics(const norm *m)
{
    const double count = (double)m->rows;
    add_up(m, MN_TERM_X, NULL, NULL);
    /* A first estimate, rounded to f32 so that the second pass subtracts just that. */
    for (int64_t c = 0; c < m->channels; c++)
        m->mean[c] = (float)(m->sum[0][c] / count);
    add_up(m, MN_TERM_MOMENTS, m->mean, NULL);
    for (int64_t c = 0; c < m->channels; c++) {
        /* sum (x - m)^2 is too large by n (mean - m)^2. */
        const double correction = m->sum[0][c] / count;
        const double about_mean = m->sum[1][c] - correction * m->sum[0][c];
        m->sum[0][c] = (double)m->mean[c] + correction;
        m->sum[1][c] = about_mean < 0 ? 0 : about_mean; /* NaN stays */
    }
}

/* running = (1 - momentum) running + momentum statistic, unless a statistic is not finite. The
 * unbiased variance has one degree less than rows; a single row has no spread. */
static void update_running(const norm *m)
{
    const double old = 1 - m->momentum, freedom = m->rows > 1 ? (double)(m->rows - 1) : 1;
    float *mean = m->call->in[3].data, *variance = m->call->in[4].data;
    for (int64_t c = 0; c < m->channels; c++)
        if (!mn_isfinite_f32((float)m->sum[0][c]) ||
            !mn_isfinite_f32((float)(m->sum[1][c] / freedom)))
            return;
    for (int64_t c = 0; c < m->channels; c++) {
        const double unbiased = m->sum[1][c] / freedom;
        mean[c] = (float)(old * (double)mean[c] + m->momentum * m->sum[0][c]);
        variance[c] = (float)(old * (double)variance[c] + m->momentum * unbiased);
    }
    int64_t *count = mn_has_input(m->call, 5) ? m->call->in[5].data : NULL;
    if (count && *count < INT64_MAX) /* a loaded one may be anything */
        *count += 1;
}

void mn_cpu_batch_norm(const mn_call *call)
{
    const norm m = norm_of(call, &call->in[0], NULL);
    const float *weight = vector(&m, 1), *bias = vector(&m, 2);
    float *mean = call->out[1].data, *rstd = call->out[2].data;
    find_statistics(&m);
    update_running(&m);
    for (int64_t c = 0; c < m.channels; c++) {
        mean[c] = m.mean[c] = (float)m.sum[0][c];
        rstd[c] = (float)rstd_of(&m, m.sum[1][c] / (double)m.rows);
        m.scale[c] = rstd[c] * weight[c];
        m.shift[c] = bias[c];
    }
    sweep(&m);
}

void mn_cpu_batch_norm_inference(const mn_call *call)
{
    const norm m = norm_of(call, &call->in[0], NULL);
    const float *weight = vector(&m, 1), *bias = vector(&m, 2);
    const float *mean = vector(&m, 3), *variance = vector(&m, 4);
    for (int64_t c = 0; c < m.channels; c++) {
        m.mean[c] = mean[c];
        m.scale[c] = (float)(rstd_of(&m, (double)variance[c]) * (double)weight[c]);
        m.shift[c] = bias[c];
    }
    sweep(&m);
}

/* ---- backward -------------------------------------------------------------------------------- */

static void find_gradients(const norm *m, const float *rstd)
{
    float *dw = m->call->out[1].data, *db = m->call->out[2].data;
    add_up(m, MN_TERM_GRADIENTS, vector(m, 3), rstd);
    for (int64_t c = 0; c < m->channels; c++) {
        db[c] = (float)m->sum[0][c];
        dw[c] = (float)m->sum[1][c];
    }
}

void mn_cpu_batch_norm_backward(const mn_call *call)
{
    const norm m = norm_of(call, &call->in[1], &call->in[0]);
    const float *weight = vector(&m, 2), *mean = vector(&m, 3), *rstd = vector(&m, 4);
    const double count = (double)m.rows;
    find_gradients(&m, rstd);
    for (int64_t c = 0; c < m.channels; c++) {
        m.mean[c] = mean[c];
        m.scale[c] = weight[c] * rstd[c];
        m.shift[c] = (float)(m.sum[0][c] / count);
        m.gradient[c] = (float)(m.sum[1][c] / count * (double)rstd[c]);
    }
    sweep(&m);
}

/* dx = g w rstd: g takes the place of x, and mean and shift are 0. */
void mn_cpu_batch_norm_inference_backward(const mn_call *call)
{
    norm m = norm_of(call, &call->in[1], &call->in[0]);
    const float *weight = vector(&m, 2), *variance = vector(&m, 4);
    for (int64_t c = 0; c < m.channels; c++) {
        const double rstd = rstd_of(&m, (double)variance[c]);
        m.gradient[c] = (float)rstd;
        m.scale[c] = (float)((double)weight[c] * rstd);
    }
    find_gradients(&m, m.gradient);
    m.x = m.g;
    m.g = NULL;
    sweep(&m);
}
