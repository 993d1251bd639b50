/* Elementwise ops, with broadcasting. */
#include "ops/cpu/run.h"

#include <string.h>

#define SHORT_ROW 64 /* too short to be a call of its own */

typedef struct broadcast {
    const mn_call *call;
    const mn_view *x[2], *y;
    mn_walk walk;
    bool swapped;         /* x[0] is the op's second operand */
    mn_binary_body *both; /* NULL: factor for x[1] */
    void (*scalar)(size_t n, const float *a, float b, float *y); /* NULL: x[1] is filled in */
    float factor;
} broadcast;

/* n elements of operand k, also if it repeats one. */
static const float *load(const broadcast *b, int k, int64_t start, int64_t n, float *row)
{
    if (b->walk.step[k][b->walk.ndim - 1] != 0)
        return mn_row_load(b->call, b->x[k], start, n, row);
    const float value = *mn_row_load(b->call, b->x[k], start, 1, row);
    for (int64_t i = 0; i < n; i++)
        row[i] = value;
    return row;
}

static void apply(const broadcast *b, int64_t n, const float *x0, const float *x1, float *y)
{
    b->both((size_t)n, b->swapped ? x1 : x0, b->swapped ? x0 : x1, y);
}

/* n results from y_start on, within one row. */
static void combine(const broadcast *b, const int64_t start[2], int64_t y_start, int64_t n)
{
    float row[2][MN_BLOCK], result[MN_BLOCK];
    float *to = mn_row_place(b->y, y_start, result);
    const float *first = load(b, 0, start[0], n, row[0]);
    if (!b->both)
        b->scalar((size_t)n, first, b->factor, to);
    else if (b->scalar && b->walk.step[1][b->walk.ndim - 1] == 0)
        b->scalar((size_t)n, first, *mn_row_load(b->call, b->x[1], start[1], 1, row[1]), to);
    else if (b->x[1] == b->x[0])
        b->both((size_t)n, first, first, to);
    else
        apply(b, n, first, load(b, 1, start[1], n, row[1]), to);
    mn_row_store(b->call, b->y, y_start, n, to);
}

static void run_rows(const void *arg, int64_t begin, int64_t end)
{
    const broadcast *b = arg;
    const mn_walk *w = &b->walk;
    const int last = w->ndim - 1;
    for (int64_t i = begin, n; i < end; i += n) {
        const int64_t row = i / w->shape[last], column = i % w->shape[last];
        int64_t start[2];
        n = mn_min(mn_min(MN_BLOCK, w->shape[last] - column), end - i);
        for (int k = 0; k < 2; k++)
            start[k] = mn_offset(row, last, w->shape, w->step[k]) + column * w->step[k][last];
        combine(b, start, i, n);
    }
}

/* n elements of operand k for the results from `at` on, across its rows. */
static const float *load_across(const broadcast *b, int k, int64_t at, int64_t n, float *row)
{
    const mn_walk *w = &b->walk;
    const int last = w->ndim - 1;
    if (b->x[k]->numel == b->y->numel)
        return mn_row_load(b->call, b->x[k], at, n, row);
    int64_t line = at / w->shape[last], column = at % w->shape[last];
    for (int64_t i = 0, count; i < n; i += count, column = 0, line++) {
        const int64_t step = w->step[k][last];
        const int64_t start = mn_offset(line, last, w->shape, w->step[k]) + column * step;
        float scratch[SHORT_ROW];
        count = mn_min(w->shape[last] - column, n - i);
        const float *from = mn_row_load(b->call, b->x[k], start, step ? count : 1, scratch);
        for (int64_t j = 0; j < count; j++)
            row[i + j] = from[j * step];
    }
    return row;
}

static void run_short_rows(const void *arg, int64_t begin, int64_t end)
{
    const broadcast *b = arg;
    float row[2][MN_BLOCK], result[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(MN_BLOCK, end - i);
        const float *first = load_across(b, 0, i, n, row[0]);
        float *to = mn_row_place(b->y, i, result);
        if (b->both)
            apply(b, n, first, load_across(b, 1, i, n, row[1]), to);
        else
            b->scalar((size_t)n, first, b->factor, to);
        mn_row_store(b->call, b->y, i, n, to);
    }
}

/* Whether operand k is one short row, repeated, against a whole tensor. */
static bool is_repeated_row(const mn_walk *walk, int k)
{
    return walk->ndim == 2 && walk->shape[1] <= MN_BLOCK / 2 && walk->step[k][0] == 0 &&
           walk->step[k][1] == 1 && walk->step[1 - k][0] == walk->shape[1] &&
           walk->step[1 - k][1] == 1;
}

