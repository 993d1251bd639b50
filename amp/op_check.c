/* Trying an op in each dtype, on each device and in autocast regions, in contexts of its own. */
#include "amp/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The contexts: the caller's device with one thread; with three; "cpu-deferred"; and the caller's
 * device with the reference kernels, whose results the others are measured by. */
enum { FIRST, THREADS, DEFERRED, ORACLE, PLACES };
enum { NOWHERE = -1 };

typedef struct check {
    mn_context *owner;
    const mn_op *op;
    mn_tensor *const *inputs;
    int count;
    mn_op_check_options options;
    mn_op_check_report *report;
    mn_context *places[PLACES];
    double *values[MN_MAX_INPUTS]; /* of floating inputs; of others their bytes */
    mn_dtype example;              /* of the first floating input; f32 without any */
    uint32_t floating, varying;    /* inputs; those that have another dtype in each setting */
    char what[64];                 /* is being tried */
} check;

typedef struct setting {
    int place;
    mn_dtype dtype[2]; /* of the floating inputs, by turns */
    mn_dtype rounded;  /* to which their values are rounded before */
    int region;        /* dtype of the region around the op; or NOWHERE */
    int backward;      /* ... around backward */
    bool by_hand;      /* only the rule's casts are made in the region */
    int nan;           /* input that ends with NaN; or NOWHERE */
} setting;

/* An output, an input that was written, or a gradient. */
typedef struct item {
    const mn_tensor *tensor; /* NULL: zero; only until it was read */
    const char *what;
    int index;
    mn_dtype dtype;
    int64_t count;
    const double *values;
} item;

typedef struct outcome {
    mn_context *context;
    bool applied; /* forward has succeeded */
    int count, gradients;
    item items[MN_MAX_OUTPUTS + 2 * MN_MAX_INPUTS];
    double *values;
    size_t bytes;
} outcome;

static const char gradient_of[] = "the gradient of input";

mn_op_check_options mn_op_check_options_default(void)
{
    return (mn_op_check_options){.size = sizeof(mn_op_check_options),
                                 .tolerance = {1e-12, 1e-5, 0x1p-9, 0x1p-6},
                                 .gradcheck = mn_gradcheck_options_default()};
}

/* ---- one run --------------------------------------------------------------------------------- */

static mn_dtype dtype_in(const check *c, const mn_dtype *dtypes, int input)
{
    int turn = 0;
    if (!(c->floating >> input & 1u))
        return c->inputs[input]->dtype;
    for (int i = 0; i < input; i++)
        turn ^= (int)(c->varying >> i & 1u);
    const bool fixed = !(c->varying >> input & 1u) && dtypes[turn] != MN_F64;
    return fixed ? MN_F32 : dtypes[turn];
}

static mn_tensor *make_input(const check *c, const setting *s, int input)
{
    const mn_tensor *example = c->inputs[input];
    const mn_dtype rounded[2] = {s->rounded, s->rounded};
    const mn_dtype dtype = dtype_in(c, s->dtype, input);
    mn_tensor *x = mn_tensor_create(c->places[s->place], dtype_in(c, rounded, input), example->ndim,
                                    example->shape);
    if (!x)
        return NULL;
    double *last = example->numel > 0 ? &c->values[input][example->numel - 1] : NULL;
    const double kept = last ? *last : 0;
    if (last && s->nan == input)
        *last = (double)NAN;
    if (c->floating >> input & 1u)
        mn_tensor_write_f64(x, c->values[input], example->numel);
    else
        mn_tensor_write(x, c->values[input], mn_tensor_bytes(x));
    if (last)
        *last = kept;
    x = x->dtype == dtype ? x : mn_cast(x, dtype);
    const uint32_t wanted = c->floating & c->op->differentiable & ~c->op->mutates;
    if (wanted >> input & 1u)
        mn_set_requires_grad(x, true);
    return x;
}

