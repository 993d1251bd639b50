/* Gradient check: backward against central differences in double precision. */
#include "autograd/node.h"

#include "core/philox.h"

#include <float.h>
#include <math.h>
#include <string.h>

typedef struct check {
    mn_context *context;
    mn_function function;
    void *user;
    mn_tensor **inputs;
    int count;
    mn_gradcheck_options options;
    int64_t outputs; /* elements of the function's result */
    double *weights; /* c, [outputs] */
    double *high;    /* results at x + h and x - h, [outputs] each */
    double *low;
} check;

mn_gradcheck_options mn_gradcheck_options_default(void)
{
    return (mn_gradcheck_options){
        .size = sizeof(mn_gradcheck_options), .step = 1e-6, .tolerance = 1e-5};
}

/* `arrays` of `count` numbers, one behind the other; freed by doubles_free. */
static double *doubles(mn_context *context, int arrays, int64_t count)
{
    size_t bytes;
    if (mn_size_mul((size_t)count, (size_t)arrays * sizeof(double), &bytes))
        return mn_host_alloc(context, bytes + 1);
    mn_fail(context, MN_ERR_MEMORY, "no memory for %lld numbers", (long long)count);
    return NULL;
}

static void doubles_free(mn_context *context, double *numbers, int arrays, int64_t count)
{
    mn_host_free(context, numbers, (size_t)count * (size_t)arrays * sizeof(double) + 1);
}

/* The function's result, checked. */
static mn_tensor *call_function(const check *c)
{
    mn_tensor *y = c->function(c->context, c->inputs, c->count, c->user);
    if (mn_tensor_check(c->context, y, "gradient check: the function's result") != MN_OK)
        return NULL;
    if (y->dtype != MN_F64) {
        mn_fail(c->context, MN_ERR_DTYPE, "gradient check: the function's result is %s, not f64",
                mn_dtype_name(y->dtype));
        return NULL;
    }
    return y;
}

/* Signs and sizes that neither cancel nor vanish. */
static bool make_weights(check *c, int64_t count)
{
    mn_stream stream = mn_stream_open(1, MN_STREAM_TEST, "gradcheck", 0);
    c->outputs = count;
    c->weights = doubles(c->context, 3, count);
    if (!c->weights)
        return false;
    c->high = c->weights + count;
    c->low = c->high + count;
    for (int64_t i = 0; i < count; i++) {
        double size = 0.5 + (double)mn_stream_uniform(&stream);
        c->weights[i] = mn_stream_u32(&stream) & 1u ? size : -size;
    }
    return true;
}

/* Leaves d(sum(c * y))/d(input) in the inputs' gradients. */
static mn_status analytic(check *c)
{
    mn_tensor *y = call_function(c);
    if (!y || !make_weights(c, y->numel))
        return c->context->error.status;
    mn_tensor *weights = mn_tensor_from(c->context, MN_F64, y->ndim, y->shape, c->weights);
    mn_tensor *loss = mn_sum(mn_mul(y, weights), 0, NULL, false);
    return loss ? mn_backward(loss, 1) : c->context->error.status;
}

/* The function's result with these values in x. */
static mn_status evaluate(const check *c, mn_tensor *x, const double *values, double *result)
{
    MN_TRY(mn_tensor_write_f64(x, values, x->numel));
    mn_scope scope = mn_scope_begin(c->context);
    mn_tensor *y = call_function(c);
    if (y && y->numel != c->outputs)
        mn_fail(c->context, MN_ERR_SHAPE, "gradient check: the result's size changes");
    else if (y)
        mn_tensor_read_f64(y, result, c->outputs);
    mn_scope_end(c->context, scope);
    return c->context->error.status;
}

/* Puts the input back, also while an error is pending. */
static void restore(mn_tensor *x, const double *values)
{
    mn_device *device = x->context->device;
    size_t bytes = mn_tensor_bytes(x);
    mn_status status = device->upload(device, mn_tensor_address(x), values, bytes);
    if (status != MN_OK)
        mn_fail(x->context, status, "gradient check: cannot restore an input");
    x->storage->version++;
}

