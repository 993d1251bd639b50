/* Layer and group normalisation of x [outer, positions, groups, size]. Work is cut into items: some
 * groups of one outer index, their matrix [positions, width] read in rows of up to LANES elements,
 * which add up in one f32 accumulator per lane; lanes go to f64 after 1024 terms. Statistics take
 * two passes: sums, then sums about that mean, which correct it. */
#include "ops/cpu/run.h"

#include <math.h>
#include <string.h>

#define LANES 256
#define TERMS 1024 /* most f32 terms in a lane */
#define TASKS 16   /* most sums of dw and db at once */

typedef struct norm {
    const mn_call *call;
    const mn_bodies *bodies;
    const mn_view *x, *g, *y; /* forward without g; y is dx backward */
    mn_grouping is;
    int64_t channels;
    int64_t groups; /* of an item */
    int64_t side;   /* rows side by side, where rows are whole and short */
    int64_t items;  /* per outer index */
    double eps, count;
    const float *weight, *bias;
    float *mean, *rstd; /* [outer, groups] */
    double *partial;    /* dw, db of each task, [channels] each */
    int64_t chunk;      /* items per task */
} norm;

typedef struct item {
    int64_t start, channel, statistic; /* first element of x, of the parameters, of mean and rstd */
    int64_t groups, width;
} item;

/* Accumulators of a row's lanes. */
typedef struct lanes {
    int64_t n;
    int terms;
    float acc[2][LANES];
    double sum[2][LANES];
} lanes;

/* One number of each kind per lane. */
typedef struct tables {
    float mean[LANES], scale[LANES], shift[LANES], gradient[LANES];
} tables;

static norm norm_of(const mn_call *call, const mn_view *x, const mn_view *g)
{
    const mn_group_norm_attributes *a = (const void *)call->attributes.bytes;
    norm m = {.call = call,
              .bodies = mn_bodies_of(call),
              .x = x,
              .g = g,
              .y = &call->out[0],
              .is = mn_grouping_of(x, a),
              .eps = a->eps};
    m.channels = m.is.groups * m.is.size;
    m.groups = mn_max(1, mn_min(m.is.groups, LANES / mn_max(1, m.is.size)));
    m.items = mn_ceil_div(m.is.groups, m.groups);
    m.side = m.items == 1 && m.channels > 0 ? mn_max(1, LANES / m.channels) : 1;
    m.side = mn_max(1, mn_min(m.side, m.is.positions));
    m.count = (double)(m.is.positions * m.is.size);
    return m;
}

static item item_of(const norm *m, int64_t index)
{
    const int64_t outer = index / m->items, group = index % m->items * m->groups;
    const int64_t channel = group * m->is.size;
    const int64_t groups = mn_min(m->groups, m->is.groups - group);
    return (item){.start = outer * m->is.positions * m->channels + channel,
                  .channel = channel,
                  .statistic = outer * m->is.groups + group,
                  .groups = groups,
                  .width = groups * m->is.size};
}

/* Elements in the rows from r on of the strip of channels from c on; *at: the first. */
static int64_t row_of(const norm *m, const item *t, int64_t c, int64_t r, int64_t *at)
{
    *at = t->start + r * m->channels + c;
    return mn_min(LANES, t->width - c) * mn_min(m->side, m->is.positions - r);
}

static void set_all(float *table, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        table[i] = value;
}

/* A value per group, for every lane. */
static void spread(const norm *m, const item *t, const float *values, float *table)
{
    const int64_t size = t->groups == 1 ? mn_min(LANES, m->side * t->width) : m->is.size;
    const int64_t rows = m->side * t->groups;
    for (int64_t i = 0; i < (t->groups == 1 ? 1 : rows); i++)
        set_all(table + i * size, size, values[i % t->groups]);
}

/* The parameter of the strip from c on, for every lane; `missing` if there is none. */
static void repeat(const norm *m, const item *t, const float *parameter, int64_t c, float missing,
                   float *table)
{
    const int64_t width = mn_min(LANES, t->width - c);
    if (!parameter)
        set_all(table, m->side * width, missing);
    for (int64_t i = 0; parameter && i < m->side; i++)
        memcpy(table + i * width, parameter + t->channel + c, (size_t)width * sizeof *table);
}

/* ---- lanes ----------------------------------------------------------------------------------- */

static void start_lanes(const norm *m, const item *t, int64_t c, lanes *l)
{
    int64_t at;
    l->n = row_of(m, t, c, 0, &at);
    l->terms = 0;
    for (int k = 0; k < 2; k++) {
        memset(l->acc[k], 0, (size_t)l->n * sizeof l->acc[k][0]);
        memset(l->sum[k], 0, (size_t)l->n * sizeof l->sum[k][0]);
    }
}

static void flush(const norm *m, lanes *l)
{
    for (int k = 0; k < 2; k++)
        m->bodies->flush((size_t)l->n, l->acc[k], l->sum[k]);
    l->terms = 0;
}

static void count_term(const norm *m, lanes *l)
{
    if (++l->terms == TERMS)
        flush(m, l);
}