/* The op's outputs; in a region, or with the casts of one and outside of it. */
static mn_status apply(const check *c, const setting *s, mn_tensor *const *in, mn_tensor **out)
{
    mn_context *context = c->places[s->place];
    const void *attributes = c->options.attributes;
    mn_tensor *cast[MN_MAX_INPUTS];
    mn_cast_choice choice = {.active = false};
    MN_TRY(context->error.status);
    if (s->region != NOWHERE)
        MN_TRY(mn_autocast_begin(context, (mn_dtype)s->region));
    if (!s->by_hand)
        return mn_apply(context, c->op, in, c->count, attributes, out);
    memcpy(cast, in, sizeof cast);
    MN_TRY(mn_autocast_inputs(context, c->op, cast, c->count, &choice));
    MN_TRY(mn_autocast_end(context));
    MN_TRY(mn_dispatch(context, c->op, cast, c->count, attributes, choice.f32_output, out));
    return mn_record(context, c->op, cast, c->count, attributes, out);
}

/* What a gradient can come from, in one row of f64; NULL if there is nothing, or on failure. */
static mn_tensor *flatten(const check *c, mn_tensor *const *out)
{
    mn_tensor *parts[MN_MAX_OUTPUTS];
    int count = 0;
    for (int i = 0; i < c->op->outputs; i++)
        if (mn_dtype_is_float(out[i]->dtype) && !(c->options.constants >> i & 1u))
            parts[count++] = mn_reshape(mn_cast(out[i], MN_F64), 1, &out[i]->numel);
    return count > 0 ? mn_concat(parts, count, 0) : NULL;
}

/* sum(c y) with c = +-1 and +-2, exact in every dtype. */
static mn_tensor *weigh(mn_tensor *y)
{
    mn_context *context = y->context;
    const size_t bytes = (size_t)y->numel * sizeof(double) + 1;
    double *weights = mn_host_alloc(context, bytes);
    if (!weights)
        return NULL;
    for (int64_t i = 0; i < y->numel; i++)
        weights[i] = (double)(1 + i * 7 % 2) * (i * 5 % 3 == 0 ? -1.0 : 1.0);
    mn_tensor *c = mn_tensor_from(context, MN_F64, 1, y->shape, weights);
    mn_host_free(context, weights, bytes);
    return mn_sum(mn_mul(y, c), 0, NULL, false);
}

static void add_item(outcome *o, const char *what, int index, const mn_tensor *x)
{
    o->items[o->count++] = (item){.tensor = x,
                                  .what = what,
                                  .index = index,
                                  .dtype = x ? x->dtype : MN_F64,
                                  .count = x ? x->numel : 0};
}

static mn_status run_backward(const check *c, const setting *s, mn_tensor *const *in,
                              mn_tensor *const *out, outcome *o)
{
    mn_context *context = o->context;
    mn_tensor *y = flatten(c, out);
    mn_tensor *loss = y && y->requires_grad ? weigh(y) : NULL;
    if (!loss)
        return context->error.status;
    if (s->region != s->backward && !s->by_hand)
        MN_TRY(mn_autocast_end(context));
    if (s->region != s->backward && s->backward != NOWHERE)
        MN_TRY(mn_autocast_begin(context, (mn_dtype)s->backward));
    MN_TRY(mn_backward(loss, 1));
    for (int i = 0; i < c->count; i++) {
        if (!in[i] || !in[i]->requires_grad)
            continue;
        add_item(o, gradient_of, i, mn_grad(in[i]));
        o->gradients++;
    }
    return MN_OK;
}

static mn_status read_items(outcome *o)
{
    size_t total = 0;
    for (int i = 0; i < o->count; i++)
        total += (size_t)o->items[i].count;
    o->bytes = total * sizeof(double) + 1; /* no more than the tensors together, nearly */
    o->values = mn_host_alloc(o->context, o->bytes);
    double *at = o->values;
    for (int i = 0; i < o->count && at; i++) {
        item *x = &o->items[i];
        x->values = at;
        if (x->tensor)
            mn_tensor_read_f64(x->tensor, at, x->count);
        x->tensor = NULL;
        at += x->count;
    }
    return o->context->error.status;
}

