/* Reference kernels of gradient handling, optimizers, the loss scaler and step reports. They work
 * on the records that ops/ops.h lays out. Where a record's content decides what a run does,
 * arithmetic is rounded to f32 step by step, as torch.amp.GradScaler does it. */
#include "ops/reference/reference.h"

#include "core/half.h"
#include "core/math.h"
#include "core/philox.h"

/* The value as an element of dtype would hold it. */
static double rounded(mn_dtype dtype, double value)
{
    double element, result;
    mn_from_f64(dtype, false, 1, &value, &element);
    mn_to_f64(dtype, 1, &element, &result);
    return result;
}

static const double pi = 3.14159265358979323846;

/* inv = f32(1 / scale);  g = g inv. Not finite before or after, or inv not finite: found. With inv
 * not finite g stays, so that it is not turned into zeros or NaN that hide the cause.
 * (inputs g, scaler record, optimizer record) */
void mn_ref_grad_unscale(const mn_call *call, double *const in[], double *const out[])
{
    const mn_dtype dtype = call->in[0].dtype;
    const double inv = (double)(float)(1 / in[1][MN_SCALER_SCALE]);
    bool found = !mn_isfinite_f64(inv);
    (void)out;
    for (int64_t i = 0; i < call->in[0].numel && mn_isfinite_f64(inv); i++) {
        const double result = rounded(dtype, in[0][i] * inv);
        found |= !mn_isfinite_f64(in[0][i]) || !mn_isfinite_f64(result);
        in[0][i] = result;
    }
    if (found)
        in[1][MN_SCALER_FOUND_INF] = in[2][MN_OPT_FOUND_INF] = 1;
}

void mn_norm_add(const mn_norm_attributes *a, double squares, double *record)
{
    record[MN_OPT_NORM_SQ] = (a->first ? 0 : record[MN_OPT_NORM_SQ]) + squares;
    if (!a->last)
        return;
    const double norm = sqrt(record[MN_OPT_NORM_SQ]);
    const double clip = mn_isfinite_f64(a->max_norm) ? a->max_norm / (norm + 1e-6) : 1;
    record[MN_OPT_NORM] = norm;
    record[MN_OPT_CLIP] = clip > 1 ? 1 : clip; /* NaN stays */
    record[MN_OPT_BAD_NORM] = !mn_isfinite_f64(norm);
}

/* norm^2 += sum_i g_i^2   (inputs g, record) */
void mn_ref_grad_norm(const mn_call *call, double *const in[], double *const out[])
{
    double sum = 0;
    (void)out;
    for (int64_t i = 0; i < call->in[0].numel; i++)
        sum += in[0][i] * in[0][i];
    mn_norm_add((const void *)call->attributes.bytes, sum, in[1]);
}

/* g *= clip factor   (inputs g, record) */
void mn_ref_grad_clip(const mn_call *call, double *const in[], double *const out[])
{
    const double clip = in[1][MN_OPT_CLIP];
    const double factor = call->in[0].dtype == MN_F64 ? clip : (double)(float)clip;
    (void)out;
    for (int64_t i = 0; i < call->in[0].numel && clip != 1; i++)
        in[0][i] *= factor;
}

/* One of the two bf16 numbers around an f32 value, so that their mean is the value: element i of
 * the step that has been drawn (see mn_step_attributes). Infinities and NaN stay. */
static double at_random(const mn_step_attributes *a, double step, int64_t i, double value)
{
    const uint64_t t = (uint64_t)step;
    const uint32_t counter[4] = {(uint32_t)(i / 8), 0, (uint32_t)t, (uint32_t)(t >> 32)};
    uint32_t words[4], bits = mn_f32_bits((float)value);
    if (!mn_isfinite_f64(value))
        return value;
    mn_philox4x32(a->key, counter, words);
    bits += i % 8 < 4 ? words[i % 8] & 0xFFFF : words[i % 8 - 4] >> 16;
    return (double)mn_f32_from_bits(bits & 0xFFFF0000);
}

/* How many elements a step is made of. */
static int64_t elements_of_step(const mn_call *call, double *const in[])
{
    return in[4][MN_OPT_FOUND_INF] == 0 ? call->in[0].numel : 0;
}

