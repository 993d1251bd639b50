/* Cutting, joining and indexing. Elements are moved as bytes, whatever their dtype. */
#include "ops/cpu/run.h"

#include <string.h>

static void copy_elements(const mn_view *y, int64_t to, const mn_view *x, int64_t from, int64_t n)
{
    if (n > 0)
        memcpy(mn_element(y, to), mn_element(x, from), (size_t)n * mn_dtype_size(x->dtype));
}

/* ---- pad ------------------------------------------------------------------------------------- */

/* Rows reach over the last axis whose extent changes and those behind it. */
typedef struct padding {
    const mn_call *call;
    const mn_pad_attributes *a;
    int axis;
    int64_t x_row, y_row, shift; /* element i of x's row is i + shift of y's */
    double value;                /* as y's dtype has it, from the first byte on */
} padding;

/* Inlined with `size`, of an element, a constant. */
static inline __attribute__((always_inline)) void repeat(size_t size, const double *value,
                                                         int64_t n, char *to)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + (size_t)i * size, value, size);
}

static void put_value(const padding *p, int64_t start, int64_t n)
{
    const size_t size = mn_dtype_size(p->call->out[0].dtype);
    if (n <= 0)
        return;
    char *to = mn_element(&p->call->out[0], start);
    if (size == 2)
        repeat(2, &p->value, n, to);
    else if (size == 4)
        repeat(4, &p->value, n, to);
    else
        repeat(size, &p->value, n, to);
}

/* Where the row starts in x; -1 if it lies outside. */
static int64_t row_start(const padding *p, int64_t row)
{
    const mn_view *x = &p->call->in[0], *y = &p->call->out[0];
    int64_t start = 0, step = p->x_row;
    for (int d = p->axis - 1; d >= 0; d--) {
        const int64_t at = row % y->shape[d] - p->a->before[d];
        if (at < 0 || at >= x->shape[d])
            return -1;
        start += at * step;
        step *= x->shape[d];
        row /= y->shape[d];
    }
    return start;
}

static void run_pad(const void *arg, int64_t begin, int64_t end)
{
    const padding *p = arg;
    for (int64_t i = begin, n; i < end; i += n) {
        const int64_t column = i % p->y_row, start = row_start(p, i / p->y_row);
        n = mn_min(p->y_row - column, end - i);
        int64_t first = n, last = n; /* of the elements from x */
        if (start >= 0) {
            first = mn_min(n, mn_max(0, p->shift - column));
            last = mn_max(first, mn_min(n, p->shift + p->x_row - column));
        }
        put_value(p, i, first);
        copy_elements(&p->call->out[0], i + first, &p->call->in[0],
                      start + column + first - p->shift, last - first);
        put_value(p, i + last, n - last);
    }
}

void mn_cpu_pad(const mn_call *call)
{
    const mn_view *x = &call->in[0], *y = &call->out[0];
    padding p = {.call = call, .a = (const void *)call->attributes.bytes, .x_row = 1, .y_row = 1};
    for (int d = 0; d < x->ndim; d++)
        p.axis = x->shape[d] != y->shape[d] || p.a->before[d] != 0 ? d : p.axis;
    for (int d = p.axis; d < x->ndim; d++) {
        p.shift = d == p.axis ? p.a->before[d] : p.shift * x->shape[d];
        p.x_row *= x->shape[d];
        p.y_row *= y->shape[d];
    }
    mn_from_f64(y->dtype, false, 1, &p.a->value, &p.value);
    mn_run_ranges(call, y->numel, MN_CHUNK, run_pad, &p);
}

/* ---- concat ---------------------------------------------------------------------------------- */

/* One input, whose rows are pieces of y's rows. */
typedef struct part {
    const mn_view *x, *y;
    int64_t x_row, y_row, start;
} part;

static void run_part(const void *arg, int64_t begin, int64_t end)
{
    const part *p = arg;
    for (int64_t i = begin, n; i < end; i += n) {
        const int64_t row = i / p->x_row, column = i % p->x_row;
        n = mn_min(p->x_row - column, end - i);
        copy_elements(p->y, row * p->y_row + p->start + column, p->x, i, n);
    }
}

void mn_cpu_concat(const mn_call *call)
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_split split = mn_split_at(&call->out[0], a->axis);
    part p = {.y = &call->out[0], .y_row = split.size * split.inner};
    for (int k = 0; k < call->input_count; k++) {
        p.x = &call->in[k];
        p.x_row = p.x->shape[a->axis] * split.inner;
        mn_run_ranges(call, p.x->numel, MN_CHUNK, run_part, &p);
        p.start += p.x_row;
    }
}

/* ---- gather and scatter ---------------------------------------------------------------------- */

typedef struct indexing {
    const mn_call *call;
    const mn_view *index;
    int64_t axis, extent, step; /* of x along the axis */
    int64_t steps[MN_MAX_DIMS]; /* along the others */
    float *sums;                /* scatter_add: y, or y in f32 */
} indexing;

static bool is_within(const indexing *x, int64_t index)
{
    return index >= 0 && index < x->extent;
}

/* The first index out of range becomes the call's fault, whatever the number of threads. */
static indexing indexing_of(const mn_call *call, const mn_view *index)
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_split split = mn_split_at(&call->in[0], a->axis);
    const int64_t *indices = index->data;
    indexing x = {call, index, a->axis, split.size, split.inner, {0}, NULL};
    mn_gather_steps(&call->in[0], index, a->axis, x.steps);
    int64_t sound = 0;
    while (sound < index->numel && is_within(&x, indices[sound]))
        sound++;
    if (sound < index->numel)
        mn_index_check(call, indices[sound], split.size);
    return x;
}

