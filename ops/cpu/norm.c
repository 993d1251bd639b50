/* Batch normalisation, alone and with a residual added and ReLU applied. Sums are taken in tasks,
 * blocks of rows cut by shape alone; statistics (moments.c) read x once, or not at all where the
 * convolution before has made them. */
#include "ops/cpu/norm.h"
#include "ops/cpu/pack.h"

#include "core/math.h"

#include <math.h>
#include <string.h>

#define MOMENTS        7     /* the input that holds them */
#define TERMS          256   /* most f32 terms in a lane */
#define MOST_TASKS     64    /* of sums */
#define REGISTER_LANES 64    /* of which AVX-512 keeps sums and factors in registers */
#define KERNEL_BLOCK   2048  /* elements, about: some tensors' stay in the nearest cache */
#define PARTIALS       16384 /* sums of all tasks, where one task has not more */

typedef mn_norm_run norm;

/* f32 accumulators and f64 sums of what is taken at once. */
typedef struct lanes {
    float acc[2][MN_BLOCK];
    double sum[2][MN_BLOCK];
} lanes;

static void cut(norm *m, const mn_view *x)
{
    const mn_split split = mn_split_at(x, x->ndim - 1);
    const int64_t C = split.size, strips = mn_max(1, mn_ceil_div(C, MN_BLOCK));
    m->rows = split.outer;
    m->channels = C;
    m->width = mn_ceil_div(C, strips);
    const mn_moments narrow = mn_moments_of(m->call, x);
    m->side = strips == 1 && C > 0 ? MN_BLOCK / C : 1;
    if (narrow.lanes <= REGISTER_LANES)
        m->side = narrow.side;
    m->group = strips == 1 && C > 0 ? MN_BLOCK / C / m->side * m->side : 1;
    m->length = mn_max(1, mn_max(C, m->group * C));
    const int64_t most = mn_min(MOST_TASKS, PARTIALS / mn_max(1, 2 * C));
    const int64_t count = mn_max(1, mn_min(x->numel / MN_CHUNK, most));
    m->task_rows = mn_ceil_div(mn_ceil_div(m->rows, count), m->side) * m->side;
    m->tasks = m->rows > 0 ? mn_ceil_div(m->rows, m->task_rows) : 0;
}

typedef struct norm_places {
    size_t sums, partial, tables, moments, where, bytes;
    bool ok;
} norm_places;

static bool pools_backward(const mn_call *call)
{
    return call->op == &mn_ops[MN_OP_batch_norm_relu_pool_backward];
}

static bool pools(const mn_call *call)
{
    return call->op == &mn_ops[MN_OP_batch_norm_relu_pool] ||
           call->op == &mn_ops[MN_OP_batch_norm_inference_relu_pool] || pools_backward(call);
}

static norm_places places_of(const norm *m)
{
    const mn_moments moments = mn_moments_of(m->call, &m->call->in[0]);
    mn_arena arena = {0, true};
    norm_places p = {.sums = mn_arena_take(&arena, sizeof(double), 2, m->channels, 1)};
    p.tables = mn_arena_take(&arena, sizeof(float), 5, m->length, 1);
    p.moments = mn_arena_take(&arena, mn_moments_slot_bytes(&moments), m->tasks, 1, 1);
    p.partial = p.moments; /* forward or backward */
    mn_arena backward = {p.partial, arena.ok};
    mn_arena_take(&backward, 2 * sizeof(double), m->tasks, m->channels, 1);
    if (pools_backward(m->call))
        p.where =
            mn_arena_take(&backward, sizeof(uint16_t),
                          m->call->in[0].numel / mn_max(1, m->channels), mn_norm_pool_masks(m), 1);
    p.bytes = arena.bytes > backward.bytes ? arena.bytes : backward.bytes;
    p.ok = backward.ok;
    return p;
}

/* Of all these ops. Input 0 has x's shape, but for a gradient of what was pooled. */
mn_status mn_cpu_batch_norm_prepare(const mn_call *call, mn_plan *plan, size_t *workspace_bytes)
{
    norm m = {.call = call};
    (void)plan;
    cut(&m, &call->in[pools_backward(call)]);
    const norm_places places = places_of(&m);
    *workspace_bytes = places.bytes;
    return places.ok ? MN_OK : MN_ERR_MEMORY;
}

