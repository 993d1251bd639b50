/* train/monitor.c: the numerics monitor in a run: when it looks on, what goes into the log, and
 * what is kept of it. */
#include "train/compare.h"
#include "train/train.h"

#include <math.h>
#include <string.h>

/* An overflow, and its row's number: rows move as they become more. */
typedef struct found {
    mn_overflow overflow;
    int64_t row;
} found;

/* ---- in the loop ----------------------------------------------------------------------------- */

mn_status mn_run_monitor_open(mn_run *run)
{
    mn_run_monitor *m = &run->monitor;
    m->overflows = mn_list_new(&run->allocator, sizeof(found));
    if (run->options.monitor == 0)
        return MN_OK;
    m->monitor = mn_monitor_create(run->context, NULL);
    return m->monitor ? mn_monitor_enable(m->monitor, false) : mn_error_status(run->context);
}

void mn_run_monitor_close(mn_run *run)
{
    mn_monitor_free(run->monitor.monitor);
    mn_list_free(&run->monitor.overflows);
}

bool mn_run_monitors(const mn_run *run, int64_t step)
{
    return run->options.monitor > 0 && (step - 1) % run->options.monitor == 0;
}

mn_status mn_run_monitor_look(mn_run *run, bool begins)
{
    mn_run_monitor *m = &run->monitor;
    m->steps += begins;
    m->fresh |= begins;
    if (begins)
        MN_TRY(mn_monitor_step(m->monitor, run->progress.step + 1));
    return mn_monitor_enable(m->monitor, begins);
}

mn_status mn_run_monitor_collect(mn_run *run)
{
    mn_run_monitor *m = &run->monitor;
    int count, rows;
    if (!m->fresh)
        return MN_OK;
    m->fresh = false;
    MN_TRY(mn_monitor_collect(m->monitor));
    const mn_overflow *overflows = mn_monitor_overflows(m->monitor, &count);
    const mn_monitor_row *first = mn_monitor_rows(m->monitor, &rows);
    for (int i = 0; i < count; i++) {
        const found new = {overflows[i], overflows[i].row - first};
        if (!mn_list_append(&m->overflows, &new, 1))
            return mn_error_set(&run->error, MN_ERR_MEMORY, "no memory for what overflowed");
    }
    return MN_OK;
}

mn_status mn_run_monitor_again(mn_run *run)
{
    if (!mn_run_monitors(run, run->progress.step + 1))
        return MN_OK;
    MN_TRY(mn_run_monitor_collect(run));
    run->monitor.fresh = true;
    return mn_monitor_step(run->monitor.monitor, run->progress.step + 1);
}

/* An overflow with the row that it has now. */
static mn_overflow overflow_at(const mn_run_monitor *m, int64_t index, const mn_monitor_row *rows)
{
    const found *at = (const found *)m->overflows.items + index;
    mn_overflow overflow = at->overflow;
    overflow.row = rows + at->row;
    return overflow;
}

mn_status mn_run_monitor_tell(mn_run *run, int64_t step)
{
    mn_run_monitor *m = &run->monitor;
    int count;
    const mn_monitor_row *rows = mn_monitor_rows(m->monitor, &count);
    for (; m->told < m->overflows.count; m->told++) {
        const mn_overflow overflow = overflow_at(m, m->told, rows);
        if (overflow.step > step)
            return MN_OK;
        MN_TRY(mn_event_overflow(run, &overflow));
    }
    return MN_OK;
}

double mn_share(int64_t part, int64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : (double)NAN;
}

static void put_shares(const mn_monitor_totals *t, double *all, double *forward, double *backward)
{
    *all = mn_share(t->lost[MN_FORWARD] + t->lost[MN_BACKWARD] + t->lost[MN_UPDATE],
                    t->stored[MN_FORWARD] + t->stored[MN_BACKWARD] + t->stored[MN_UPDATE]);
    *forward = mn_share(t->lost[MN_FORWARD], t->stored[MN_FORWARD]);
    *backward = mn_share(t->lost[MN_BACKWARD], t->stored[MN_BACKWARD]);
}

void mn_run_monitor_epoch(const mn_run *run, mn_epoch_result *result)
{
    const mn_monitor_totals totals = mn_monitor_totals_get(run->monitor.monitor);
    put_shares(&totals, &result->underflow_fraction, &result->underflow_forward,
               &result->underflow_backward);
}

/* ---- layers ---------------------------------------------------------------------------------- */

bool mn_row_is_scaling(const mn_monitor_row *row)
{
    const char *name = mn_ops[MN_OP_scaler_scale].name;
    return strcmp(row->op, name) == 0 || strcmp(row->backward_of, name) == 0;
}

static const char *layer_name(const mn_monitor_row *row, int depth, int *length)
{
    const char *name = row->layer[0] ? row->layer : "(loss)", *end = name;
    for (int i = 0; i < depth && *end; i++)
        end += strcspn(end + (i > 0), ".") + (size_t)(i > 0);
    *length = (int)(end - name);
    return name;
}

/* NULL: no memory. */
static mn_layer *find_layer(mn_list *layers, const char *name, int length)
{
    mn_layer *known = layers->items;
    for (int64_t i = 0; i < layers->count; i++)
        if (known[i].length == length && memcmp(known[i].name, name, (size_t)length) == 0)
            return &known[i];
    if (!mn_list_reserve(layers, 1))
        return NULL;
    known = (mn_layer *)layers->items + layers->count++;
    memset(known, 0, sizeof *known);
    known->name = name;
    known->length = length;
    return known;
}

