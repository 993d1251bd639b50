/* How far a precision is from the FP32 reference, and what may be said of it. */
#include "train/compare.h"

#include <math.h>
#include <string.h>

/* Table to 20 degrees of freedom; beyond, the expansion in 1/degrees of Fisher and Cornish 1960,
 * doi 10.2307/1266546, which is right to 1e-4 there. */
double mn_student_t95(int degrees)
{
    static const double table[] = {6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946,
                                   1.8595, 1.8331, 1.8125, 1.7959, 1.7823, 1.7709, 1.7613,
                                   1.7531, 1.7459, 1.7396, 1.7341, 1.7291, 1.7247};
    if (degrees < 1)
        return (double)NAN;
    if (degrees <= (int)(sizeof table / sizeof table[0]))
        return table[degrees - 1];
    double z = 1.6448536, z3 = z * z * z, z5 = z3 * z * z, n = degrees;
    return z + (z3 + z) / (4.0 * n) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * n * n);
}

static const mn_epoch_result *last_epoch(const mn_compare_row *row)
{
    return row->run->epoch_count > 0 ? &row->run->epochs[row->run->epoch_count - 1] : NULL;
}

bool mn_compare_uses_validation(const mn_compare_row *rows, int row_count)
{
    for (int i = 0; i < row_count; i++) {
        const mn_epoch_result *last = last_epoch(&rows[i]);
        if (last != NULL)
            return !mn_isnan_f64(last->validation_accuracy);
    }
    return false;
}

bool mn_compare_diverged(const mn_train_result *run)
{
    return run->epoch_count > 0 && !mn_isfinite_f64(run->epochs[run->epoch_count - 1].train_loss);
}

/* Ended without a model: what its accuracy is, if it has one, is chance. */
static bool failed(const mn_train_result *run)
{
    return run->collapsed_step > 0 || mn_compare_diverged(run);
}

const mn_compare_row *mn_compare_row_of(const mn_compare_row *rows, int row_count,
                                        const char *precision, uint64_t seed)
{
    for (int i = 0; i < row_count; i++)
        if (rows[i].seed == seed && strcmp(rows[i].precision, precision) == 0)
            return &rows[i];
    return NULL;
}

/* The largest difference so far; NaN, once met, stays. */
static double loss_delta(const mn_train_result *a, const mn_train_result *b, double largest)
{
    for (int64_t i = 0; i < a->epoch_count && i < b->epoch_count && !mn_isnan_f64(largest); i++) {
        double delta = fabs(a->epochs[i].train_loss - b->epochs[i].train_loss);
        largest = delta <= largest ? largest : delta;
    }
    return largest;
}

/* Inside: the interval lies within the margin. Outside: wholly beyond it. */
static const char *verdict(const mn_compare_deviation *d, double margin)
{
    /* Runs that failed cannot be left out of a verdict on all of them. */
    if (d->n < 3 || d->collapsed > 0 || mn_isnan_f64(d->interval_low_pp) ||
        mn_isnan_f64(d->interval_high_pp))
        return "not enough seeds to say";
    if (d->interval_low_pp >= -margin && d->interval_high_pp <= margin)
        return "within the stated bound";
    if (d->interval_low_pp > margin || d->interval_high_pp < -margin)
        return "outside";
    return "not enough seeds to say";
}

typedef struct sums {
    double delta, delta_squared, throughput, memory;
} sums;

static void add_pair(const mn_compare_row *row, const mn_compare_row *reference, bool validation,
                     mn_compare_deviation *d, sums *s)
{
    const mn_epoch_result *a = last_epoch(row), *b = last_epoch(reference);
    if (a == NULL || b == NULL)
        return;
    double delta = 100.0 * (validation ? a->validation_accuracy - b->validation_accuracy
                                       : a->test_accuracy - b->test_accuracy);
    s->delta += delta;
    s->delta_squared += delta * delta;
    s->throughput += a->images_per_s / b->images_per_s;
    s->memory += (double)a->peak_tensor_bytes / (double)b->peak_tensor_bytes;
    d->max_loss_delta = loss_delta(row->run, reference->run, d->max_loss_delta);
    d->n++;
}

void mn_compare_deviate(const mn_compare_row *rows, int row_count, double margin,
                        mn_compare_deviation *d)
{
    sums s = {0.0, 0.0, 0.0, 0.0};
    bool validation = mn_compare_uses_validation(rows, row_count);
    d->n = d->collapsed = 0;
    d->max_loss_delta = 0.0;
    for (int i = 0; i < row_count; i++) {
        if (strcmp(rows[i].precision, d->precision) != 0)
            continue;
        const mn_compare_row *reference = mn_compare_row_of(rows, row_count, "fp32", rows[i].seed);
        if (failed(rows[i].run) || (reference != NULL && failed(reference->run)))
            d->collapsed++;
        else if (reference != NULL && !rows[i].run->cancelled && !reference->run->cancelled)
            add_pair(&rows[i], reference, validation, d, &s);
    }
    if (d->n == 0)
        d->max_loss_delta = (double)NAN;
    double n = d->n;
    d->accuracy_delta_pp_mean = s.delta / n;
    d->throughput_ratio = s.throughput / n;
    d->memory_ratio = s.memory / n;
    d->accuracy_delta_pp_sd = d->interval_low_pp = d->interval_high_pp = (double)NAN;
    if (d->n >= 2) {
        double variance = (s.delta_squared - s.delta * s.delta / n) / (n - 1.0);
        d->accuracy_delta_pp_sd = variance > 0.0 ? sqrt(variance) : variance * 0.0;
        double half = mn_student_t95(d->n - 1) * d->accuracy_delta_pp_sd / sqrt(n);
        d->interval_low_pp = d->accuracy_delta_pp_mean - half;
        d->interval_high_pp = d->accuracy_delta_pp_mean + half;
    }
    d->verdict = verdict(d, margin);
}
