/* CPU kernels of pooling, batch normalisation, gradients and optimizers against the reference
 * kernels, and what the reference kernels do with records. */
#include "core/math.h"
#include "tests/support_kernels.h"
#include "tests/support_suite.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- pooling. Loop tests run once per type in mn_lowp: _i is its index. -----------------------
 */

typedef struct pooling {
    int64_t n, h, w, c;
    mn_pool2d_attributes a;
} pooling;

#define POOL(r, s, u, v, top, left)                                                                \
    {                                                                                              \
        .kernel = {r, s}, .stride = {u, v}, .padding = { top, left }                               \
    }
static const pooling poolings[] = {
    {2, 28, 28, 1, POOL(2, 2, 2, 2, 0, 0)},   {3, 7, 9, 6, POOL(2, 2, 2, 2, 0, 0)},
    {1, 2, 2, 256, POOL(2, 2, 2, 2, 0, 0)},   {2, 6, 1100, 1, POOL(2, 2, 2, 2, 0, 0)},
    {2, 4, 6, 300, POOL(2, 2, 2, 2, 0, 0)},   {2, 9, 8, 5, POOL(3, 3, 2, 2, 1, 1)},
    {1, 5, 6, 17, POOL(3, 2, 1, 1, 1, 0)},    {2, 7, 7, 3, POOL(2, 3, 3, 4, 1, 1)},
    {1, 4, 4, 2, POOL(1, 1, 2, 2, 0, 0)},     {0, 4, 4, 2, POOL(2, 2, 2, 2, 0, 0)},
    {40, 11, 11, 16, POOL(3, 3, 2, 2, 0, 0)}, {70, 8, 8, 16, POOL(2, 2, 2, 2, 0, 0)},
    {2, 4, 31, 2, POOL(2, 2, 2, 2, 0, 0)},    {1, 5, 131, 3, POOL(2, 2, 2, 2, 0, 0)},
    {2, 3, 10, 7, POOL(2, 2, 2, 2, 0, 0)},    {1, 4, 7, 13, POOL(2, 2, 2, 2, 0, 0)},
};

static int64_t windows(int64_t extent, const mn_pool2d_attributes *a, int axis)
{
    return (extent + 2 * a->padding[axis] - a->kernel[axis]) / a->stride[axis] + 1;
}

/* Values in halves, so that windows have ties; some NaN and infinities of both signs. */
static void tie(fixture *f, mn_view *x)
{
    for (int64_t i = 0; i < x->numel; i++) {
        const uint32_t dice = mn_stream_u32(&f->stream) % 64;
        double value = floor(2 * mn_view_get(x, i)) / 2;
        if (dice < 3)
            value = dice == 0 ? (double)NAN : dice == 1 ? (double)INFINITY : -(double)INFINITY;
        mn_view_put(x, i, value);
    }
}

START_TEST(max_pools)
{
    static const kernel forward = KERNEL(max_pool2d, 0);
    static const kernel backward = KERNEL(max_pool2d_backward, 2);
    for (size_t s = 0; s < COUNT(poolings); s++) {
        const pooling *p = &poolings[s];
        const int64_t x[4] = {p->n, p->h, p->w, p->c};
        const int64_t y[4] = {p->n, windows(p->h, &p->a, 0), windows(p->w, &p->a, 1), p->c};
        fixture f;
        mn_fixture_start(&f, &p->a, sizeof p->a);
        tie(&f, mn_fixture_input(&f, mn_lowp[_i], 4, x));
        mn_fixture_output(&f, mn_lowp[_i], 4, y);
        mn_fixture_check(&f, &forward);
        mn_fixture_start(&f, &p->a, sizeof p->a);
        mn_fixture_input(&f, mn_lowp[_i], 4, y);
        tie(&f, mn_fixture_input(&f, mn_lowp[_i], 4, x));
        mn_fixture_output(&f, mn_lowp[_i], 4, x);
        mn_fixture_check(&f, &backward);
    }
}
END_TEST

