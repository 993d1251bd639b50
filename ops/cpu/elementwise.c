/* Elementwise ops, and add, mul and expand with broadcasting. */
#include "ops/cpu/run.h"

#include <string.h>

/* ---- one or two operands of one shape -------------------------------------------------------- */

typedef struct map {
    const mn_call *call;
    void (*unary)(size_t n, const float *x, float *y);
    void (*binary)(size_t n, const float *a, const float *b, float *y);
} map;

static void run_map(void *arg, int64_t begin, int64_t end)
{
    const map *m = arg;
    const mn_call *call = m->call;
    float a[MN_BLOCK], b[MN_BLOCK], y[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        int64_t n = mn_min64(end - i, MN_BLOCK);
        float *to = mn_row_place(&call->out[0], i, y);
        const float *first = mn_row_load(call, &call->in[0], i, n, a);
        if (m->unary)
            m->unary((size_t)n, first, to);
        else
            m->binary((size_t)n, first, mn_row_load(call, &call->in[1], i, n, b), to);
        mn_row_store(call, &call->out[0], i, n, to);
    }
}

void mn_cpu_relu(const mn_call *call)
{
    map m = {.call = call, .unary = mn_bodies_of(call)->relu};
    mn_run_ranges(call, call->out[0].numel, MN_CHUNK, run_map, &m);
}

void mn_cpu_relu_backward(const mn_call *call)
{
    map m = {.call = call, .binary = mn_bodies_of(call)->relu_backward};
    mn_run_ranges(call, call->out[0].numel, MN_CHUNK, run_map, &m);
}

/* ---- broadcasting ---------------------------------------------------------------------------- */

typedef struct broadcast {
    const mn_call *call;
    const mn_view *x[2], *y;
    mn_walk walk;
    void (*both)(size_t n, const float *a, const float *b, float *y);
    void (*scalar)(size_t n, const float *a, float b, float *y);
    float factor; /* expand only: takes the place of x[1] */
} broadcast;

/* Where row `row` of the walk (all axes but the last) starts in operand k. */
static int64_t row_start(const mn_walk *walk, int k, int64_t row)
{
    int64_t start = 0;
    for (int i = walk->ndim - 2; i >= 0; i--) {
        start += row % walk->shape[i] * walk->step[k][i];
        row /= walk->shape[i];
    }
    return start;
}

/* n results from y_start on, within one row. The ops commute: a repeated operand comes second. */
static void combine(const broadcast *b, const int64_t start[2], int64_t y_start, int64_t n)
{
    const mn_call *call = b->call;
    const int last = b->walk.ndim - 1;
    float row[2][MN_BLOCK], result[MN_BLOCK];
    float *to = mn_row_place(b->y, y_start, result);
    const bool repeats[2] = {b->walk.step[0][last] == 0, b->walk.step[1][last] == 0};
    const int vector = repeats[0] ? 1 : 0;
    const float *first = mn_row_load(call, b->x[vector], start[vector], n, row[0]);
    if (repeats[0] || repeats[1]) {
        const float *one = mn_row_load(call, b->x[1 - vector], start[1 - vector], 1, row[1]);
        b->scalar((size_t)n, first, *one, to);
    } else {
        b->both((size_t)n, first, mn_row_load(call, b->x[1], start[1], n, row[1]), to);
    }
    mn_row_store(call, b->y, y_start, n, to);
}

static void run_rows(void *arg, int64_t begin, int64_t end)
{
    const broadcast *b = arg;
    const int last = b->walk.ndim - 1;
    const int64_t inner = b->walk.shape[last];
    for (int64_t i = begin; i < end;) {
        const int64_t row = i / inner, column = i % inner;
        const int64_t n = mn_min64(mn_min64(MN_BLOCK, inner - column), end - i);
        int64_t start[2];
        for (int k = 0; k < 2; k++)
            start[k] = row_start(&b->walk, k, row) + column * b->walk.step[k][last];
        combine(b, start, i, n);
        i += n;
    }
}

/* Whether operand k is one short row, repeated, against a whole tensor. */
static bool is_repeated_row(const mn_walk *walk, int k)
{
    return walk->ndim == 2 && walk->shape[1] <= MN_BLOCK / 2 && walk->step[k][0] == 0 &&
           walk->step[k][1] == 1 && walk->step[1 - k][0] == walk->shape[1] &&
           walk->step[1 - k][1] == 1;
}