static mn_status run_in_scope(const check *c, const setting *s, outcome *o)
{
    mn_tensor *in[MN_MAX_INPUTS] = {NULL}, *out[MN_MAX_OUTPUTS] = {NULL};
    for (int i = 0; i < c->count; i++)
        in[i] = c->inputs[i] ? make_input(c, s, i) : NULL;
    MN_TRY(apply(c, s, in, out));
    o->applied = true;
    for (int i = 0; i < c->op->outputs; i++)
        add_item(o, "output", i, out[i]);
    for (int i = 0; i < c->count; i++)
        if (in[i] && c->op->mutates >> i & 1u)
            add_item(o, "written input", i, in[i]);
    MN_TRY(run_backward(c, s, in, out, o));
    return read_items(o);
}

/* The error, if there is one, is pending in the setting's context; o is to be dropped anyway. */
static mn_status run(const check *c, const setting *s, outcome *o)
{
    memset(o, 0, sizeof *o);
    o->context = c->places[s->place];
    mn_scope scope = mn_scope_begin(o->context);
    mn_status status = run_in_scope(c, s, o);
    mn_scope_end(o->context, scope);
    return status;
}

static void drop(outcome *o)
{
    mn_host_free(o->context, o->values, o->bytes);
}

/* ---- what came of it ------------------------------------------------------------------------- */

/* Moves the error that is pending in a context of the check to its owner. */
static mn_status carry(check *c, mn_context *from)
{
    if (from->error.status != MN_OK) {
        mn_fail(c->owner, from->error.status, "op check: %s: %s: %.600s", c->op->name, c->what,
                from->error.message);
        mn_error_clear(from);
    }
    return c->owner->error.status;
}

static mn_status mismatch(check *c, const item *x, const char *text)
{
    return mn_fail(c->owner, MN_ERR_MISMATCH, "op check: %s: %s: %s %d %s", c->op->name, c->what,
                   x->what, x->index, text);
}

/* The first item that is not bit for bit the same, or NULL. A gradient can be missing from one only
 * where an output has another dtype. */
static const item *difference(const outcome *a, const outcome *b)
{
    for (int i = 0; i < a->count; i++) {
        const item *x = &a->items[i], *y = &b->items[i];
        if (x->dtype != y->dtype || x->count != y->count ||
            memcmp(x->values, y->values, (size_t)x->count * sizeof(double)) != 0)
            return x;
    }
    return NULL;
}

/* Largest difference, relative to the largest magnitude wanted. */
static double error_of(const item *got, const item *want)
{
    mn_difference d = {.reference = 1e-30};
    double worst = 0;
    mn_difference_add(&d, want->count, want->values, got->values);
    mn_worsen(&worst, d.largest, d.reference, d.nonfinite + d.other);
    return worst;
}

static mn_status measure(check *c, mn_dtype dtype, const outcome *got, const outcome *want)
{
    mn_op_check_dtype *found = &c->report->dtypes[dtype];
    const double bound = c->options.tolerance[dtype];
    for (int i = 0; i < got->count; i++) {
        const item *x = &got->items[i], *y = &want->items[i];
        double error = x->count == y->count ? error_of(x, y) : (double)INFINITY;
        double *worst = x->what == gradient_of ? &found->backward : &found->forward;
        if (!(error <= *worst)) /* NaN at first */
            *worst = error;
        if (!(error <= bound))
            return mn_fail(c->owner, MN_ERR_MISMATCH,
                           "op check: %s: %s: %s %d is off by %.3g of its largest magnitude, more "
                           "than %.3g",
                           c->op->name, c->what, x->what, x->index, error, bound);
    }
    return MN_OK;
}

/* Whether forward has refused its dtypes, which is then forgotten. */
static bool refused(const outcome *o)
{
    const mn_status status = o->context->error.status;
    if (o->applied || (status != MN_ERR_DTYPE && status != MN_ERR_UNSUPPORTED))
        return false;
    mn_error_clear(o->context);
    return true;
}

/* ---- dtypes ---------------------------------------------------------------------------------- */

static setting plain(mn_dtype dtype)
{
    return (setting){FIRST, {dtype, dtype}, dtype, NOWHERE, NOWHERE, false, NOWHERE};
}

/* A run that has to give the same bits. */
static mn_status compare(check *c, const setting *s, const outcome *want, const char *text)
{
    outcome got;
    const item *x = run(c, s, &got) == MN_OK ? difference(want, &got) : NULL;
    drop(&got);
    MN_TRY(carry(c, got.context));
    return x ? mismatch(c, x, text) : MN_OK;
}

