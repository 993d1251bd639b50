/* Softmax, log-softmax and the losses over classes. Lines along the axis are worked on in columns:
 * along the last axis the columns are lanes of one line, folded together at its end; along another
 * axis they are neighbouring lines, each in a column of its own. */
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

/* Of softmax, log_softmax and their gradients. */
void mn_cpu_softmax(const mn_call *call)
{
    const mn_op_id id = mn_op_id_of(call->op);
    const bool backward = call->input_count == 2;
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const lines l = {.call = call,
                     .x = &call->in[backward ? 1 : 0],
                     .g = backward ? &call->in[0] : NULL,
                     .y = &call->out[0],
                     .split = mn_split_at(&call->in[0], a->axis),
                     .log = id == MN_OP_log_softmax || id == MN_OP_log_softmax_backward};
    if (call->out[0].numel == 0)
        return;
    /* exp is worth eight plain elements; rows of neighbouring lines must not become too short. */
    const int64_t least = l.split.inner > 1 ? 64 : 1;
    mn_run_ranges(call, l.split.outer * l.split.inner, mn_max(least, MN_CHUNK / 8 / l.split.size),
                  run_lines, &l);
}

/* ---- losses over classes --------------------------------------------------------------------- */

#define LEAVES 64 /* sums of losses that are made in parallel */

typedef struct losses {
    lines lines;
    const mn_class_loss_attributes *a;
    const mn_view *target;
    const int64_t *labels; /* NULL: the target holds probabilities */
    const float *weight;   /* NULL: all 1 */
    int64_t rows, classes, rows_per_leaf;
    bool hard;      /* only the label's class counts in a row */
    float factor;   /* gradient of each row's loss, if it is the same for all */
    double divisor; /* of the mean: the weights of the labels that count, or the number of rows */
    double sum[LEAVES];
} losses;

static bool in_range(const losses *l, int64_t label)
{
    return label >= 0 && label < l->classes;
}

static bool is_ignored(const losses *l, int64_t row)
{
    return l->labels && l->labels[row] == l->a->ignore_index;
}

/* The first label out of range becomes the call's fault, whatever the number of threads. */
static double add_weights(const losses *l)
{
    int64_t wrong = 0, count = 0;
    double sum = 0;
    for (int64_t row = 0; row < l->rows; row++) {
        const int64_t label = l->labels[row];
        if (label == l->a->ignore_index)
            continue;
        if (!in_range(l, label) && wrong++ == 0)
            mn_call_fault(l->lines.call, MN_ERR_ARGUMENT, "label %lld is not in [0, %lld)",
                          (long long)label, (long long)l->classes);
        else if (l->weight && in_range(l, label))
            sum += (double)l->weight[label];
        count++;
    }
    return l->weight ? sum : (double)count;
}

/* With x and its target from input `first` on; the class weights are the last input. */
static losses losses_of(const mn_call *call, int first, int weight)
{
    const mn_view *x = &call->in[first], *target = &call->in[first + 1];
    losses l = {.lines = {.call = call, .x = x, .split = {x->shape[0], x->shape[1], 1}},
                .a = (const void *)call->attributes.bytes,
                .target = target,
                .labels = target->dtype == MN_I64 ? target->data : NULL,
                .weight = mn_has_input(call, weight) ? call->in[weight].data : NULL,
                .rows = x->shape[0],
                .classes = x->shape[1]};
    l.rows_per_leaf = mn_max(mn_max(1, MN_CHUNK / 8 / l.classes), mn_ceil_div(l.rows, LEAVES));
    l.hard = l.labels && l.a->smoothing == 0;
    l.divisor = target->dtype == MN_I64 ? add_weights(&l) : (double)l.rows;
    return l;
}

/* The weighted targets of n classes from c on: w (t (1 - smoothing) + smoothing / classes). */
static void load_shares(const losses *l, int64_t row, int64_t c, int64_t n, float *q)
{
    const float kept = (float)(1 - l->a->smoothing);
    const float base = (float)(l->a->smoothing / (double)l->classes);
    float scratch[MN_BLOCK];
    if (l->labels) {
        set_all(q, n, base);
        if (l->labels[row] >= c && l->labels[row] - c < n)
            q[l->labels[row] - c] += kept;
    } else {
        const float *t = mn_row_load(l->lines.call, l->target, row * l->classes + c, n, scratch);
        for (int64_t i = 0; i < n; i++)
            q[i] = t[i] * kept + base;
    }
    for (int64_t i = 0; l->weight && i < n; i++)
        q[i] *= l->weight[c + i];
}

/* sum of q (lse - x), lse = largest + log_sum, over the classes of a row; with x NULL, of q. */
static double sum_shares(const losses *l, const mn_view *x, int64_t row, float largest,
                         float log_sum)
{
    float q[MN_BLOCK], scratch[MN_BLOCK];
    double sum = 0;
    for (int64_t c = 0; c < l->classes; c += MN_BLOCK) {
        const int64_t n = mn_min(MN_BLOCK, l->classes - c), at = row * l->classes + c;
        load_shares(l, row, c, n, q);
        const float *logits = x ? mn_row_load(l->lines.call, x, at, n, scratch) : NULL;
        for (int64_t i = 0; i < n; i++) {
            const double term = logits ? (double)(largest - logits[i]) + (double)log_sum : 1;
            sum += (double)q[i] * term;
        }
    }
    return sum;
}