static mn_status difference(const check *c, mn_tensor *x, double *values, int64_t index,
                            double *result)
{
    const double original = values[index];
    const double up = original + c->options.step, down = original - c->options.step;
    values[index] = up;
    mn_status status = evaluate(c, x, values, c->high);
    values[index] = down;
    if (status == MN_OK)
        status = evaluate(c, x, values, c->low);
    values[index] = original;
    restore(x, values);
    double sum = 0;
    for (int64_t i = 0; i < c->outputs; i++)
        sum += c->weights[i] * (c->high[i] - c->low[i]);
    *result = sum / (up - down);
    return status;
}

static mn_status compare(const check *c, int input, const double *gradient, double *values)
{
    mn_tensor *x = c->inputs[input];
    for (int64_t i = 0; i < x->numel; i++) {
        double slope;
        MN_TRY(difference(c, x, values, i, &slope));
        double error = fabs(gradient[i] - slope) / fmax(1, fabs(slope));
        if (c->options.worst && !(error <= *c->options.worst))
            *c->options.worst = error;
        if (error <= c->options.tolerance)
            continue;
        const char *name = mn_tensor_name(x);
        return mn_fail(c->context, MN_ERR_MISMATCH,
                       "gradient check: input %d%s%s, element %lld: gradient %.10g, central "
                       "difference %.10g",
                       input, name[0] ? " " : "", name, (long long)i, gradient[i], slope);
    }
    return MN_OK;
}

static mn_status check_input(const check *c, int input)
{
    mn_tensor *x = c->inputs[input];
    if (!x->requires_grad || x->numel == 0)
        return MN_OK;
    double *gradient = doubles(c->context, 2, x->numel);
    if (!gradient)
        return c->context->error.status;
    double *values = gradient + x->numel;
    if (mn_grad(x))
        mn_tensor_read_f64(mn_grad(x), gradient, x->numel);
    else
        memset(gradient, 0, mn_tensor_bytes(x));
    if (mn_tensor_read_f64(x, values, x->numel) == MN_OK)
        compare(c, input, gradient, values);
    doubles_free(c->context, gradient, 2, x->numel);
    return c->context->error.status;
}

static mn_status check_arguments(const check *c)
{
    mn_context *context = c->context;
    if (!c->function || c->count < 0 || (c->count > 0 && !c->inputs))
        return mn_fail(context, MN_ERR_ARGUMENT, "gradient check: function or inputs are NULL");
    if (!mn_is_within(c->options.step, DBL_MIN, DBL_MAX) ||
        !mn_is_within(c->options.tolerance, DBL_MIN, DBL_MAX))
        return mn_fail(context, MN_ERR_ARGUMENT,
                       "gradient check: step and tolerance must be positive and finite");
    if (!mn_is_recording(context))
        return mn_fail(context, MN_ERR_STATE, "gradient check: nothing is recorded here");
    for (int i = 0; i < c->count; i++) {
        MN_TRY(mn_tensor_check(context, c->inputs[i], "gradient check: an input"));
        if (mn_dtype_is_float(c->inputs[i]->dtype) && c->inputs[i]->dtype != MN_F64)
            return mn_fail(context, MN_ERR_DTYPE, "gradient check: input %d is %s, not f64", i,
                           mn_dtype_name(c->inputs[i]->dtype));
        if (c->inputs[i]->node)
            return mn_fail(context, MN_ERR_ARGUMENT, "gradient check: input %d is not a leaf", i);
    }
    return MN_OK;
}

static void zero_gradients(const check *c)
{
    for (int i = 0; i < c->count; i++)
        if (c->inputs[i]->leaf)
            mn_leaf_forget(c->inputs[i]->leaf);
}

mn_status mn_gradcheck(mn_context *context, mn_function function, void *user, mn_tensor **inputs,
                       int count, const mn_gradcheck_options *options)
{
    MN_TRY(mn_error_status(context));
    check c = {context, function, user, inputs, count, .options = mn_gradcheck_options_default()};
    MN_TRY(mn_options_copy(&context->error, "mn_gradcheck", &c.options, sizeof c.options, options));
    MN_TRY(check_arguments(&c));
    if (c.options.worst)
        *c.options.worst = 0;
    mn_scope scope = mn_scope_begin(context);
    zero_gradients(&c);
    mn_status status = analytic(&c);
    for (int i = 0; i < count && status == MN_OK; i++)
        status = check_input(&c, i);
    zero_gradients(&c);
    doubles_free(context, c.weights, 3, c.outputs);
    mn_scope_end(context, scope);
    return status;
}
