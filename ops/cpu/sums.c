/* Sums in an order that shapes alone fix. A matrix [rows, channels] is summed over its rows in
 * lanes: one f32 accumulator per channel, or per channel of several rows side by side where there
 * are few channels, so that every loop runs over contiguous elements. Lanes go to f64 after 1024
 * terms. A long matrix is cut into leaves, summed in parallel and added up in order. */
#include "ops/cpu/run.h"

#include <string.h>

#define LANES      256  /* most channels at once */
#define TERMS      1024 /* most f32 terms in a lane */
#define PARTIALS   2048 /* sums of all leaves of a strip of channels */
#define LEAVES     64
#define SHORT_LINE 64
#define MANY_TASKS 32 /* enough matrices and strips to keep all threads busy without leaves */

/* A strip of channels of one matrix, or a leaf of it. */
typedef struct piece {
    int64_t start; /* first element of the matrix in x and g */
    int64_t channel, width;
    int64_t row, end;
} piece;

/* f32 accumulators and f64 sums of the lanes in use. */
typedef struct lanes {
    int64_t n;
    int terms;
    float acc[LANES];
    double sum[LANES];
} lanes;

static void flush_lanes(const mn_sums *sums, lanes *l)
{
    mn_bodies_of(sums->call)->flush((size_t)l->n, l->acc, l->sum);
    l->terms = 0;
}

/* Adds the terms of n elements from `start` on to the first n lanes. */
static void add_row(const mn_sums *sums, int64_t start, int64_t n, lanes *l)
{
    const mn_bodies *bodies = mn_bodies_of(sums->call);
    const size_t count = (size_t)n;
    float row[2][LANES];
    const float *x = mn_row_load(sums->call, sums->x, start, n, row[0]);
    if (sums->g)
        bodies->add_product(count, x, mn_row_load(sums->call, sums->g, start, n, row[1]), l->acc);
    else
        bodies->accumulate(count, l->acc, x);
    if (++l->terms == TERMS)
        flush_lanes(sums, l);
}

/* Adds the piece's sums to `sum`. */
static void add_piece(const mn_sums *sums, const piece *p, double *sum)
{
    const bool whole_rows = p->width == sums->channels;
    const int64_t side_by_side =
        whole_rows ? mn_max(1, mn_min(LANES / p->width, p->end - p->row)) : 1;
    lanes l;
    l.n = side_by_side * p->width;
    l.terms = 0;
    memset(l.acc, 0, (size_t)l.n * sizeof l.acc[0]);
    memset(l.sum, 0, (size_t)l.n * sizeof l.sum[0]);
    for (int64_t r = p->row; r < p->end; r += side_by_side) {
        const int64_t rows = mn_min(side_by_side, p->end - r);
        add_row(sums, p->start + r * sums->channels + p->channel, rows * p->width, &l);
    }
    flush_lanes(sums, &l);
    for (int64_t c = 0; c < p->width; c++) {
        double total = 0;
        for (int64_t i = c; i < l.n; i += p->width)
            total += l.sum[i];
        sum[c] += total;
    }
}

/* ---- matrices -------------------------------------------------------------------------------- */

static int64_t axes_count(const mn_axes *axes)
{
    int64_t count = 1;
    for (int i = 0; i < axes->ndim; i++)
        count *= axes->shape[i];
    return count;
}

static int64_t strips_of(const mn_sums *sums)
{
    return mn_ceil_div(sums->channels, LANES);
}

static piece strip_of(const mn_sums *sums, int64_t index)
{
    const mn_axes *kept = &sums->kept;
    const int64_t strips = strips_of(sums), channel = index % strips * LANES;
    return (piece){.start = mn_offset(index / strips, kept->ndim, kept->shape, kept->step),
                   .channel = channel,
                   .width = mn_min(LANES, sums->channels - channel),
                   .row = 0,
                   .end = sums->rows};
}