/* Where element i of the index points to if it holds 0. */
static int64_t origin(const indexing *x, int64_t i)
{
    return mn_offset(i, x->index->ndim, x->index->shape, x->steps);
}

/* n elements of a row of the index from i on; inlined with `size`, of an element, a constant. */
static inline __attribute__((always_inline)) void pick(size_t size, const indexing *x, int64_t i,
                                                       int64_t n)
{
    const int64_t *index = (const int64_t *)x->index->data + i;
    const int64_t start = origin(x, i), step = x->steps[x->index->ndim - 1];
    const char *from = x->call->in[0].data;
    char *to = mn_element(&x->call->out[0], i);
    for (int64_t j = 0; j < n; j++, to += size)
        if (is_within(x, index[j]))
            memcpy(to, from + (size_t)(start + j * step + index[j] * x->step) * size, size);
        else
            memset(to, 0, size);
}

static void run_gather(const void *arg, int64_t begin, int64_t end)
{
    const indexing *x = arg;
    const size_t size = mn_dtype_size(x->call->out[0].dtype);
    const int64_t length = x->index->shape[x->index->ndim - 1];
    for (int64_t i = begin, n; i < end; i += n) {
        n = mn_min(length - i % length, end - i);
        if (size == 2)
            pick(2, x, i, n);
        else if (size == 4)
            pick(4, x, i, n);
        else
            pick(size, x, i, n);
    }
}

void mn_cpu_gather(const mn_call *call)
{
    const indexing x = indexing_of(call, &call->in[1]);
    mn_run_ranges(call, x.index->numel, MN_CHUNK / 8, run_gather, &x);
}

/* Sums are kept in f32 until the end. */
mn_status mn_cpu_scatter_add_prepare(const mn_call *call, mn_plan *plan, size_t *workspace_bytes)
{
    (void)plan;
    *workspace_bytes = call->in[0].dtype == MN_F32 ? 0 : (size_t)call->in[0].numel * sizeof(float);
    return MN_OK;
}

/* Lines along the axis, each added up by one thread. */
static void run_scatter(const void *arg, int64_t begin, int64_t end)
{
    const indexing *x = arg;
    const mn_split split = mn_split_at(x->index, x->axis);
    const int64_t *index = x->index->data, width = split.inner == 1 ? MN_BLOCK : 1;
    float scratch[MN_BLOCK];
    for (int64_t line = begin; line < end; line++) {
        int64_t i = line / split.inner * split.size * split.inner + line % split.inner;
        float *sums = x->sums + origin(x, i);
        for (int64_t j = 0; j < split.size; j += width, i += width * split.inner) {
            const int64_t n = mn_min(width, split.size - j);
            const float *row = mn_row_load(x->call, &x->call->in[1], i, n, scratch);
            for (int64_t k = 0; k < n; k++)
                if (is_within(x, index[i + k]))
                    sums[index[i + k] * x->step] += row[k];
        }
    }
}

static void run_narrow(const void *arg, int64_t begin, int64_t end)
{
    const indexing *x = arg;
    mn_row_store(x->call, &x->call->out[0], begin, end - begin, x->sums + begin);
}

void mn_cpu_scatter_add(const mn_call *call)
{
    const mn_view *y = &call->out[0];
    indexing x = indexing_of(call, &call->in[2]);
    const mn_split split = mn_split_at(x.index, x.axis);
    mn_view sums = *y;
    sums.dtype = MN_F32;
    sums.data = y->dtype == MN_F32 ? y->data : call->workspace;
    x.sums = sums.data;
    mn_run_convert(call, &call->in[0], &sums);
    mn_run_ranges(call, x.index->numel > 0 ? split.outer * split.inner : 0,
                  mn_max(1, MN_CHUNK / 8 / mn_max(1, split.size)), run_scatter, &x);
    if (y->dtype != MN_F32)
        mn_run_ranges(call, y->numel, MN_CHUNK, run_narrow, &x);
}

/* ---- dropout --------------------------------------------------------------------------------- */

typedef struct dropping {
    const mn_call *call;
    mn_keep keep;
} dropping;

/* begin is a multiple of 4: whole blocks of words. */
static void run_dropout(const void *arg, int64_t begin, int64_t end)
{
    const dropping *d = arg;
    const mn_bodies *bodies = mn_bodies_of(d->call);
    const mn_view *x = &d->call->in[0], *y = &d->call->out[0];
    float factors[MN_BLOCK], row[MN_BLOCK], result[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(MN_BLOCK, end - i);
        float *to = mn_row_place(y, i, result);
        bodies->keep_factors((size_t)mn_ceil_div(n, 4), &d->keep, (uint32_t)(i / 4), factors);
        bodies->binary[MN_OP_mul]((size_t)n, mn_row_load(d->call, x, i, n, row), factors, to);
        mn_row_store(d->call, y, i, n, to);
    }
}

void mn_cpu_dropout(const mn_call *call)
{
    const mn_dropout_attributes *a = (const void *)call->attributes.bytes;
    const dropping d = {
        .call = call,
        .keep = {.key = {(uint32_t)a->key[0], (uint32_t)a->key[1]},
                 .call = (uint32_t)a->call,
                 .position = {(uint32_t)a->position, (uint32_t)((uint64_t)a->position >> 32)},
                 .threshold = mn_dropout_threshold(a->p),
                 .scale = a->p < 1 ? (float)(1 / (1 - a->p)) : 0}};
    mn_run_ranges(call, call->out[0].numel, MN_CHUNK, run_dropout, &d);
}
