/* Extremes, norms and variance over axes. Elements that are reduced together are met row by row:
 * where the last axis is reduced, rows are pieces of it, gathered in lanes that are folded at the
 * end; where it is kept, a row holds an element each of neighbouring results. Sums are in f64. */
#include "ops/cpu/run.h"

#include <math.h>
#include <string.h>

/* x's axes, merged. `width` is the last one's extent, reduced if fold. */
typedef struct axes {
    const mn_call *call;
    const mn_view *x;
    double p;
    mn_axes kept, reduced;
    int64_t width, repeats; /* product of reduced, the last one apart */
    bool fold;
} axes;

#define LEAVES     16 /* of one result that the threads share, which is folded */
#define FEW_GROUPS 8  /* too few to keep all threads busy */

/* Results from `first` on, `lines` of them (one, if folded), made in `lanes` lanes. */
typedef struct group {
    const axes *axes;
    int64_t first, lines, lanes;
    int64_t start; /* in x */
    bool alone;    /* the call's threads share its rows */
    double sum[MN_BLOCK], mean[MN_BLOCK];
    float y[MN_BLOCK], g[MN_BLOCK]; /* largest elements, or y and g of backward */
} group;

typedef void (*visit_fn)(group *g, int64_t start, int64_t n);

static int64_t width_of(const group *g)
{
    return g->axes->fold ? g->axes->width : g->lines;
}

/* Pieces of rows from begin to end, numbered row by row. */
static void visit_pieces(group *g, visit_fn visit, int64_t begin, int64_t end)
{
    const axes *a = g->axes;
    const int64_t width = width_of(g), pieces = mn_ceil_div(width, MN_BLOCK);
    for (int64_t k = begin; k < end; k++) {
        const int64_t row = k / pieces, i = k % pieces * MN_BLOCK;
        const int64_t start =
            g->start + mn_offset(row, a->reduced.ndim, a->reduced.shape, a->reduced.step);
        visit(g, start + i, mn_min(MN_BLOCK, width - i));
    }
}

static void set_lanes(group *g, float *lane, float value)
{
    for (int64_t i = 0; i < g->lanes; i++)
        lane[i] = value;
}

/* Folds the sums, so that every lane holds them all, and returns that. */
static double fold_sums(group *g)
{
    double total = 0;
    for (int64_t i = 0; i < g->lanes; i++)
        total += g->sum[i];
    for (int64_t i = 0; i < g->lanes && g->axes->fold; i++)
        g->sum[i] = total;
    return total;
}

static const float *load_row(group *g, int64_t start, int64_t n, float *scratch)
{
    return mn_row_load(g->axes->call, g->axes->x, start, n, scratch);
}

/* Largest or, of amin, smallest elements; of norm, largest |x|. */
typedef void (*extreme_body)(size_t n, const float *x, float *y);

static extreme_body extreme_of(const group *g)
{
    const mn_bodies *bodies = mn_bodies_of(g->axes->call);
    return g->axes->call->op == &mn_ops[MN_OP_amin] ? bodies->min : bodies->max;
}

static void visit_extreme(group *g, int64_t start, int64_t n)
{
    float row[MN_BLOCK], size[MN_BLOCK];
    const float *x = load_row(g, start, n, row);
    for (int64_t i = 0; i < n && g->axes->p > 0; i++)
        size[i] = fabsf(x[i]);
    extreme_of(g)((size_t)n, g->axes->p > 0 ? size : x, g->y);
}

static void fold_extremes(group *g)
{
    for (int64_t n = g->lanes, half; n > 1 && g->axes->fold; n = half) {
        half = (n + 1) / 2;
        extreme_of(g)((size_t)(n - half), g->y + half, g->y);
    }
}

/* ---- rows ------------------------------------------------------------------------------------ */

typedef struct leaves {
    const group *group;
    visit_fn visit;
    int64_t pieces, each;
    double sum[LEAVES];
    float y[LEAVES];
} leaves;

/* A leaf has lanes of its own, folded at its end. */
static void run_leaf(void *arg, int64_t index, int slot)
{
    leaves *l = arg;
    const int64_t begin = index * l->each;
    group g = *l->group;
    (void)slot;
    visit_pieces(&g, l->visit, begin, mn_min(begin + l->each, l->pieces));
    if (l->visit == visit_extreme)
        fold_extremes(&g);
    l->y[index] = g.y[0];
    l->sum[index] = fold_sums(&g);
}

