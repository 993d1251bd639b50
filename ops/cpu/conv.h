/* Convolution on the register tile: a strip of an image is copied, widened and padded, and the tile
 * walks through it along a table of offsets. There is no im2col buffer. */
#ifndef MN_OPS_CPU_CONV_H
#define MN_OPS_CPU_CONV_H

#include "ops/cpu/gemm.h"
#include "ops/cpu/moments.h"

/* One axis of a sliding window. Point i sees through tap t the image at i step + base + t delta;
 * tap t is the filter's index filter_base + t filter_step; point i is index out_base + i out_step
 * of the result. */
typedef struct mn_conv_axis {
    int64_t size, points, step;
    int64_t taps, base, delta;
    int64_t filter_base, filter_step;
    int64_t out_base, out_step;
} mn_conv_axis;
/* Axis 0 or 1 of the forward convolution of `size` to `points` with `taps`. */
mn_conv_axis mn_conv_axis_forward(const mn_conv2d_attributes *attributes, int axis, int64_t size,
                                  int64_t points, int64_t taps);

/* Lowest image index of point 0, and how far the taps of some points reach. */
int64_t mn_conv_low(const mn_conv_axis *axis);
int64_t mn_conv_extent(const mn_conv_axis *axis, int64_t points);

/* Cutting of images into strips of some rows of points. */
typedef struct mn_conv_strips {
    mn_matrix image; /* a row is a row of pixels */
    int64_t images, channels, group_channels;
    int64_t channel, pixel; /* first channel of a copy; floats of a pixel, 0: channels */
    mn_conv_axis y, x;
    bool direct;           /* f32 without padding: no copy */
    int64_t rows, count;   /* rows of points per strip, strips per image */
    int64_t height, width; /* of the copy, in pixels (direct: width of the image) */
    int64_t together;      /* images per strip, if it has all rows of them; 0 is as 1 */
    int64_t image_step;    /* from image to image of a strip */
} mn_conv_strips;
/* Cuts so that a copy fits the second-level cache and there are some strips to share out. The
 * fields from image to x must be filled in. */
void mn_conv_strips_cut(mn_conv_strips *strips);
int64_t mn_conv_strip_count(const mn_conv_strips *strips);
/* Copy of the strip that starts with point row `first` of an image; returns where the lowest tap of
 * its first point is. A row is width * channels floats. */
const float *mn_conv_strip_load(const mn_conv_strips *strips, int64_t image, int64_t first,
                                float *buffer);
/* What the load of that strip will read, for so many tiles of that depth to fetch; nothing for an
 * image there is not. */
mn_ahead mn_conv_strip_ahead(const mn_conv_strips *strips, int64_t image, int64_t first,
                             int64_t tiles, int64_t depth);
mn_ahead mn_matrix_ahead(const mn_matrix *matrix, int64_t row, int64_t rows, int64_t tiles,
                         int64_t depth);
/* Distance, in pixels, of tap t from the lowest one. */
int64_t mn_conv_tap(const mn_conv_axis *axis, int64_t t);
/* Whether the point sees the image through the tap (both counted row by row). */
bool mn_conv_inside(const mn_conv_strips *strips, int64_t point, int64_t tap);
/* The tile without the products of row i and depth k that padding would add, as inside(arg, i, k)
 * tells: zero times infinity is NaN. */
void mn_conv_tile_exact(const mn_gemm_kernels *kernels, const mn_tile *tile,
                        bool (*inside)(const void *arg, int64_t i, int64_t k), const void *arg);

/* Whether each result is one channel's, and lanes are channels. */
static inline bool mn_is_depthwise(const mn_conv_strips *strips, int64_t groups, int64_t columns)
{
    return strips->group_channels == 1 && columns == 1 && groups > 1;
}
/* Its bodies of the call's kernel set. */
const mn_depthwise_bodies *mn_depthwise_bodies_of(const mn_call *call);

/* Winograd's convolution: the image, or a gradient of the result, is cut into tiles of m x m
 * results, lines of which are the strips. */
typedef struct mn_winograd {
    int64_t m, n;          /* results and points of a tile per axis; m = 0: not used */
    mn_conv_strips strips; /* one line of tiles each; reaches over the edge to whole tiles */
    int64_t across, lines; /* tiles of a line, lines of all images */
    int64_t block, blocks; /* lines of a block, and how many there are */
    int64_t tiles;         /* of a block */
} mn_winograd;
/* Says by a rule of shapes alone whether Winograd serves the convolution of these strips (whose
 * fields from image to x are filled in) with so many results per pixel, 4 x 4
 * only for least4 tiles or more, and cuts. */
mn_winograd mn_winograd_cut(const mn_call *call, const mn_conv_strips *strips, int64_t columns,
                            int64_t least4, const mn_gemm_kernels **kernels);
/* The transforms of the call's kernel set. */
const mn_winograd_bodies *mn_winograd_bodies_of(const mn_call *call);
/* Transforms a line of the image into points[xi * step + tile * channels + channel]. buffer holds
 * n rows of the strip's width. */
void mn_winograd_image(const mn_call *call, const mn_winograd *w, int64_t line, float *buffer,
                       float *points, int64_t step);

/* A convolution whose lanes are pixels: an image, or some rows of it, is a plane per channel and
 * phase of the stride, and a point is seen through a tap at a fixed distance from its place.
 * Points are numbered along the rows of a plane, those beyond the result's included. */
