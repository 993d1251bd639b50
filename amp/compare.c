/* amp/compare.c: how far results are from kept ones. */
#include "amp/compare.h"

#include <math.h>
#include <string.h>

mn_kept mn_kept_of(const mn_tensor *tensor)
{
    return (mn_kept){.storage = tensor->storage,
                     .offset = tensor->offset,
                     .version = tensor->storage->version,
                     .numel = tensor->numel,
                     .dtype = tensor->dtype};
}

mn_kept mn_keep(const mn_tensor *tensor)
{
    tensor->storage->references++;
    return mn_kept_of(tensor);
}

void mn_kept_drop(mn_kept *outputs)
{
    for (int i = 0; i < MN_MAX_OUTPUTS; i++) {
        if (outputs[i].storage)
            mn_storage_release(outputs[i].storage);
        outputs[i].storage = NULL;
    }
}

void mn_difference_add(mn_difference *d, int64_t n, const double *reference, const double *x)
{
    for (int64_t i = 0; i < n; i++) {
        if (!mn_isfinite_f64(reference[i])) {
            const bool both_nan = mn_isnan_f64(reference[i]) && mn_isnan_f64(x[i]);
            d->other += reference[i] != x[i] && !both_nan;
            continue;
        }
        d->reference = fmax(d->reference, fabs(reference[i]));
        d->reference_squares += reference[i] * reference[i];
        if (mn_isfinite_f64(x[i])) {
            d->largest = fmax(d->largest, fabs(x[i] - reference[i]));
            d->squares += (x[i] - reference[i]) * (x[i] - reference[i]);
        } else {
            d->nonfinite++;
        }
    }
}

static mn_status load(mn_comparer *c, const mn_kept *from, int64_t begin, int64_t n, double *to)
{
    const size_t size = mn_dtype_size(from->dtype);
    const char *address = (const char *)from->storage->data + from->offset + (size_t)begin * size;
    MN_TRY(mn_download(c->context, c->raw, address, (size_t)n * size));
    mn_to_f64(from->dtype, n, c->raw, to);
    return MN_OK;
}

mn_difference mn_kept_compare(mn_comparer *c, const mn_kept *reference, const mn_kept *x)
{
    mn_difference d = {.nonfinite = 0};
    memset(c->a, 0, sizeof c->a);
    for (int64_t i = 0, n; i < x->numel; i += n) {
        n = x->numel - i < MN_COMPARE_CHUNK ? x->numel - i : MN_COMPARE_CHUNK;
        if ((reference && load(c, reference, i, n, c->a) != MN_OK) ||
            load(c, x, i, n, c->b) != MN_OK)
            break;
        mn_difference_add(&d, n, c->a, c->b);
    }
    return d;
}

void mn_worsen(double *worst, double error, double of, int64_t nonfinite)
{
    if (nonfinite > 0 || (of == 0.0 && error > 0.0))
        error = (double)INFINITY;
    else if (of > 0.0)
        error /= of;
    *worst = fmax(*worst, error);
}