/* Adds all rows to the group's lanes: sums, or extremes if those are visited. */
static void each_row(group *g, visit_fn visit)
{
    const int64_t pieces = g->axes->repeats * mn_ceil_div(width_of(g), MN_BLOCK);
    if (!g->alone) {
        visit_pieces(g, visit, 0, pieces);
        return;
    }
    leaves l = {.group = g, .visit = visit, .pieces = pieces, .each = mn_ceil_div(pieces, LEAVES)};
    const int64_t count = mn_ceil_div(pieces, l.each);
    mn_call_parallel(g->axes->call, count, run_leaf, &l);
    for (int64_t i = 0; i < count; i++) {
        if (visit == visit_extreme)
            extreme_of(g)(1, &l.y[i], g->y);
        g->sum[0] += l.sum[i];
    }
}

static void store(group *g, const mn_view *view, const float *lane)
{
    float row[MN_BLOCK], *to = mn_row_place(view, g->first, row);
    memcpy(to, lane, (size_t)g->lines * sizeof *to);
    mn_row_store(g->axes->call, view, g->first, g->lines, to);
}

/* One value per lane of a view that has the results' shape. */
static void load(group *g, const mn_view *view, float *lane)
{
    float row[MN_BLOCK];
    const float *from = mn_row_load(g->axes->call, view, g->first, g->lines, row);
    for (int64_t i = 0; i < g->lanes; i++)
        lane[i] = from[g->axes->fold ? 0 : i];
}

/* ---- groups ---------------------------------------------------------------------------------- */

static axes axes_of(const mn_call *call, const mn_view *x)
{
    const mn_reduce_attributes *a = (const void *)call->attributes.bytes;
    mn_view y = *x;
    for (int i = 0; i < x->ndim; i++)
        y.shape[i] = a->axes >> i & 1 ? 1 : x->shape[i];
    const mn_walk walk = mn_walk_make(x, x, &y); /* steps of 0 in y: reduced */
    const int last = walk.ndim - 1;
    axes merged = {.call = call,
                   .x = x,
                   .p = a->p,
                   .width = walk.shape[last],
                   .repeats = 1,
                   .fold = walk.step[1][last] == 0};
    for (int i = 0; i < last; i++) {
        const bool reduced = walk.step[1][i] == 0;
        mn_axes_append(reduced ? &merged.reduced : &merged.kept, walk.shape[i], walk.step[0][i]);
        merged.repeats *= reduced ? walk.shape[i] : 1;
    }
    return merged;
}

/* A kernel for groups of results. */
typedef struct task {
    axes axes;
    void (*run)(group *g);
    bool alone; /* one group after the other, each shared by the threads */
} task;

static void run_groups(const void *arg, int64_t begin, int64_t end)
{
    const task *t = arg;
    const axes *a = &t->axes;
    group g = {.axes = a, .alone = t->alone};
    for (g.first = begin; g.first < end; g.first += g.lines) {
        const int64_t column = a->fold ? 0 : g.first % a->width;
        const int64_t row = a->fold ? g.first : g.first / a->width;
        g.lines = a->fold ? 1 : mn_min(mn_min(MN_BLOCK, a->width - column), end - g.first);
        g.lanes = a->fold ? mn_min(MN_BLOCK, a->width) : g.lines;
        g.start = mn_offset(row, a->kept.ndim, a->kept.shape, a->kept.step) + column;
        t->run(&g);
    }
}

static void run(const mn_call *call, const mn_view *x, const mn_view *y, void (*work)(group *g))
{
    if (y->numel == 0)
        return;
    task t = {axes_of(call, x), work, false};
    const int64_t each = mn_max(1, x->numel / y->numel);
    t.alone = t.axes.fold && y->numel < FEW_GROUPS && each >= 2 * MN_CHUNK;
    if (t.alone) {
        run_groups(&t, 0, y->numel);
        return;
    }
    /* Rows of neighbouring results must not become too short. */
    mn_run_ranges(call, y->numel, mn_max(t.axes.fold ? 1 : 64, MN_CHUNK / each), run_groups, &t);
}

/* ---- extremes -------------------------------------------------------------------------------- */

static void find_extreme(group *g)
{
    const mn_op_id id = mn_op_id_of(g->axes->call->op);
    const float worst = id == MN_OP_amin ? INFINITY : -INFINITY;
    set_lanes(g, g->y, id == MN_OP_norm ? 0 : worst);
    each_row(g, visit_extreme);
    fold_extremes(g);
    store(g, &g->axes->call->out[0], g->y);
}