/* A second run, threads and the deferred device. */
static mn_status check_bits(check *c, setting s, const outcome *want)
{
    static const char texts[][36] = {"differs from run to run", "depends on the threads",
                                     "differs on the device cpu-deferred"};
    for (s.place = FIRST; s.place <= DEFERRED; s.place++)
        MN_TRY(compare(c, &s, want, texts[s.place]));
    return MN_OK;
}

static mn_status check_oracle(check *c, mn_dtype dtype, const outcome *got)
{
    const bool wide = c->report->dtypes[MN_F64].served != MN_SERVED_NONE;
    setting s = plain(wide ? MN_F64 : MN_F32);
    outcome want;
    if (s.dtype[0] == MN_F32 && dtype == MN_F32)
        return MN_OK;
    s.place = ORACLE;
    s.rounded = dtype;
    if (run(c, &s, &want) == MN_OK)
        measure(c, dtype, got, &want);
    drop(&want);
    return carry(c, want.context);
}

static bool has_nan(const outcome *o)
{
    for (int i = 0; i < o->count; i++)
        for (int64_t j = 0; j < o->items[i].count && o->items[i].what != gradient_of; j++)
            if (mn_isnan_f64(o->items[i].values[j]))
                return true;
    return false;
}

/* An op may also refuse NaN. */
static mn_status check_nan(check *c, mn_dtype dtype)
{
    for (int i = 0; i < c->count; i++) {
        setting s = plain(dtype);
        outcome got;
        s.nan = i;
        if (!(c->floating >> i & 1u) || c->inputs[i]->numel == 0)
            continue;
        mn_status status = run(c, &s, &got);
        if (status == MN_OK && !has_nan(&got))
            c->report->dtypes[dtype].nan_lost |= 1u << i;
        drop(&got);
        if (status != MN_ERR_MEMORY)
            mn_error_clear(got.context);
        MN_TRY(carry(c, got.context));
    }
    return MN_OK;
}

static mn_tensor *as_function(mn_context *context, mn_tensor **inputs, int count, void *user)
{
    const check *c = user;
    mn_tensor *in[MN_MAX_INPUTS] = {NULL}, *out[MN_MAX_OUTPUTS] = {NULL};
    for (int i = 0, at = 0; i < c->count && at < count; i++)
        if (c->inputs[i])
            in[i] = c->op->mutates >> i & 1u ? mn_clone(inputs[at++]) : inputs[at++];
    return mn_apply(context, c->op, in, c->count, c->options.attributes, out) == MN_OK
               ? flatten(c, out)
               : NULL;
}

/* In f64 against central differences. Where results are not f64 those would be noise. */
static mn_status check_gradient(check *c, const outcome *o)
{
    mn_context *context = o->context;
    const setting s = plain(MN_F64);
    mn_tensor *in[MN_MAX_INPUTS];
    int count = 0;
    for (int i = 0; i < c->op->outputs; i++)
        if (mn_dtype_is_float(o->items[i].dtype) && o->items[i].dtype != MN_F64)
            return MN_OK;
    if (o->gradients == 0)
        return MN_OK;
    mn_scope scope = mn_scope_begin(context);
    for (int i = 0; i < c->count; i++)
        if (c->inputs[i])
            in[count++] = make_input(c, &s, i);
    mn_gradcheck_options options = c->options.gradcheck;
    options.worst = &c->report->gradient;
    mn_gradcheck(context, as_function, c, in, count, &options);
    mn_scope_end(context, scope);
    return carry(c, context);
}

/* A dtype that the op refuses is not served, which is no failure but for that of the examples. */
static mn_status check_dtype(check *c, mn_dtype dtype)
{
    setting s = plain(dtype);
    outcome got;
    snprintf(c->what, sizeof c->what, "%s", mn_dtype_name(dtype));
    mn_status status = run(c, &s, &got);
    if (dtype != c->example && refused(&got))
        return MN_OK;
    if (status == MN_OK) {
        int first = 0;
        while (first < c->count && !c->inputs[first])
            first++;
        c->report->dtypes[dtype].served =
            mn_op_served_by(got.context, c->op,
                            first < c->count ? dtype_in(c, s.dtype, first) : got.items[0].dtype);
        status = dtype == MN_F64 ? check_gradient(c, &got) : MN_OK;
    }
    if (status == MN_OK)
        status = check_bits(c, s, &got);
    if (status == MN_OK)
        status = check_oracle(c, dtype, &got);
    if (status == MN_OK)
        status = check_nan(c, dtype);
    drop(&got);
    return carry(c, got.context);
}

