/* amp/shadow.c: the shadow check. A batch runs in FP32, whose results are kept op by op, and again
 * in 16 bit, where each is compared with the one kept, and with what the op would have given in f32
 * for the very inputs that it got. Nothing that it does stays: see put_back. */
#include "amp/compare.h"
#include "core/json_write.h"

#include <math.h>
#include <string.h>

/* One call of an op, the same in all runs. */
typedef struct line {
    mn_shadow_row row;
    const mn_op *op, *backward_of;
    int64_t layer;                   /* where its path begins in names */
    unsigned seen;                   /* bits SEEN_ of this batch */
    bool floating;                   /* it has a floating output */
    mn_kept outputs[MN_MAX_OUTPUTS]; /* of FP32, until they are compared */
} line;
enum { SEEN_FP32 = 1, SEEN_LOW = 2, SEEN_BOTH = 4 };

/* What a run writes into tensors that were there before it, as they were. */
typedef struct original {
    struct original *next;
    mn_storage *storage; /* one reference; its bytes follow */
} original;

typedef enum run_mode {
    RUN_FP32 = SEEN_FP32, /* keep */
    RUN_LOW = SEEN_LOW,   /* compare */
    RUN_PROBE = 0         /* look for gradients that are not finite */
} run_mode;

typedef struct owned_report {
    mn_shadow_report report; /* first: the public pointer is this one */
    mn_list rows, names;
} owned_report;

typedef struct shadow_check {
    mn_observer observer; /* first */
    mn_context *context;
    mn_shadow_fn function;
    void *user;
    mn_shadow_options options;
    owned_report *owned; /* in the making; has the names */
    mn_list lines;
    int64_t at;   /* the line of the call that runs; -1: none */
    int64_t next; /* where the next new line belongs */
    run_mode mode;
    uint64_t storages; /* those up to this serial number were there before */
    original *originals;
    mn_kept local[MN_MAX_OUTPUTS];      /* of the call that runs, made in f32 */
    bool exact;                         /* it has no 16-bit inputs: it is as good as in f32 */
    mn_tensor *casts[MN_MAX_INPUTS][2]; /* those that autocast has made for it: result, source */
    int cast_count;
    bool overflow; /* RUN_PROBE has found one */
    bool backward; /* there is a backward pass */
    double scale, losses[2];
    mn_comparer comparer;
} shadow_check;

mn_shadow_options mn_shadow_options_default(void)
{
    return (mn_shadow_options){.size = sizeof(mn_shadow_options),
                               .dtype = MN_BF16,
                               .tolerance = (double)NAN,
                               .batches = 1,
                               .backward = true};
}

/* ---- lines ----------------------------------------------------------------------------------- */

static line *line_at(const shadow_check *c, int64_t index)
{
    return (line *)c->lines.items + index;
}

static const char *layer_of(const shadow_check *c, const line *l)
{
    return (const char *)c->owned->names.items + l->layer;
}

static mn_status out_of_memory(mn_context *context)
{
    return mn_fail(context, MN_ERR_MEMORY, "no memory for the rows of the shadow check");
}

static mn_status insert_line(shadow_check *c, const mn_observed *call, int64_t occurrence)
{
    line new = {.op = call->op, .backward_of = call->backward_of, .layer = c->owned->names.count};
    const double none = (double)NAN;
    new.row = (mn_shadow_row){.op = call->op->name,
                              .backward_of = call->backward_of ? call->backward_of->name : "",
                              .direction = call->direction,
                              .occurrence = occurrence,
                              .dtype = MN_F32,
                              .error = none,
                              .rms = none,
                              .local_error = none};
    if (!mn_list_append(&c->owned->names, call->layer, strlen(call->layer) + 1) ||
        !mn_list_append(&c->lines, &new, 1))
        return out_of_memory(c->context);
    memmove(line_at(c, c->next + 1), line_at(c, c->next),
            (size_t)(c->lines.count - 1 - c->next) * sizeof new);
    *line_at(c, c->next) = new;
    return MN_OK;
}

/* Sets c->at to the first line of such a call that this run has not met, made if there is none. */
static mn_status find_line(shadow_check *c, const mn_observed *call)
{
    int64_t occurrence = 0;
    for (c->at = 0; c->at < c->lines.count; c->at++) {
        const line *l = line_at(c, c->at);
        if (l->op != call->op || l->backward_of != call->backward_of ||
            l->row.direction != call->direction || strcmp(layer_of(c, l), call->layer) != 0)
            continue;
        if (!(l->seen & (unsigned)c->mode))
            break;
        occurrence++;
    }
    if (c->at == c->lines.count) {
        MN_TRY(insert_line(c, call, occurrence));
        c->at = c->next;
    }
    line_at(c, c->at)->seen |= (unsigned)c->mode;
    c->next = c->at + 1;
    return MN_OK;
}

