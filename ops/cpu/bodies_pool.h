/* Part of bodies.h: pooling. */
#ifndef MN_OPS_CPU_BODIES_POOL_H
#define MN_OPS_CPU_BODIES_POOL_H

#include "ops/cpu/bodies_elementwise.h"
#include "ops/cpu/bodies_winograd.h"

#include <string.h>

/* ---- the largest of two by two pixels -------------------------------------------------------- */

typedef int32_t lane_bits __attribute__((vector_size(LANES * sizeof(int32_t))));

/* All bits where b, later in the window, takes the maximum over from a: NaN wins, and stays. */
static inline lane_bits overtakes(lanes a, lanes b)
{
    return (a == a) & ~(b <= a);
}

static inline lanes later_if(lane_bits taken, lanes a, lanes b)
{
    return (lanes)((~taken & (lane_bits)a) | (taken & (lane_bits)b));
}

static inline void bits_store(float *to, lane_bits v)
{
    memcpy(to, &v, sizeof v);
}

/* Windows side by side, in two rows: their maxima y or, backward, the gradients g and dx. */
typedef struct windows {
    size_t channels;
    const float *rows[2], *g;
    float *y, *dx[2];
} windows;

/* One lane vector of a window: pixels 0 and 1 of the top row, 2 and 3 below. */
static inline __attribute__((always_inline)) void pool_lanes(const windows *w, size_t at,
                                                             size_t y_at, bool backward)
{
    const float *top = w->rows[0] + at, *bottom = w->rows[1] + at;
    lanes a, b, d, e;
    lane_bits g;
    lanes_load(&a, top);
    lanes_load(&b, top + w->channels);
    lanes_load(&d, bottom);
    lanes_load(&e, bottom + w->channels);
    const lane_bits right = overtakes(a, b), right_below = overtakes(d, e);
    const lanes over = later_if(right, a, b), under = later_if(right_below, d, e);
    const lane_bits below = overtakes(over, under);
    if (!backward) {
        const lanes largest = later_if(below, over, under);
        lanes_store(w->y + y_at, &largest);
        return;
    }
    memcpy(&g, w->g + y_at, sizeof g);
    float *upper = w->dx[0] + at, *lower = w->dx[1] + at;
    const lane_bits to_upper = g & ~below, to_lower = g & below;
    bits_store(upper, to_upper & ~right);
    bits_store(upper + w->channels, to_upper & right);
    bits_store(lower, to_lower & ~right_below);
    bits_store(lower + w->channels, to_lower & right_below);
}

/* The last lanes of a window lie over the lanes before them or, with fewer channels than lanes,
 * over what comes next and is written later. */
static inline __attribute__((always_inline)) void pool_windows(size_t n, const windows *of,
                                                               bool backward)
{
    const windows w = *of;
    const size_t last = w.channels > LANES ? w.channels - LANES : 0;
    for (size_t q = 0, at = 0; q < n; q++, at += w.channels)
        for (size_t c = 0; c < w.channels; c += LANES) {
            const size_t i = c < last ? c : last;
            pool_lanes(&w, 2 * at + i, at + i, backward);
        }
}

/* n elements and, for the last lanes, zeros. */
static inline void copy_padded(const float *from, size_t n, float *to)
{
    memcpy(to, from, n * sizeof *to);
    memset(to + n, 0, LANES * sizeof *to);
}

/* Windows that have no lanes full of elements left in their row are worked on in copies. */
static inline __attribute__((always_inline)) void pool_row(size_t n, const windows *w,
                                                           bool backward)
{
    enum { ROOM = 3 * LANES };
    const size_t most = w->channels < LANES ? (LANES - 1) / w->channels : 0;
    const size_t rest = n < most ? n : most;
    const size_t at = (n - rest) * w->channels, count = rest * w->channels;
    float in[3][ROOM], out[2][ROOM];
    const windows copy = {w->channels, {in[0], in[1]}, in[2], out[0], {out[0], out[1]}};
    pool_windows(n - rest, w, backward);
    if (rest == 0)
        return;
    for (int r = 0; r < 2; r++)
        copy_padded(w->rows[r] + 2 * at, 2 * count, in[r]);
    if (backward)
        copy_padded(w->g + at, count, in[2]);
    pool_windows(rest, &copy, backward);
    for (int r = 0; r < 2 && backward; r++)
        memcpy(w->dx[r] + 2 * at, out[r], 2 * count * sizeof(float));
    if (!backward)
        memcpy(w->y + at, out[0], count * sizeof(float));
}

static void body_pool2x2(size_t n, size_t channels, const float *top, const float *bottom, float *y)
{
    const windows w = {.channels = channels, .rows = {top, bottom}, .y = y};
    pool_row(n, &w, false);
}

static void body_pool2x2_backward(size_t n, size_t channels, const float *g, const float *rows[2],
                                  float *dx[2])
{
    const windows w = {
        .channels = channels, .rows = {rows[0], rows[1]}, .g = g, .dx = {dx[0], dx[1]}};
    pool_row(n, &w, true);
}

/* ---- averages and other windows -------------------------------------------------------------- */

/* The larger one; NaN wins. */
static inline float larger(float a, float b)
{
    float known = b <= a ? a : b;
    return a != a ? a : known;
}

/* 1 if b, later in the window, takes the maximum over from a. */
static inline uint32_t takes_over(float a, float b)
{
    return (uint32_t)(a == a) & (uint32_t) !(b <= a);
}

static void body_average2x2(size_t n, size_t channels, const float *restrict top,
                            const float *restrict bottom, float *restrict y)
{
    for (size_t q = 0; q < n; q++, top += 2 * channels, bottom += 2 * channels, y += channels)
        for (size_t c = 0; c < channels; c++)
            y[c] = ((top[c] + top[channels + c]) + (bottom[c] + bottom[channels + c])) * 0.25F;
}

static void body_average2x2_backward(size_t n, size_t channels, const float *g, float *dx[2])
{
    for (int r = 0; r < 2; r++)
        for (size_t i = 0; i < 2 * n; i++) {
            const float *restrict from = g + i / 2 * channels;
            float *restrict to = dx[r] + i * channels;
            for (size_t c = 0; c < channels; c++)
                to[c] = from[c] * 0.25F;
        }
}

static void body_max_index(size_t n, const float *restrict x, float number, float *restrict largest,
                           float *restrict index)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t take = takes_over(largest[i], x[i]);
        index[i] = mn_f32_from_bits(mn_pick(take, mn_f32_bits(number), mn_f32_bits(index[i])));
        largest[i] = larger(largest[i], x[i]);
    }
}

static void body_pick_index(size_t n, const float *restrict g, const float *restrict index,
                            float number, float *restrict y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = masked((uint32_t)(index[i] == number), g[i]);
}

#endif
