/* The inner loops of the CPU kernels, in f32: one table per kernel set, each compiled with its own
 * instructions from bodies.h. n elements each; what is written overlaps nothing that is read,
 * unless it is one and the same argument. */
#ifndef MN_OPS_CPU_BODY_TABLE_H
#define MN_OPS_CPU_BODY_TABLE_H

#include "ops/ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MN_POOL_LIMIT 256

/* Channel tables of normalisation: each as long as the row it is applied to. */
typedef struct mn_norm_tables {
    const float *mean;
    const float *scale;    /* rstd w; or rstd alone for sums */
    const float *shift;    /* forward: b; backward: mean of g */
    const float *gradient; /* backward: rstd^2 mean of g (x - mean) */
    /* Of ReLU's backward: where (x - mean) slope + bias <= limit, g is 0. */
    const float *slope, *bias;
    float limit;
} mn_norm_tables;

/* Rows of n elements, ld apart. `add` adds terms of sums of gradients to one accumulator per
 * element of a row, which there are for a multiple of 16. With `other` they are those of g where
 * that is positive, which goes to y. `apply` makes y or, with g, dx; `other` is the residual. */
typedef struct mn_norm_rows {
    int64_t rows, n, ld;
    const void *x, *g, *other;
    void *y;
    bool relu;
    mn_norm_tables tables;
} mn_norm_rows;
/* Windows of two by two pixels side by side, as two rows of 2 n pixels, ld elements apart; y and g
 * have one pixel a window. Makes y = max(0, the largest (x - mean) slope + bias); or adds to the
 * sums, for upper and for lower pixels, of gradients that arrive at x; or makes dx of them. */
typedef struct mn_norm_windows {
    int64_t n, width, ld;
    const void *x[2], *g;
    void *y, *dx[2];
    float *sum[2], *product[2];
    uint16_t *where; /* of sixteen channels the pixels that g goes to; sums write it, dx reads it */
    int64_t where_ld;
    mn_norm_tables tables;
} mn_norm_windows;
typedef struct mn_norm_kernels {
    void (*add)(const mn_norm_rows *rows, float *first, float *second);
    void (*apply)(const mn_norm_rows *rows);
    void (*pool)(const mn_norm_windows *windows);
} mn_norm_kernels;
extern const mn_norm_kernels mn_norm_avx512[MN_DTYPE_COUNT]; /* empty rows: not of that dtype */

/* For `rows` rows of n lanes, ld apart: sum += x - mean, square += (x - mean)^2. */
typedef void mn_moments_body(int64_t rows, int64_t n, int64_t ld, const float *x, const float *mean,
                             float *sum, float *square);
/* Likewise for gradients g. */
typedef void mn_gradients_body(int64_t rows, int64_t n, const float *g, const float *x,
                               const mn_norm_tables *tables, float *sum, float *product);
extern mn_moments_body mn_moments_avx512; /* the others' are in mn_bodies */

/* Of one optimizer step. */
typedef struct mn_step_factors {
    float lr;               /* Adam: divided by 1 - beta1^t */
    float weight_decay;     /* added to the gradient */
    float rate[2], rest[2]; /* what lasts of each state, and 1 - that */
    float eps;
    float keep, root; /* Adam: what decoupled weight decay leaves of p; 1 / sqrt(1 - beta2^t) */
    bool variant;     /* SGD: Nesterov */
} mn_step_factors;

/* Changes p and its states, of which SGD has none or one, Adam two, RMSprop one or two. */
typedef void mn_step_body(size_t n, const mn_step_factors *f, const float *g, float *p, float *s0,
                          float *s1);

/* What dropout draws with (see mn_dropout_attributes), and the factor of what is kept. */
typedef struct mn_keep {
    uint32_t key[2], call, position[2];
    uint32_t threshold;
    float scale;
} mn_keep;

/* What stochastic rounding draws with (see mn_step_attributes). */
typedef struct mn_draw {
    uint32_t key[2], step[2];
} mn_draw;

typedef void mn_binary_body(size_t n, const float *a, const float *b, float *y);

/* count tiles of n channels (a multiple of 16), `next` apart: squares of entries, `row` from one
 * below and `step` from one beside. */
typedef struct mn_winograd_tiles {
    int64_t n, count;
    int64_t in_row, in_step, in_next, out_row, out_step, out_next;
} mn_winograd_tiles;
typedef void mn_winograd_body(const mn_winograd_tiles *tiles, const float *in, float *out);
/* Adds a bias to each channel; false: a result is not finite. */
typedef bool mn_winograd_result(const mn_winograd_tiles *tiles, const float *in, float *out,
                                const float *bias);
/* Transforms of F(2x2, 3x3) and F(4x4, 3x3). */
typedef struct mn_winograd_bodies {
    mn_winograd_body *image[2], *gradient[2], *filter[2], *filter_gradient[2];
    mn_winograd_result *result[2];
} mn_winograd_bodies;
extern const mn_winograd_bodies mn_winograd_avx512; /* the others' are in mn_bodies */

/* A convolution of each channel by itself, lanes being channels; tap t is offsets[t] floats from a
 * point's place, and w, sums and, of one pixel, x and g lie channel by channel. */
typedef struct mn_depthwise {
    int64_t n, taps;
    const ptrdiff_t *offsets;
} mn_depthwise;
typedef struct mn_depthwise_bodies {
    /* c[i ldc] = start + sum_t w[t n] x[i][offsets[t]] of some points. */
    void (*gather)(const mn_depthwise *d, const float *w, const float *start, int64_t points,
                   const float *const *x, float *c, ptrdiff_t ldc);
    /* sums[t n] = sum_i x[places[i] + offsets[t]] g[i ld] over some points. */
    void (*weight)(const mn_depthwise *d, const float *x, const ptrdiff_t *places, int64_t points,
                   const float *g, int64_t ld, float *sums);
} mn_depthwise_bodies;
extern const mn_depthwise_bodies mn_depthwise_avx512; /* as above */