/* Such a second operand is widened and repeated once per task; begin is a multiple of its length.
 */
static void run_repeated(const void *arg, int64_t begin, int64_t end)
{
    const broadcast *b = arg;
    const int64_t period = b->walk.shape[1], width = MN_BLOCK / period * period;
    float table[MN_BLOCK], a[MN_BLOCK], y[MN_BLOCK];
    const float *row = mn_row_load(b->call, b->x[1], 0, period, a);
    for (int64_t i = 0; i < width; i += period)
        memcpy(table + i, row, (size_t)period * sizeof *row);
    for (int64_t i = begin; i < end; i += width) {
        const int64_t n = mn_min(end - i, width);
        float *to = mn_row_place(b->y, i, y);
        apply(b, n, mn_row_load(b->call, b->x[0], i, n, a), table, to);
        mn_row_store(b->call, b->y, i, n, to);
    }
}

static void run(broadcast b)
{
    if (b.y->numel == 0)
        return;
    b.walk = mn_walk_make(b.y, b.x[0], b.x[1]);
    const int last = b.walk.ndim - 1;
    if (b.both && (b.walk.step[0][last] == 0 || is_repeated_row(&b.walk, 0))) {
        b.swapped = !b.swapped; /* what repeats comes second */
        const mn_view *first = b.x[0];
        b.x[0] = b.x[1];
        b.x[1] = first;
        b.walk = mn_walk_make(b.y, b.x[0], b.x[1]);
    }
    if (!is_repeated_row(&b.walk, 1)) {
        const bool is_short = last > 0 && b.walk.shape[last] <= SHORT_ROW;
        mn_run_ranges(b.call, b.y->numel, MN_CHUNK, is_short ? run_short_rows : run_rows, &b);
        return;
    }
    const int64_t period = b.walk.shape[last];
    mn_run_ranges(b.call, b.y->numel, mn_ceil_div(MN_CHUNK, period) * period, run_repeated, &b);
}

/* Also of relu, which is relu_backward with g = y = x. */
void mn_cpu_binary(const mn_call *call)
{
    const mn_bodies *bodies = mn_bodies_of(call);
    const mn_op_id id = mn_op_id_of(call->op);
    broadcast b = {.call = call,
                   .x = {&call->in[0], &call->in[call->input_count - 1]},
                   .y = &call->out[0],
                   .both = bodies->binary[id]};
    if (id == MN_OP_add)
        b.scalar = bodies->add_scalar;
    else if (id == MN_OP_mul)
        b.scalar = bodies->mul_scalar;
    run(b);
}

/* a > b is b < a. */
void mn_cpu_compare(const mn_call *call)
{
    const mn_compare_attributes *a = (const void *)call->attributes.bytes;
    const bool swapped = a->comparison == MN_GT || a->comparison == MN_GE;
    const int64_t body = swapped ? a->comparison - MN_GT + MN_LT : a->comparison;
    run((broadcast){.call = call,
                    .x = {&call->in[swapped], &call->in[!swapped]},
                    .y = &call->out[0],
                    .both = mn_bodies_of(call)->compare[body]});
}

void mn_cpu_expand(const mn_call *call)
{
    const mn_shape_attributes *a = (const void *)call->attributes.bytes;
    run((broadcast){.call = call,
                    .x = {&call->in[0], &call->in[0]},
                    .y = &call->out[0],
                    .scalar = mn_bodies_of(call)->mul_scalar,
                    .factor = (float)a->scale});
}

/* ---- where ------------------------------------------------------------------------------------
 */

/* Inlined with `size`, of an element, a constant. */
static inline __attribute__((always_inline)) void
select(size_t size, int64_t n, const char *const x[3], const int64_t step[3], char *y)
{
    for (int64_t i = 0; i < n; i++) {
        uint64_t a = 0, b = 0;
        memcpy(&a, x[1] + (size_t)(i * step[1]) * size, size);
        memcpy(&b, x[2] + (size_t)(i * step[2]) * size, size);
        const uint64_t chosen = b ^ ((a ^ b) & -(uint64_t)(x[0][i * step[0]] != 0)); /* no jump */
        memcpy(y + (size_t)i * size, &chosen, size);
    }
}

typedef struct selection {
    const mn_call *call;
    int ndim;
    int64_t shape[MN_MAX_DIMS], step[3][MN_MAX_DIMS];
} selection;