/* Counts the batch in every line and lets go of what is left of it. */
static void end_batch(shadow_check *c)
{
    for (int64_t i = 0; i < c->lines.count; i++) {
        line *l = line_at(c, i);
        l->row.compared += l->seen & SEEN_BOTH ? 1 : 0;
        l->row.unmatched += l->seen && !(l->seen & SEEN_BOTH) ? 1 : 0;
        l->seen = 0;
        mn_kept_drop(l->outputs);
    }
}

/* ---- before a call --------------------------------------------------------------------------- */

static mn_status save_original(shadow_check *c, mn_storage *storage)
{
    for (const original *o = c->originals; o; o = o->next)
        if (o->storage == storage)
            return MN_OK;
    original *o = mn_host_alloc(c->context, sizeof *o + storage->bytes);
    if (!o)
        return mn_error_status(c->context);
    *o = (original){c->originals, storage};
    mn_status status = mn_download(c->context, o + 1, storage->data, storage->bytes);
    if (status != MN_OK) {
        mn_host_free(c->context, o, sizeof *o + storage->bytes);
        return status;
    }
    storage->references++;
    c->originals = o;
    return MN_OK;
}

/* Also while an error is pending. Waiting first leaves the device's queue as much room as it can
 * have. */
static void put_back(shadow_check *c)
{
    mn_device *device = c->context->device;
    for (original *o = c->originals, *next; o; o = next) {
        next = o->next;
        device->synchronize(device);
        mn_status status = device->upload(device, o->storage->data, o + 1, o->storage->bytes);
        if (status != MN_OK)
            mn_fail(c->context, status, "shadow check: cannot put back what its function wrote");
        o->storage->version++;
        const size_t bytes = sizeof *o + o->storage->bytes;
        mn_storage_release(o->storage);
        mn_host_free(c->context, o, bytes);
    }
    c->originals = NULL;
}

/* The input as the call in f32 gets it: before autocast cast it, widened, a copy if it is written.
 * What a cast loses is the loss of the op that it was made for. */
static mn_tensor *local_input(const shadow_check *c, mn_tensor *x, bool written)
{
    const mn_cast_attributes attributes = {MN_F32};
    mn_context *context = c->context;
    for (int i = 0; i < c->cast_count; i++)
        if (c->casts[i][0] == x)
            x = c->casts[i][1];
    if (x && mn_is_16_bit(x->dtype))
        return mn_dispatch1(context, MN_OP_cast, &x, 1, &attributes);
    return x && written ? mn_dispatch1(context, MN_OP_copy, &x, 1, NULL) : x;
}

/* The same call in f32. An op that takes no f32 (a custom one may) has no local error. */
static mn_status run_local(shadow_check *c, const mn_observed *call)
{
    mn_context *context = c->context;
    mn_tensor *inputs[MN_MAX_INPUTS] = {NULL}, *outputs[MN_MAX_OUTPUTS] = {NULL};
    for (int i = 0; i < call->input_count; i++)
        inputs[i] = local_input(c, call->inputs[i], call->op->mutates >> i & 1u);
    MN_TRY(mn_error_status(context));
    mn_status status =
        mn_dispatch(context, call->op, inputs, call->input_count, call->attributes, false, outputs);
    if (status == MN_ERR_DTYPE || status == MN_ERR_UNSUPPORTED) {
        context->error.status = MN_OK;
        context->error.message[0] = '\0';
        return MN_OK;
    }
    for (int i = 0; i < call->op->outputs && status == MN_OK; i++)
        c->local[i] = mn_keep(outputs[i]);
    return status;
}

static bool has_low_input(const mn_observed *call)
{
    bool low = false;
    for (int i = 0; i < call->input_count; i++)
        low = low || (call->inputs[i] && mn_is_16_bit(call->inputs[i]->dtype));
    return low;
}

static mn_status refuse(mn_context *context, const char *what)
{
    return mn_fail(context, MN_ERR_STATE, "shadow check: its function must not %s", what);
}