/* Loss of one row; keeps its log-sum-exp. */
static double row_loss(const losses *l, int64_t row)
{
    const mn_view *x = l->lines.x;
    const int64_t classes = l->classes, start = row * classes;
    const column c = {start, start + classes, MN_BLOCK, mn_min(classes, MN_BLOCK), true};
    float *lse = l->lines.y->data, scratch;
    reduced r;
    if (l->a->is_log) {
        r.largest[0] = r.sum[0] = 0;
    } else {
        reduce_column(&l->lines, &c, &r);
        mn_bodies_of(l->lines.call)->log(1, r.sum);
    }
    lse[row] = r.largest[0] + r.sum[0];
    if (is_ignored(l, row))
        return 0;
    if (l->labels && !in_range(l, l->labels[row]))
        return (double)NAN;
    if (!l->hard)
        return sum_shares(l, x, row, r.largest[0], r.sum[0]);
    const int64_t label = l->labels[row];
    const float logit = *mn_row_load(l->lines.call, x, start + label, 1, &scratch);
    const double loss = (double)(r.largest[0] - logit) + (double)r.sum[0];
    return l->weight ? (double)l->weight[label] * loss : loss;
}

static void run_leaf(void *arg, int64_t index, int slot)
{
    losses *l = arg;
    const int64_t begin = index * l->rows_per_leaf;
    const int64_t end = mn_min(begin + l->rows_per_leaf, l->rows);
    float *each = l->a->reduction == MN_REDUCTION_NONE ? l->lines.call->out[0].data : NULL;
    (void)slot;
    for (int64_t row = begin; row < end; row++) {
        const double loss = row_loss(l, row);
        if (each)
            each[row] = (float)loss;
        l->sum[index] += loss;
    }
}

void mn_cpu_cross_entropy(const mn_call *call)
{
    losses l = losses_of(call, 0, 2);
    double sum = 0;
    l.lines.y = &call->out[1];
    mn_call_parallel(call, mn_ceil_div(l.rows, l.rows_per_leaf), run_leaf, &l);
    for (int64_t i = 0; i < LEAVES; i++)
        sum += l.sum[i];
    if (l.a->reduction != MN_REDUCTION_NONE)
        *(float *)call->out[0].data =
            (float)(l.a->reduction == MN_REDUCTION_MEAN ? sum / l.divisor : sum);
}

/* dx of n logits from class c on: total exp(x - lse) - g q, total = g sum(q). */
static void block_gradient(const losses *l, int64_t row, int64_t c, float g, float total, float *dx)
{
    const mn_call *call = l->lines.call;
    const int64_t n = mn_min(MN_BLOCK, l->classes - c);
    const int64_t label = l->labels && l->labels[row] >= 0 ? l->labels[row] - c : -1;
    const float *lse = call->in[3].data;
    float scratch[MN_BLOCK];
    if (l->a->is_log || is_ignored(l, row)) {
        set_all(dx, n, 0);
    } else {
        const float *x = mn_row_load(call, l->lines.x, row * l->classes + c, n, scratch);
        mn_bodies_of(call)->scaled_exp((size_t)n, x, lse[row], total, dx);
    }
    if (is_ignored(l, row))
        return;
    if (!l->hard)
        load_shares(l, row, c, n, scratch);
    else if (label >= 0 && label < n)
        dx[label] -= total;
    for (int64_t i = 0; !l->hard && i < n; i++)
        dx[i] -= g * scratch[i];
}

/* Rows from begin to end. */
static void run_gradient(const void *arg, int64_t begin, int64_t end)
{
    const losses *l = arg;
    const float *each = l->lines.call->in[0].data;
    float result[MN_BLOCK];
    for (int64_t row = begin; row < end; row++) {
        const float g = l->a->reduction == MN_REDUCTION_NONE ? each[row] : l->factor;
        float total = g;
        if (!l->hard)
            total *= (float)sum_shares(l, NULL, row, 0, 0);
        else if (l->weight && in_range(l, l->labels[row]))
            total *= l->weight[l->labels[row]];
        for (int64_t c = 0; c < l->classes; c += MN_BLOCK) {
            const int64_t at = row * l->classes + c;
            float *dx = mn_row_place(l->lines.y, at, result);
            block_gradient(l, row, c, g, total, dx);
            mn_row_store(l->lines.call, l->lines.y, at, mn_min(MN_BLOCK, l->classes - c), dx);
        }
    }
}

void mn_cpu_cross_entropy_backward(const mn_call *call)
{
    losses l = losses_of(call, 1, 4);
    l.lines.y = &call->out[0];
    if (l.a->reduction == MN_REDUCTION_MEAN)
        l.factor = (float)((double)*(const float *)call->in[0].data / l.divisor);
    else if (l.a->reduction == MN_REDUCTION_SUM)
        l.factor = *(const float *)call->in[0].data;
    mn_run_ranges(call, l.rows, mn_max(1, MN_CHUNK / 8 / l.classes), run_gradient, &l);
}
