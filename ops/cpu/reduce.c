/* Sums and means over axes, dot product, argmax. */
#include "ops/cpu/run.h"

#include <math.h>
#include <string.h>

/* ---- sums over axes -------------------------------------------------------------------------- */

typedef struct result {
    const mn_call *call;
    const mn_view *y;
    double scale;
} result;

static void store_sums(const void *arg, int64_t start, int64_t n, const double *sum)
{
    const result *r = arg;
    float row[MN_BLOCK];
    float *to = mn_row_place(r->y, start, row);
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)(sum[i] * r->scale);
    mn_row_store(r->call, r->y, start, n, to);
}

/* The last summed axes give the rows, what follows the channels. */
static void run_reduce(const mn_call *call, const mn_view *y, double scale)
{
    const mn_view *x = &call->in[0];
    const mn_walk walk = mn_walk_make(x, x, y); /* steps of 0 in y: summed */
    const result r = {call, y, scale};
    mn_sums sums = {
        .call = call, .x = x, .rows = 1, .channels = 1, .finish = store_sums, .arg = &r};
    int left = walk.ndim;
    if (y->numel == 0)
        return;
    if (walk.step[1][left - 1] != 0)
        sums.channels = walk.shape[--left];
    if (left > 0)
        sums.rows = walk.shape[--left];
    for (int i = 0; i < left; i++)
        mn_axes_append(walk.step[1][i] == 0 ? &sums.summed : &sums.kept, walk.shape[i],
                       walk.step[0][i]);
    mn_run_sums(&sums);
}

/* Also of mean, which of nothing is 0 / 0. */
void mn_cpu_sum(const mn_call *call)
{
    const mn_reduce_attributes *a = (const void *)call->attributes.bytes;
    const double count = mn_extent_of(&call->in[0], a->axes);
    mn_view y = call->out[0]; /* with its summed axes put back as 1 */
    y.ndim = call->in[0].ndim;
    for (int i = 0; i < y.ndim; i++)
        y.shape[i] = a->axes >> i & 1 ? 1 : call->in[0].shape[i];
    if (call->op == &mn_ops[MN_OP_sum])
        run_reduce(call, &y, 1);
    else
        run_reduce(call, &y, count > 0 ? 1 / count : (double)NAN);
}

void mn_cpu_reduce_to(const mn_call *call)
{
    run_reduce(call, &call->out[0], 1);
}

void mn_cpu_dot(const mn_call *call)
{
    const result r = {call, &call->out[0], 1};
    const mn_sums sums = {.call = call,
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

/* One line in blocks, or neighbouring lines, `lines` of them, an element of each at once. */
static void search(const mn_call *call, int64_t start, const mn_split *split, int64_t lines,
                   best *b)
{
    const bool one = split->inner == 1;
    float scratch[MN_BLOCK];
    for (int64_t i = 0; i < lines; i++)
        b->value[i] = -INFINITY;
    for (int64_t j = 0; j < split->size; j += one ? MN_BLOCK : 1) {
        const int64_t n = one ? mn_min(split->size - j, MN_BLOCK) : lines;
        const float *x = mn_row_load(call, &call->in[0], start + j * split->inner, n, scratch);
        for (int64_t i = 0; i < n; i++)
            offer(b, one ? 0 : i, x[i], one ? j + i : j);
    }
}

/* Results from begin to end. */
static void run_argmax(const void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_split split = mn_split_at(&call->in[0], a->axis);
    int64_t *y = call->out[0].data;
    for (int64_t i = begin, lines; i < end; i += lines) {
        const int64_t column = i % split.inner;
        best b = {.index = {0}};
        lines = mn_min(mn_min(STRIP, split.inner - column), end - i);
        search(call, i / split.inner * split.size * split.inner + column, &split, lines, &b);
        memcpy(y + i, b.index, (size_t)lines * sizeof *y);
    }
}

void mn_cpu_argmax(const mn_call *call)
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const int64_t size = mn_max(1, call->in[0].shape[a->axis]);
    mn_run_ranges(call, call->out[0].numel, mn_max(1, MN_CHUNK / size), run_argmax, call);
}