/* Of the three steps: what is stepped, p or the f32 master of a 16-bit p, which follows a p that
 * something else has written. A step that met a non-finite gradient changes neither p nor states;
 * the 16-bit shadows are rewritten from p in any case.
 * (inputs p, g, state 0, state 1, record, f16 shadow, bf16 shadow, master) */
static double *begin_step(const mn_call *call, double *const in[])
{
    if (!call->in[7].present)
        return in[0];
    for (int64_t i = 0; i < elements_of_step(call, in); i++)
        if (rounded(call->in[0].dtype, in[7][i]) != in[0][i])
            in[7][i] = in[0][i];
    return in[7];
}

/* A 16-bit p, still to be rounded to nearest, from the f32 number that was stepped, and the shadows
 * from p. */
static void end_step(const mn_call *call, double *const in[], const double *stepped)
{
    const mn_step_attributes *a = (const void *)call->attributes.bytes;
    const mn_dtype dtype = call->in[0].dtype;
    for (int64_t i = 0; i < elements_of_step(call, in) && mn_is_16_bit(dtype); i++) {
        const double value = rounded(MN_F32, stepped[i]);
        in[0][i] = a->stochastic ? at_random(a, in[4][MN_OPT_APPLIED], i, value) : value;
    }
    for (int s = 5; s < 7; s++)
        for (int64_t i = 0; i < call->in[0].numel && call->in[s].present; i++)
            in[s][i] = rounded(dtype, in[0][i]);
}

/* g + weight_decay p; without weight decay g, whatever p is. */
static double decayed(const mn_step_attributes *a, double g, double p)
{
    return a->weight_decay == 0 ? g : g + a->weight_decay * p;
}

/* g' = g + weight_decay p;  v = momentum v + g';  p -= lr (nesterov ? g' + momentum v : v), or
 * lr g' without momentum buffer.   (state 0: v or none) */
void mn_ref_sgd_step(const mn_call *call, double *const in[], double *const out[])
{
    const mn_step_attributes *a = (const void *)call->attributes.bytes;
    const double lr = a->lr * in[4][MN_OPT_FACTOR], momentum = a->rate[0];
    double *p = begin_step(call, in), *g = in[1], *v = call->in[2].present ? in[2] : NULL;
    (void)out;
    for (int64_t i = 0; i < elements_of_step(call, in); i++) {
        double step = decayed(a, g[i], p[i]);
        if (v) {
            v[i] = momentum * v[i] + step;
            step = a->variant ? step + momentum * v[i] : v[i];
        }
        p[i] -= lr * step;
    }
    end_step(call, in, p);
}

/* Kingma and Ba, arXiv 1412.6980, t counting the applied steps from 1:
 *   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2;
 *   p -= lr m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
 * with weight decay in g (g += weight_decay p) or, decoupled (Loshchilov and Hutter, arXiv
 * 1711.05101), of p (p -= lr weight_decay p).   (state 0: m, state 1: v) */
void mn_ref_adam_step(const mn_call *call, double *const in[], double *const out[])
{
    const mn_step_attributes *a = (const void *)call->attributes.bytes;
    const double lr = a->lr * in[4][MN_OPT_FACTOR], t = in[4][MN_OPT_APPLIED] + 1;
    double *p = begin_step(call, in), *m = in[2], *v = in[3];
    (void)out;
    for (int64_t i = 0; i < elements_of_step(call, in); i++) {
        const double g = a->variant ? in[1][i] : decayed(a, in[1][i], p[i]);
        if (a->variant && a->weight_decay != 0)
            p[i] -= lr * a->weight_decay * p[i];
        m[i] = a->rate[0] * m[i] + (1 - a->rate[0]) * g;
        v[i] = a->rate[1] * v[i] + (1 - a->rate[1]) * g * g;
        const double mean = m[i] / (1 - pow(a->rate[0], t));
        const double square = v[i] / (1 - pow(a->rate[1], t));
        p[i] -= lr * mean / (sqrt(square) + a->eps);
    }
    end_step(call, in, p);
}