/* Such a row is widened and repeated once per task; begin is a multiple of its length. */
static void run_repeated(const broadcast *b, int k, int64_t begin, int64_t end)
{
    const mn_call *call = b->call;
    const int64_t period = b->walk.shape[1];
    float table[MN_BLOCK], a[MN_BLOCK], y[MN_BLOCK];
    const float *row = mn_row_load(call, b->x[k], 0, period, a);
    int64_t width = 0;
    for (; width + period <= MN_BLOCK; width += period)
        memcpy(table + width, row, (size_t)period * sizeof *row);
    for (int64_t i = begin; i < end; i += width) {
        int64_t n = mn_min64(end - i, width);
        float *to = mn_row_place(b->y, i, y);
        b->both((size_t)n, mn_row_load(call, b->x[1 - k], i, n, a), table, to);
        mn_row_store(call, b->y, i, n, to);
    }
}

static void run_repeated_first(void *arg, int64_t begin, int64_t end)
{
    run_repeated(arg, 0, begin, end);
}

static void run_repeated_second(void *arg, int64_t begin, int64_t end)
{
    run_repeated(arg, 1, begin, end);
}

static void run_broadcast(broadcast *b)
{
    const mn_call *call = b->call;
    b->x[0] = &call->in[0];
    b->x[1] = &call->in[1];
    b->y = &call->out[0];
    if (b->y->numel == 0)
        return;
    b->walk = mn_walk_make(b->y, b->x[0], b->x[1]);
    const int64_t period = b->walk.shape[b->walk.ndim - 1];
    const int64_t chunk = period * mn_max64(1, MN_CHUNK / period);
    if (is_repeated_row(&b->walk, 0))
        mn_run_ranges(call, b->y->numel, chunk, run_repeated_first, b);
    else if (is_repeated_row(&b->walk, 1))
        mn_run_ranges(call, b->y->numel, chunk, run_repeated_second, b);
    else
        mn_run_ranges(call, b->y->numel, MN_CHUNK, run_rows, b);
}

void mn_cpu_add(const mn_call *call)
{
    const mn_bodies *bodies = mn_bodies_of(call);
    broadcast b = {.call = call, .both = bodies->add, .scalar = bodies->add_scalar};
    run_broadcast(&b);
}

void mn_cpu_mul(const mn_call *call)
{
    const mn_bodies *bodies = mn_bodies_of(call);
    broadcast b = {.call = call, .both = bodies->mul, .scalar = bodies->mul_scalar};
    run_broadcast(&b);
}

/* ---- expand ---------------------------------------------------------------------------------- */

static void expand_row(const broadcast *b, int64_t start, int64_t y_start, int64_t n)
{
    float x[MN_BLOCK], y[MN_BLOCK];
    float *to = mn_row_place(b->y, y_start, y);
    if (b->walk.step[0][b->walk.ndim - 1] != 0) {
        b->scalar((size_t)n, mn_row_load(b->call, b->x[0], start, n, x), b->factor, to);
    } else {
        const float value = *mn_row_load(b->call, b->x[0], start, 1, x) * b->factor;
        for (int64_t i = 0; i < n; i++)
            to[i] = value;
    }
    mn_row_store(b->call, b->y, y_start, n, to);
}

static void run_expand(void *arg, int64_t begin, int64_t end)
{
    const broadcast *b = arg;
    const int last = b->walk.ndim - 1;
    const int64_t inner = b->walk.shape[last];
    for (int64_t i = begin; i < end;) {
        const int64_t column = i % inner;
        const int64_t n = mn_min64(mn_min64(MN_BLOCK, inner - column), end - i);
        expand_row(b, row_start(&b->walk, 0, i / inner) + column * b->walk.step[0][last], i, n);
        i += n;
    }
}

void mn_run_expand(const mn_call *call, const mn_view *x, const mn_view *y, double scale)
{
    broadcast b = {.call = call,
                   .x = {x, x},
                   .y = y,
                   .scalar = mn_bodies_of(call)->mul_scalar,
                   .factor = (float)scale};
    if (y->numel == 0)
        return;
    b.walk = mn_walk_make(y, x, x);
    mn_run_ranges(call, y->numel, MN_CHUNK, run_expand, &b);
}

void mn_cpu_expand(const mn_call *call)
{
    const mn_shape_attributes *a = (const void *)call->attributes.bytes;
    mn_run_expand(call, &call->in[0], &call->out[0], a->scale);
}

/* ---- accumulate ------------------------------------------------------------------------------ */

/* dst is f32; both operands may be one tensor. */
static void run_accumulate(void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_bodies *bodies = mn_bodies_of(call);
    float x[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        int64_t n = mn_min64(end - i, MN_BLOCK);
        bodies->accumulate((size_t)n, mn_element(&call->in[0], i),
                           mn_row_load(call, &call->in[1], i, n, x));
    }
}

void mn_cpu_accumulate(const mn_call *call)
{
    mn_call copy = *call;
    mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_accumulate, &copy);
}
