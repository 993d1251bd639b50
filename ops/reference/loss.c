/* Reference kernels of the losses. */
#include "ops/reference/reference.h"

/* What the losses of the rows, or of the elements, are divided by in a gradient: the given divisor
 * for the mean, else 1; and which of the gradients is the one of loss i. */
static double loss_gradient(const double *g, int64_t reduction, int64_t i, double divisor)
{
    if (reduction == MN_REDUCTION_NONE)
        return g[i];
    return reduction == MN_REDUCTION_MEAN ? g[0] / divisor : g[0];
}

/* ---- classes --------------------------------------------------------------------------------- */

/* The operands of a loss over classes: labels where the target is i64, else probabilities. */
typedef struct classes {
    const mn_call *call;
    const mn_class_loss_attributes *a;
    int64_t N, C;
    bool soft;
    const double *x, *target, *weight; /* weight NULL: all 1 */
} classes;

static classes classes_of(const mn_call *call, double *const in[], int x, int weight)
{
    return (classes){.call = call,
                     .a = (const void *)call->attributes.bytes,
                     .N = call->in[x].shape[0],
                     .C = call->in[x].shape[1],
                     .soft = call->in[x + 1].dtype != MN_I64,
                     .x = in[x],
                     .target = in[x + 1],
                     .weight = mn_has_input(call, weight) ? in[weight] : NULL};
}

static bool is_ignored(const classes *l, int64_t n)
{
    return !l->soft && l->target[n] == (double)l->a->ignore_index;
}

static double weight_of(const classes *l, int64_t c)
{
    return l->weight ? l->weight[c] : 1;
}

/* Whether the label of a row is one of the classes; if not, that is recorded as the call's fault.
 */
static bool check_label(const classes *l, int64_t n)
{
    const double label = l->target[n];
    if (label >= 0 && label < (double)l->C)
        return true;
    /* The largest i64, widened, is one too many for the way back. */
    long long shown = label >= 0x1p63 ? INT64_MAX : (long long)label;
    mn_call_fault(l->call, MN_ERR_ARGUMENT, "label %lld is not in [0, %lld)", shown, l->C);
    return false;
}

/* q[n,c] = w[c] (t[n,c] (1 - smoothing) + smoothing / C), t 1 for a label's class, else 0 */
static double share(const classes *l, int64_t n, int64_t c)
{
    const double t = l->soft ? l->target[n * l->C + c] : l->target[n] == (double)c ? 1 : 0;
    return weight_of(l, c) * (t * (1 - l->a->smoothing) + l->a->smoothing / (double)l->C);
}

/* Of the mean: the weights of the labels that count, N for probabilities. */
static double divisor_of(const classes *l)
{
    double sum = 0;
    for (int64_t n = 0; n < l->N; n++)
        if (!l->soft && !is_ignored(l, n) && check_label(l, n))
            sum += weight_of(l, (int64_t)l->target[n]);
    return l->soft ? (double)l->N : sum;
}

/* sum_c q[n,c] (lse - x[n,c]); of a label without smoothing that is one term. */
static double row_loss(const classes *l, int64_t n, double lse)
{
    const double *x = l->x + n * l->C;
    double loss = 0;
    if (is_ignored(l, n))
        return 0;
    if (!l->soft && !check_label(l, n))
        return (double)NAN;
    for (int64_t c = 0; c < l->C; c++)
        if (l->soft || l->a->smoothing > 0 || l->target[n] == (double)c)
            loss += share(l, n, c) * (lse - x[c]);
    return loss;
}

/* lse[n] = log(sum_c exp(x[n,c])), or 0 for log-probabilities; loss = row losses, their sum, or
 * their sum / divisor   (inputs x, target, weight; outputs loss, lse) */
void mn_ref_cross_entropy(const mn_call *call, double *const in[], double *const out[])
{
    const classes l = classes_of(call, in, 0, 2);
    double sum = 0;
    for (int64_t n = 0; n < l.N; n++) {
        out[1][n] = l.a->is_log ? 0 : mn_ref_log_sum_exp(l.x + n * l.C, l.C, 1);
        const double loss = row_loss(&l, n, out[1][n]);
        if (l.a->reduction == MN_REDUCTION_NONE)
            out[0][n] = loss;
        sum += loss;
    }
    if (l.a->reduction != MN_REDUCTION_NONE)
        out[0][0] = l.a->reduction == MN_REDUCTION_MEAN ? sum / divisor_of(&l) : sum;
}

