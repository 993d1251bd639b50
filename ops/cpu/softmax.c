/* Softmax, log-softmax and cross entropy. Lines along the axis are worked on in columns: along the
 * last axis the columns are lanes of one line, folded together at its end; along another axis they
 * are neighbouring lines, each in a column of its own. */
#include "ops/cpu/run.h"

#include <math.h>
#include <string.h>

/* A column is read in rows of up to MN_BLOCK elements. */
typedef struct lines {
    const mn_call *call;
    const mn_view *x, *g, *y; /* g only backward */
    mn_split split;
    bool log;
} lines;

/* One line (inner = 1) or `width` neighbouring ones; rows of `width` elements `step` apart. */
typedef struct column {
    int64_t start, end, step, width;
    bool fold;
} column;

/* What the elements of a row are reduced to, per column. */
typedef struct reduced {
    float largest[MN_BLOCK], sum[MN_BLOCK];
} reduced;

static void set_all(float *row, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        row[i] = value;
}

static int64_t row_width(const column *c, int64_t at)
{
    return c->fold ? mn_min(c->width, c->end - at) : c->width;
}

/* Makes every lane of a folded column hold the whole line's value. */
static void fold(const column *c, float (*body)(size_t n, float *x), float *row)
{
    if (c->fold)
        set_all(row, c->width, body((size_t)c->width, row));
}

/* ---- forward --------------------------------------------------------------------------------- */

/* Largest number of each line (a NaN comes through the sum), then sum exp(x - largest). */
static void reduce_column(const lines *l, const column *c, reduced *r)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    float scratch[MN_BLOCK];
    set_all(r->largest, c->width, -INFINITY);
    for (int64_t i = c->start; i < c->end; i += c->step) {
        const int64_t n = row_width(c, i);
        bodies->max_number((size_t)n, mn_row_load(l->call, l->x, i, n, scratch), r->largest);
    }
    fold(c, bodies->fold_max, r->largest);
    set_all(r->sum, c->width, 0);
    for (int64_t i = c->start; i < c->end; i += c->step) {
        const int64_t n = row_width(c, i);
        bodies->add_exp((size_t)n, mn_row_load(l->call, l->x, i, n, scratch), r->largest, r->sum);
    }
    fold(c, bodies->fold_sum, r->sum);
}

