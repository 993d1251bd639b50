/* What a monitor runs: statistics of a tensor, and what a step left of a parameter. Integers only:
 * the result depends neither on threads nor on the kernel set. */
#include "ops/cpu/run.h"

#include <stdatomic.h>
#include <string.h>

#define INFINITE INT64_C(0x7ff0000000000000)

typedef _Atomic int64_t slot;

static void add(slot *to, int64_t value)
{
    if (value != 0)
        atomic_fetch_add_explicit(to, value, memory_order_relaxed);
}

static void raise_to(slot *to, int64_t value)
{
    int64_t old = atomic_load_explicit(to, memory_order_relaxed);
    while (old < value && !atomic_compare_exchange_weak_explicit(
                              to, &old, value, memory_order_relaxed, memory_order_relaxed))
        ;
}

/* ---- statistics ------------------------------------------------------------------------------ */

typedef struct inspection {
    const mn_call *call;
    slot largest, infinities, nans; /* of this call */
} inspection;

/* n elements as the bits of their magnitudes in f64, where none is subnormal but f64's own. */
static void load_magnitudes(const mn_call *call, const mn_view *x, int64_t start, int64_t n,
                            int64_t bits[MN_BLOCK])
{
    float scratch[MN_BLOCK];
    double wide[MN_BLOCK];
    if (x->dtype == MN_F64) {
        memcpy(wide, mn_element(x, start), (size_t)n * sizeof *wide);
    } else {
        const float *row = mn_row_load(call, x, start, n, scratch);
        for (int64_t i = 0; i < n; i++)
            wide[i] = (double)row[i];
    }
    memcpy(bits, wide, (size_t)n * sizeof *wide);
    for (int64_t i = 0; i < n; i++)
        bits[i] &= INT64_MAX;
}

/* Without branches, which no processor could foretell. */
static void count_block(int64_t n, const int64_t *bits, int64_t *part)
{
    int64_t largest = part[MN_INSPECT_LARGEST], smallest = part[MN_INSPECT_SMALLEST];
    for (int64_t i = 0; i < n; i++) {
        const int64_t x = bits[i], bin = (x >> 52) - 1023 - MN_MONITOR_LOWEST;
        int64_t at = MN_INSPECT_HISTOGRAM + mn_min(mn_max(bin, 0), MN_MONITOR_BINS - 1);
        at = x == 0 ? MN_INSPECT_ZEROS : at;
        at = x >= INFINITE ? MN_INSPECT_INFINITIES + (x > INFINITE) : at;
        part[at]++;
        largest = mn_max(largest, x >= INFINITE ? 0 : x);
        smallest = mn_max(smallest, x == 0 ? 0 : INFINITE - x);
    }
    part[MN_INSPECT_LARGEST] = largest;
    part[MN_INSPECT_SMALLEST] = smallest;
}

static void run_inspect(const void *arg, int64_t begin, int64_t end)
{
    inspection *s = (inspection *)arg;
    slot *place = s->call->in[0].data;
    int64_t part[MN_INSPECT_SIZE] = {[MN_INSPECT_COUNT] = end - begin}, bits[MN_BLOCK];
    for (int64_t i = begin; i < end; i += MN_BLOCK) {
        const int64_t n = mn_min(MN_BLOCK, end - i);
        load_magnitudes(s->call, &s->call->in[2], i, n, bits);
        count_block(n, bits, part);
    }
    for (int i = 0; i < MN_INSPECT_SIZE; i++)
        if (i != MN_INSPECT_LARGEST && i != MN_INSPECT_SMALLEST)
            add(&place[i], part[i]);
    raise_to(&place[MN_INSPECT_LARGEST], part[MN_INSPECT_LARGEST]);
    raise_to(&place[MN_INSPECT_SMALLEST], part[MN_INSPECT_SMALLEST]);
    raise_to(&s->largest, part[MN_INSPECT_LARGEST]);
    add(&s->infinities, part[MN_INSPECT_INFINITIES]);
    add(&s->nans, part[MN_INSPECT_NANS]);
}

/* ---- events ---------------------------------------------------------------------------------- */

