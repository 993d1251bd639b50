/* Sums and means over axes, dot product, argmax. */
#include "ops/cpu/run.h"

#include <math.h>
#include <string.h>

/* ---- sums over axes -------------------------------------------------------------------------- */

/* Axes with neighbours that are alike (summed or not) as one; those of size 1 left out. */
typedef struct groups {
    int count;
    int64_t shape[MN_MAX_DIMS];
    bool summed[MN_MAX_DIMS];
} groups;

static groups groups_of(const mn_view *x, uint32_t axes)
{
    groups g = {0};
    for (int i = 0; i < x->ndim; i++) {
        const bool summed = axes >> i & 1;
        if (x->shape[i] == 1)
            continue;
        if (g.count > 0 && g.summed[g.count - 1] == summed) {
            g.shape[g.count - 1] *= x->shape[i];
        } else {
            g.shape[g.count] = x->shape[i];
            g.summed[g.count++] = summed;
        }
    }
    return g;
}

static void append_axis(mn_axes *axes, int64_t size, int64_t step)
{
    axes->shape[axes->ndim] = size;
    axes->step[axes->ndim++] = step;
}

/* The last summed group gives the rows, what follows the channels; groups before are the axes. */
static void lay_out(const groups *g, mn_sums *sums)
{
    int left = g->count;
    int64_t step = 1, step_of[MN_MAX_DIMS];
    sums->rows = sums->channels = 1;
    if (left > 0 && !g->summed[left - 1])
        sums->channels = g->shape[--left];
    if (left > 0)
        sums->rows = g->shape[--left];
    step = sums->rows * sums->channels;
    for (int i = left - 1; i >= 0; i--) {
        step_of[i] = step;
        step *= g->shape[i];
    }
    for (int i = 0; i < left; i++)
        append_axis(g->summed[i] ? &sums->summed : &sums->kept, g->shape[i], step_of[i]);
}

typedef struct result {
    const mn_call *call;
    const mn_view *y;
    double scale;
} result;

static void store_sums(void *arg, int64_t start, int64_t n, const double *sum, const double *unused)
{
    const result *r = arg;
    float row[MN_BLOCK];
    (void)unused;
    float *to = mn_row_place(r->y, start, row);
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)(sum[i] * r->scale);
    mn_row_store(r->call, r->y, start, n, to);
}

void mn_run_reduce(const mn_call *call, const mn_view *x, uint32_t axes, const mn_view *y,
                   double scale)
{
    const groups g = groups_of(x, axes);
    result r = {call, y, scale};
    mn_sums sums = {.call = call, .x = x, .finish = store_sums, .arg = &r};
    lay_out(&g, &sums);
    mn_run_sums(&sums);
}

void mn_cpu_sum(const mn_call *call)
{
    const mn_reduce_attributes *a = (const void *)call->attributes.bytes;
    mn_run_reduce(call, &call->in[0], (uint32_t)a->axes, &call->out[0], 1);
}

void mn_cpu_mean(const mn_call *call)
{
    const mn_reduce_attributes *a = (const void *)call->attributes.bytes;
    double count = 1;
    for (int i = 0; i < call->in[0].ndim; i++)
        count *= a->axes >> i & 1 ? (double)call->in[0].shape[i] : 1;
    /* Of nothing: 0 / 0. */
    const double scale = count > 0 ? 1 / count : (double)NAN;
    mn_run_reduce(call, &call->in[0], (uint32_t)a->axes, &call->out[0], scale);
}

void mn_cpu_reduce_to(const mn_call *call)
{
    const mn_view *x = &call->in[0], *y = &call->out[0];
    uint32_t axes = 0;
    for (int i = 0; i < x->ndim; i++) {
        const int j = i - (x->ndim - y->ndim);
        if (j < 0 || (y->shape[j] == 1 && x->shape[i] != 1))
            axes |= 1U << i;
    }
    mn_run_reduce(call, x, axes, y, 1);
}

void mn_cpu_dot(const mn_call *call)
{
    result r = {call, &call->out[0], 1};
    const mn_sums sums = {.call = call,
                          .term = MN_TERM_PRODUCT,
                          .rows = call->in[0].numel,
                          .channels = 1,
                          .x = &call->in[0],
                          .g = &call->in[1],
                          .finish = store_sums,
                          .arg = &r};
    mn_run_sums(&sums);
}

/* ---- argmax ---------------------------------------------------------------------------------- */

/* Largest values met and their indices, for neighbouring lines. */
#define STRIP 64
typedef struct best {
    float value[STRIP];
    int64_t index[STRIP];
} best;

static void offer(best *b, int64_t line, float value, int64_t index)
{
    const float largest = b->value[line];
    if (!isnan(largest) && (isnan(value) || value > largest)) {
        b->value[line] = value;
        b->index[line] = index;
    }
}

/* Neighbouring lines, `lines` of them, whose elements lie split->inner apart. */
static void search_strided(const mn_call *call, int64_t start, const mn_split *split, int64_t lines,
                           best *b)
{
    float scratch[STRIP];
    for (int64_t j = 0; j < split->size; j++) {
        const float *x = mn_row_load(call, &call->in[0], start + j * split->inner, lines, scratch);
        for (int64_t i = 0; i < lines; i++) {
            if (j == 0)
                b->value[i] = x[i];
            offer(b, i, x[i], j);
        }
    }
}

static void search_line(const mn_call *call, int64_t start, int64_t size, best *b)
{
    float scratch[MN_BLOCK];
    for (int64_t j = 0; j < size; j += MN_BLOCK) {
        const int64_t n = mn_min64(size - j, MN_BLOCK);
        const float *x = mn_row_load(call, &call->in[0], start + j, n, scratch);
        if (j == 0)
            b->value[0] = x[0];
        for (int64_t i = 0; i < n; i++)
            offer(b, 0, x[i], j + i);
    }
}

/* Results from begin to end. */
static void run_argmax(void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_split split = mn_split_at(&call->in[0], a->axis);
    int64_t *y = call->out[0].data;
    for (int64_t i = begin; i < end;) {
        const int64_t column = i % split.inner;
        const int64_t lines = mn_min64(mn_min64(STRIP, split.inner - column), end - i);
        const int64_t start = i / split.inner * split.size * split.inner + column;
        best b = {.index = {0}};
        if (split.inner == 1)
            search_line(call, start, split.size, &b);
        else
            search_strided(call, start, &split, lines, &b);
        memcpy(y + i, b.index, (size_t)lines * sizeof *y);
        i += lines;
    }
}

void mn_cpu_argmax(const mn_call *call)
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const int64_t size = mn_max64(1, mn_split_at(&call->in[0], a->axis).size);
    mn_call copy = *call;
    mn_run_ranges(call, call->out[0].numel, mn_max64(1, MN_CHUNK / size), run_argmax, &copy);
}