static void forward_column(const lines *l, const column *c)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    float scratch[MN_BLOCK], result[MN_BLOCK];
    reduced r;
    reduce_column(l, c, &r);
    if (l->log)
        bodies->log((size_t)c->width, r.sum);
    for (int64_t i = c->start; i < c->end; i += c->step) {
        const int64_t n = row_width(c, i);
        const float *x = mn_row_load(l->call, l->x, i, n, scratch);
        float *y = mn_row_place(l->y, i, result);
        (l->log ? bodies->log_softmax : bodies->softmax)((size_t)n, x, r.largest, r.sum, y);
        mn_row_store(l->call, l->y, i, n, y);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* x is the forward's result here, y the gradient that is made. */
static void backward_column(const lines *l, const column *c)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    float row[2][MN_BLOCK], result[MN_BLOCK], sum[MN_BLOCK];
    set_all(sum, c->width, 0);
    for (int64_t i = c->start; i < c->end; i += c->step) {
        const int64_t n = row_width(c, i);
        const float *g = mn_row_load(l->call, l->g, i, n, row[0]);
        if (l->log)
            bodies->accumulate((size_t)n, sum, g);
        else
            bodies->add_product((size_t)n, g, mn_row_load(l->call, l->x, i, n, row[1]), sum);
    }
    fold(c, bodies->fold_sum, sum);
    for (int64_t i = c->start; i < c->end; i += c->step) {
        const int64_t n = row_width(c, i);
        const float *g = mn_row_load(l->call, l->g, i, n, row[0]);
        const float *x = mn_row_load(l->call, l->x, i, n, row[1]);
        float *dx = mn_row_place(l->y, i, result);
        (l->log ? bodies->log_softmax_backward : bodies->softmax_backward)((size_t)n, g, x, sum,
                                                                           dx);
        mn_row_store(l->call, l->y, i, n, dx);
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* Lines from begin to end, numbered [outer, inner]. */
static void run_lines(const void *arg, int64_t begin, int64_t end)
{
    const lines *l = arg;
    const int64_t size = l->split.size, inner = l->split.inner;
    for (int64_t i = begin, count; i < end; i += count) {
        const int64_t start = i / inner * size * inner + i % inner;
        count = inner == 1 ? 1 : mn_min(mn_min(MN_BLOCK, inner - i % inner), end - i);
        column c = {start, start + size * inner, inner, count, false};
        if (inner == 1)
            c = (column){start, start + size, MN_BLOCK, mn_min(size, MN_BLOCK), true};
        if (l->g)
            backward_column(l, &c);
        else
            forward_column(l, &c);
    }
}

static void run(const mn_call *call, bool backward, bool log)
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const lines l = {.call = call,
                     .x = &call->in[backward ? 1 : 0],
                     .g = backward ? &call->in[0] : NULL,
                     .y = &call->out[0],
                     .split = mn_split_at(&call->in[0], a->axis),
                     .log = log};
    if (call->out[0].numel == 0)
        return;
    /* exp is worth eight plain elements; rows of neighbouring lines must not become too short. */
    const int64_t least = l.split.inner > 1 ? 64 : 1;
    mn_run_ranges(call, l.split.outer * l.split.inner, mn_max(least, MN_CHUNK / 8 / l.split.size),
                  run_lines, &l);
}

void mn_cpu_log_softmax(const mn_call *call)
{
    run(call, false, true);
}

void mn_cpu_softmax(const mn_call *call)
{
    run(call, false, false);
}

void mn_cpu_log_softmax_backward(const mn_call *call)
{
    run(call, true, true);
}

void mn_cpu_softmax_backward(const mn_call *call)
{
    run(call, true, false);
}

/* ---- cross entropy --------------------------------------------------------------------------- */

#define LEAVES 64 /* sums of losses that are made in parallel */

typedef struct losses {
    lines lines;
    int64_t rows, rows_per_leaf;
    double sum[LEAVES];
} losses;

/* The first label out of range becomes the call's fault, whatever the number of threads. */
static void check_labels(const mn_call *call, const int64_t *labels, int64_t n, int64_t classes)
{
    for (int64_t i = 0; i < n; i++)
        if (labels[i] < 0 || labels[i] >= classes) {
            mn_call_fault(call, MN_ERR_ARGUMENT, "label %lld is not in [0, %lld)",
                          (long long)labels[i], (long long)classes);
            return;
        }
}

/* Loss of one row; keeps its log-sum-exp. */
static double row_loss(const lines *l, int64_t row)
{
    const mn_bodies *bodies = mn_bodies_of(l->call);
    const int64_t classes = l->split.size, start = row * classes;
    const int64_t *labels = l->call->in[1].data;
    float *lse = l->y->data, scratch;
    const column c = {start, start + classes, MN_BLOCK, mn_min(classes, MN_BLOCK), true};
    reduced r;
    reduce_column(l, &c, &r);
    bodies->log(1, r.sum);
    lse[row] = r.largest[0] + r.sum[0];
    if (labels[row] < 0 || labels[row] >= classes)
        return (double)NAN;
    const float x = *mn_row_load(l->call, l->x, start + labels[row], 1, &scratch);
    return (double)(r.largest[0] - x) + (double)r.sum[0];
}

static void run_leaf(void *arg, int64_t index, int slot)
{
    losses *l = arg;
    const int64_t begin = index * l->rows_per_leaf;
    const int64_t end = mn_min(begin + l->rows_per_leaf, l->rows);
    (void)slot;
    for (int64_t row = begin; row < end; row++)
        l->sum[index] += row_loss(&l->lines, row);
}

void mn_cpu_cross_entropy(const mn_call *call)
{
    const mn_view *x = &call->in[0];
    const int64_t rows = x->shape[0], classes = x->shape[1];
    losses l = {.lines = {.call = call, .x = x, .y = &call->out[1], .split = {rows, classes, 1}},
                .rows = rows,
                .rows_per_leaf =
                    mn_max(mn_max(1, MN_CHUNK / 8 / classes), mn_ceil_div(rows, LEAVES))};
    double sum = 0;
    check_labels(call, call->in[1].data, rows, classes);
    mn_call_parallel(call, mn_ceil_div(rows, l.rows_per_leaf), run_leaf, &l);
    for (int64_t i = 0; i < LEAVES; i++)
        sum += l.sum[i];
    *(float *)call->out[0].data = (float)(sum / (double)rows);
}

/* Rows from begin to end. */
static void run_gradient(const void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_bodies *bodies = mn_bodies_of(call);
    const mn_view *x = &call->in[1], *y = &call->out[0];
    const int64_t classes = x->shape[1];
    const int64_t *labels = call->in[2].data;
    const float *g = call->in[0].data, *lse = call->in[3].data;
    const float factor = *g / (float)x->shape[0];
    float scratch[MN_BLOCK], result[MN_BLOCK];
    for (int64_t row = begin; row < end; row++)
        for (int64_t c = 0; c < classes; c += MN_BLOCK) {
            const int64_t n = mn_min(MN_BLOCK, classes - c), at = row * classes + c;
            const int64_t label = labels[row] < 0 ? -1 : labels[row] - c;
            float *dx = mn_row_place(y, at, result);
            const float *logits = mn_row_load(call, x, at, n, scratch);
            bodies->scaled_exp((size_t)n, logits, lse[row], factor, dx);
            if (label >= 0 && label < n)
                dx[label] -= factor;
            mn_row_store(call, y, at, n, dx);
        }
}

void mn_cpu_cross_entropy_backward(const mn_call *call)
{
    const mn_view *x = &call->in[1];
    mn_run_ranges(call, x->shape[0], mn_max(1, MN_CHUNK / 8 / x->shape[1]), run_gradient, call);
}