/* Sums of a group of the item over all lanes. */
static void fold(const norm *m, const item *t, const lanes *l, int64_t group, double total[2])
{
    const int64_t size = t->groups == 1 ? l->n : m->is.size;
    for (int k = 0; k < 2; k++) {
        total[k] = 0;
        for (int64_t i = group * size; i < l->n; i += t->groups * size)
            total[k] += m->bodies->total((size_t)size, l->sum[k] + i);
    }
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Sums of x; with a mean, of x - mean and its square. */
static void add_up(const norm *m, const item *t, const float *mean, lanes *l)
{
    float row[LANES];
    int64_t at;
    start_lanes(m, t, 0, l);
    for (int64_t c = 0; c < t->width; c += LANES)
        for (int64_t r = 0; r < m->is.positions; r += m->side) {
            const size_t n = (size_t)row_of(m, t, c, r, &at);
            const float *x = mn_row_load(m->call, m->x, at, (int64_t)n, row);
            if (mean)
                m->bodies->add_moments(1, (int64_t)n, 0, x, mean, l->acc[0], l->acc[1]);
            else
                m->bodies->accumulate(n, l->acc[0], x);
            count_term(m, l);
        }
    flush(m, l);
}

/* Mean and rstd of the item's groups; mean as f32 in the table, `rest` is what that lacks. */
static void find_statistics(const norm *m, const item *t, tables *table, float *rest)
{
    float mean[LANES];
    double total[2];
    lanes l;
    add_up(m, t, NULL, &l);
    for (int64_t k = 0; k < t->groups; k++) {
        fold(m, t, &l, k, total);
        mean[k] = (float)(total[0] / m->count);
    }
    spread(m, t, mean, table->mean);
    add_up(m, t, table->mean, &l);
    for (int64_t k = 0; k < t->groups; k++) {
        fold(m, t, &l, k, total);
        const double correction = total[0] / m->count;
        /* sum (x - m)^2 is too large by n (mean - m)^2. */
        const double squares = total[1] - correction * total[0];
        const double variance = squares < 0 ? 0 : squares / m->count; /* NaN stays */
        rest[k] = (float)correction;
        m->mean[t->statistic + k] = (float)((double)mean[k] + correction);
        m->rstd[t->statistic + k] = (float)(1 / sqrt(variance + m->eps));
    }
}

/* y = (x - mean) scale + (b - rest scale) with scale = rstd w. */
static void forward_item(const norm *m, const item *t)
{
    float rest[LANES], rests[LANES], rstd[LANES], row[LANES], result[LANES];
    tables table;
    const mn_norm_tables of = {.mean = table.mean, .scale = table.scale, .shift = table.shift};
    int64_t at;
    find_statistics(m, t, &table, rest);
    spread(m, t, rest, rests);
    spread(m, t, m->rstd + t->statistic, rstd);
    for (int64_t c = 0; c < t->width; c += LANES) {
        const size_t lanes_used = (size_t)row_of(m, t, c, 0, &at);
        repeat(m, t, m->weight, c, 1, table.scale);
        repeat(m, t, m->bias, c, 0, table.shift);
        for (size_t i = 0; i < lanes_used; i++) {
            table.scale[i] *= rstd[i];
            table.shift[i] -= rests[i] * table.scale[i];
        }
        for (int64_t r = 0; r < m->is.positions; r += m->side) {
            const int64_t n = row_of(m, t, c, r, &at);
            float *y = mn_row_place(m->y, at, result);
            m->bodies->normalize((size_t)n, mn_row_load(m->call, m->x, at, n, row), &of, y);
            mn_row_store(m->call, m->y, at, n, y);
        }
    }
}

static void run_forward(const void *arg, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) {
        const item t = item_of(arg, i);
        forward_item(arg, &t);
    }
}

static const float *parameter(const mn_call *call, int input)
{
    return mn_has_input(call, input) ? call->in[input].data : NULL;
}

void mn_cpu_group_norm(const mn_call *call)
{
    norm m = norm_of(call, &call->in[0], NULL);
    m.weight = parameter(call, 1);
    m.bias = parameter(call, 2);
    m.mean = call->out[1].data;
    m.rstd = call->out[2].data;
    if (m.x->numel == 0)
        return;
    const int64_t work = m.is.positions * m.groups * m.is.size;
    mn_run_ranges(call, m.is.outer * m.items, mn_max(1, MN_CHUNK / work), run_forward, &m);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* What both passes over an item read of a row: x, g, and g w. */
typedef struct row {
    int64_t at;
    size_t n;
    const float *x, *g;
    float gw[LANES], scratch[2][LANES];
} row;

static void load_row(const norm *m, const item *t, int64_t c, int64_t r, const float *weight,
                     row *to)
{
    const int64_t n = row_of(m, t, c, r, &to->at);
    to->n = (size_t)n;
    to->x = mn_row_load(m->call, m->x, to->at, n, to->scratch[0]);
    to->g = mn_row_load(m->call, m->g, to->at, n, to->scratch[1]);
    m->bodies->binary[MN_OP_mul](to->n, to->g, weight, to->gw);
}

static void add_doubles(int64_t n, const double *restrict x, double *restrict sum)
{
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i];
}