START_TEST(average_pools)
{
    static const kernel forward = KERNEL(avg_pool2d, 2);
    static const kernel backward = KERNEL(avg_pool2d_backward, 3);
    for (size_t s = 0; s < 2 * COUNT(poolings); s++) {
        const pooling *p = &poolings[s / 2];
        mn_pool2d_attributes a = p->a;
        const int64_t x[4] = {p->n, p->h, p->w, p->c};
        const int64_t y[4] = {p->n, windows(p->h, &p->a, 0), windows(p->w, &p->a, 1), p->c};
        fixture f;
        a.exclude_padding = s % 2;
        a.extent[0] = p->h;
        a.extent[1] = p->w;
        mn_fixture_start(&f, &a, sizeof a);
        mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], 4, x));
        mn_fixture_output(&f, mn_lowp[_i], 4, y);
        mn_fixture_check(&f, &forward);
        mn_fixture_start(&f, &a, sizeof a);
        mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], 4, y));
        mn_fixture_output(&f, mn_lowp[_i], 4, x);
        mn_fixture_check(&f, &backward);
    }
}
END_TEST

START_TEST(global_average_pools)
{
    static const kernel forward = KERNEL(mean, 1), backward = KERNEL(expand, 0.5);
    static const mn_reduce_attributes pixels = {.axes = 0x6};
    static const int64_t shapes[][4] = {{1, 1, 1, 1}, {3, 7, 7, 5}, {2, 3, 5, 513}, {80, 8, 8, 32}};
    for (size_t s = 0; s < COUNT(shapes); s++) {
        const int64_t *x = shapes[s], y[2] = {x[0], x[3]}, g[4] = {x[0], 1, 1, x[3]};
        const mn_shape_attributes a = {
            .ndim = 4, .shape = {x[0], x[1], x[2], x[3]}, .scale = 1 / (double)(x[1] * x[2])};
        fixture f;
        mn_fixture_start(&f, &pixels, sizeof pixels);
        mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], 4, x));
        mn_fixture_output(&f, mn_lowp[_i], 2, y);
        mn_fixture_check(&f, &forward);
        mn_fixture_start(&f, &a, sizeof a);
        mn_view_poison(mn_fixture_input(&f, mn_lowp[_i], 4, g));
        mn_fixture_output(&f, mn_lowp[_i], 4, x);
        mn_fixture_check(&f, &backward);
    }
}
END_TEST

/* ---- batch normalisation --------------------------------------------------------------------- */

static const int64_t norms[][2] = {{2, 1},     {7, 3},     {64, 16},   {5, 513},  {3, 1031},
                                   {300, 136}, {5001, 16}, {9001, 10}, {30000, 1}};

/* A vector of values in [0.5, ...): variances and weights. */
static mn_view *positive(fixture *f, int64_t n)
{
    mn_view *v = mn_fixture_input(f, MN_F32, 1, &n);
    for (int64_t i = 0; i < n; i++)
        mn_view_put(v, i, 0.5 + fabs(mn_view_get(v, i)));
    return v;
}

static void norm_inputs(fixture *f, mn_dtype dtype, const int64_t shape[2], double offset)
{
    mn_view *x = mn_fixture_input(f, dtype, 2, shape);
    for (int64_t i = 0; i < x->numel; i++)
        mn_view_put(x, i, offset + mn_view_get(x, i));
}

START_TEST(batch_norms)
{
    static const kernel forward = KERNEL(batch_norm, 4);
    static const kernel inference = KERNEL(batch_norm_inference, 2);
    const mn_batch_norm_attributes a = {1e-5, 0.1};
    for (size_t s = 0; s < COUNT(norms); s++)
        for (int o = 0; o < 2; o++) {
            const int64_t *shape = norms[s];
            fixture f;
            mn_fixture_start(&f, &a, sizeof a);
            norm_inputs(&f, mn_lowp[_i], shape, 1);
            mn_fixture_input(&f, MN_F32, 1, &shape[1]);
            mn_fixture_input(&f, MN_F32, 1, &shape[1]);
            mn_fixture_input(&f, MN_F32, 1, &shape[1]);
            positive(&f, shape[1]);
            if (o == 0)
                mn_fixture_input(&f, MN_I64, 0, NULL);
            mn_fixture_output(&f, mn_lowp[_i], 2, shape);
            if (o == 0) {
                mn_fixture_output(&f, MN_F32, 1, &shape[1]);
                mn_fixture_output(&f, MN_F32, 1, &shape[1]);
            }
            mn_fixture_check(&f, o == 0 ? &forward : &inference);
        }
}
END_TEST

