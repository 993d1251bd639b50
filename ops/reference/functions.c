/* Reference kernels of the unary functions and their first two derivatives. */
#include "ops/reference/reference.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* Distribution function and density of the standard normal distribution. */
static double normal_below(double x)
{
    return 0.5 * (1 + erf(x / sqrt(2)));
}

static double normal_density(double x)
{
    return exp(-0.5 * x * x) / sqrt(8 * atan(1));
}

static double value(const mn_function_attributes *f, double x)
{
    switch (f->function) {
    case MN_OP_affine:
        return f->a * x + f->b;
    case MN_OP_abs:
        return fabs(x);
    case MN_OP_exp:
        return exp(x);
    case MN_OP_log:
        return log(x);
    case MN_OP_sqrt:
        return sqrt(x);
    case MN_OP_rsqrt:
        return 1 / sqrt(x);
    case MN_OP_tanh:
        return tanh(x);
    case MN_OP_sigmoid:
        return sigmoid(x);
    case MN_OP_silu:
        return x * sigmoid(x);
    case MN_OP_gelu:
        return x * normal_below(x);
    case MN_OP_leaky_relu:
        return x <= 0 ? f->a * x : x;
    case MN_OP_clamp:
        x = x < f->a ? f->a : x;
        return x > f->b ? f->b : x;
    default: /* pow_scalar */
        return pow(x, f->a);
    }
}

/* g f'(x), in terms of x or of y = f(x), whichever the op saves. Where f' is 0 or 1 it is a mask,
 * and g passes where x is NaN. */
static double first(const mn_function_attributes *f, double g, double s)
{
    switch (f->function) {
    case MN_OP_abs:
        return s < 0 ? -g : s == 0 ? 0 : g;
    case MN_OP_exp: /* y */
        return g * s;
    case MN_OP_log:
        return g / s;
    case MN_OP_sqrt: /* 1 / 2y */
        return 0.5 * g / s;
    case MN_OP_rsqrt: /* -y^3 / 2 */
        return g * (-0.5 * s * s * s);
    case MN_OP_tanh: /* 1 - y^2 */
        return g * (1 - s * s);
    case MN_OP_sigmoid: /* y (1 - y) */
        return g * (s * (1 - s));
    case MN_OP_silu:
        return g * (sigmoid(s) * (1 + s * sigmoid(-s)));
    case MN_OP_gelu:
        return g * (normal_below(s) + s * normal_density(s));
    case MN_OP_leaky_relu:
        return s <= 0 ? f->a * g : g;
    case MN_OP_clamp:
        return s < f->a || s > f->b ? 0 : g;
    default: /* pow_scalar */
        return f->a == 0 ? 0 : g * (f->a * pow(s, f->a - 1));
    }
}

/* g times the derivative of the above, without g, in s. */
static double second(const mn_function_attributes *f, double g, double s)
{
    const double p = f->a * (f->a - 1);
    switch (f->function) {
    case MN_OP_exp:
        return g;
    case MN_OP_log:
        return -g / (s * s);
    case MN_OP_sqrt:
        return -0.5 * g / (s * s);
    case MN_OP_rsqrt:
        return g * (-1.5 * s * s);
    case MN_OP_tanh:
        return g * (-2 * s);
    case MN_OP_sigmoid:
        return g * (1 - 2 * s);
    case MN_OP_silu:
        return g * (sigmoid(s) * sigmoid(-s) * (2 + s * (1 - 2 * sigmoid(s))));
    case MN_OP_gelu:
        return g * (normal_density(s) * (2 - s * s));
    case MN_OP_pow_scalar:
        return p == 0 ? 0 : g * (p * pow(s, f->a - 2));
    default: /* bent lines */
        return 0;
    }
}

/* y = f(x), or with inputs g and s a derivative. */
void mn_ref_function(const mn_call *call, double *const in[], double *const out[])
{
    const mn_function_attributes *f = (const void *)call->attributes.bytes;
    for (int64_t i = 0; i < call->out[0].numel; i++)
        out[0][i] = f->order == 0   ? value(f, in[0][i])
                    : f->order == 1 ? first(f, in[0][i], in[1][i])
                                    : second(f, in[0][i], in[1][i]);
}