static float limit_of(mn_dtype dtype)
{
    /* Halves of the smallest subnormals, which round to even. */
    return dtype == MN_F16 ? 0x1p-25F : dtype == MN_BF16 ? 0x1p-134F : 0.0F;
}

/* Counted 16-bit stores need the values as they were before rounding. */
static const mn_norm_kernels *kernels_of(const mn_call *call, mn_dtype dtype)
{
#if defined(MINIM_AVX2)
    if (call->cpu->kernels == MN_KERNELS_AVX512 && (dtype == MN_F32 || !call->stores))
        return &mn_norm_avx512[dtype];
#endif
    (void)call;
    (void)dtype;
    return NULL;
}

static norm norm_of(const mn_call *call, const mn_view *x, const mn_view *g)
{
    const mn_batch_norm_attributes *a = (const void *)call->attributes.bytes;
    norm m = {.call = call,
              .bodies = mn_bodies_of(call),
              .kernels = kernels_of(call, x->dtype),
              .x = x,
              .g = g,
              .y = &call->out[0],
              .pool = pools(call),
              .limit = limit_of(x->dtype),
              .eps = a->eps,
              .momentum = a->momentum};
    cut(&m, x);
    const norm_places places = places_of(&m);
    m.sum[0] = mn_workspace(call, places.sums);
    m.sum[1] = m.sum[0] + m.channels;
    m.partial = mn_workspace(call, places.partial);
    m.where = pools_backward(call) ? mn_workspace(call, places.where) : NULL;
    m.moments = mn_moments_of(call, x);
    m.moments.slots = m.tasks;
    m.moments.at = places.moments;
    float **const tables[] = {&m.mean, &m.scale, &m.shift, &m.gradient, &m.bias};
    float *at = mn_workspace(call, places.tables);
    memset(at, 0, (size_t)(5 * m.length) * sizeof *at);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        *tables[i] = at + (int64_t)i * m.length;
    return m;
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

static void repeat(float *table, int64_t channels, int64_t length)
{
    for (int64_t i = channels; i < length; i += channels)
        memcpy(table + i, table, (size_t)channels * sizeof *table);
}

/* Tables whose first `channels` elements are filled in. */
static void repeat_tables(const norm *m)
{
    float *const tables[] = {m->mean, m->scale, m->shift, m->gradient, m->bias};
    for (size_t i = 0; m->channels > 0 && i < sizeof tables / sizeof *tables; i++)
        repeat(tables[i], m->channels, m->length);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Some rows of a strip. */
typedef struct block {
    int64_t row, rows, channel, width;
} block;
typedef void (*block_fn)(const norm *m, const block *b, lanes *l);

/* Rows of the strip that begins at a channel. */
static void walk(const norm *m, int64_t channel, int64_t row, int64_t end, block_fn run, lanes *l)
{
    block b = {.channel = channel, .width = mn_min(m->width, m->channels - channel)};
    const int64_t most = mn_max(1, KERNEL_BLOCK / b.width / m->side) * m->side;
    const int64_t step = m->kernels ? most : m->group;
    for (b.row = row; b.row < end; b.row += step) {
        b.rows = mn_min(step, end - b.row);
        run(m, &b, l);
    }
}

static int64_t start_of(const norm *m, const block *b)
{
    return b->row * m->channels + b->channel;
}

mn_norm_tables mn_norm_tables_at(const norm *m, int64_t at)
{
    return (mn_norm_tables){.mean = m->mean + at,
                            .scale = m->scale + at,
                            .shift = m->shift + at,
                            .gradient = m->gradient + at,
                            .slope = m->scale + at,
                            .bias = m->bias + at,
                            .limit = m->limit};
}

/* By kernels; what does not fill the lanes is a row of its own. */
static void run_kernels(const norm *m, const block *b, const mn_view *y,
                        const mn_norm_tables *tables, lanes *l)
{
    const int64_t side = b->width == m->channels ? m->side : 1, whole = b->rows / side * side;
    for (int64_t i = 0, rows; i < b->rows; i += rows) {
        const int64_t start = start_of(m, b) + i * m->channels;
        rows = i < whole ? whole : b->rows - whole;
        const mn_norm_rows r = {.rows = i < whole ? whole / side : 1,
                                .n = mn_min(side, rows) * b->width,
                                .ld = side * m->channels,
                                .x = mn_element(m->x, start),
                                .g = m->g ? mn_element(m->g, start) : NULL,
                                .other = m->other ? mn_element(m->other, start) : NULL,
                                .y = y ? mn_element(y, start) : NULL,
                                .relu = m->relu,
                                .tables = *tables};
        if (l)
            m->kernels->add(&r, l->acc[0], l->acc[1]);
        else
            m->kernels->apply(&r);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Of the residual's gradient, which it writes, if there is one. The table `gradient` holds rstd. */
static void add_gradients(const norm *m, const block *b, lanes *l)
{
    mn_norm_tables tables = mn_norm_tables_at(m, b->channel);
    const int64_t start = start_of(m, b), n = b->rows * b->width;
    float row[3][MN_BLOCK], result[MN_BLOCK];
    tables.scale = tables.gradient;
    if (m->kernels) {
        run_kernels(m, b, m->masked, &tables, l);
        return;
    }
    const float *x = mn_row_load(m->call, m->x, start, n, row[0]);
    const float *g = mn_row_load(m->call, m->g, start, n, row[1]);
    if (m->masked) {
        float *to = mn_row_place(m->masked, start, result);
        const float *y = mn_row_load(m->call, m->other, start, n, row[2]);
        m->bodies->binary[MN_OP_relu_backward]((size_t)n, g, y, to);
        mn_row_store(m->call, m->masked, start, n, to);
        g = to;
    }
    mn_gradients_body *add = m->relu ? m->bodies->add_masked_gradients : m->bodies->add_gradients;
    const int64_t whole = b->rows / m->side, rest = b->rows % m->side, at = n - rest * b->width;
    add(whole, m->side * b->width, g, x, &tables, l->acc[0], l->acc[1]);
    if (rest > 0)
        add(1, rest * b->width, g + at, x + at, &tables, l->acc[0], l->acc[1]);
}

static void sum_rows(const norm *m, int64_t channel, int64_t row, int64_t end, block_fn add,
                     lanes *l)
{
    const int64_t step = TERMS * m->side, count = m->side * m->width;
    memset(l->acc, 0, sizeof l->acc);
    memset(l->sum, 0, sizeof l->sum);
    for (; row < end; row += step) {
        walk(m, channel, row, mn_min(end, row + step), add, l);
        for (int k = 0; k < 2; k++)
            m->bodies->flush((size_t)count, l->acc[k], l->sum[k]);
    }
}

/* Over the lanes of a channel. */
static double lane_sum(const norm *m, const double *sum, int64_t c, int64_t width)
{
    double total = 0;
    for (int64_t i = c; i < m->side * width; i += width)
        total += sum[i];
    return total;
}

static void run_sums(const void *arg, int64_t begin, int64_t end)
{
    const norm *m = arg;
    const int64_t strips = mn_ceil_div(m->channels, m->width);
    for (int64_t i = begin; i < end; i++) {
        const int64_t task = i / strips, channel = i % strips * m->width;
        const int64_t row = task * m->task_rows, last = mn_min(row + m->task_rows, m->rows);
        double *first = m->partial + 2 * task * m->channels + channel;
        double *const to[2] = {first, first + m->channels};
        const int64_t width = mn_min(m->width, m->channels - channel);
        lanes l;
        if (!m->g) {
            mn_moments_add(&m->moments, task, row, last - row, channel, width);
            continue;
        }
        if (m->pool) {
            mn_norm_pool_sums(m, task, channel, width, to);
            continue;
        }
        sum_rows(m, channel, row, last, add_gradients, &l);
        for (int k = 0; k < 2; k++)
            for (int64_t c = 0; c < width; c++)
                to[k][c] = lane_sum(m, l.sum[k], c, width);
    }
}

static void run_tasks(const norm *m)
{
    if (m->channels > 0)
        mn_run_ranges(m->call, m->tasks * mn_ceil_div(m->channels, m->width), 1, run_sums, m);
}

static void add_partials(const norm *m, int which)
{
    for (int64_t c = 0; c < m->channels; c++)
        m->sum[which][c] = 0;
    for (int64_t t = 0; t < m->tasks; t++)
        for (int64_t c = 0; c < m->channels; c++)
            m->sum[which][c] += m->partial[(2 * t + which) * m->channels + c];
}

/* ---- applying the tables --------------------------------------------------------------------- */

void mn_norm_round(const norm *m, int64_t n, float *x)
{
    const mn_converter *converter = &m->call->cpu->converters[m->y->dtype];
    uint16_t half[2 * MN_BLOCK];
    if (m->y->dtype == MN_F32)
        return;
    converter->from_f32((size_t)n, x, half);
    converter->to_f32((size_t)n, half, x);
}

static void apply(const norm *m, const block *b, lanes *l)
{
    const mn_bodies *bodies = m->bodies;
    const mn_norm_tables tables = mn_norm_tables_at(m, b->channel);
    const int64_t start = start_of(m, b), n = b->rows * b->width;
    float row[MN_BLOCK], other[2][MN_BLOCK], result[MN_BLOCK];
    (void)l;
    if (m->kernels) {
        run_kernels(m, b, m->y, &tables, NULL);
        return;
    }
    const float *x = mn_row_load(m->call, m->x, start, n, row);
    float *y = mn_row_place(m->y, start, result);
    if (m->g) {
        const float *g = mn_row_load(m->call, m->g, start, n, other[0]);
        (m->relu ? bodies->masked_backward : bodies->normalize_backward)((size_t)n, g, x, &tables,
                                                                         y);
    } else if (!m->relu) {
        bodies->normalize((size_t)n, x, &tables, y);
    } else {
        const float *sum = other[0];
        bodies->normalize((size_t)n, x, &tables, other[0]);
        if (m->other) {
            mn_norm_round(m, n, other[0]);
            const float *r = mn_row_load(m->call, m->other, start, n, result);
            bodies->binary[MN_OP_add]((size_t)n, other[0], r, other[1]);
            sum = other[1];
        }
        bodies->binary[MN_OP_relu]((size_t)n, sum, sum, y);
    }
    mn_row_store(m->call, m->y, start, n, y);
}

static void run_rows(const void *arg, int64_t begin, int64_t end)
{
    const norm *m = arg;
    const int64_t last = mn_min(end * m->group, m->rows);
    for (int64_t channel = 0; channel < m->channels; channel += m->width)
        walk(m, channel, begin * m->group, last, apply, NULL);
}

static void sweep(const norm *m)
{
    if (m->x->numel == 0)
        return;
    repeat_tables(m);
    if (m->pool) {
        mn_norm_pool_sweep(m);
        return;
    }
    mn_run_ranges(m->call, mn_ceil_div(m->rows, m->group), mn_max(1, MN_CHUNK / m->length),
                  run_rows, m);
}

/* ---- forward --------------------------------------------------------------------------------- */

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

/* `residual`: which input it is. */
static norm forward_of(const mn_call *call, mn_op_id with_relu, int residual)
{
    norm m = norm_of(call, &call->in[0], NULL);
    m.relu = call->op == &mn_ops[with_relu];
    m.other = m.relu && mn_has_input(call, residual) ? &call->in[residual] : NULL;
    return m;
}

void mn_cpu_batch_norm(const mn_call *call)
{
    const norm m = forward_of(call, MN_OP_batch_norm_relu, 6);
    const float *weight = vector(&m, 1), *bias = vector(&m, 2);
    float *mean = call->out[1].data, *rstd = call->out[2].data;
    if (mn_has_input(call, MOMENTS)) {
        const double *given = call->in[MOMENTS].data;
        for (int64_t i = 0; i < 2 * m.channels; i++)
            m.sum[0][i] = given[i];
    } else {
        mn_moments_clear(&m.moments);
        run_tasks(&m);
        mn_moments_merge(&m.moments, m.sum[0], m.sum[1]);
    }
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
    const norm m = forward_of(call, MN_OP_batch_norm_inference_relu, 5);
    const float *weight = vector(&m, 1), *bias = vector(&m, 2);
    const float *mean = vector(&m, 3), *variance = vector(&m, 4);
    for (int64_t c = 0; c < m.channels; c++) {
        m.mean[c] = mean[c];
        m.scale[c] = (float)(rstd_of(&m, (double)variance[c]) * (double)weight[c]);
        m.shift[c] = bias[c];
    }
    sweep(&m);
}

/* With the factors that batch_norm_relu had, and so with its bits. */
void mn_cpu_batch_norm_relu_again(const mn_call *call)
{
    norm m = norm_of(call, &call->in[0], NULL);
    const float *weight = vector(&m, 1), *bias = vector(&m, 2);
    const float *mean = vector(&m, 3), *rstd = vector(&m, 4);
    m.relu = true;
    for (int64_t c = 0; c < m.channels; c++) {
        m.mean[c] = mean[c];
        m.scale[c] = rstd[c] * weight[c];
        m.shift[c] = bias[c];
    }
    sweep(&m);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* The tables have mean, rstd in `gradient` and, for the mask, scale and bias. */
static void find_gradients(const norm *m)
{
    float *dw = m->call->out[1].data, *db = m->call->out[2].data;
    repeat_tables(m);
    run_tasks(m);
    add_partials(m, 0);
    add_partials(m, 1);
    for (int64_t c = 0; c < m->channels; c++) {
        db[c] = (float)m->sum[0][c];
        dw[c] = (float)m->sum[1][c];
    }
}

static void run_backward(norm *m, const float *mean, const float *rstd)
{
    const float *weight = vector(m, 2);
    const double count = (double)m->rows;
    for (int64_t c = 0; c < m->channels; c++) {
        m->mean[c] = mean[c];
        m->gradient[c] = rstd[c];
        m->scale[c] = weight[c] * rstd[c];
    }
    find_gradients(m);
    for (int64_t c = 0; c < m->channels; c++) {
        m->shift[c] = (float)(m->sum[0][c] / count);
        m->gradient[c] = (float)(m->sum[1][c] / count * (double)rstd[c]);
    }
    if (m->masked)
        m->g = m->masked;
    sweep(m);
}

void mn_cpu_batch_norm_backward(const mn_call *call)
{
    norm m = norm_of(call, &call->in[1], &call->in[0]);
    run_backward(&m, vector(&m, 3), vector(&m, 4));
}

/* The mask comes from x, which is read anyway, unless a residual was added to what x gives. */
void mn_cpu_batch_norm_relu_backward(const mn_call *call)
{
    norm m = norm_of(call, &call->in[1], &call->in[0]);
    m.relu = mn_has_input(call, 3);
    for (int64_t c = 0; m.relu && c < m.channels; c++)
        m.bias[c] = vector(&m, 3)[c];
    if (!m.relu) {
        m.other = &call->in[6];
        m.masked = &call->out[3];
    }
    run_backward(&m, vector(&m, 4), vector(&m, 5));
}

void mn_cpu_batch_norm_relu_pool_backward(const mn_call *call)
{
    norm m = norm_of(call, &call->in[1], &call->in[0]);
    for (int64_t c = 0; c < m.channels; c++)
        m.bias[c] = vector(&m, 3)[c];
    run_backward(&m, vector(&m, 4), vector(&m, 5));
}

/* dx = g w rstd: g takes the place of x, and mean and shift are 0. */
void mn_cpu_batch_norm_inference_backward(const mn_call *call)
{
    norm m = norm_of(call, &call->in[1], &call->in[0]);
    const float *weight = vector(&m, 2), *mean = vector(&m, 3), *variance = vector(&m, 4);
    for (int64_t c = 0; c < m.channels; c++) {
        const double rstd = rstd_of(&m, (double)variance[c]);
        m.mean[c] = mean[c];
        m.gradient[c] = (float)rstd;
        m.scale[c] = (float)((double)weight[c] * rstd);
    }
    find_gradients(&m);
    memset(m.mean, 0, (size_t)m.length * sizeof *m.mean);
    m.x = m.g;
    m.g = NULL;
    sweep(&m);
}