START_TEST(batch_norm_gradients)
{
    static const kernel all[] = {KERNEL(batch_norm_backward, 16),
                                 KERNEL(batch_norm_inference_backward, 32)};
    const mn_batch_norm_attributes a = {1e-5, 0.1};
    for (size_t s = 0; s < COUNT(norms); s++)
        for (int o = 0; o < 2; o++) {
            const int64_t *shape = norms[s];
            fixture f;
            mn_fixture_start(&f, &a, sizeof a);
            mn_fixture_input(&f, mn_lowp[_i], 2, shape);
            norm_inputs(&f, mn_lowp[_i], shape, 1);
            mn_fixture_input(&f, MN_F32, 1, &shape[1]);
            mn_fixture_input(&f, MN_F32, 1, &shape[1]);
            positive(&f, shape[1]);
            mn_fixture_output(&f, mn_lowp[_i], 2, shape);
            mn_fixture_output(&f, MN_F32, 1, &shape[1]);
            mn_fixture_output(&f, MN_F32, 1, &shape[1]);
            mn_fixture_check(&f, &all[o]);
        }
}
END_TEST

/* y of f's inputs as the CPU kernels compute it, for the reference, which takes its mask from y:
 * inputs x, w, b, mean, rstd from the second on. */
static void put_result(fixture *f, mn_view *y)
{
    for (int64_t i = 0; i < y->numel; i++) {
        const int64_t c = i % y->shape[1];
        float in[5];
        for (int k = 0; k < 5; k++)
            in[k] = (float)mn_view_get(&f->call.in[1 + k], k == 0 ? i : c);
        const float centred = in[0] - in[3], scale = in[1] * in[4], scaled = centred * scale;
        mn_view_put(y, i, (double)(scaled + in[2]));
    }
}

/* Without a residual and with one, before whose addition a 16-bit number is rounded: in f32 it may
 * be rounded to the number beside that of the reference. */
START_TEST(batch_norms_with_relu)
{
    static const double beside[3] = {4, 0x1p14, 0x1p17};
    static const kernel backward = KERNEL(batch_norm_relu_backward, 32);
    const mn_batch_norm_attributes a = {1e-5, 0.1};
    for (size_t s = 0; s < 2 * COUNT(norms); s++) {
        const int64_t *shape = norms[s / 2], *channels = &shape[1];
        const kernel forward[2] = {KERNEL(batch_norm_inference_relu, s % 2 ? beside[_i] : 4),
                                   KERNEL(batch_norm_relu, s % 2 ? beside[_i] : 4)};
        for (int train = 0; train < 2; train++) {
            fixture f;
            mn_fixture_start(&f, &a, sizeof a);
            norm_inputs(&f, mn_lowp[_i], shape, 1);
            for (int i = 0; i < 3; i++)
                mn_fixture_input(&f, MN_F32, 1, channels);
            positive(&f, *channels);
            if (train)
                mn_fixture_absent(&f);
            if (s % 2)
                mn_fixture_input(&f, mn_lowp[_i], 2, shape);
            mn_fixture_output(&f, mn_lowp[_i], 2, shape);
            for (int i = 0; i < 2 * train; i++)
                mn_fixture_output(&f, MN_F32, 1, channels);
            mn_fixture_check(&f, &forward[train]);
        }
        fixture f;
        mn_fixture_start(&f, &a, sizeof a);
        mn_fixture_input(&f, mn_lowp[_i], 2, shape);
        norm_inputs(&f, mn_lowp[_i], shape, 1);
        mn_fixture_input(&f, MN_F32, 1, channels);
        if (s % 2)
            mn_fixture_absent(&f);
        else
            mn_fixture_input(&f, MN_F32, 1, channels);
        mn_fixture_input(&f, MN_F32, 1, channels);
        positive(&f, *channels);
        mn_view *y = mn_fixture_input(&f, mn_lowp[_i], 2, shape);
        if (s % 2)
            mn_view_poison(y);
        else
            put_result(&f, y);
        mn_fixture_output(&f, mn_lowp[_i], 2, shape);
        mn_fixture_output(&f, MN_F32, 1, channels);
        mn_fixture_output(&f, MN_F32, 1, channels);
        mn_fixture_output(&f, mn_lowp[_i], s % 2 ? 2 : 1, s % 2 ? shape : (int64_t[]){0});
        mn_fixture_check(&f, &backward);
    }
}
END_TEST