static mn_status before(mn_observer *observer, mn_context *context, mn_observed *call)
{
    shadow_check *c = (shadow_check *)observer;
    const mn_op *op = call->op;
    mn_kept_drop(c->local);
    c->at = -1;
    if (call->direction == MN_UPDATE)
        return refuse(context, "step, unscale or report");
    if (c->mode == RUN_FP32 && call->cast.active)
        return refuse(context, "open an autocast region: it is called inside of one");
    for (int i = 0; i < call->input_count && !call->rehearsing; i++) {
        mn_tensor *x = call->inputs[i];
        if (x && x->numel > 0 && op->mutates >> i & 1u && x->storage->serial <= c->storages)
            MN_TRY(save_original(c, x->storage));
    }
    if (c->mode == RUN_PROBE || call->rehearsing || op->outputs == 0 || op->flags & MN_OP_VIEW ||
        op == &mn_ops[MN_OP_cast])
        return MN_OK;
    MN_TRY(find_line(c, call));
    c->exact = !has_low_input(call);
    if (c->mode == RUN_FP32 || c->exact)
        return MN_OK;
    mn_scope scope = mn_scope_begin(context);
    mn_status status = mn_ok(context) ? run_local(c, call) : context->error.status;
    mn_scope_end(context, scope);
    return status;
}

/* ---- after a call ---------------------------------------------------------------------------- */

/* False if FP32's result is missing or no longer what it was. */
static bool compare_output(shadow_check *c, line *l, int index, const mn_kept *x)
{
    const mn_kept *reference = &l->outputs[index], *local = &c->local[index];
    mn_shadow_row *row = &l->row;
    if (c->exact)
        row->local_error = fmax(row->local_error, 0.0);
    else if (local->storage && local->numel == x->numel) {
        mn_difference d = mn_kept_compare(&c->comparer, local, x);
        mn_worsen(&row->local_error, d.largest, d.reference, d.nonfinite);
    }
    if (!reference->storage || reference->version != reference->storage->version ||
        reference->numel != x->numel)
        return false;
    mn_difference d = mn_kept_compare(&c->comparer, reference, x);
    if (d.reference < reference->noise)
        return true;
    mn_worsen(&row->error, d.largest, d.reference, d.nonfinite);
    mn_worsen(&row->rms, sqrt(d.squares), sqrt(d.reference_squares), d.nonfinite);
    row->nonfinite += d.nonfinite;
    return true;
}

static void compare_line(shadow_check *c, const mn_observed *call, line *l)
{
    bool all = true, first = true;
    for (int i = 0; i < call->op->outputs; i++) {
        const mn_kept x = mn_kept_of(call->outputs[i]);
        if (!mn_dtype_is_float(x.dtype))
            continue;
        if (first)
            l->row.dtype = x.dtype;
        first = false;
        all = compare_output(c, l, i, &x) && all;
    }
    l->floating |= !first;
    l->seen |= all && !first ? SEEN_BOTH : 0;
    mn_kept_drop(l->outputs);
    mn_kept_drop(c->local);
}

/* The size below which a sum in FP32 has cancelled to its last digits: the gradient of a bias in
 * front of batch norm, say. Comparing with it would tell nothing. 0 for ops that are no sums. */
static double noise_of(shadow_check *c, const mn_observed *call)
{
    static const mn_op_id sums[] = {MN_OP_sum, MN_OP_reduce_to, MN_OP_add, MN_OP_sub};
    double largest = 0.0, terms = 1.0;
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        if (call->op != &mn_ops[sums[i]])
            continue;
        for (int k = 0; k < call->input_count; k++) {
            const mn_kept x = mn_kept_of(call->inputs[k]);
            largest = fmax(largest, mn_kept_compare(&c->comparer, NULL, &x).largest);
        }
        if (call->input_count == 1 && call->outputs[0]->numel > 0)
            terms = (double)call->inputs[0]->numel / (double)call->outputs[0]->numel;
    }
    return 0x1p-20 * largest * sqrt(terms);
}

static void after(mn_observer *observer, mn_context *context, const mn_observed *call)
{
    shadow_check *c = (shadow_check *)observer;
    line *l = c->at >= 0 ? line_at(c, c->at) : NULL;
    if (!call->cast.is_cast)
        c->cast_count = 0;
    else if (c->cast_count < MN_MAX_INPUTS) {
        c->casts[c->cast_count][0] = call->outputs[0];
        c->casts[c->cast_count++][1] = call->inputs[0];
    }
    for (int i = 0; i < call->op->outputs && c->mode != RUN_LOW; i++) {
        if (!mn_dtype_is_float(call->outputs[i]->dtype))
            continue;
        if (c->mode == RUN_FP32 && l) {
            l->floating = true;
            l->outputs[i] = mn_keep(call->outputs[i]);
            l->outputs[i].noise = noise_of(c, call);
        } else if (c->mode == RUN_PROBE && context->in_backward) {
            const mn_kept x = mn_kept_of(call->outputs[i]);
            c->overflow |= mn_kept_compare(&c->comparer, NULL, &x).nonfinite > 0;
        }
    }
    if (c->mode == RUN_LOW && l)
        compare_line(c, call, l);
}

