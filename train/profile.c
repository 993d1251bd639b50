/* train/profile.c: how long the calls of each op take, by an observer with a clock. */
#include "train/train.h"

#include <stdlib.h>

struct mn_profile {
    mn_observer observer;
    mn_context *context; /* NULL: it has ended */
    mn_list rows;
    int64_t current; /* row of the call that runs */
    double started;
};

static double bytes_of(mn_dtype dtype, int64_t count)
{
    return (double)count * (double)mn_dtype_size(dtype);
}

static double bytes_moved(const mn_observed *call)
{
    double bytes = 0;
    for (int i = 0; i < call->input_count; i++) {
        const mn_tensor *x = call->inputs[i];
        if (x)
            bytes += bytes_of(x->dtype, mn_tensor_numel(x));
    }
    for (int i = 0; i < call->op->outputs; i++)
        bytes += bytes_of(call->results[i].dtype, call->results[i].numel);
    return bytes;
}

/* Of sums over what each of some filters holds. */
static double products(int64_t sums, int64_t elements, int64_t filters)
{
    return filters > 0 ? 2.0 * (double)sums * (double)(elements / filters) : 0;
}

/* Products with padding count; 0: not known. */
static double flops_of(const mn_observed *call)
{
    const mn_op *op = call->op;
    const mn_view *y = call->results;
    mn_tensor *const *x = call->inputs;
    if (op->infer == mn_ops[MN_OP_conv2d].infer || op == &mn_ops[MN_OP_conv2d_moments] ||
        op->infer == mn_ops[MN_OP_linear].infer)
        return products(y->numel, mn_tensor_numel(x[1]), x[1]->shape[0]);
    if (op == &mn_ops[MN_OP_conv2d_backward_input])
        return products(mn_tensor_numel(x[0]), mn_tensor_numel(x[1]), x[1]->shape[0]);
    if (op == &mn_ops[MN_OP_conv2d_backward_weight])
        return products(mn_tensor_numel(x[0]), y->numel, y->shape[0]);
    if (op == &mn_ops[MN_OP_matmul]) {
        const mn_matmul_attributes *a = call->attributes;
        return products(y->numel, x[0]->shape[x[0]->ndim - (a->transpose_a ? 2 : 1)], 1);
    }
    return 0;
}

static mn_profile_row *row_at(mn_profile *profile, int64_t index)
{
    return (mn_profile_row *)profile->rows.items + index;
}

/* Makes the row, which a rehearsed call has done when its time comes. */
static mn_status before(mn_observer *observer, mn_context *context, mn_observed *call)
{
    mn_profile *profile = (mn_profile *)observer;
    int64_t i = 0;
    while (i < profile->rows.count && (row_at(profile, i)->op != call->op->name ||
                                       row_at(profile, i)->direction != call->direction))
        i++;
    const mn_profile_row row = {.op = call->op->name, .direction = call->direction};
    if (i == profile->rows.count && !mn_list_append(&profile->rows, &row, 1))
        return mn_fail(context, MN_ERR_MEMORY, "profile: no memory for one more op");
    profile->current = i;
    mn_status status = call->rehearsing ? MN_OK : mn_synchronize(context);
    profile->started = mn_clock_seconds();
    return status;
}

static void after(mn_observer *observer, mn_context *context, const mn_observed *call)
{
    mn_profile *profile = (mn_profile *)observer;
    if (profile->started == 0)
        return; /* it was begun during the call */
    mn_profile_row *row = row_at(profile, profile->current);
    mn_synchronize(context);
    row->seconds += mn_clock_seconds() - profile->started;
    row->calls++;
    if (call->served != MN_SERVED_VIEW && call->served != MN_SERVED_SHADOW) {
        row->flops += flops_of(call);
        row->bytes += bytes_moved(call);
    }
}

mn_profile *mn_profile_begin(mn_context *context)
{
    if (!context || mn_error_status(context) != MN_OK)
        return NULL;
    const mn_allocator *allocator = &context->allocator;
    mn_profile *profile = allocator->alloc(allocator->user, sizeof *profile, _Alignof(mn_profile));
    if (!profile) {
        mn_fail(context, MN_ERR_MEMORY, "no memory for a profile");
        return NULL;
    }
    *profile = (mn_profile){.observer = {.before = before, .after = after, .blind = true},
                            .context = context,
                            .rows = mn_list_new(allocator, sizeof(mn_profile_row))};
    mn_observer_add(context, &profile->observer);
    return profile;
}

static int longest_first(const void *a, const void *b)
{
    double x = ((const mn_profile_row *)a)->seconds, y = ((const mn_profile_row *)b)->seconds;
    return (x < y) - (x > y);
}

void mn_profile_end(mn_profile *profile)
{
    if (!profile || !profile->context)
        return;
    mn_observer_remove(profile->context, &profile->observer);
    profile->context = NULL;
    if (profile->rows.count > 0)
        qsort(profile->rows.items, (size_t)profile->rows.count, sizeof(mn_profile_row),
              longest_first);
}

bool mn_profile_get(const mn_profile *profile, int64_t index, mn_profile_row *row)
{
    if (!profile || !row || index < 0 || index >= profile->rows.count)
        return false;
    *row = ((const mn_profile_row *)profile->rows.items)[index];
    return true;
}

void mn_profile_free(mn_profile *profile)
{
    if (!profile)
        return;
    mn_profile_end(profile);
    const mn_allocator allocator = profile->rows.allocator;
    mn_list_free(&profile->rows);
    allocator.free(allocator.user, profile, sizeof *profile);
}