/* A mean a thousand times the deviation: sums of squares alone would leave nothing of it. */
START_TEST(batch_norm_is_robust)
{
    static const kernel forward = KERNEL(batch_norm, 0);
    const mn_batch_norm_attributes a = {0, 0.1};
    const mn_cpu cpu = mn_fixture_cpu(mn_cpu_best_kernels(), 1);
    const int64_t shape[2] = {20000, 3};
    double workspace[1 << 14];
    fixture f;
    mn_fixture_start(&f, &a, sizeof a);
    norm_inputs(&f, MN_F32, shape, 1000);
    for (int i = 0; i < 4; i++)
        positive(&f, 3);
    for (int i = 0; i < 3; i++)
        mn_fixture_output(&f, MN_F32, i == 0 ? 2 : 1, i == 0 ? shape : &shape[1]);
    mn_fixture_reference(&f, &forward);
    f.call.cpu = &cpu;
    f.call.workspace = workspace;
    mn_cpu_batch_norm(&f.call);
    for (int c = 0; c < 3; c++) {
        ck_assert_double_eq_tol(mn_view_get(&f.call.out[1], c), f.out[1][c], 1e-4);
        ck_assert_double_eq_tol(mn_view_get(&f.call.out[2], c), f.out[2][c], 1e-6);
    }
    mn_fixture_free(&f);
}
END_TEST

/* One bad channel: no running statistic moves, in either implementation. */
START_TEST(batch_norm_keeps_bad_statistics_out)
{
    static const kernel forward = KERNEL(batch_norm, 0);
    const mn_batch_norm_attributes a = {1e-5, 0.1};
    const mn_cpu cpu = mn_fixture_cpu(mn_cpu_best_kernels(), 1);
    const double bad[] = {(double)NAN, (double)INFINITY, 3e38};
    double workspace[1 << 14];
    for (size_t b = 0; b < COUNT(bad); b++) {
        fixture f;
        mn_fixture_start(&f, &a, sizeof a);
        mn_view_put(mn_fixture_input(&f, MN_F32, DIMS(50, 4)), 101, bad[b]);
        for (int i = 0; i < 4; i++)
            mn_fixture_input(&f, MN_F32, DIMS(4));
        mn_fixture_input(&f, MN_I64, 0, NULL);
        mn_fixture_output(&f, MN_F32, DIMS(50, 4));
        mn_fixture_output(&f, MN_F32, DIMS(4));
        mn_fixture_output(&f, MN_F32, DIMS(4));
        mn_fixture_reference(&f, &forward);
        f.call.cpu = &cpu;
        f.call.workspace = workspace;
        mn_cpu_batch_norm(&f.call);
        for (int i = 3; i < 6; i++) {
            const mn_view *v = &f.call.in[i];
            ck_assert_mem_eq(v->data, f.original[i], mn_view_bytes(v));
            for (int64_t c = 0; c < v->numel; c++)
                ck_assert_double_eq(f.in[i][c], mn_view_get(v, c));
        }
        mn_fixture_free(&f);
    }
}
END_TEST

/* ---- gradients and optimizers ---------------------------------------------------------------- */

static const int64_t sizes[] = {0, 1, 513, 16385, 50021};

static mn_view *record(fixture *f)
{
    mn_view *v = mn_fixture_input(f, MN_F64, DIMS(MN_RECORD_SIZE));
    memset(v->data, 0, mn_view_bytes(v));
    return v;
}

typedef struct unscale_case {
    double scale, g;
    bool found;
} unscale_case;

START_TEST(unscaling)
{
    static const kernel k = KERNEL(grad_unscale, 0);
    static const unscale_case cases[] = {
        {65536, 1, false},
        {3, 1, false},
        {65536, (double)INFINITY, true},
        {65536, (double)NAN, true},
        {0x1p-20, 0x1p120, true}, /* finite before, not after */
        {0x1p-149, 1, true},
        {0, 1, true},
        {(double)FLT_MAX, 1, false},
    };
    for (size_t s = 1; s < COUNT(sizes); s++)
        for (size_t c = 0; c < COUNT(cases); c++) {
            fixture f;
            mn_fixture_start(&f, NULL, 0);
            mn_view *g = mn_fixture_input(&f, MN_F32, 1, &sizes[s]);
            mn_view_put(g, g->numel - 1, cases[c].g);
            mn_view_put(record(&f), MN_SCALER_SCALE, cases[c].scale);
            record(&f);
            mn_fixture_reference(&f, &k);
            ck_assert_msg((f.in[1][MN_SCALER_FOUND_INF] == 1) == cases[c].found, "case %zu", c);
            ck_assert_double_eq(f.in[2][MN_OPT_FOUND_INF], f.in[1][MN_SCALER_FOUND_INF]);
            mn_fixture_check_sets(&f, &k);
            mn_fixture_free(&f);
        }
}
END_TEST