/* ---- runs ------------------------------------------------------------------------------------ */

static mn_status backward(shadow_check *c, mn_tensor *loss)
{
    if (loss->dtype != MN_F64 && loss->dtype != MN_F32)
        loss = mn_cast(loss, MN_F32);
    return loss ? mn_backward(loss, c->scale) : mn_error_status(c->context);
}

static mn_status run_function(shadow_check *c, int64_t batch)
{
    double *value = &c->losses[c->mode != RUN_FP32];
    MN_TRY(mn_autocast_begin(c->context, c->mode == RUN_FP32 ? MN_F32 : c->options.dtype));
    mn_tensor *loss = c->function(c->context, batch, c->user);
    mn_autocast_end(c->context);
    MN_TRY(mn_tensor_check(c->context, loss, "shadow check: the function's result"));
    if (loss->numel != 1)
        return mn_fail(c->context, MN_ERR_SHAPE,
                       "shadow check: the function's result is %lld numbers, a loss is one element",
                       (long long)loss->numel);
    MN_TRY(mn_tensor_item(loss, value));
    c->backward = c->options.backward && loss->requires_grad;
    MN_TRY(c->backward ? backward(c, loss) : MN_OK);
    return mn_synchronize(c->context);
}

/* The batch from its place in the random streams, in a scope that also ends what the function left
 * open. */
static mn_status run(shadow_check *c, run_mode mode, int64_t batch)
{
    mn_context *context = c->context;
    const uint64_t position = context->random_position;
    const uint32_t calls = context->dropout_calls;
    mn_scope scope = mn_scope_begin(context);
    c->mode = mode;
    c->next = 0;
    c->at = -1;
    c->cast_count = 0;
    mn_observer_add(context, &c->observer);
    mn_status status = run_function(c, batch);
    mn_observer_remove(context, &c->observer);
    mn_scope_end(context, scope);
    mn_kept_drop(c->local);
    put_back(c);
    if (mode != RUN_LOW) {
        context->random_position = position;
        context->dropout_calls = calls;
    }
    return status == MN_OK ? mn_error_status(context) : status;
}

/* The largest power of two that no gradient of the first batch overflows with, as a grad scaler
 * comes to; where none helps, the one that it begins with. */
static mn_status find_scale(shadow_check *c)
{
    const double most = mn_grad_scaler_options_default().init_scale;
    c->overflow = true;
    c->backward = true;
    for (c->scale = most; c->overflow && c->backward && c->scale >= 1.0; c->scale *= 0.5) {
        c->overflow = false;
        MN_TRY(run(c, RUN_PROBE, 0));
        if (!c->overflow)
            return MN_OK;
    }
    c->scale = most;
    return MN_OK;
}

static mn_status run_batches(shadow_check *c, mn_shadow_report *report)
{
    c->scale = c->options.loss_scale > 0.0 ? c->options.loss_scale : 1.0;
    if (c->options.backward && c->options.dtype == MN_F16 && c->options.loss_scale == 0.0)
        MN_TRY(find_scale(c));
    for (int64_t i = 0; i < c->options.batches; i++) {
        MN_TRY(run(c, RUN_FP32, i));
        MN_TRY(run(c, RUN_LOW, i));
        report->loss_fp32 += c->losses[0] / (double)c->options.batches;
        report->loss += c->losses[1] / (double)c->options.batches;
        end_batch(c);
    }
    return MN_OK;
}

/* ---- report ---------------------------------------------------------------------------------- */

static void count_row(mn_shadow_report *report, const mn_shadow_row *row)
{
    const mn_shadow_row *rows = report->rows;
    const int64_t i = report->row_count++;
    report->unmatched += row->unmatched > 0;
    if (row->rms > report->tolerance && report->past++ == 0)
        report->first = i;
    if (row->local_error > 0.0 &&
        (report->worst_local < 0 || row->local_error > rows[report->worst_local].local_error))
        report->worst_local = i;
}