#define MN_LOSS_KINDS 5
typedef void (*mn_loss_body)(size_t n, const float *x, const float *t, float delta, float *y);

typedef struct mn_bodies {
    /* Of the ops named by their place; of relu_backward, and of relu with g = y: y <= 0 ? 0 : g. */
    mn_binary_body *binary[MN_OP_maximum + 1];
    mn_binary_body *compare[MN_LE + 1]; /* 1 where it holds, else 0 */
    void (*add_scalar)(size_t n, const float *a, float b, float *y);
    void (*mul_scalar)(size_t n, const float *a, float b, float *y);
    /* A unary op, or its derivatives in s, times g, by f->order. */
    void (*function)(size_t n, const mn_function_attributes *f, const float *g, const float *s,
                     float *y);
    void (*accumulate)(size_t n, float *sum, const float *x); /* sum += x; x may be sum */
    void (*add_scaled)(size_t n, const float *x, float factor, float *sum); /* sum += factor x */

    /* Terms of sums, added to one accumulator per element. */
    void (*add_product)(size_t n, const float *a, const float *b, float *sum);
    /* x - mean and its square. */
    mn_moments_body *add_moments;
    /* g and g (x - mean) scale, of `rows` rows of n lanes, one after the other. */
    mn_gradients_body *add_gradients, *add_masked_gradients;
    /* sum += acc in f64; acc = 0. */
    void (*flush)(size_t n, float *acc, double *sum);
    double (*total)(size_t n, const double *x); /* sum of all */

    /* Factors, scale or 0, of the elements of `blocks` blocks of four from `first` on. */
    void (*keep_factors)(size_t blocks, const mn_keep *keep, uint32_t first, float *factors);

    /* y = (x - mean) scale + shift */
    void (*normalize)(size_t n, const float *x, const mn_norm_tables *tables, float *y);
    /* dx = scale (g - shift - (x - mean) gradient) */
    void (*normalize_backward)(size_t n, const float *g, const float *x,
                               const mn_norm_tables *tables, float *dx);
    void (*masked_backward)(size_t n, const float *g, const float *x, const mn_norm_tables *tables,
                            float *dx);

    void (*max)(size_t n, const float *x, float *largest); /* NaN wins */
    void (*min)(size_t n, const float *x, float *smallest);
    void (*max_number)(size_t n, const float *x, float *largest); /* NaN is passed over */
    float (*fold_sum)(size_t n, float *x);                        /* both overwrite x; n >= 1 */
    float (*fold_max)(size_t n, float *x);                        /* of max_number */
    void (*add_exp)(size_t n, const float *x, const float *largest, float *sum);
    /* y = exp(x - largest) / sum;  y = x - largest - log_sum */
    void (*softmax)(size_t n, const float *x, const float *largest, const float *sum, float *y);
    void (*log_softmax)(size_t n, const float *x, const float *largest, const float *log_sum,
                        float *y);
    void (*log)(size_t n, float *x);
    /* dx = y (g - sum);  dx = g - exp(y) sum */
    void (*softmax_backward)(size_t n, const float *g, const float *y, const float *sum, float *dx);
    void (*log_softmax_backward)(size_t n, const float *g, const float *y, const float *sum,
                                 float *dx);
    /* y = exp(x - lse) factor */
    void (*scaled_exp)(size_t n, const float *x, float lse, float factor, float *y);
    /* By mn_loss_kind: y = the loss of each element, and its slope in x. */
    mn_loss_body loss[MN_LOSS_KINDS], slope[MN_LOSS_KINDS];

    /* Windows of two by two pixels of `channels` elements, `n` of them side by side, in two rows of
     * the image. */
    void (*pool2x2)(size_t n, size_t channels, const float *top, const float *bottom, float *y);
    void (*pool2x2_backward)(size_t n, size_t channels, const float *g, const float *rows[2],
                             float *dx[2]);
    void (*average2x2)(size_t n, size_t channels, const float *top, const float *bottom, float *y);
    void (*average2x2_backward)(size_t n, size_t channels, const float *g, float *dx[2]);
    /* For overlapping or odd windows: keeps the largest and its number as a float. */
    void (*max_index)(size_t n, const float *x, float number, float *largest, float *index);
    /* y = index == number ? g : 0 */
    void (*pick_index)(size_t n, const float *g, const float *index, float number, float *y);

    void (*scale)(size_t n, float factor, float *g);   /* in place */
    bool (*unscale)(size_t n, float factor, float *g); /* true: not finite before or after */
    bool (*finite)(size_t n, const float *x);          /* all of them */
    double (*sum_squares)(size_t n, const float *g);   /* in f64 */
    void (*blend)(size_t n, float a, float b, float *y, const float *x); /* y = a y + b x */
    /* x = scale x + shift, kept within the limits; NaN stays. */
    void (*adjust)(size_t n, const float limits[2], float scale, float shift, float *x);
    mn_step_body *sgd, *adam, *rmsprop;
    /* x = one of the two bf16 numbers around x, of 8 elements a block. */
    void (*round_bf16)(size_t blocks, const mn_draw *draw, uint32_t first, float *x);

    mn_winograd_bodies winograd;
    mn_depthwise_bodies depthwise;
} mn_bodies;

extern const mn_bodies mn_bodies_portable;
extern const mn_bodies mn_bodies_avx2;

#endif