START_TEST(norms_and_clips)
{
    static const kernel norm = KERNEL(grad_norm, 1e-4), clip = KERNEL(grad_clip, 0);
    static const double limits[] = {1, 1e9, (double)INFINITY};
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (int64_t o = 0; o < 12; o++) {
            const mn_norm_attributes a = {o & 1, o >> 1 & 1, limits[o / 4]};
            fixture f;
            mn_fixture_start(&f, &a, sizeof a);
            mn_view *g = mn_fixture_input(&f, MN_F32, 1, &sizes[s]);
            if (o >= 6)
                mn_view_poison(g);
            mn_view_put(record(&f), MN_OPT_NORM_SQ, 2);
            mn_fixture_check(&f, &norm);
            mn_fixture_start(&f, NULL, 0);
            mn_view_poison(mn_fixture_input(&f, MN_F32, 1, &sizes[s]));
            mn_view_put(record(&f), MN_OPT_CLIP, o == 0 ? (double)NAN : o < 6 ? 1 : 0.37);
            mn_fixture_check(&f, &clip);
        }
}
END_TEST

/* A 16-bit parameter's master: every other element belongs to the parameter. */
static void add_master(fixture *f, int64_t size)
{
    const mn_view *master = mn_fixture_input(f, MN_F32, 1, &size);
    for (int64_t j = 0; j < size; j += 2)
        mn_view_put(master, j, mn_view_get(&f->call.in[0], j) * (1 + 0x1p-13));
}

static void add_states(fixture *f, const bool states[2], int square, int64_t size)
{
    for (int i = 0; i < 2; i++) {
        if (!states[i]) {
            mn_fixture_absent(f);
            continue;
        }
        mn_view *state = mn_fixture_input(f, MN_F32, 1, &size);
        for (int64_t j = 0; j < state->numel && i == square; j++)
            mn_view_put(state, j, fabs(mn_view_get(state, j)) + 0.1);
    }
}

/* Each with its optional states, variant, shadows, and a step that is skipped; of f32 parameters
 * and 16-bit ones, with a master or stochastic rounding. */
START_TEST(steps)
{
    static const kernel all[] = {KERNEL(sgd_step, 2), KERNEL(adam_step, 16),
                                 KERNEL(rmsprop_step, 16)};
    static const struct {
        mn_dtype dtype;
        bool master, stochastic;
    } of[] = {{MN_F32, false, false},
              {MN_F16, false, false},
              {MN_F16, true, false},
              {MN_BF16, true, false},
              {MN_BF16, false, true}};
    for (size_t s = 0; s < COUNT(sizes) * COUNT(of); s++)
        for (int o = 0; o < (s < COUNT(sizes) ? 16 : 8); o++) {
            const size_t d = s / COUNT(sizes);
            const int64_t size = sizes[s % COUNT(sizes)];
            const mn_step_attributes a = {
                0.1, 0.05, {0.9, 0.97}, 1e-3, o >> 1 & 1, of[d].stochastic, {3, 7}};
            const bool states[2] = {_i > 0 || (o & 1), _i == 1 || (_i == 2 && (o & 1))};
            kernel k = all[_i];
            if (of[d].stochastic) /* the neighbour, if f32 arithmetic crosses the draw */
                k.k = 0x1p17;
            fixture f;
            mn_fixture_start(&f, &a, sizeof a);
            mn_fixture_input(&f, of[d].dtype, 1, &size);
            mn_view_poison(mn_fixture_input(&f, MN_F32, 1, &size));
            add_states(&f, states, _i == 1, size);
            mn_view *r = record(&f);
            mn_view_put(r, MN_OPT_FACTOR, 0.5);
            mn_view_put(r, MN_OPT_APPLIED, 3);
            mn_view_put(r, MN_OPT_FOUND_INF, o >> 2 & 1);
            if (o & 8)
                mn_fixture_input(&f, MN_F16, 1, &size);
            else
                mn_fixture_absent(&f);
            if (d == 0 || of[d].stochastic) /* of a rounded parameter, no bound would hold */
                mn_fixture_input(&f, MN_BF16, 1, &size);
            else
                mn_fixture_absent(&f);
            if (of[d].master)
                add_master(&f, size);
            mn_fixture_check(&f, &k);
        }
}
END_TEST