/* Takes the rows of ops whose results are numbers. */
static mn_status make_report(shadow_check *c)
{
    owned_report *owned = c->owned;
    mn_shadow_report *report = &owned->report;
    if (!mn_list_reserve(&owned->rows, (size_t)c->lines.count + 1))
        return out_of_memory(c->context);
    report->rows = owned->rows.items;
    report->batches = c->options.batches;
    report->dtype = c->options.dtype;
    report->tolerance = c->options.tolerance;
    report->loss_scale = c->backward ? c->scale : 1.0;
    report->first = report->worst_local = -1;
    for (int64_t i = 0; i < c->lines.count; i++) {
        line *l = line_at(c, i);
        l->row.layer = layer_of(c, l);
        if (!l->floating)
            continue;
        mn_list_append(&owned->rows, &l->row, 1); /* reserved */
        count_row(report, &l->row);
    }
    return MN_OK;
}

static owned_report *report_new(mn_context *context)
{
    const mn_allocator *allocator = &context->allocator;
    owned_report *owned = allocator->alloc(allocator->user, sizeof *owned, 64);
    if (owned)
        *owned = (owned_report){.rows = mn_list_new(allocator, sizeof(mn_shadow_row)),
                                .names = mn_list_new(allocator, 1)};
    else
        out_of_memory(context);
    return owned;
}

void mn_shadow_report_free(mn_shadow_report *report)
{
    if (!report)
        return;
    owned_report *owned = (owned_report *)report;
    const mn_allocator allocator = owned->rows.allocator;
    mn_list_free(&owned->rows);
    mn_list_free(&owned->names);
    allocator.free(allocator.user, owned, sizeof *owned);
}

/* ---- check ----------------------------------------------------------------------------------- */

static mn_status read_options(shadow_check *c, const mn_shadow_options *given)
{
    mn_context *context = c->context;
    mn_shadow_options *o = &c->options;
    *o = mn_shadow_options_default();
    MN_TRY(mn_options_copy(&context->error, "mn_shadow_check", o, sizeof *o, given));
    if (!mn_is_16_bit(o->dtype))
        return mn_fail(context, MN_ERR_DTYPE, "shadow check: the dtype is %s, must be f16 or bf16",
                       mn_dtype_name(o->dtype));
    if (mn_isnan_f64(o->tolerance))
        o->tolerance = o->dtype == MN_F16 ? 0.25 : 0.5;
    if (!c->function || o->tolerance < 0.0 || o->batches < 1 || !mn_isfinite_f64(o->loss_scale) ||
        o->loss_scale < 0.0)
        return mn_fail(context, MN_ERR_ARGUMENT, "shadow check: %s",
                       !c->function         ? "the function is NULL"
                       : o->batches < 1     ? "batches must be at least 1"
                       : o->tolerance < 0.0 ? "tolerance must not be negative"
                                            : "loss_scale must be finite and not negative");
    if (context->in_backward || context->keeps_gradients)
        return mn_fail(context, MN_ERR_STATE, "shadow check inside of %s",
                       context->in_backward ? "a backward function" : "another one");
    return MN_OK;
}

static mn_status check(shadow_check *c, const mn_shadow_options *options)
{
    mn_context *context = c->context;
    MN_TRY(read_options(c, options));
    const uint64_t position = context->random_position;
    const uint32_t calls = context->dropout_calls;
    context->keeps_gradients = true;
    mn_status status = run_batches(c, &c->owned->report);
    context->keeps_gradients = false;
    context->random_position = position;
    context->dropout_calls = calls;
    end_batch(c);
    MN_TRY(status);
    return make_report(c);
}

mn_shadow_report *mn_shadow_check(mn_context *context, mn_shadow_fn function, void *user,
                                  const mn_shadow_options *options)
{
    if (mn_error_status(context) != MN_OK)
        return NULL;
    owned_report *owned = report_new(context);
    shadow_check *c = owned ? mn_host_calloc(context, 1, sizeof *c) : NULL;
    mn_status status = MN_ERR_MEMORY;
    if (c) {
        c->observer = (mn_observer){.before = before, .after = after};
        c->context = c->comparer.context = context;
        c->function = function;
        c->user = user;
        c->storages = context->storages;
        c->owned = owned;
        c->lines = mn_list_new(&context->allocator, sizeof(line));
        status = check(c, options);
        mn_list_free(&c->lines);
    }
    mn_host_free(context, c, sizeof *c);
    if (status == MN_OK)
        return &owned->report;
    mn_shadow_report_free((mn_shadow_report *)owned);
    return NULL;
}
