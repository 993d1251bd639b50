/* Reference kernels of the ops that cut, join, index and drop elements. */
#include "ops/reference/reference.h"

/* y[i] = x[i - before] where that is an element of x, else value */
void mn_ref_pad(const mn_call *call, double *const in[], double *const out[])
{
    const mn_pad_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *x = &call->in[0], *y = &call->out[0];
    for (int64_t i = 0; i < y->numel; i++) {
        int64_t rest = i, from = 0, step = 1;
        bool inside = true;
        for (int d = x->ndim - 1; d >= 0; d--) {
            const int64_t at = rest % y->shape[d] - a->before[d];
            inside = inside && at >= 0 && at < x->shape[d];
            from += at * step;
            step *= x->shape[d];
            rest /= y->shape[d];
        }
        out[0][i] = inside ? in[0][from] : a->value;
    }
}

/* y = the inputs one after the other along the axis */
void mn_ref_concat(const mn_call *call, double *const in[], double *const out[])
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_split y = mn_split_at(&call->out[0], a->axis);
    int64_t start = 0;
    for (int k = 0; k < call->input_count; k++) {
        const mn_split x = mn_split_at(&call->in[k], a->axis);
        const int64_t row = x.size * x.inner;
        for (int64_t i = 0; i < call->in[k].numel; i++)
            out[0][i / row * y.size * y.inner + start + i % row] = in[k][i];
        start += row;
    }
}

/* Where element i of the index points to in x; -1, and a fault, if it is out of range. */
static int64_t target(const mn_call *call, const mn_view *index, int64_t i, double value)
{
    const mn_axis_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *x = &call->in[0];
    int64_t step[MN_MAX_DIMS];
    /* The largest i64, widened, is one too many for the way back. */
    const int64_t at = value >= 0x1p63 ? INT64_MAX : (int64_t)value;
    mn_gather_steps(x, index, a->axis, step);
    if (!mn_index_check(call, at, x->shape[a->axis]))
        return -1;
    return mn_offset(i, index->ndim, index->shape, step) + at * mn_split_at(x, a->axis).inner;
}

/* y[.., i, ..] = x[.., index[.., i, ..], ..]   (inputs x, index) */
void mn_ref_gather(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->in[1].numel; i++) {
        const int64_t from = target(call, &call->in[1], i, in[1][i]);
        out[0][i] = from < 0 ? 0 : in[0][from];
    }
}

/* y = x, then y[.., index[.., i, ..], ..] += src[.., i, ..]   (inputs x, src, index) */
void mn_ref_scatter_add(const mn_call *call, double *const in[], double *const out[])
{
    for (int64_t i = 0; i < call->in[0].numel; i++)
        out[0][i] = in[0][i];
    for (int64_t i = 0; i < call->in[2].numel; i++) {
        const int64_t to = target(call, &call->in[2], i, in[2][i]);
        if (to >= 0)
            out[0][to] += in[1][i];
    }
}

/* y[i] = x[i] (word[i] >= floor(p 2^32) ? 1 / (1 - p) : 0); x[i] 0 for p = 1 */
void mn_ref_dropout(const mn_call *call, double *const in[], double *const out[])
{
    const mn_dropout_attributes *a = (const void *)call->attributes.bytes;
    uint32_t words[4];
    for (int64_t i = 0; i < call->in[0].numel; i++) {
        mn_dropout_words(a, i / 4, words);
        const bool keep = a->p < 1 && words[i % 4] >= mn_dropout_threshold(a->p);
        out[0][i] = in[0][i] * (keep ? 1 / (1 - a->p) : 0);
    }
}