/* ---- records: reference kernels only --------------------------------------------------------- */

typedef struct scaler_case {
    double scale, tracker, found;                   /* before */
    double next, next_tracker, backoffs, collapsed; /* after */
    double min_scale, max_scale;
} scaler_case;

START_TEST(scaler_updates)
{
    static const scaler_case cases[] = {
        {65536, 0, 0, 65536, 1, 0, 0, 0, (double)FLT_MAX},
        {65536, 2, 0, 131072, 0, 0, 0, 0, (double)FLT_MAX},
        {65536, 7, 0, 131072, 0, 0, 0, 0, (double)FLT_MAX}, /* past the interval */
        {65536, 2, 1, 32768, 0, 1, 0, 0, (double)FLT_MAX},
        {0x1p127, 2, 0, 0x1p127, 0, 0, 0, 0, (double)FLT_MAX}, /* twice that is not finite */
        {65536, 2, 0, 100000, 0, 0, 0, 0, 100000},
        {2, 0, 1, 1.5, 0, 1, 0, 1.5, (double)FLT_MAX},
        {1.5, 0, 1, 1.5, 0, 1, 1, 1.5, (double)FLT_MAX},         /* at the floor */
        {0x1p-149, 0, 1, 0, 0, 1, 1, 0, (double)FLT_MAX},        /* to 0 */
        {0x1p-127, 0, 1, 0x1p-128, 0, 1, 1, 0, (double)FLT_MAX}, /* 1 / scale overflows */
        {0, 0, 1, 0, 0, 1, 1, 0, (double)FLT_MAX},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const scaler_case *c = &cases[i];
        const mn_scaler_attributes a = {2, 0.5, c->min_scale, c->max_scale, 3};
        double r[MN_RECORD_SIZE] = {c->scale, c->tracker, c->found};
        double *in[] = {r};
        mn_call call = {.input_count = 1};
        memcpy(call.attributes.bytes, &a, sizeof a);
        mn_ref_scaler_update(&call, in, NULL);
        ck_assert_msg(r[MN_SCALER_SCALE] == c->next && r[MN_SCALER_TRACKER] == c->next_tracker &&
                          r[MN_SCALER_BACKOFFS] == c->backoffs &&
                          r[MN_SCALER_COLLAPSED] == c->collapsed && r[MN_SCALER_UPDATES] == 1 &&
                          r[MN_SCALER_FOUND_INF] == 0,
                      "case %zu: scale %g, tracker %g, collapsed %g", i, r[MN_SCALER_SCALE],
                      r[MN_SCALER_TRACKER], r[MN_SCALER_COLLAPSED]);
    }
}
END_TEST

/* An applied step, a skipped one, and one with a norm that is not finite; learning rates follow the
 * applied ones. */
START_TEST(optimizer_records)
{
    const mn_schedule_attributes a = {.kind = MN_SCHEDULE_COSINE, .total_steps = 4, .base_lr = 0.2};
    const double found[] = {0, 1, 0, 0, 0, 0}, bad[] = {0, 1, 1, 0, 0, 0};
    const double applied[] = {1, 1, 2, 3, 4, 5}, skipped[] = {0, 1, 1, 1, 1, 1};
    double r[MN_RECORD_SIZE] = {[MN_OPT_FACTOR] = 1}, nonfinite = 0;
    double *in[] = {r};
    mn_call call = {.input_count = 1};
    memcpy(call.attributes.bytes, &a, sizeof a);
    for (int i = 0; i < 6; i++) {
        const double used = 0.2 * r[MN_OPT_FACTOR], t = fmin(applied[i], 4);
        r[MN_OPT_FOUND_INF] = found[i];
        r[MN_OPT_BAD_NORM] = bad[i];
        nonfinite += bad[i];
        mn_ref_optimizer_finish(&call, in, NULL);
        ck_assert_double_eq(r[MN_OPT_APPLIED], applied[i]);
        ck_assert_double_eq(r[MN_OPT_SKIPPED], skipped[i]);
        ck_assert_double_eq(r[MN_OPT_NONFINITE], nonfinite);
        ck_assert_double_eq(r[MN_OPT_OUTCOME], found[i]);
        ck_assert_double_eq(r[MN_OPT_STEP_NONFINITE], bad[i]);
        ck_assert_double_eq(r[MN_OPT_LR_USED], used);
        ck_assert_double_eq_tol(r[MN_OPT_FACTOR], (1 + cos(acos(-1.0) * t / 4)) / 2, 1e-15);
        ck_assert_double_eq(r[MN_OPT_FOUND_INF] + r[MN_OPT_BAD_NORM], 0);
    }
    ck_assert_double_eq(r[MN_OPT_FACTOR], 0);
}
END_TEST