/* Adds the piece of the strip's matrix for each index of `summed`. */
static void add_matrices(const mn_sums *sums, const piece *p, double *sum)
{
    const mn_axes *summed = &sums->summed;
    const int64_t repeats = axes_count(summed);
    for (int64_t j = 0; j < repeats; j++) {
        piece here = *p;
        here.start += mn_offset(j, summed->ndim, summed->shape, summed->step);
        add_piece(sums, &here, sum);
    }
}

static void finish(const mn_sums *sums, int64_t index, const piece *strip, const double *sum)
{
    const int64_t start = index / strips_of(sums) * sums->channels + strip->channel;
    sums->finish(sums->arg, start, strip->width, sum);
}

/* Strips of matrices, each summed by one thread. */
static void run_strips(const void *arg, int64_t begin, int64_t end)
{
    const mn_sums *sums = arg;
    for (int64_t i = begin; i < end; i++) {
        const piece strip = strip_of(sums, i);
        double sum[LANES];
        memset(sum, 0, (size_t)strip.width * sizeof sum[0]);
        add_matrices(sums, &strip, sum);
        finish(sums, i, &strip, sum);
    }
}

/* Rows of one channel, so few that lanes would not pay; the matrices lie one after the other. */
static void run_short_lines(const void *arg, int64_t begin, int64_t end)
{
    const mn_sums *sums = arg;
    const int64_t lines = MN_BLOCK / sums->rows;
    float scratch[MN_BLOCK];
    for (int64_t i = begin; i < end; i += lines) {
        const int64_t count = mn_min(lines, end - i), n = count * sums->rows;
        const float *x = mn_row_load(sums->call, sums->x, i * sums->rows, n, scratch);
        double sum[MN_BLOCK] = {0};
        for (int64_t j = 0; j < count; j++)
            for (int64_t r = 0; r < sums->rows; r++)
                sum[j] += (double)x[j * sums->rows + r];
        sums->finish(sums->arg, i, count, sum);
    }
}

/* One strip, cut into leaves of `rows` rows. */
typedef struct leaves {
    const mn_sums *sums;
    piece strip;
    int64_t rows;
    double sum[PARTIALS];
} leaves;

static void run_leaf(void *arg, int64_t index, int slot)
{
    leaves *l = arg;
    piece p = l->strip;
    (void)slot;
    p.row = index * l->rows;
    p.end = mn_min(p.row + l->rows, l->strip.end);
    add_matrices(l->sums, &p, l->sum + index * p.width);
}

static void run_in_leaves(const mn_sums *sums, int64_t index, int64_t count)
{
    double total[LANES] = {0};
    leaves l = {
        .sums = sums, .strip = strip_of(sums, index), .rows = mn_ceil_div(sums->rows, count)};
    count = mn_ceil_div(sums->rows, l.rows);
    mn_call_parallel(sums->call, count, run_leaf, &l);
    for (int64_t i = 0; i < count * l.strip.width; i++)
        total[i % l.strip.width] += l.sum[i];
    finish(sums, index, &l.strip, total);
}

void mn_run_sums(const mn_sums *sums)
{
    if (sums->channels == 0 || axes_count(&sums->kept) == 0)
        return;
    const int64_t tasks = axes_count(&sums->kept) * strips_of(sums);
    const int64_t width = mn_min(LANES, sums->channels);
    if (!sums->g && sums->channels == 1 && sums->rows > 0 && sums->rows <= SHORT_LINE &&
        sums->summed.ndim == 0) {
        mn_run_ranges(sums->call, tasks, MN_CHUNK / sums->rows, run_short_lines, sums);
        return;
    }
    const int64_t work = mn_max(1, sums->rows * width);
    const int64_t most = mn_min(LEAVES, PARTIALS / width);
    const int64_t count = mn_min(mn_min(work / MN_CHUNK, most), sums->rows);
    if (tasks < MANY_TASKS && count > 1) {
        for (int64_t i = 0; i < tasks; i++)
            run_in_leaves(sums, i, count);
        return;
    }
    const int64_t repeats = mn_max(1, axes_count(&sums->summed));
    const int64_t chunk = mn_max(1, MN_CHUNK / work / repeats);
    mn_run_ranges(sums->call, tasks, chunk, run_strips, sums);
}
