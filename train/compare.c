/* Comparison: the same run in several precisions, seed by seed, against FP32. */
#include "train/report.h"
#include "train/train.h"

#include <math.h>
#include <string.h>

static const struct {
    const char *name;
    mn_dtype amp;
} precisions[] = {{"fp32", MN_F32}, {"bf16", MN_BF16}, {"fp16", MN_F16}};
enum { PRECISION_COUNT = 3 };

/* The result with what it owns. */
typedef struct comparison {
    mn_compare_result result; /* first: the public pointer is this one */
    mn_list rows;
    mn_compare_deviation deviations[PRECISION_COUNT];
} comparison;

mn_compare_options mn_compare_options_default(void)
{
    mn_compare_options options = {.size = sizeof options,
                                  .train = mn_train_options_default(),
                                  .precisions = "fp32,bf16,fp16",
                                  .seeds = 1,
                                  .margin = 0.6};
    return options;
}

void mn_compare_result_free(mn_compare_result *result)
{
    if (result == NULL)
        return;
    comparison *c = (comparison *)result;
    mn_allocator allocator = c->rows.allocator;
    for (int i = 0; i < result->row_count; i++)
        mn_train_result_free((mn_train_result *)(uintptr_t)result->rows[i].run);
    mn_list_free(&c->rows);
    allocator.free(allocator.user, c, sizeof *c);
}

/* Precisions asked for, as indices, in the order of the list. */
static mn_status parse_precisions(const char *list, int chosen[PRECISION_COUNT], int *count,
                                  mn_error *error)
{
    bool seen[PRECISION_COUNT] = {false};
    *count = 0;
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        int found = -1;
        for (int i = 0; i < PRECISION_COUNT; i++)
            if (strlen(precisions[i].name) == length && memcmp(at, precisions[i].name, length) == 0)
                found = i;
        if (found < 0 || seen[found])
            return mn_error_set(error, MN_ERR_ARGUMENT,
                                "--precisions: \"%.*s\" is %s (there are fp32, bf16 and fp16)",
                                (int)(length < 32 ? length : 32), at,
                                found < 0 ? "not a precision" : "there twice");
        seen[found] = true;
        chosen[(*count)++] = found;
        at += length;
        if (*at == '\0')
            break;
    }
    if (!seen[0])
        return mn_error_set(error, MN_ERR_ARGUMENT,
                            "--precisions: fp32 is missing, it is the reference");
    return MN_OK;
}

static mn_status check_options(const mn_compare_options *o, mn_error *error)
{
    if (o->precisions == NULL)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--precisions: a list is needed");
    if (o->seeds < 1 || o->seeds > 10000)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--seeds must be from 1 to 10000, got %d",
                            o->seeds);
    if (!mn_isfinite_f64(o->margin) || o->margin <= 0.0)
        return mn_error_set(error, MN_ERR_ARGUMENT, "--margin must be above 0, got %g", o->margin);
    return MN_OK;
}

static comparison *new_comparison(const mn_compare_options *o, int precision_count, mn_error *error)
{
    mn_list rows = mn_list_new(&o->train.context.allocator, sizeof(mn_compare_row));
    comparison *c = rows.allocator.alloc(rows.allocator.user, sizeof *c, 16);
    if (c != NULL && mn_list_reserve(&rows, (size_t)o->seeds * (size_t)precision_count)) {
        memset(c, 0, sizeof *c);
        c->rows = rows;
        c->result.rows = rows.items;
        c->result.deviations = c->deviations;
        return c;
    }
    if (c != NULL)
        rows.allocator.free(rows.allocator.user, c, sizeof *c);
    mn_error_set(error, MN_ERR_MEMORY, "compare: no memory for the results");
    return NULL;
}

/* One run; false when the comparison ends here. */
static bool run_one(comparison *c, const mn_compare_options *o, const mn_train_options *train,
                    const char *precision, mn_error *error)
{
    if (o->run_begin != NULL)
        o->run_begin(train->user, precision, train->seed);
    mn_train_result *run = mn_train_collapsible(train, error);
    if (run == NULL)
        return false;
    const mn_compare_row row = {precision, train->seed, run};
    mn_list_append(&c->rows, &row, 1); /* has room for all */
    c->result.row_count++;
    c->result.cancelled = run->cancelled;
    return !run->cancelled;
}

static bool run_all(comparison *c, const mn_compare_options *o, mn_train_options *train,
                    const int *chosen, int count, mn_error *error)
{
    uint64_t first = train->seed;
    for (int i = 0; i < o->seeds * count; i++) {
        train->seed = first + (uint64_t)(i / count);
        train->amp = precisions[chosen[i % count]].amp;
        if (!run_one(c, o, train, precisions[chosen[i % count]].name, error))
            return c->result.cancelled;
    }
    return true;
}

/* Opens what the caller has not, so that all runs share the data in memory. As in mn_train, a
 * training set given without a test set means that nothing is tested. */
static mn_status open_data(mn_train_options *train, mn_dataset *opened[2], mn_error *error)
{
    const mn_allocator *allocator = &train->context.allocator;
    if (train->train_set != NULL)
        return MN_OK;
    train->train_set = opened[0] = mn_dataset_open(train->data, true, allocator, error);
    if (train->test_set == NULL && train->train_set != NULL)
        train->test_set = opened[1] = mn_dataset_open(train->data, false, allocator, error);
    return train->train_set != NULL && train->test_set != NULL ? MN_OK : error->status;
}

mn_compare_result *mn_compare(const mn_compare_options *options, mn_error *error)
{
    mn_compare_options o = mn_compare_options_default();
    mn_error local = {MN_OK, ""};
    error = error != NULL ? error : &local;
    *error = local;
    int chosen[PRECISION_COUNT], count;
    if (mn_options_copy(error, "mn_compare", &o, sizeof o, options) != MN_OK ||
        check_options(&o, error) != MN_OK ||
        parse_precisions(o.precisions, chosen, &count, error) != MN_OK)
        return NULL;
    mn_train_options train = o.train;
    train.checkpoint = train.resume = NULL;
    train.fp32_metrics = true;
    mn_allocator allocator = mn_allocator_or_default(&train.context.allocator);
    /* Hours of runs should not end with a folder that cannot be had. */
    if (o.report != NULL && mn_report_folder(&allocator, o.report, error) != MN_OK)
        return NULL;
    comparison *c = new_comparison(&o, count, error);
    mn_dataset *opened[2] = {NULL, NULL};
    bool done = c != NULL && open_data(&train, opened, error) == MN_OK &&
                run_all(c, &o, &train, chosen, count, error);
    for (int p = 0; done && p < count; p++) {
        mn_compare_deviation *d = &c->deviations[c->result.deviation_count];
        d->precision = precisions[chosen[p]].name;
        if (precisions[chosen[p]].amp == MN_F32)
            continue;
        mn_compare_deviate(c->result.rows, c->result.row_count, o.margin, d);
        c->result.deviation_count += d->n + d->collapsed > 0;
    }
    if (done && !c->result.cancelled && o.report != NULL)
        done = mn_report_write(&o, &c->result, error) == MN_OK;
    mn_dataset_free(opened[0]);
    mn_dataset_free(opened[1]);
    if (done)
        return &c->result;
    mn_compare_result_free(c != NULL ? &c->result : NULL);
    return NULL;
}