START_TEST(scaled_loss)
{
    const mn_weight_attributes a = {1.0 / 3};
    double x[] = {1.1, 3e38}, y[2] = {0}, r[MN_RECORD_SIZE] = {[MN_SCALER_SCALE] = 65536};
    double *in[] = {x, r}, *out[] = {y};
    mn_call call = {.input_count = 2, .output_count = 1};
    call.in[0] = call.out[0] = (mn_view){.present = true, .dtype = MN_F32, .numel = 2};
    memcpy(call.attributes.bytes, &a, sizeof a);
    mn_ref_scaler_scale(&call, in, out);
    ck_assert_double_eq(y[0], (double)(1.1F * 65536.0F * (float)(1.0 / 3)));
    ck_assert(isinf(y[1]));
    ck_assert_double_eq(r[MN_SCALER_SCALE_USED], 65536);
}
END_TEST

/* Two micro-batches and the step's outcome in row 1 of a ring; row 0 stays. */
START_TEST(reports)
{
    mn_report_attributes a = {1, 1, 0.25};
    double ring[2 * MN_RECORD_SIZE], loss = 2, labels[] = {1, 0, 2};
    double logits[] = {0, 5, 5, (double)NAN, 9, 1, 3, 2, 1};
    double optimizer[MN_RECORD_SIZE] = {[MN_OPT_LR_USED] = 0.5,
                                        [MN_OPT_NORM] = 7,
                                        [MN_OPT_OUTCOME] = 1,
                                        [MN_OPT_STEP_NONFINITE] = 1};
    double scaler[MN_RECORD_SIZE] = {[MN_SCALER_SCALE_USED] = 1024};
    double *in[] = {ring, &loss, logits, labels}, *step[] = {ring, optimizer, scaler};
    const double expected[] = {2 * 0.25 + 2 * 0.75, 4, 6, 0.5, 1024, 7, 1, 1, 0};
    mn_call call = {.input_count = 4};
    for (int i = 0; i < 2 * MN_RECORD_SIZE; i++)
        ring[i] = 99;
    call.in[2] = (mn_view){.present = true, .ndim = 2, .shape = {3, 3}, .numel = 9};
    for (int i = 0; i < 2; i++, a.first = 0, a.weight = 0.75) {
        memcpy(call.attributes.bytes, &a, sizeof a);
        mn_ref_report_loss(&call, in, NULL);
    }
    mn_ref_report_step(&call, step, NULL);
    for (int i = 0; i < 9; i++)
        ck_assert_double_eq(ring[MN_RECORD_SIZE + i], expected[i]);
    ck_assert_double_eq(ring[MN_RECORD_SIZE - 1], 99);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cpu_layers");
    TCase *tests = tcase_create("layers");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, NULL, mn_fixture_teardown);
    tcase_add_loop_test(tests, max_pools, 0, 3);
    tcase_add_loop_test(tests, average_pools, 0, 3);
    tcase_add_loop_test(tests, global_average_pools, 0, 3);
    tcase_add_loop_test(tests, batch_norms, 0, 3);
    tcase_add_loop_test(tests, batch_norm_gradients, 0, 3);
    tcase_add_loop_test(tests, batch_norms_with_relu, 0, 3);
    tcase_add_test(tests, batch_norm_is_robust);
    tcase_add_test(tests, batch_norm_keeps_bad_statistics_out);
    tcase_add_test(tests, unscaling);
    tcase_add_test(tests, norms_and_clips);
    tcase_add_loop_test(tests, steps, 0, 3);
    tcase_add_test(tests, scaler_updates);
    tcase_add_test(tests, optimizer_records);
    tcase_add_test(tests, scaled_loss);
    tcase_add_test(tests, reports);
    suite_add_tcase(suite, tests);
    return mn_test_run(suite, CK_FORK_GETENV);
}
