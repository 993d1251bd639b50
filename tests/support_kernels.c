/* The harness of support_kernels.h. */
#include "tests/support_kernels.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPERANDS (MN_MAX_INPUTS + MN_MAX_OUTPUTS)

const mn_dtype mn_lowp[3] = {MN_F32, MN_F16, MN_BF16};
static const double half_unit[] = {
    [MN_F64] = 0x1p-53, [MN_F32] = 0x1p-24, [MN_F16] = 0x1p-11, [MN_BF16] = 0x1p-8};

/* ---- values ---------------------------------------------------------------------------------- */

double mn_view_get(const mn_view *view, int64_t i)
{
    switch (view->dtype) {
    case MN_F64:
        return ((double *)view->data)[i];
    case MN_F32:
        return (double)((float *)view->data)[i];
    case MN_F16:
        return (double)mn_f16_to_f32(((mn_f16 *)view->data)[i]);
    case MN_BF16:
        return (double)mn_bf16_to_f32(((mn_bf16 *)view->data)[i]);
    case MN_I64:
        return (double)((int64_t *)view->data)[i];
    case MN_I32:
        return ((int32_t *)view->data)[i];
    default:
        return ((uint8_t *)view->data)[i];
    }
}

void mn_view_put(const mn_view *view, int64_t i, double value)
{
    switch (view->dtype) {
    case MN_F64:
        ((double *)view->data)[i] = value;
        break;
    case MN_F32:
        ((float *)view->data)[i] = (float)value;
        break;
    case MN_F16:
        ((mn_f16 *)view->data)[i] = mn_f16_from_f64(value);
        break;
    case MN_BF16:
        ((mn_bf16 *)view->data)[i] = mn_bf16_from_f64(value);
        break;
    case MN_I64:
        ((int64_t *)view->data)[i] = (int64_t)value;
        break;
    case MN_I32:
        ((int32_t *)view->data)[i] = (int32_t)value;
        break;
    default:
        ((uint8_t *)view->data)[i] = (uint8_t)value;
        break;
    }
}

size_t mn_view_bytes(const mn_view *view)
{
    return (size_t)view->numel * mn_dtype_size(view->dtype);
}

/* ---- fixtures -------------------------------------------------------------------------------- */

void mn_fixture_start(fixture *f, const void *attributes, size_t bytes)
{
    memset(f, 0, sizeof *f);
    f->stream = mn_stream_open(1, MN_STREAM_TEST, "kernels", 0);
    f->call.fault = &f->fault;
    if (bytes > 0)
        memcpy(f->call.attributes.bytes, attributes, bytes);
}

static mn_view make_view(mn_dtype dtype, int ndim, const int64_t *shape)
{
    mn_view view = {.present = true, .dtype = dtype, .ndim = ndim, .numel = 1};
    for (int i = 0; i < ndim; i++) {
        view.shape[i] = shape[i];
        view.numel *= shape[i];
    }
    view.data = malloc(mn_view_bytes(&view) + (view.numel == 0));
    return view;
}

mn_view *mn_fixture_input(fixture *f, mn_dtype dtype, int ndim, const int64_t *shape)
{
    mn_view *view = &f->call.in[f->call.input_count++];
    *view = make_view(dtype, ndim, shape);
    for (int64_t i = 0; i < view->numel; i++)
        mn_view_put(view, i,
                    mn_dtype_is_float(dtype) ? mn_stream_normal(&f->stream)
                                             : (double)mn_stream_below(&f->stream, 7));
    return view;
}

mn_view *mn_fixture_output(fixture *f, mn_dtype dtype, int ndim, const int64_t *shape)
{
    mn_view *view = &f->call.out[f->call.output_count++];
    *view = make_view(dtype, ndim, shape);
    return view;
}

void mn_fixture_absent(fixture *f)
{
    f->call.in[f->call.input_count++].present = false;
}

void mn_view_poison(mn_view *view)
{
    if (view->numel > 0)
        mn_view_put(view, view->numel - 1, (double)NAN);
    if (view->numel > 1)
        mn_view_put(view, view->numel - 2, (double)INFINITY);
}

static double *widened(const mn_view *view, bool zero)
{
    double *values = calloc((size_t)view->numel + 1, sizeof *values);
    for (int64_t i = 0; i < view->numel && !zero; i++)
        values[i] = mn_view_get(view, i);
    return values;
}

void mn_fixture_reference(fixture *f, const kernel *k)
{
    for (int i = 0; i < f->call.input_count; i++) {
        const mn_view *view = &f->call.in[i];
        if (!view->present)
            continue;
        f->in[i] = widened(view, false);
        f->original[i] = malloc(mn_view_bytes(view) + 1);
        memcpy(f->original[i], view->data, mn_view_bytes(view));
    }
    for (int i = 0; i < f->call.output_count; i++)
        f->out[i] = widened(&f->call.out[i], true);
    f->call.op = k->op;
    k->op->reference(&f->call, f->in, f->out);
}

void mn_fixture_free(fixture *f)
{
    for (int i = 0; i < f->call.input_count; i++) {
        free(f->call.in[i].data);
        free(f->original[i]);
        free(f->in[i]);
    }
    for (int i = 0; i < f->call.output_count; i++) {
        free(f->call.out[i].data);
        free(f->out[i]);
    }
}

/* ---- running and comparing ------------------------------------------------------------------- */