typedef struct mn_conv_planes {
    const struct mn_planes_kernels *kernels; /* NULL: not used */
    int64_t phases[2], pitch, plane, image;  /* floats of a row, of a plane, of all planes */
    int64_t images, rows, count, blocks;     /* images and rows of a block; blocks of an image */
    int64_t vectors, ld;                     /* of an image, lanes of a block */
    int tile;
    int64_t leaves;
    size_t row_at, c_at, bytes, partial_at; /* per thread, but for the last */
} mn_conv_planes;

/* result[n, p, q, k] = bias[k] + sum over taps and channels of image and packed weights: the
 * forward pass, and phases of the gradient of the input. Those side by side share strips: point
 * (i, j) stands for phases[0] rows of phases[1] results that lie together, number (v, h) of which
 * sees the image through the taps of phase[0][v] and phase[1][h], and strips.y and strips.x cover
 * all taps. The caller fills in the first part. */
#define MN_PHASES 2
typedef struct mn_conv_gather mn_conv_gather;
struct mn_conv_gather {
    const mn_call *call; /* result in out[0] */
    const mn_view *weights, *bias;
    mn_conv_strips strips;
    int64_t phases[2]; /* at most MN_PHASES */
    mn_conv_axis phase[2][MN_PHASES];
    int64_t groups, columns; /* results per group */
    /* Fills a panel (0 to panels - 1) of a group. */
    void (*pack)(const mn_conv_gather *gather, int64_t group, int64_t panel, float *dst);

    const mn_gemm_kernels *kernels;
    int64_t depth, panels; /* terms of the sums of all phases, panels of each group */
    int64_t block, ldc;    /* points per block, row of the block of results */
    bool bulk;             /* ldc is the number of results: rows lie side by side */
    size_t offsets_at, start_at, packed_at, finite_at, scratch_at, c_at, scratch_bytes;
    size_t workspace_bytes;
    bool exact; /* weights that are not finite: padding must not meet them */
    bool depthwise;
    size_t taps_at; /* depthwise: [groups] that sums begin with, then [depth][groups] */

    mn_moments moments; /* conv2d_moments: a slot per task, of any way; else without slots */
    mn_conv_planes planes;
    mn_winograd winograd;
    int64_t group_panels, point_step; /* panels that are multiplied together */
    bool shared;                      /* all points are made first: filters are too many */
    size_t bias_at, filters_at, flags_at, points_at, privates_at;
    size_t private_at, products_at, rows_at, filter_at, private_bytes; /* per thread */
};
/* Sets the second part of the fields; makes room in the workspace if Winograd serves the call. */
void mn_winograd_choose(mn_conv_gather *gather);
mn_status mn_winograd_plan(mn_conv_gather *gather);
/* False: a result is not finite, which Winograd spreads over a tile, or its transforms overflowed;
 * the result is to be made directly. */
bool mn_winograd_run(mn_conv_gather *gather);
/* Results per pixel at most: more of them fill registers. */
#define MN_PLANES_COLUMNS 8
/* As Winograd's: says whether pixels are the lanes; then fills in planes. */
void mn_planes_choose(mn_conv_gather *gather);
/* weights: [depth][width] per panel, as they are packed; start: [panels][width]. */
void mn_planes_run(mn_conv_gather *gather);
/* Pixels of the result that were just stored: some channels of them. */
static inline void mn_gather_stored(const mn_conv_gather *g, int64_t task, int64_t pixel,
                                    int64_t pixels, int64_t channel, int64_t width)
{
    if (g->moments.slots > 0)
        mn_moments_add(&g->moments, task, pixel, pixels, channel, width);
}
mn_status mn_gather_plan(mn_conv_gather *gather);
void mn_gather_run(mn_conv_gather *gather);

/* The gradient of the weights: strips of images are dealt to leaves, and tasks are a leaf's part of
 * some panels of output channels. */
#define MN_WEIGHT_COLUMNS 128
typedef struct mn_conv_weight {
    const mn_call *call;
    const mn_gemm_kernels *kernels;
    mn_conv_strips strips; /* of x */
    mn_matrix gradient;    /* a row is a pixel */
    int64_t groups, depth; /* depth: (r, s, c) of one filter */
    int64_t rows;          /* depth rounded up to whole tiles */
    int64_t columns, panels, task_panels, panel_blocks;
    int64_t units, leaves;            /* strips of all images */
    int64_t first_block, pass_blocks; /* panel blocks of one pass: all, but for Winograd's calls */
    bool depthwise;
    size_t taps_at, pixels_at, partial_at, scratch_at, packed_at, scratch_bytes;
    size_t workspace_bytes;

    mn_conv_planes planes;
    mn_winograd winograd;
    int64_t point_step, gradient_step, sum_step; /* floats from xi to xi */
    int64_t tile_leaves, sum_depth;              /* leaves of tiles, tiles that are summed apart */
    int64_t unit, task_units;                    /* channels of a unit, units of a task */
    int64_t channel_blocks, kept_sums;           /* tasks side by side, parts whose sums are kept */
    size_t leaves_at, flags_at, privates_at;
    size_t points_at, gradients_at, sums_at, line_at, offsets_at, filters_at; /* per thread */
    size_t private_bytes;
} mn_conv_weight;
/* A leaf's sum of a panel, [rows][columns of a panel]. */
float *mn_conv_partial(const mn_conv_weight *w, int64_t leaf, int64_t group, int64_t panel);
void mn_planes_weight_choose(mn_conv_weight *w, mn_arena *arena);
void mn_planes_weight_run(mn_conv_weight *w);
/* As mn_winograd_plan and mn_winograd_run. */
void mn_winograd_weight_choose(mn_conv_weight *w);
mn_status mn_winograd_weight_plan(mn_conv_weight *w);
bool mn_winograd_weight_run(mn_conv_weight *w);

#endif
