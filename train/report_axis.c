/* train/report_axis.c: axes of a plot: which values they show, where, and round ticks. */
#include "train/report.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

/* Where a value stands on the axis, before scaling; NaN for what has no place there. */
static double transform(mn_axis_kind kind, double value)
{
    if (kind == MN_AXIS_LOG10)
        return value > 0.0 ? log10(value) : (double)NAN;
    if (kind == MN_AXIS_LOG2)
        return value > 0.0 ? log2(value) : (double)NAN;
    return value;
}

mn_axis mn_axis_begin(mn_axis_kind kind, const char *title)
{
    return (mn_axis){
        .kind = kind, .low = (double)INFINITY, .high = -(double)INFINITY, .title = title};
}

void mn_axis_take(mn_axis *axis, double value)
{
    double at = transform(axis->kind, value);
    if (!isfinite(at))
        return;
    axis->low = fmin(axis->low, at);
    axis->high = fmax(axis->high, at);
}

bool mn_axis_empty(const mn_axis *axis)
{
    return !(axis->low <= axis->high);
}

/* The smallest of 1, 2, 5 times a power of ten that is not below `least`. */
static double round_step(double least)
{
    double power = pow(10.0, floor(log10(least)));
    double ratio = least / power;
    return power * (ratio <= 1.0 ? 1.0 : ratio <= 2.0 ? 2.0 : ratio <= 5.0 ? 5.0 : 10.0);
}

void mn_axis_fit(mn_axis *axis, int ticks, bool widen)
{
    if (mn_axis_empty(axis)) {
        axis->low = 0.0;
        axis->high = 1.0;
    }
    /* Ends so far apart, or so close, that steps between them have no digits left. */
    axis->low = fmax(axis->low, -1e300);
    axis->high = fmin(axis->high, 1e300);
    double least = fmax(fabs(axis->low), fabs(axis->high)) * 1e-9;
    if (axis->high - axis->low <= least) {
        double margin = axis->kind == MN_AXIS_LINEAR ? fmax(0.05 * fabs(axis->low), 1e-6) : 0.5;
        axis->low -= margin;
        axis->high += margin;
    }
    axis->step = round_step((axis->high - axis->low) / ticks);
    if (axis->kind != MN_AXIS_LINEAR && axis->step < 1.0)
        axis->step = 1.0;
    if (axis->kind == MN_AXIS_LOG10 && widen && axis->high - axis->low < 1.0)
        axis->step = 0.5; /* less than a decade: ticks at halves, about 3 times apart */
    if (widen) {
        axis->low = floor(axis->low / axis->step + 1e-9) * axis->step;
        axis->high = ceil(axis->high / axis->step - 1e-9) * axis->step;
    }
}

double mn_axis_place(const mn_axis *axis, double value)
{
    return (transform(axis->kind, value) - axis->low) / (axis->high - axis->low);
}

/* ---- ticks ----------------------------------------------------------------------------------- */

/* "10" or "2" with an exponent set high. */
static void power_label(char label[64], int base, int exponent)
{
    snprintf(label, 64, "%d<tspan class=\"exponent\" dy=\"-5\">%s%d</tspan>", base,
             exponent < 0 ? "\xe2\x88\x92" : "", exponent < 0 ? -exponent : exponent);
}

static void log10_label(char label[64], double at)
{
    double whole = floor(at + 1e-9);
    if (at - whole > 0.25)
        snprintf(label, 64, "%.2g", pow(10.0, at));
    else if (whole < -3.0 || whole > 3.0)
        power_label(label, 10, (int)whole);
    else
        snprintf(label, 64, "%g", pow(10.0, whole));
}

/* Thousands apart from 10,000 on; millions and more as powers. */
static void linear_label(char label[64], double at, double step)
{
    int decimals = step >= 1.0 ? 0 : (int)ceil(-log10(step) - 1e-9);
    double size = fabs(at) < step * 1e-6 ? 0.0 : fabs(at);
    const char *sign = at < 0.0 && size > 0.0 ? "\xe2\x88\x92" : "";
    if (size >= 1e7 || decimals > 6)
        snprintf(label, 64, "%s%.3g", sign, size);
    else if (size >= 1e4 && decimals == 0)
        snprintf(label, 64, "%s%ld&#8239;%03ld", sign, (long)round(size) / 1000,
                 (long)round(size) % 1000);
    else
        snprintf(label, 64, "%s%.*f", sign, decimals, size);
}

bool mn_axis_tick(const mn_axis *axis, int index, double *place, char label[64])
{
    double at = (ceil(axis->low / axis->step - 1e-9) + index) * axis->step;
    if (at > axis->high + axis->step * 1e-6)
        return false;
    *place = (at - axis->low) / (axis->high - axis->low);
    if (axis->kind == MN_AXIS_LOG10)
        log10_label(label, at);
    else if (axis->kind == MN_AXIS_LOG2)
        power_label(label, 2, (int)round(at));
    else
        linear_label(label, at, axis->step);
    return true;
}
