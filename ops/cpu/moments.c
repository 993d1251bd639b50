/* Statistics of a batch norm, from rows that come in pieces. A slot's sums are taken about the mean
 * of its first pixels, from which the channel's own mean is not far off. */
#include "ops/cpu/moments.h"

#include "core/math.h"

#include <string.h>

#define LANES     64   /* about so many lanes, where channels are fewer, */
#define ODD_LANES 256  /* and more where they do not fill registers */
#define TERMS     256  /* of a lane before they go to f64, about */
#define FIRST     8    /* terms of each lane that give the estimate of the mean */
#define PIECE     512  /* channels at once */
#define SCRATCH   2048 /* elements widened at once */

typedef struct slot {
    double *sum[2];
    float *acc[2], *mean;
    int64_t *rows; /* pixels added so far, at a part's first channel */
} slot;

mn_moments mn_moments_of(const mn_call *call, const mn_view *view)
{
    mn_moments m = {.call = call, .view = view, .channels = view->shape[view->ndim - 1]};
    const int64_t lanes = m.channels % 16 == 0 ? LANES : ODD_LANES;
    m.side = m.channels > 0 && m.channels < lanes ? lanes / m.channels : 1;
    m.lanes = m.side * m.channels;
    return m;
}

size_t mn_moments_slot_bytes(const mn_moments *m)
{
    const size_t lane = 2 * sizeof(double) + 3 * sizeof(float);
    const size_t bytes = (size_t)m->lanes * lane + (size_t)m->channels * sizeof(int64_t);
    return (bytes + 63) / 64 * 64;
}

static slot slot_at(const mn_moments *m, int64_t index, int64_t channel)
{
    double *sum = mn_workspace(m->call, m->at + (size_t)index * mn_moments_slot_bytes(m));
    int64_t *rows = (int64_t *)(void *)(sum + 2 * m->lanes);
    float *acc = (float *)(void *)(rows + m->channels);
    return (slot){.sum = {sum + channel, sum + m->lanes + channel},
                  .acc = {acc + channel, acc + m->lanes + channel},
                  .mean = acc + 2 * m->lanes + channel,
                  .rows = rows + channel};
}

void mn_moments_clear(const mn_moments *m)
{
    if (m->channels > 0 && m->slots > 0)
        memset(mn_workspace(m->call, m->at), 0, (size_t)m->slots * mn_moments_slot_bytes(m));
}

static mn_moments_body *body_of(const mn_call *call)
{
#if defined(MINIM_AVX2)
    if (call->cpu->kernels == MN_KERNELS_AVX512)
        return mn_moments_avx512;
#endif
    return mn_bodies_of(call)->add_moments;
}

/* ---- adding ---------------------------------------------------------------------------------- */

/* Pixels of a part of the channels, as f32. */
typedef struct piece {
    const float *x;
    int64_t pixels, width, ld;
    int64_t side;
} piece;

static void add_rows(const mn_moments *m, const piece *p, const float *mean, float *sum,
                     float *square)
{
    const int64_t rows = p->pixels / p->side, rest = p->pixels % p->side;
    mn_moments_body *add = body_of(m->call);
    add(rows, p->side * p->width, p->side * p->ld, p->x, mean, sum, square);
    if (rest > 0)
        add(1, rest * p->width, 0, p->x + rows * p->side * p->ld, mean, sum, square);
}

static void estimate(const mn_moments *m, piece p, float *mean)
{
    float zeros[PIECE] = {0}, acc[2][PIECE] = {{0}};
    p.pixels = mn_min(p.pixels, FIRST * p.side);
    add_rows(m, &p, zeros, acc[0], acc[1]);
    for (int64_t c = 0; c < p.width; c++) {
        double sum = 0;
        for (int64_t i = c; i < p.side * p.width; i += p.width)
            sum += (double)acc[0][i];
        const float value = (float)(sum / (double)p.pixels);
        for (int64_t i = c; i < p.side * p.width; i += p.width)
            mean[i] = mn_isfinite_f32(value) ? value : 0;
    }
}