/* ---- autocast -------------------------------------------------------------------------------- */

enum { ALL_F32, ALL_LOW, MIXED, ALL_F64, VARIANTS };

/* Output 0 is lowered, or nothing stays 16 bit, where the rule says so. */
static mn_status check_rule(check *c, mn_dtype region, int variant, const outcome *o)
{
    const mn_cast_rule rule = c->op->rule[c->owner->device->type];
    const bool lowers = rule == MN_CAST_LOWER && (c->floating & ~c->op->mutates);
    const bool raises = rule == MN_CAST_FP32 ||
                        (rule == MN_CAST_FP32_OUT && (variant == ALL_F32 || (c->varying & 1u)));
    for (int i = 0; i < c->op->outputs && variant <= ALL_LOW; i++) {
        const mn_dtype dtype = o->items[i].dtype;
        if (lowers && i == 0 && dtype != region && mn_dtype_is_float(dtype))
            return mismatch(c, &o->items[i], "does not have the region's dtype");
        if (raises && mn_is_16_bit(dtype))
            return mismatch(c, &o->items[i], "is not f32");
    }
    return MN_OK;
}

/* Only inputs that the examples are not made of may be refused, and only in forward. */
static mn_status check_refusal(check *c, int variant, const outcome *o)
{
    const bool f32 = c->report->dtypes[MN_F32].served != MN_SERVED_NONE;
    const bool rule = c->op->rule[c->owner->device->type] == MN_CAST_REFUSE;
    if (rule && !c->op->refuse_hint)
        return mn_fail(c->owner, MN_ERR_MISMATCH, "op check: %s: rule REFUSE without refuse_hint",
                       c->op->name);
    return (rule || variant != ALL_F32 || !f32) && refused(o) ? MN_OK : carry(c, o->context);
}

/* The op in the region against its rule's casts in the region and it outside. */
static mn_status check_region(check *c, mn_dtype region, int variant)
{
    static const char names[VARIANTS][16] = {"f32", "16-bit", "f16 and bf16", "f64"};
    const mn_dtype dtypes[VARIANTS][2] = {
        {MN_F32, MN_F32}, {region, region}, {MN_F16, MN_BF16}, {MN_F64, MN_F64}};
    const int around[] = {NOWHERE, (int)region, region == MN_F16 ? MN_BF16 : MN_F16, MN_F32};
    setting s = plain(variant == MIXED ? MN_BF16 : MN_F32); /* f16 holds those of bf16 */
    memcpy(s.dtype, dtypes[variant], sizeof s.dtype);
    s.region = (int)region;
    s.by_hand = true;
    outcome want;
    snprintf(c->what, sizeof c->what, "region of %s, %s inputs, rule %s", mn_dtype_name(region),
             names[variant], mn_cast_rule_name(c->op->rule[c->owner->device->type]));
    mn_status status = run(c, &s, &want);
    bool whole = status == MN_OK;
    status = whole ? check_rule(c, region, variant, &want) : check_refusal(c, variant, &want);
    if (whole && status == MN_OK && variant == MIXED)
        status = check_oracle(c, MN_BF16, &want);
    s.by_hand = false;
    for (int i = 0; i < 4 && whole && status == MN_OK; i++) {
        s.backward = around[i];
        status = compare(c, &s, &want,
                         i == 0 ? "is not what the rule's casts give outside of it"
                                : "depends on the region that backward is called in");
    }
    drop(&want);
    return status;
}

static mn_status check_autocast(check *c)
{
    const bool several = c->varying & (c->varying - 1);
    for (int variant = 0; variant < VARIANTS; variant++) {
        if ((variant == MIXED && !several) ||
            (variant == ALL_F64 && c->report->dtypes[MN_F64].served == MN_SERVED_NONE))
            continue;
        MN_TRY(check_region(c, MN_F16, variant));
        MN_TRY(check_region(c, MN_BF16, variant));
    }
    c->report->autocast = true;
    return MN_OK;
}