/* dx[n,c] = g (exp(x[n,c] - lse[n]) sum_k q[n,k] - q[n,c]) / divisor, without the first term for
 * log-probabilities; 0 in ignored rows   (inputs g, x, target, lse, weight) */
void mn_ref_cross_entropy_backward(const mn_call *call, double *const in[], double *const out[])
{
    const classes l = classes_of(call, in, 1, 4);
    const double divisor = divisor_of(&l);
    for (int64_t n = 0; n < l.N; n++) {
        const double g = loss_gradient(in[0], l.a->reduction, n, divisor);
        double q = 0;
        if (is_ignored(&l, n))
            continue;
        for (int64_t c = 0; c < l.C; c++)
            q += share(&l, n, c);
        for (int64_t i = n * l.C; i < (n + 1) * l.C; i++) {
            const double p = l.a->is_log ? 0 : q * exp(l.x[i] - in[3][n]);
            out[0][i] = g * (p - share(&l, n, i - n * l.C));
        }
    }
}

/* ---- element by element ---------------------------------------------------------------------- */

static double at_least(double x, double least)
{
    return x < least ? least : x;
}

static double loss_of(int64_t kind, double x, double t, double delta)
{
    const double d = fabs(x - t), share = x > 0 ? 1 - t : t;
    switch (kind) {
    case MN_LOSS_MSE: /* (x - t)^2 */
        return d * d;
    case MN_LOSS_L1: /* |x - t| */
        return d;
    case MN_LOSS_HUBER: /* d^2 / 2 up to delta, then delta (d - delta / 2) */
        return d > delta ? delta * (d - delta / 2) : d * d / 2;
    case MN_LOSS_BCE_WITH_LOGITS: /* max(x, 0) - x t + log(1 + exp(-|x|)), without cancellation */
        return (share == 0 ? 0 : fabs(x) * share) + log1p(exp(-fabs(x)));
    default: /* -t log x - (1 - t) log(1 - x) */
        return (t - 1) * at_least(log1p(-x), -100) - t * at_least(log(x), -100);
    }
}

static double slope_of(int64_t kind, double x, double t, double delta)
{
    const double d = x - t, e = exp(-fabs(x));
    switch (kind) {
    case MN_LOSS_MSE:
        return 2 * d;
    case MN_LOSS_L1:
        return mn_isnan_f64(d) ? d : (d > 0) - (d < 0);
    case MN_LOSS_HUBER:
        return fabs(d) > delta ? copysign(delta, d) : d;
    case MN_LOSS_BCE_WITH_LOGITS: /* sigmoid(x) - t */
        return x > 0 ? (1 - t) - e / (1 + e) : e / (1 + e) - t;
    default: /* as PyTorch's, with a bound where x is 0 or 1 */
        return d / at_least((1 - x) * x, 1e-12);
    }
}

/* loss = losses of the elements, their sum or their mean   (inputs x, t) */
void mn_ref_pointwise_loss(const mn_call *call, double *const in[], double *const out[])
{
    const mn_pointwise_loss_attributes *a = (const void *)call->attributes.bytes;
    const int64_t n = call->in[0].numel;
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double loss = loss_of(a->kind, in[0][i], in[1][i], a->delta);
        if (a->kind == MN_LOSS_BCE && (in[0][i] < 0 || in[0][i] > 1))
            mn_call_fault(call, MN_ERR_ARGUMENT, "probability %lld is not in [0, 1]", i, 0);
        if (a->reduction == MN_REDUCTION_NONE)
            out[0][i] = loss;
        sum += loss;
    }
    if (a->reduction != MN_REDUCTION_NONE)
        out[0][0] = a->reduction == MN_REDUCTION_MEAN ? sum / (double)n : sum;
}

/* dx[i] = g slope(x[i], t[i]), / n for the mean   (inputs g, x, t) */
void mn_ref_pointwise_loss_backward(const mn_call *call, double *const in[], double *const out[])
{
    const mn_pointwise_loss_attributes *a = (const void *)call->attributes.bytes;
    const int64_t n = call->in[1].numel;
    for (int64_t i = 0; i < n; i++)
        out[0][i] = loss_gradient(in[0], a->reduction, i, (double)n) *
                    slope_of(a->kind, in[1][i], in[2][i], a->delta);
}