/* Sums of g w and g w xhat into `l`; those of g and g xhat are added to db and dw. */
static void add_gradients(const norm *m, const item *t, const mn_norm_tables *table, lanes *l,
                          double *const sum[2])
{
    float weight[LANES];
    lanes own;
    row of;
    start_lanes(m, t, 0, l);
    for (int64_t c = 0; c < t->width; c += LANES) {
        repeat(m, t, m->weight, c, 1, weight);
        start_lanes(m, t, c, &own);
        for (int64_t r = 0; r < m->is.positions; r += m->side) {
            load_row(m, t, c, r, weight, &of);
            m->bodies->add_gradients(1, (int64_t)of.n, of.g, of.x, table, own.acc[0], own.acc[1]);
            m->bodies->add_gradients(1, (int64_t)of.n, of.gw, of.x, table, l->acc[0], l->acc[1]);
            count_term(m, &own);
            count_term(m, l);
        }
        flush(m, &own);
        const int64_t width = mn_min(LANES, t->width - c);
        for (int64_t i = 0; i < own.n; i += width)
            for (int k = 0; k < 2; k++)
                add_doubles(width, own.sum[k] + i, sum[k] + t->channel + c);
    }
    flush(m, l);
}

/* dx = rstd (g w - mean of g w - xhat mean of g w xhat), means over the group. */
static void backward_item(const norm *m, const item *t, double *const sum[2])
{
    float shift[LANES], gradient[LANES], weight[LANES], result[LANES];
    tables table;
    const mn_norm_tables of = {
        .mean = table.mean, .scale = table.scale, .shift = table.shift, .gradient = table.gradient};
    lanes l;
    row in;
    spread(m, t, m->mean + t->statistic, table.mean);
    spread(m, t, m->rstd + t->statistic, table.scale);
    add_gradients(m, t, &of, &l, sum);
    for (int64_t k = 0; k < t->groups; k++) {
        double total[2];
        fold(m, t, &l, k, total);
        shift[k] = (float)(total[0] / m->count);
        gradient[k] = (float)(total[1] / m->count * (double)m->rstd[t->statistic + k]);
    }
    spread(m, t, shift, table.shift);
    spread(m, t, gradient, table.gradient);
    for (int64_t c = 0; c < t->width; c += LANES) {
        repeat(m, t, m->weight, c, 1, weight);
        for (int64_t r = 0; r < m->is.positions; r += m->side) {
            load_row(m, t, c, r, weight, &in);
            float *dx = mn_row_place(m->y, in.at, result);
            m->bodies->normalize_backward(in.n, in.gw, in.x, &of, dx);
            mn_row_store(m->call, m->y, in.at, (int64_t)in.n, dx);
        }
    }
}

static void run_backward(void *arg, int64_t task, int slot)
{
    const norm *m = arg;
    double *const dw = m->partial + 2 * task * m->channels;
    double *const sum[2] = {dw + m->channels, dw};
    const int64_t end = mn_min((task + 1) * m->chunk, m->is.outer * m->items);
    (void)slot;
    memset(dw, 0, (size_t)(2 * m->channels) * sizeof *dw);
    for (int64_t i = task * m->chunk; i < end; i++) {
        const item t = item_of(m, i);
        backward_item(m, &t, sum);
    }
}

/* How many tasks a call has; at least one. */
static int64_t tasks_of(const norm *m)
{
    const int64_t most = mn_min(TASKS, mn_ceil_div(m->x->numel, MN_CHUNK));
    return mn_max(1, mn_min(most, m->is.outer * m->items));
}

mn_status mn_cpu_group_norm_backward_prepare(const mn_call *call, mn_plan *plan,
                                             size_t *workspace_bytes)
{
    const norm m = norm_of(call, &call->in[1], &call->in[0]);
    (void)plan;
    const bool fits = mn_size_mul((size_t)m.channels, 2 * sizeof(double), workspace_bytes) &&
                      mn_size_mul(*workspace_bytes, (size_t)tasks_of(&m), workspace_bytes);
    return fits ? MN_OK : MN_ERR_MEMORY;
}

void mn_cpu_group_norm_backward(const mn_call *call)
{
    norm m = norm_of(call, &call->in[1], &call->in[0]);
    float *const out[2] = {call->out[1].data, call->out[2].data};
    m.weight = parameter(call, 2);
    m.mean = call->in[3].data;
    m.rstd = call->in[4].data;
    m.partial = call->workspace;
    m.chunk = mn_ceil_div(m.is.outer * m.items, tasks_of(&m));
    const int64_t tasks = m.chunk > 0 ? mn_ceil_div(m.is.outer * m.items, m.chunk) : 0;
    mn_call_parallel(call, tasks, run_backward, &m);
    for (int64_t i = 0; i < 2 * m.channels; i++) {
        double total = 0;
        for (int64_t k = 0; k < tasks; k++)
            total += m.partial[2 * k * m.channels + i];
        out[i / m.channels][i % m.channels] = (float)total;
    }
}