static void flush(const mn_moments *m, const slot *s, int64_t lanes)
{
    for (int k = 0; k < 2; k++)
        mn_bodies_of(m->call)->flush((size_t)lanes, s->acc[k], s->sum[k]);
}

static void add_piece(const mn_moments *m, const slot *s, const piece *p)
{
    const int64_t terms = TERMS * p->side;
    if (*s->rows == 0)
        estimate(m, *p, s->mean);
    if ((*s->rows + p->pixels) / terms != *s->rows / terms)
        flush(m, s, p->side * p->width);
    add_rows(m, p, s->mean, s->acc[0], s->acc[1]);
    *s->rows += p->pixels;
}

/* n pixels as f32: where they are, or widened. */
static piece load(const mn_moments *m, int64_t pixel, int64_t n, int64_t channel, int64_t width,
                  float *scratch)
{
    const bool whole = width == m->channels, wide = m->view->dtype == MN_F32;
    const int64_t at = pixel * m->channels + channel;
    piece p = {.x = scratch,
               .pixels = n,
               .width = width,
               .ld = wide ? m->channels : width,
               .side = whole ? m->side : 1};
    if (whole || wide)
        p.x = mn_row_load(m->call, m->view, at, n * width, scratch);
    else
        for (int64_t i = 0; i < n; i++)
            mn_row_load(m->call, m->view, at + i * m->channels, width, scratch + i * width);
    return p;
}

void mn_moments_add(const mn_moments *m, int64_t index, int64_t pixel, int64_t pixels,
                    int64_t channel, int64_t width)
{
    float scratch[SCRATCH];
    for (int64_t end = channel + width; channel < end; channel += PIECE) {
        const int64_t part = mn_min(end - channel, PIECE);
        const slot s = slot_at(m, index, channel);
        const int64_t most =
            m->view->dtype == MN_F32 ? TERMS * m->side : SCRATCH / part / m->side * m->side;
        for (int64_t i = 0; i < pixels; i += most) {
            const piece p = load(m, pixel + i, mn_min(most, pixels - i), channel, part, scratch);
            add_piece(m, &s, &p);
        }
    }
}

/* ---- merging --------------------------------------------------------------------------------- */

/* Mean and sum of squares about it of a slot, in place of the sums. */
static void settle(const mn_moments *m, const slot *s, double rows)
{
    flush(m, s, m->lanes);
    for (int64_t c = 0; c < m->channels; c++) {
        double sum[2] = {0, 0};
        for (int k = 0; k < 2; k++)
            for (int64_t i = c; i < m->lanes; i += m->channels)
                sum[k] += s->sum[k][i];
        const double off = sum[0] / rows, squares = sum[1] - off * sum[0];
        s->sum[0][c] = (double)s->mean[c] + off;
        s->sum[1][c] = squares < 0 ? 0 : squares; /* NaN stays */
    }
}

/* Each mean weighs as many rows as it has (Chan et al. 1979). */
void mn_moments_merge(const mn_moments *m, double *mean, double *squares)
{
    const int64_t C = m->channels;
    double all = 0;
    for (int64_t c = 0; c < C; c++)
        mean[c] = squares[c] = 0;
    for (int64_t t = 0; t < m->slots && C > 0; t++) {
        const slot s = slot_at(m, t, 0);
        const double rows = (double)*s.rows;
        if (rows == 0)
            continue;
        settle(m, &s, rows);
        all += rows;
        for (int64_t c = 0; c < C; c++) {
            mean[c] += rows * s.sum[0][c];
            squares[c] += s.sum[1][c];
        }
    }
    for (int64_t c = 0; c < C; c++)
        mean[c] /= all;
    for (int64_t t = 0; t < m->slots && C > 0; t++) {
        const slot s = slot_at(m, t, 0);
        for (int64_t c = 0; c<C && * s.rows> 0; c++) {
            const double off = s.sum[0][c] - mean[c];
            squares[c] += (double)*s.rows * off * off;
        }
    }
}