static void add_row(mn_layer_side *side, const mn_monitor_row *row)
{
    side->stored += row->stored;
    side->lost += row->lost;
    /* A gradient that is summed into a parameter's has been counted where it was made. */
    if (row->is_cast || row->parameter[0] || strcmp(row->op, "cast") == 0)
        return;
    side->count += row->count;
    side->zeros += row->zeros;
    side->infinities += row->infinities;
    side->nans += row->nans;
    side->largest = fmax(side->largest, row->largest);
    if (row->smallest > 0.0 && (side->smallest == 0.0 || row->smallest < side->smallest))
        side->smallest = row->smallest;
    for (int i = 0; i < MN_MONITOR_BINS; i++)
        side->histogram[i] += row->histogram[i];
}

bool mn_layers_add(mn_list *layers, const mn_train_monitor *monitor, int depth)
{
    for (int i = 0; i < monitor->row_count; i++) {
        const mn_monitor_row *row = &monitor->rows[i];
        int length;
        const char *name = layer_name(row, depth, &length);
        if (row->direction == MN_UPDATE || mn_row_is_scaling(row))
            continue;
        mn_layer *layer = find_layer(layers, name, length);
        if (!layer)
            return false;
        add_row(&layer->sides[row->direction == MN_BACKWARD], row);
    }
    return true;
}

/* ---- what is kept ---------------------------------------------------------------------------- */

/* One block: this, rows, overflows, histograms, texts. */
typedef struct kept {
    mn_train_monitor monitor; /* first: the public pointer is this one */
    mn_allocator allocator;
    size_t bytes;
} kept;

void mn_train_monitor_free(const mn_train_monitor *monitor)
{
    if (!monitor)
        return;
    kept *k = (kept *)(uintptr_t)monitor;
    const mn_allocator allocator = k->allocator;
    allocator.free(allocator.user, k, k->bytes);
}

static mn_monitor_row keep_row(const mn_monitor_row *from, int64_t *histogram, char **texts)
{
    mn_monitor_row row = *from;
    row.histogram = memcpy(histogram, from->histogram, MN_MONITOR_BINS * sizeof *histogram);
    row.layer = mn_text_pack(texts, from->layer);
    row.parameter = mn_text_pack(texts, from->parameter);
    return row;
}

static kept *make_kept(const mn_run_monitor *m, const mn_allocator *allocator)
{
    int count;
    const mn_monitor_row *rows = mn_monitor_rows(m->monitor, &count);
    const size_t n = (size_t)count, overflows = (size_t)m->overflows.count;
    size_t bytes = sizeof(kept) + n * (sizeof *rows + MN_MONITOR_BINS * sizeof(int64_t)) +
                   overflows * sizeof(mn_overflow);
    for (size_t i = 0; i < n; i++)
        bytes += strlen(rows[i].layer) + strlen(rows[i].parameter) + 2;
    for (size_t i = 0; i < overflows; i++)
        bytes += strlen(((const found *)m->overflows.items)[i].overflow.input_name) + 1;
    kept *k = allocator->alloc(allocator->user, bytes, _Alignof(kept));
    if (!k)
        return NULL;
    mn_monitor_row *row_copies = (mn_monitor_row *)(k + 1);
    mn_overflow *overflow_copies = (mn_overflow *)(row_copies + n);
    int64_t *histograms = (int64_t *)(overflow_copies + overflows);
    char *texts = (char *)(histograms + n * MN_MONITOR_BINS);
    for (size_t i = 0; i < n; i++)
        row_copies[i] = keep_row(&rows[i], histograms + i * MN_MONITOR_BINS, &texts);
    for (size_t i = 0; i < overflows; i++) {
        overflow_copies[i] = overflow_at(m, (int64_t)i, row_copies);
        overflow_copies[i].input_name = mn_text_pack(&texts, overflow_copies[i].input_name);
    }
    *k = (kept){.monitor = {.steps = m->steps,
                            .totals = mn_monitor_totals_get(m->monitor),
                            .row_count = count,
                            .rows = row_copies,
                            .overflow_count = (int)overflows,
                            .overflows = overflow_copies},
                .allocator = *allocator,
                .bytes = bytes};
    return k;
}

/* The layer with the largest share of lost values. False: no memory. */
static bool find_worst(mn_train_monitor *monitor, const mn_allocator *allocator)
{
    mn_list layers = mn_list_new(allocator, sizeof(mn_layer));
    const bool done = mn_layers_add(&layers, monitor, INT32_MAX);
    const mn_layer *at = layers.items;
    for (int64_t i = 0; i < layers.count; i++) {
        const double share = mn_share(at[i].sides[0].lost + at[i].sides[1].lost,
                                      at[i].sides[0].stored + at[i].sides[1].stored);
        if (share > 0.0 && !(share <= monitor->worst_underflow)) {
            monitor->worst_underflow = share;
            monitor->worst_layer = at[i].name;
        }
    }
    mn_list_free(&layers);
    return done;
}

mn_train_monitor *mn_run_monitor_keep(mn_run *run)
{
    kept *k = run->monitor.monitor ? make_kept(&run->monitor, &run->allocator) : NULL;
    if (!k)
        return NULL;
    mn_train_monitor *monitor = &k->monitor;
    put_shares(&monitor->totals, &monitor->underflow_fraction, &monitor->underflow_forward,
               &monitor->underflow_backward);
    monitor->updates_lost = mn_share(monitor->totals.updates_lost, monitor->totals.updates);
    monitor->worst_underflow = (double)NAN;
    if (find_worst(monitor, &run->allocator))
        return monitor;
    mn_train_monitor_free(monitor);
    return NULL;
}