static void select_row(const selection *s, int64_t row, int64_t column, int64_t n, char *y)
{
    static const int64_t zero;
    const size_t size = mn_dtype_size(s->call->out[0].dtype);
    const char *x[3];
    int64_t step[3];
    for (int k = 0; k < 3; k++) {
        const mn_view *view = &s->call->in[k];
        step[k] = view->present ? s->step[k][s->ndim - 1] : 0;
        x[k] = (const char *)&zero;
        if (view->present)
            x[k] = mn_element(view,
                              mn_offset(row, s->ndim - 1, s->shape, s->step[k]) + column * step[k]);
    }
    if (size == 2)
        select(2, n, x, step, y);
    else if (size == 4)
        select(4, n, x, step, y);
    else if (size == 8)
        select(8, n, x, step, y);
    else
        select(1, n, x, step, y);
}

static void run_select(const void *arg, int64_t begin, int64_t end)
{
    const selection *s = arg;
    const int64_t length = s->shape[s->ndim - 1];
    for (int64_t i = begin, n; i < end; i += n) {
        n = mn_min(length - i % length, end - i);
        select_row(s, i / length, i % length, n, mn_element(&s->call->out[0], i));
    }
}

/* Moves elements of any dtype; operands that need no broadcasting are one row. */
void mn_cpu_where(const mn_call *call)
{
    const mn_view *y = &call->out[0];
    selection s = {.call = call, .ndim = 1, .shape = {y->numel}, .step = {{1}, {1}, {1}}};
    bool stretched = false;
    for (int k = 0; k < 3; k++)
        stretched = stretched || (call->in[k].present && call->in[k].numel != y->numel);
    for (int k = 0; k < 3 && stretched; k++)
        mn_steps(&call->in[k], y->ndim, s.step[k]);
    if (stretched) {
        s.ndim = y->ndim;
        memcpy(s.shape, y->shape, sizeof s.shape);
    }
    mn_run_ranges(call, y->numel, MN_CHUNK, run_select, &s);
}

/* ---- functions of one operand ---------------------------------------------------------------- */

static void run_function(const void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_function_attributes *f = (const void *)call->attributes.bytes;
    const mn_view *of = &call->in[call->input_count - 1], *to = &call->out[0];
    float g[MN_BLOCK], s[MN_BLOCK], y[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(end - i, MN_BLOCK);
        const float *gradient = f->order > 0 ? mn_row_load(call, &call->in[0], i, n, g) : NULL;
        float *result = mn_row_place(to, i, y);
        mn_bodies_of(call)->function((size_t)n, f, gradient, mn_row_load(call, of, i, n, s),
                                     result);
        mn_row_store(call, to, i, n, result);
    }
}

/* Of the unary functions and, of inputs g and s, of their derivatives. */
void mn_cpu_function(const mn_call *call)
{
    mn_run_ranges(call, call->out[0].numel, MN_CHUNK, run_function, call);
}

/* ---- in place -------------------------------------------------------------------------------- */

/* Both operands may be one tensor. */
static void run_blend(const void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_blend_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *dst = &call->in[0];
    float x[MN_BLOCK], y[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(end - i, MN_BLOCK);
        float *to = mn_row_place(dst, i, y);
        if (to == y)
            mn_row_load(call, dst, i, n, y);
        mn_bodies_of(call)->blend((size_t)n, (float)a->a, (float)a->b, to,
                                  mn_row_load(call, &call->in[1], i, n, x));
        mn_row_store(call, dst, i, n, to);
    }
}

void mn_cpu_blend(const mn_call *call)
{
    const double *record = mn_has_input(call, 2) ? call->in[2].data : NULL;
    if (!record || record[MN_OPT_OUTCOME] != MN_STEP_SKIPPED)
        mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_blend, call);
}

static void run_adjust(const void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_adjust_attributes *a = (const void *)call->attributes.bytes;
    const float limits[2] = {(float)a->low, (float)a->high};
    float row[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(end - i, MN_BLOCK);
        float *to = mn_row_place(&call->in[0], i, row);
        if (to == row)
            mn_row_load(call, &call->in[0], i, n, row);
        mn_bodies_of(call)->adjust((size_t)n, limits, (float)a->scale, (float)a->shift, to);
        mn_row_store(call, &call->in[0], i, n, to);
    }
}

void mn_cpu_adjust(const mn_call *call)
{
    mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_adjust, call);
}