/* ---- the whole ------------------------------------------------------------------------------- */

static mn_status open_places(check *c)
{
    for (int place = 0; place < PLACES; place++) {
        mn_context_options options = mn_context_options_default();
        mn_error error;
        options.device = place == DEFERRED ? "cpu-deferred" : c->owner->device->name;
        options.threads = place == THREADS ? 3 : 1;
        options.kernels = place == ORACLE ? MN_KERNELS_REFERENCE : c->owner->cpu.kernels;
        options.allocator = c->owner->allocator;
        options.memory_limit = c->owner->pool.limit;
        options.seed = c->owner->seed;
        c->places[place] = mn_context_create(&options, &error);
        if (!c->places[place])
            return mn_fail(c->owner, error.status, "op check: %.600s", error.message);
    }
    return MN_OK;
}

static mn_status read_inputs(check *c)
{
    MN_TRY(mn_op_validate(c->owner, c->op));
    if (c->count < 0 || c->count > MN_MAX_INPUTS || (c->count > 0 && !c->inputs))
        return mn_fail(c->owner, MN_ERR_ARGUMENT, "op check: 0 to %d inputs, not %d", MN_MAX_INPUTS,
                       c->count);
    for (int i = 0; i < c->count; i++) {
        mn_tensor *x = c->inputs[i];
        if (!x)
            continue;
        MN_TRY(mn_tensor_check(c->owner, x, "op check: an input"));
        if (mn_is_16_bit(x->dtype))
            return mn_fail(c->owner, MN_ERR_DTYPE, "op check: input %d is %s, not f64 or f32", i,
                           mn_dtype_name(x->dtype));
        if (!c->floating)
            c->example = x->dtype == MN_F64 ? MN_F64 : MN_F32;
        c->floating |= (uint32_t)mn_dtype_is_float(x->dtype) << i;
        c->values[i] = mn_host_calloc(c->owner, (size_t)x->numel + 1, sizeof(double));
        MN_TRY(c->owner->error.status);
        MN_TRY(mn_dtype_is_float(x->dtype) ? mn_tensor_read_f64(x, c->values[i], x->numel)
                                           : mn_tensor_read(x, c->values[i], mn_tensor_bytes(x)));
    }
    c->varying = c->floating & ~c->options.keeps_f32;
    return MN_OK;
}

static mn_status check_all(check *c)
{
    MN_TRY(read_inputs(c));
    MN_TRY(open_places(c));
    for (int dtype = MN_F64; dtype <= MN_BF16; dtype++)
        MN_TRY(check_dtype(c, (mn_dtype)dtype));
    c->report->same_bits = true;
    MN_TRY(check_autocast(c));
    mn_op_record(c->owner, c->op, c->report->record, sizeof c->report->record);
    return MN_OK;
}

mn_status mn_op_check(mn_context *context, const mn_op *op, mn_tensor *const *inputs,
                      int input_count, const mn_op_check_options *options,
                      mn_op_check_report *report)
{
    MN_TRY(mn_error_status(context));
    check c = {context,          op, inputs, input_count, mn_op_check_options_default(), report,
               .example = MN_F32};
    if (!report)
        return mn_fail(context, MN_ERR_ARGUMENT, "op check: the report is NULL");
    *report = (mn_op_check_report){.gradient = (double)NAN};
    for (int i = 0; i < 4; i++)
        report->dtypes[i].forward = report->dtypes[i].backward = (double)NAN;
    if (mn_options_copy(&context->error, "mn_op_check", &c.options, sizeof c.options, options) ==
        MN_OK)
        check_all(&c);
    for (int i = 0; i < PLACES; i++)
        mn_context_free(c.places[i]);
    for (int i = 0; i < input_count && i < MN_MAX_INPUTS; i++)
        if (c.values[i])
            mn_host_free(context, c.values[i], ((size_t)inputs[i]->numel + 1) * sizeof(double));
    report->failure = context->error;
    return context->error.status;
}