/* g' = g + weight_decay p;  s = alpha s + (1 - alpha) g'^2;  step = g' / (sqrt(s) + eps);
 * with momentum v = momentum v + step, p -= lr v, else p -= lr step.
 * (state 0: s, state 1: v or none) */
void mn_ref_rmsprop_step(const mn_call *call, double *const in[], double *const out[])
{
    const mn_step_attributes *a = (const void *)call->attributes.bytes;
    const double lr = a->lr * in[4][MN_OPT_FACTOR];
    double *p = begin_step(call, in), *s = in[2], *v = call->in[3].present ? in[3] : NULL;
    (void)out;
    for (int64_t i = 0; i < elements_of_step(call, in); i++) {
        const double g = decayed(a, in[1][i], p[i]);
        s[i] = a->rate[0] * s[i] + (1 - a->rate[0]) * g * g;
        double step = g / (sqrt(s[i]) + a->eps);
        if (v)
            step = v[i] = a->rate[1] * v[i] + step;
        p[i] -= lr * step;
    }
    end_step(call, in, p);
}

/* Half a cosine: 1 at done = 0, 0 at done = 1. */
static double fall(double done)
{
    return (1 + cos(pi * done)) / 2;
}

/* One cycle over T steps (Smith and Topin, arXiv 1708.07120), as torch's OneCycleLR: by cosine from
 * 1/25 up to 1 in the first 3/10, then down to 1/250000 at step T - 1. */
static double one_cycle(double t, double total)
{
    const double first = 1.0 / 25, last = first / 1e4, top = 0.3 * total - 1;
    t = fmin(t, total - 1);
    if (t <= top)
        return 1 + (first - 1) * fall(t / top);
    return last + (1 - last) * fall((t - top) / (total - 1 - top));
}

/* What the learning rates are multiplied with after t applied steps: W steps of linear warm-up,
 * then 1, or (1 + cos(pi min(t', T') / T')) / 2 (Loshchilov and Hutter, arXiv 1608.03983), or
 * gamma^floor(t' / step_size), with t' = t - W and T' = T - W. */
static double schedule_factor(const mn_schedule_attributes *a, double t)
{
    const double warmup = (double)a->warmup_steps, total = (double)a->total_steps - warmup;
    if (a->kind == MN_SCHEDULE_ONE_CYCLE)
        return one_cycle(t, total);
    if (t < warmup)
        return (t + 1) / (warmup + 1);
    if (a->kind == MN_SCHEDULE_COSINE)
        return fall(fmin(t - warmup, total) / total);
    if (a->kind == MN_SCHEDULE_STEP)
        return pow(a->gamma, floor((t - warmup) / (double)a->step_size));
    return 1;
}

/* Ends a step: it counts as skipped if a non-finite gradient was found, else as applied.
 * (input record) */
void mn_ref_optimizer_finish(const mn_call *call, double *const in[], double *const out[])
{
    const mn_schedule_attributes *a = (const void *)call->attributes.bytes;
    double *record = in[0];
    const bool skipped = record[MN_OPT_FOUND_INF] != 0;
    const bool nonfinite = skipped || record[MN_OPT_BAD_NORM] != 0;
    (void)out;
    record[skipped ? MN_OPT_SKIPPED : MN_OPT_APPLIED] += 1;
    record[MN_OPT_OUTCOME] = skipped ? MN_STEP_SKIPPED : MN_STEP_APPLIED;
    record[MN_OPT_NONFINITE] += nonfinite;
    record[MN_OPT_STEP_NONFINITE] = nonfinite;
    record[MN_OPT_LR_USED] = a->base_lr * record[MN_OPT_FACTOR];
    record[MN_OPT_FACTOR] = schedule_factor(a, record[MN_OPT_APPLIED]);
    record[MN_OPT_FOUND_INF] = record[MN_OPT_BAD_NORM] = 0;
}

/* y = x scale weight, rounded to f32 after each product (not for f64)   (inputs x, scaler record)
 */