static bool is_finite(const mn_call *call, const mn_view *x)
{
    int64_t bits[MN_BLOCK];
    for (int64_t i = 0; i < x->numel; i += MN_BLOCK) {
        const int64_t n = mn_min(MN_BLOCK, x->numel - i);
        load_magnitudes(call, x, i, n, bits);
        for (int64_t k = 0; k < n; k++)
            if (bits[k] >= INFINITE)
                return false;
    }
    return true;
}

/* Work runs in the order of the calls, so the first to come here in a step is the first in it. */
static void report(const inspection *s)
{
    const mn_call *call = s->call;
    const mn_inspect_attributes *a = (const void *)call->attributes.bytes;
    int64_t *ring = call->in[1].data, input = 0;
    if (ring[1] == a->key)
        return;
    for (int i = 3; i < call->input_count && input == 0; i++)
        if (!is_finite(call, &call->in[i]))
            input = i - 2;
    int64_t *event = ring + (1 + ring[0] % MN_EVENTS) * MN_EVENT_SIZE;
    event[MN_EVENT_STEP] = a->step;
    event[MN_EVENT_PLACE] = a->place;
    event[MN_EVENT_LARGEST] = s->largest;
    event[MN_EVENT_INFINITIES] = s->infinities;
    event[MN_EVENT_NANS] = s->nans;
    event[MN_EVENT_INPUT] = input;
    ring[0]++;
    ring[1] = a->key;
}

static void inspect(const mn_call *call)
{
    inspection s = {.call = call};
    ((int64_t *)call->in[0].data)[MN_INSPECT_CALLS]++;
    mn_run_ranges(call, call->in[2].numel, MN_CHUNK, run_inspect, &s);
    if (s.infinities + s.nans > 0)
        report(&s);
}

/* ---- updates --------------------------------------------------------------------------------- */

static bool is_zero(const mn_view *x, int64_t i)
{
    if (!x->present)
        return true;
    return x->dtype == MN_F64 ? ((const double *)x->data)[i] == 0
                              : ((const float *)x->data)[i] == 0;
}

static void run_watch(const void *arg, int64_t begin, int64_t end)
{
    const mn_call *call = arg;
    const mn_watch_attributes *a = (const void *)call->attributes.bytes;
    const mn_view *copy = &call->in[1], *p = &call->in[2];
    const size_t size = mn_dtype_size(p->dtype);
    slot *place = call->in[0].data;
    int64_t due = 0, unchanged = 0;
    if (!a->after) {
        memcpy(mn_element(copy, begin), mn_element(p, begin), (size_t)(end - begin) * size);
        return;
    }
    for (int64_t i = begin; i < end; i++) {
        const bool is_due = !is_zero(&call->in[3], i) || !is_zero(&call->in[5], i);
        due += is_due;
        unchanged += is_due && memcmp(mn_element(copy, i), mn_element(p, i), size) == 0;
    }
    add(&place[MN_INSPECT_UPDATES], due);
    add(&place[MN_INSPECT_UNCHANGED], unchanged);
}

/* A step that was skipped does not count. */
static void watch(const mn_call *call)
{
    const mn_watch_attributes *a = (const void *)call->attributes.bytes;
    const double *record = call->in[4].data;
    if (!a->after || record[MN_OPT_FOUND_INF] == 0)
        mn_run_ranges(call, call->in[2].numel, MN_CHUNK, run_watch, call);
}

static mn_status infer(mn_infer *call)
{
    (void)call;
    return MN_OK;
}

const mn_op mn_inspect_op = {
    .size = sizeof(mn_op),
    .name = "inspect",
    .summary = "statistics of x",
    .min_inputs = 3,
    .max_inputs = MN_MAX_INPUTS,
    .attribute_bytes = sizeof(mn_inspect_attributes),
    .mutates = 0x3,
    .infer = infer,
    .kernels = {[MN_DEVICE_CPU] = {.dtypes = 1U << MN_I64, .run = inspect}},
};

const mn_op mn_watch_op = {
    .size = sizeof(mn_op),
    .name = "watch",
    .summary = "what a step did not change",
    .min_inputs = 5,
    .max_inputs = 6,
    .attribute_bytes = sizeof(mn_watch_attributes),
    .mutates = 0x3,
    .infer = infer,
    .kernels = {[MN_DEVICE_CPU] = {.dtypes = 1U << MN_I64, .run = watch}},
};
