/* What a monitor has seen, on the host. */
#include "amp/monitor.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- collecting ------------------------------------------------------------------------------ */

static double from_bits(int64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static mn_monitor_row row_of(const mn_place *place)
{
    const mn_place_key *key = &place->key;
    const mn_op *ruled = key->backward_of ? key->backward_of : key->op;
    const int64_t *host = place->host;
    const int64_t smallest = host[MN_INSPECT_SMALLEST], infinite = INT64_C(0x7ff) << 52;
    bool overridden;
    return (mn_monitor_row){
        .layer = key->layer,
        .op = key->op->name,
        .backward_of = key->backward_of ? key->backward_of->name : "",
        .parameter = key->parameter,
        .direction = key->direction,
        .dtype = key->dtype,
        .output = key->output,
        .is_cast = key->is_cast,
        .rule = mn_autocast_rule(place->counts->context, ruled, &overridden),
        .calls = host[MN_INSPECT_CALLS],
        .count = host[MN_INSPECT_COUNT],
        .zeros = host[MN_INSPECT_ZEROS],
        .infinities = host[MN_INSPECT_INFINITIES],
        .nans = host[MN_INSPECT_NANS],
        .largest = from_bits(host[MN_INSPECT_LARGEST]),
        .smallest = smallest == 0 ? 0 : from_bits(infinite - smallest),
        .histogram = host + MN_INSPECT_HISTOGRAM,
        .stored = host[MN_INSPECT_STORES],
        .lost = host[MN_INSPECT_STORES + 1],
        .updates = host[MN_INSPECT_UPDATES],
        .updates_lost = host[MN_INSPECT_UNCHANGED],
    };
}

static mn_status collect_rows(mn_monitor *monitor)
{
    mn_context *context = monitor->context;
    if (monitor->places > monitor->shown_capacity) {
        mn_monitor_row *rows = mn_host_alloc(context, (size_t)monitor->places * sizeof *rows);
        if (!rows)
            return mn_error_status(context);
        mn_host_free(context, monitor->rows,
                     (size_t)monitor->shown_capacity * sizeof *monitor->rows);
        monitor->rows = rows;
        monitor->shown_capacity = monitor->places;
        monitor->shown = monitor->overflow_count = 0;
    }
    for (mn_place *at = monitor->first; at; at = at->next) {
        MN_TRY(mn_tensor_read(at->counts, at->host, sizeof at->host));
        monitor->rows[at->number] = row_of(at);
    }
    monitor->shown = monitor->places;
    return MN_OK;
}

static mn_overflow_cause cause_of(const mn_place *place, int64_t input)
{
    if (input > 0)
        return MN_OVERFLOW_INPUT;
    if (place->key.direction == MN_UPDATE)
        return MN_OVERFLOW_UPDATE;
    return place->key.direction == MN_BACKWARD || place->key.op == &mn_ops[MN_OP_scaler_scale]
               ? MN_OVERFLOW_BACKWARD
               : MN_OVERFLOW_FORWARD;
}

static mn_overflow overflow_of(const mn_monitor *monitor, const int64_t event[MN_EVENT_SIZE])
{
    const int64_t input = event[MN_EVENT_INPUT];
    const mn_place *place = monitor->first;
    while (place->number != event[MN_EVENT_PLACE])
        place = place->next;
    return (mn_overflow){
        .step = event[MN_EVENT_STEP],
        .cause = cause_of(place, input),
        .row = &monitor->rows[place->number],
        .largest = from_bits(event[MN_EVENT_LARGEST]),
        .infinities = event[MN_EVENT_INFINITIES],
        .nans = event[MN_EVENT_NANS],
        .input = (int)input - 1,
        .input_name = input > 0 ? place->texts[1 + input] : "",
    };
}

mn_status mn_monitor_collect(mn_monitor *monitor)
{
    int64_t ring[1 + MN_EVENTS][MN_EVENT_SIZE];
    if (!monitor)
        return MN_ERR_ARGUMENT;
    MN_TRY(mn_error_status(monitor->context));
    MN_TRY(collect_rows(monitor));
    MN_TRY(mn_tensor_read(monitor->ring, ring, sizeof ring));
    int64_t seen = monitor->events;
    monitor->events = ring[0][0];
    monitor->overflow_count = 0;
    if (seen < monitor->events - MN_EVENTS)
        seen = monitor->events - MN_EVENTS;
    for (; seen < monitor->events; seen++)
        monitor->overflows[monitor->overflow_count++] =
            overflow_of(monitor, ring[1 + seen % MN_EVENTS]);
    return MN_OK;
}

/* ---- getters --------------------------------------------------------------------------------- */

const mn_monitor_row *mn_monitor_rows(const mn_monitor *monitor, int *count)
{
    if (count)
        *count = monitor ? (int)monitor->shown : 0;
    return monitor ? monitor->rows : NULL;
}

const mn_overflow *mn_monitor_overflows(const mn_monitor *monitor, int *count)
{
    if (count)
        *count = monitor ? monitor->overflow_count : 0;
    return monitor ? monitor->overflows : NULL;
}

mn_monitor_totals mn_monitor_totals_get(const mn_monitor *monitor)
{
    mn_monitor_totals totals = {.overflows = monitor ? monitor->events : 0};
    for (int64_t i = 0; monitor && i < monitor->shown; i++) {
        const mn_monitor_row *row = &monitor->rows[i];
        totals.stored[row->direction] += row->stored;
        totals.lost[row->direction] += row->lost;
        totals.updates += row->updates;
        totals.updates_lost += row->updates_lost;
    }
    return totals;
}

const char *mn_overflow_describe(const mn_overflow *overflow, char *buffer, size_t size)
{
    static const char *const verdicts[] = {
        [MN_OVERFLOW_FORWARD] = "no loss scale can mend that",
        [MN_OVERFLOW_BACKWARD] = "a lower loss scale may mend that",
        [MN_OVERFLOW_UPDATE] = "the gradient or the step is too large",
        [MN_OVERFLOW_INPUT] = "it was not finite before: ",
    };
    const mn_monitor_row *row = overflow->row;
    const bool is_input = overflow->cause == MN_OVERFLOW_INPUT;
    const char *input = !is_input                 ? ""
                        : overflow->input_name[0] ? overflow->input_name
                                                  : "what the op was given (the data?)";
    snprintf(
        buffer, size, "step %lld: %s%s%s (%s, %s) is not finite; largest finite value %g: %s%s",
        (long long)overflow->step, row->layer[0] ? row->layer : row->parameter,
        row->layer[0] || row->parameter[0] ? ": " : "", row->op, mn_direction_name(row->direction),
        mn_dtype_name(row->dtype), overflow->largest, verdicts[overflow->cause], input);
    return buffer;
}

/* ---- what formats hold ----------------------------------------------------------------------- */

/* Exponent range and digits of the floating dtypes. */
static const struct {
    int lowest, highest, digits;
} formats[] = {[MN_F64] = {-1022, 1023, 53},
               [MN_F32] = {-126, 127, 24},
               [MN_F16] = {-14, 15, 11},
               [MN_BF16] = {-126, 127, 8}};

mn_float_limits mn_float_limits_get(mn_dtype dtype)
{
    if (!mn_dtype_is_float(dtype))
        return (mn_float_limits){0};
    const int lowest = formats[dtype].lowest, digits = formats[dtype].digits;
    return (mn_float_limits){.largest = ldexp(2 - ldexp(1, 1 - digits), formats[dtype].highest),
                             .smallest_normal = ldexp(1, lowest),
                             .smallest = ldexp(1, lowest + 1 - digits)};
}

mn_monitor_fit mn_monitor_fit_get(const mn_monitor_row *row, mn_dtype dtype, int shift)
{
    mn_monitor_fit fit = {0};
    int64_t total = 0, overflow = 0, subnormal = 0, lost = 0;
    if (!row || !mn_dtype_is_float(dtype))
        return fit;
    const int lowest = formats[dtype].lowest, digits = formats[dtype].digits;
    for (int i = 0; i < MN_MONITOR_BINS; i++) {
        const int64_t exponent = (int64_t)shift + MN_MONITOR_LOWEST + i;
        total += row->histogram[i];
        overflow += exponent > formats[dtype].highest ? row->histogram[i] : 0;
        lost += exponent < lowest - digits ? row->histogram[i] : 0;
        subnormal += exponent < lowest && exponent >= lowest - digits ? row->histogram[i] : 0;
    }
    if (total == 0)
        return fit;
    /* From half a unit beyond the largest on; where the exponent cannot tell, the largest does. */
    fit.overflows =
        ldexp(row->largest, shift) >= ldexp(2 - ldexp(1, -digits), formats[dtype].highest);
    fit.overflow = (double)overflow / (double)total;
    fit.subnormal = (double)subnormal / (double)total;
    fit.lost = (double)lost / (double)total;
    return fit;
}