void mn_ref_scaler_scale(const mn_call *call, double *const in[], double *const out[])
{
    const mn_weight_attributes *a = (const void *)call->attributes.bytes;
    const mn_dtype dtype = call->out[0].dtype == MN_F64 ? MN_F64 : MN_F32;
    const double scale = in[1][MN_SCALER_SCALE], weight = rounded(dtype, a->weight);
    for (int64_t i = 0; i < call->in[0].numel; i++) {
        const double x = rounded(dtype, in[0][i]);
        out[0][i] = rounded(dtype, rounded(dtype, x * scale) * weight);
    }
    in[1][MN_SCALER_SCALE_USED] = scale;
}

/* scale = max(f32(scale backoff), min_scale). Collapsed: it could not shrink, or nothing can be
 * divided by it. */
static void back_off(const mn_scaler_attributes *a, double *record)
{
    const double before = record[MN_SCALER_SCALE];
    const double floor = (double)(float)a->min_scale;
    const double shrunk = (double)(float)(before * a->backoff_factor);
    const double scale = shrunk < floor ? floor : shrunk;
    record[MN_SCALER_SCALE] = scale;
    record[MN_SCALER_TRACKER] = 0;
    record[MN_SCALER_BACKOFFS] += 1;
    if (!(scale < before) || scale == 0 || !mn_isfinite_f64((double)(float)(1 / scale)))
        record[MN_SCALER_COLLAPSED] = 1;
}

/* scale = min(f32(scale growth), max_scale), unless that is not finite. */
static void grow(const mn_scaler_attributes *a, double *record)
{
    const double grown = (double)(float)(record[MN_SCALER_SCALE] * a->growth_factor);
    const double ceiling = (double)(float)a->max_scale;
    record[MN_SCALER_TRACKER] = 0;
    if (mn_isfinite_f64(grown))
        record[MN_SCALER_SCALE] = grown < ceiling ? grown : ceiling;
}

/* Backs the scale off after a non-finite gradient, grows it after growth_interval clean updates.
 * (input scaler record) */
void mn_ref_scaler_update(const mn_call *call, double *const in[], double *const out[])
{
    const mn_scaler_attributes *a = (const void *)call->attributes.bytes;
    double *record = in[0];
    (void)out;
    if (record[MN_SCALER_FOUND_INF] != 0) {
        back_off(a, record);
    } else {
        record[MN_SCALER_TRACKER] += 1;
        if (record[MN_SCALER_TRACKER] >= (double)a->growth_interval)
            grow(a, record);
    }
    record[MN_SCALER_UPDATES] += 1;
    record[MN_SCALER_FOUND_INF] = 0;
}

/* Row of the ring: loss += loss weight; correct += rows whose largest logit is the label's; samples
 * += rows. The window's first micro-batch clears the row.   (inputs ring, loss, logits, labels) */
void mn_ref_report_loss(const mn_call *call, double *const in[], double *const out[])
{
    const mn_report_attributes *a = (const void *)call->attributes.bytes;
    const int64_t rows = call->in[2].shape[0], classes = call->in[2].shape[1];
    double *row = in[0] + a->entry * MN_RECORD_SIZE;
    (void)out;
    for (int i = 0; i < MN_RECORD_SIZE && a->first; i++)
        row[i] = 0;
    row[MN_REPORT_LOSS] += in[1][0] * a->weight;
    for (int64_t n = 0; n < rows; n++)
        row[MN_REPORT_CORRECT] +=
            (double)mn_ref_line_argmax(in[2] + n * classes, classes, 1) == in[3][n];
    row[MN_REPORT_SAMPLES] += (double)rows;
}

/* Row of the ring: what became of the step.   (inputs ring, optimizer record, scaler record) */
void mn_ref_report_step(const mn_call *call, double *const in[], double *const out[])
{
    const mn_report_attributes *a = (const void *)call->attributes.bytes;
    double *row = in[0] + a->entry * MN_RECORD_SIZE;
    (void)out;
    row[MN_REPORT_LR] = in[1][MN_OPT_LR_USED];
    row[MN_REPORT_SCALE] = call->in[2].present ? in[2][MN_SCALER_SCALE_USED] : 1;
    row[MN_REPORT_NORM] = in[1][MN_OPT_NORM];
    row[MN_REPORT_OUTCOME] = in[1][MN_OPT_OUTCOME];
    row[MN_REPORT_NONFINITE] = in[1][MN_OPT_STEP_NONFINITE];
}