/* Puts inputs back and spoils outputs, then runs the kernel. */
static void run_kernel(fixture *f, const kernel *k, const mn_cpu *cpu)
{
    const mn_kernel *native = &k->op->kernels[MN_DEVICE_CPU];
    size_t bytes = 0;
    f->call.cpu = cpu;
    for (int i = 0; i < f->call.input_count; i++)
        if (f->call.in[i].present)
            memcpy(f->call.in[i].data, f->original[i], mn_view_bytes(&f->call.in[i]));
    for (int i = 0; i < f->call.output_count; i++)
        memset(f->call.out[i].data, 0xCD, mn_view_bytes(&f->call.out[i]));
    f->call.op = k->op;
    if (native->prepare)
        ck_assert_int_eq(native->prepare(&f->call, &f->call.plan, &bytes), MN_OK);
    f->call.workspace = malloc(bytes + 1);
    memset(f->call.workspace, 0xAB, bytes);
    native->run(&f->call);
    free(f->call.workspace);
}

static bool is_result(const fixture *f, const kernel *k, int operand)
{
    return operand < MN_MAX_INPUTS ? operand < f->call.input_count && f->call.in[operand].present &&
                                         k->op->mutates >> operand & 1
                                   : operand - MN_MAX_INPUTS < f->call.output_count;
}

static const mn_view *operand_of(const fixture *f, int operand)
{
    return operand < MN_MAX_INPUTS ? &f->call.in[operand] : &f->call.out[operand - MN_MAX_INPUTS];
}

static double largest(const fixture *f)
{
    double size = 1;
    for (int i = 0; i < f->call.input_count; i++)
        for (int64_t j = 0; f->in[i] && mn_dtype_is_float(f->call.in[i].dtype) &&
                            f->call.in[i].ndim > 0 && j < f->call.in[i].numel;
             j++)
            size = fmax(size, isfinite(f->in[i][j]) ? fabs(f->in[i][j]) : 0);
    for (int i = 0; i < f->call.output_count; i++)
        for (int64_t j = 0; j < f->call.out[i].numel; j++)
            size = fmax(size, isfinite(f->out[i][j]) ? fabs(f->out[i][j]) : 0);
    return size;
}

static void compare(const fixture *f, const kernel *k, int operand)
{
    const mn_view *view = operand_of(f, operand);
    const double *expected =
        operand < MN_MAX_INPUTS ? f->in[operand] : f->out[operand - MN_MAX_INPUTS];
    const bool is_float = mn_dtype_is_float(view->dtype);
    const double tiny = view->dtype == MN_F16 ? 0x1p-25 : 0x1p-140;
    const double slack = is_float ? k->k * 0x1p-24 * largest(f) + tiny : 0;
    for (int64_t i = 0; i < view->numel; i++) {
        const double y = mn_view_get(view, i), r = expected[i];
        const double bound = (is_float ? half_unit[view->dtype] * fabs(r) : 0) + slack;
        /* What overflows on either side of the rounding is no disagreement of the kernels. */
        const bool same = isfinite(r) ? fabs(y - r) <= bound : isnan(r) ? isnan(y) : y == r;
        if (!same) /* an assertion per element would take most of the time */
            ck_abort_msg("%s %s operand %d [%lld]: %.9g, not %.9g (bound %.3g)", k->op->name,
                         mn_dtype_name(view->dtype), operand, (long long)i, y, r, bound);
    }
}

static void keep_results(const fixture *f, const kernel *k, void *kept[MAX_OPERANDS])
{
    for (int i = 0; i < MAX_OPERANDS; i++) {
        kept[i] = NULL;
        if (is_result(f, k, i)) {
            kept[i] = malloc(mn_view_bytes(operand_of(f, i)) + 1);
            memcpy(kept[i], operand_of(f, i)->data, mn_view_bytes(operand_of(f, i)));
        }
    }
}

/* Kept from check to check, since threads cost more than most kernels here. */
static const int thread_counts[] = {1, 2, 3, 5};
static mn_workers *pools[4];

void mn_fixture_teardown(void)
{
    for (int i = 0; i < 4; i++) {
        mn_workers_free(pools[i]);
        pools[i] = NULL;
    }
}

mn_cpu mn_fixture_cpu(mn_kernel_set set, int pool)
{
    if (!pools[pool])
        pools[pool] = mn_workers_create(NULL, thread_counts[pool], NULL, NULL, NULL);
    ck_assert_ptr_nonnull(pools[pool]);
    return (mn_cpu){set, mn_converters(set), pools[pool], thread_counts[pool], false};
}

void mn_fixture_check_set(fixture *f, const kernel *k, mn_kernel_set set)
{
    void *kept[MAX_OPERANDS];
    for (int t = 0; t < 4; t++) {
        const mn_cpu cpu = mn_fixture_cpu(set, t);
        run_kernel(f, k, &cpu);
        for (int i = 0; i < MAX_OPERANDS && t == 0; i++)
            if (is_result(f, k, i))
                compare(f, k, i);
        if (t == 0)
            keep_results(f, k, kept);
        for (int i = 0; i < MAX_OPERANDS; i++)
            ck_assert_msg(!kept[i] || memcmp(kept[i], operand_of(f, i)->data,
                                             mn_view_bytes(operand_of(f, i))) == 0,
                          "%s operand %d: other bits with %d threads", k->op->name, i,
                          thread_counts[t]);
    }
    for (int i = 0; i < MAX_OPERANDS; i++)
        free(kept[i]);
}

void mn_fixture_check_sets(fixture *f, const kernel *k)
{
    for (int set = MN_KERNELS_PORTABLE; set < MN_KERNELS_COUNT; set++)
        if (mn_cpu_has_kernels((mn_kernel_set)set))
            mn_fixture_check_set(f, k, (mn_kernel_set)set);
}

void mn_fixture_check(fixture *f, const kernel *k)
{
    mn_fixture_reference(f, k);
    mn_fixture_check_sets(f, k);
    mn_fixture_free(f);
}
