/* Copies, fills and conversions between all data types. Between f32 and the 16-bit floats rows go
 * through the kernel set's converters; all else through f64, but for i64, which that cannot hold.
 */
#include "ops/cpu/run.h"

#include <string.h>

/* To f32 directly: f64 would round twice. Smaller integers wrap. */
static void convert_i64(mn_dtype dtype, int64_t n, const int64_t *from, void *to)
{
    for (int64_t i = 0; i < n; i++) {
        if (dtype == MN_F32)
            ((float *)to)[i] = (float)from[i];
        else if (dtype == MN_I32)
            ((int32_t *)to)[i] = (int32_t)(uint32_t)from[i];
        else
            ((uint8_t *)to)[i] = (uint8_t)from[i];
    }
}

/* Source and destination of a conversion, which may be the same tensor. */
typedef struct conversion {
    const mn_call *call;
    const mn_view *x, *y;
} conversion;

static void run_convert(const void *arg, int64_t begin, int64_t end)
{
    const conversion *c = arg;
    const mn_dtype from = c->x->dtype, to = c->y->dtype;
    const mn_converter *in = &c->call->cpu->converters[from];
    const mn_converter *out = &c->call->cpu->converters[to];
    double block[MN_BLOCK];
    float scratch[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(end - i, MN_BLOCK);
        const void *x = mn_element(c->x, i);
        void *y = mn_element(c->y, i);
        if (in->to_f32 && to == MN_F32) {
            in->to_f32((size_t)n, x, y);
        } else if (in->to_f32 && out->from_f32) {
            const float *row = mn_row_load(c->call, c->x, i, n, scratch);
            out->from_f32((size_t)n, row, y);
            if (c->call->stores)
                mn_count_stores(c->call->stores, n, row, y);
        } else if (from == MN_I64 && (to == MN_F32 || !mn_dtype_is_float(to))) {
            convert_i64(to, n, x, y);
        } else {
            mn_to_f64(from, n, x, block);
            mn_from_f64(to, !mn_dtype_is_float(from), n, block, y);
            mn_count_stores_f64(c->call->stores, to, n, block, y);
        }
    }
}

static void run_copy(const void *arg, int64_t begin, int64_t end)
{
    const conversion *c = arg;
    memmove(mn_element(c->y, begin), mn_element(c->x, begin),
            (size_t)(end - begin) * mn_dtype_size(c->x->dtype));
}

void mn_run_convert(const mn_call *call, const mn_view *x, const mn_view *y)
{
    const conversion c = {call, x, y};
    mn_run_ranges(call, y->numel, MN_CHUNK, x->dtype == y->dtype ? run_copy : run_convert, &c);
}

void mn_cpu_cast(const mn_call *call)
{
    mn_run_convert(call, &call->in[0], &call->out[0]);
}

void mn_cpu_assign(const mn_call *call)
{
    mn_run_convert(call, &call->in[1], &call->in[0]);
}

static void run_fill(const void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_value_attributes *a = (const void *)call->attributes.bytes;
    const size_t size = mn_dtype_size(call->in[0].dtype), bytes = (size_t)(end - begin) * size;
    unsigned char *to = mn_element(&call->in[0], begin);
    mn_from_f64(call->in[0].dtype, false, 1, &a->value, to);
    for (size_t done = size; done < bytes; done *= 2)
        memcpy(to + done, to, done < bytes - done ? done : bytes - done);
}

void mn_cpu_fill(const mn_call *call)
{
    mn_run_ranges(call, call->in[0].numel, MN_CHUNK, run_fill, call);
}