/* Also of amin. */
void mn_cpu_amax(const mn_call *call)
{
    run(call, &call->in[0], &call->out[0], find_extreme);
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void visit_sum(group *g, int64_t start, int64_t n)
{
    float row[MN_BLOCK];
    const float *x = load_row(g, start, n, row);
    for (int64_t i = 0; i < n; i++)
        g->sum[i] += (double)x[i];
}

static void visit_size(group *g, int64_t start, int64_t n)
{
    float row[MN_BLOCK];
    const float *x = load_row(g, start, n, row);
    for (int64_t i = 0; i < n; i++)
        g->sum[i] += (double)fabsf(x[i]);
}

static void visit_square(group *g, int64_t start, int64_t n)
{
    float row[MN_BLOCK];
    const float *x = load_row(g, start, n, row);
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)x[i] - g->mean[i];
        g->sum[i] += d * d;
    }
}

static void add_up(group *g, visit_fn visit)
{
    memset(g->sum, 0, (size_t)g->lanes * sizeof *g->sum);
    each_row(g, visit);
    fold_sums(g);
}

static void find_norm(group *g)
{
    const bool squares = g->axes->p == 2;
    memset(g->mean, 0, (size_t)g->lanes * sizeof *g->mean);
    add_up(g, squares ? visit_square : visit_size);
    for (int64_t i = 0; i < g->lines; i++)
        g->y[i] = (float)(squares ? sqrt(g->sum[i]) : g->sum[i]);
    store(g, &g->axes->call->out[0], g->y);
}

void mn_cpu_norm(const mn_call *call)
{
    const mn_reduce_attributes *a = (const void *)call->attributes.bytes;
    run(call, &call->in[0], &call->out[0], mn_isfinite_f64(a->p) ? find_norm : find_extreme);
}

static void find_var(group *g)
{
    const axes *a = g->axes;
    const double n = (double)(a->repeats * (a->fold ? a->width : 1));
    const double left = n - a->p;
    add_up(g, visit_sum);
    for (int64_t i = 0; i < g->lanes; i++)
        g->mean[i] = g->sum[i] / n;
    add_up(g, visit_square);
    for (int64_t i = 0; i < g->lines; i++)
        g->y[i] = (float)(g->sum[i] / (left > 0 ? left : 0));
    store(g, &a->call->out[0], g->y);
}

void mn_cpu_var(const mn_call *call)
{
    run(call, &call->in[0], &call->out[0], find_var);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Whether x is as large as y: |x| for a norm, x for the extremes, whose p is 0. */
static bool is_chosen(double p, float x, float y)
{
    const float size = p > 0 ? fabsf(x) : x;
    return size == y || (isnan(x) && isnan(y));
}

static void visit_count(group *g, int64_t start, int64_t n)
{
    float row[MN_BLOCK];
    const float *x = load_row(g, start, n, row);
    for (int64_t i = 0; i < n; i++)
        g->sum[i] += is_chosen(g->axes->p, x[i], g->y[i]) ? 1 : 0;
}

static float sign_of(float x)
{
    return x > 0 ? 1.0F : x < 0 ? -1.0F : x;
}

static float slope(double p, float x, float y)
{
    if (p == 1)
        return sign_of(x);
    if (p == 2)
        return y == 0 ? 0 * x : x / y;
    return is_chosen(p, x, y) ? (p > 0 ? sign_of(x) : 1) : 0;
}

static void visit_give(group *g, int64_t start, int64_t n)
{
    const mn_view *dx = &g->axes->call->out[0];
    float row[MN_BLOCK], result[MN_BLOCK], *to = mn_row_place(dx, start, result);
    const float *x = load_row(g, start, n, row);
    for (int64_t i = 0; i < n; i++)
        to[i] = g->g[i] * slope(g->axes->p, x[i], g->y[i]);
    mn_row_store(g->axes->call, dx, start, n, to);
}

/* Inputs g, x, y. */
static void give_gradient(group *g)
{
    const axes *a = g->axes;
    load(g, &a->call->in[0], g->g);
    load(g, &a->call->in[2], g->y);
    if (a->p != 1 && a->p != 2) {
        add_up(g, visit_count);
        for (int64_t i = 0; i < g->lanes; i++)
            g->g[i] = (float)((double)g->g[i] / g->sum[i]);
    }
    each_row(g, visit_give);
}

void mn_cpu_norm_backward(const mn_call *call)
{
    run(call, &call->in[1], &call->in[0], give_gradient);
}
