/* Strips of padded images. */
#include "ops/cpu/conv.h"

#include <string.h>

/* Floats of a strip, and strips of a call that are aimed at. */
#define STRIP_FLOATS 65536
#define STRIPS       16
/* Points and floats of a strip of several images: filters, or sums of their gradient, are read once
 * a strip, and may be larger than the caches. */
#define TOGETHER_POINTS 128
#define TOGETHER_FLOATS 131072
/* The same where images are small: the last tile and block of a strip are seldom whole. */
#define SMALL_POINTS 512
#define SMALL_FLOATS 16384

mn_conv_axis mn_conv_axis_forward(const mn_conv2d_attributes *attributes, int axis, int64_t size,
                                  int64_t points, int64_t taps)
{
    return (mn_conv_axis){.size = size,
                          .points = points,
                          .step = attributes->stride[axis],
                          .taps = taps,
                          .base = -attributes->padding[axis],
                          .delta = attributes->dilation[axis],
                          .filter_step = 1,
                          .out_step = 1};
}

/* Lowest image index of point 0, and how far its taps reach. */
int64_t mn_conv_low(const mn_conv_axis *axis)
{
    return axis->delta < 0 && axis->taps > 0 ? axis->base + (axis->taps - 1) * axis->delta
                                             : axis->base;
}

int64_t mn_conv_extent(const mn_conv_axis *axis, int64_t points)
{
    int64_t delta = axis->delta < 0 ? -axis->delta : axis->delta;
    return (points - 1) * axis->step + (axis->taps > 0 ? (axis->taps - 1) * delta : 0) + 1;
}

static bool unpadded(const mn_conv_axis *axis)
{
    return axis->taps > 0 && mn_conv_low(axis) >= 0 &&
           mn_conv_low(axis) + mn_conv_extent(axis, axis->points) <= axis->size;
}

int64_t mn_conv_tap(const mn_conv_axis *axis, int64_t t)
{
    return axis->base + t * axis->delta - mn_conv_low(axis);
}

static bool axis_inside(const mn_conv_axis *axis, int64_t i, int64_t t)
{
    int64_t at = i * axis->step + axis->base + t * axis->delta;
    return at >= 0 && at < axis->size;
}

bool mn_conv_inside(const mn_conv_strips *s, int64_t point, int64_t tap)
{
    return axis_inside(&s->y, point / s->x.points, tap / s->x.taps) &&
           axis_inside(&s->x, point % s->x.points, tap % s->x.taps);
}

void mn_conv_tile_exact(const mn_gemm_kernels *kernels, const mn_tile *tile,
                        bool (*inside)(const void *arg, int64_t i, int64_t k), const void *arg)
{
    const int width = kernels->columns;
    for (int i = 0; i < kernels->rows; i++) {
        float sum[MN_TILE_MAX_COLUMNS], *c = tile->c + i * tile->ldc;
        memcpy(sum, tile->accumulate ? c : tile->start, (size_t)width * sizeof *sum);
        for (int64_t k = 0; k < tile->depth; k++) {
            const float a = tile->a[i][tile->offsets[k]];
            if (!inside(arg, i, k))
                continue;
            for (int j = 0; j < width; j++)
                sum[j] += a * tile->b[k * width + j];
        }
        memcpy(c, sum, (size_t)width * sizeof *sum);
    }
}

void mn_conv_strips_cut(mn_conv_strips *s)
{
    s->direct =
        s->image.view->dtype == MN_F32 && s->channels > 0 && unpadded(&s->y) && unpadded(&s->x);
    s->width = s->direct ? s->x.size : mn_conv_extent(&s->x, s->x.points);
    int64_t per_image = mn_ceil_div(STRIPS, mn_max(s->images, 1));
    int64_t rows = mn_max(s->y.points / per_image, 1);
    int64_t row_floats = mn_max(s->width * s->channels, 1);
    int64_t fit = (STRIP_FLOATS / row_floats - mn_conv_extent(&s->y, 1)) / s->y.step + 1;
    rows = mn_min(rows, mn_max(fit, 1));
    s->count = mn_ceil_div(s->y.points, rows);
    s->rows = s->count > 0 ? mn_ceil_div(s->y.points, s->count) : 0;
    s->height = s->rows > 0 ? mn_conv_extent(&s->y, s->rows) : 0;
    s->image_step = s->direct ? s->y.size * s->image.ld : s->height * s->width * s->channels;
    s->together = 1;
    if (s->count == 1) {
        const int64_t all = mn_max(s->y.points * s->x.points, 1);
        const int64_t floats = mn_max(s->image_step, 1);
        const int64_t most = mn_max(mn_min(TOGETHER_POINTS / all, TOGETHER_FLOATS / floats),
                                    mn_min(SMALL_POINTS / all, SMALL_FLOATS / floats));
        s->together = mn_max(mn_min(most, s->images / STRIPS), 1);
    }
}

int64_t mn_conv_strip_count(const mn_conv_strips *s)
{
    return s->together > 1 ? mn_ceil_div(s->images, s->together) : s->images * s->count;
}

/* One row of the copy: zeros, the part inside the image, zeros. */
static void load_row(const mn_conv_strips *s, int64_t row, bool inside, float *dst)
{
    const int64_t first = mn_conv_low(&s->x), begin = mn_max(first, 0);
    const int64_t end = mn_min(first + s->width, s->x.size), floats = s->width * s->channels;
    if (!inside || begin >= end) {
        memset(dst, 0, (size_t)floats * sizeof *dst);
        return;
    }
    const int64_t left = (begin - first) * s->channels, n = (end - begin) * s->channels;
    memset(dst, 0, (size_t)left * sizeof *dst);
    if (s->pixel == 0)
        mn_matrix_copy(&s->image, row, begin * s->channels, n, dst + left);
    for (int64_t i = 0; s->pixel > 0 && i < end - begin; i++)
        mn_matrix_copy(&s->image, row, (begin + i) * s->pixel + s->channel, s->channels,
                       dst + left + i * s->channels);
    memset(dst + left + n, 0, (size_t)(floats - left - n) * sizeof *dst);
}

const float *mn_conv_strip_load(const mn_conv_strips *s, int64_t image, int64_t first,
                                float *buffer)
{
    const int64_t top = first * s->y.step + mn_conv_low(&s->y);
    if (s->direct)
        return (const float *)s->image.view->data + (image * s->y.size + top) * s->image.ld +
               mn_conv_low(&s->x) * s->channels;
    const int64_t height = mn_conv_extent(&s->y, mn_min(s->rows, s->y.points - first));
    const int64_t images = mn_min(mn_max(s->together, 1), s->images - image);
    for (int64_t i = 0; i < images * height; i++) {
        const int64_t h = i % height;
        load_row(s, (image + i / height) * s->y.size + top + h, top + h >= 0 && top + h < s->y.size,
                 buffer + i / height * s->image_step + h * s->width * s->channels);
    }
    return buffer;
}

/* Bytes of a matrix that is not in the second-level cache anyway. */
#define AHEAD_LEAST (INT64_C(1) << 20)

mn_ahead mn_matrix_ahead(const mn_matrix *matrix, int64_t row, int64_t rows, int64_t tiles,
                         int64_t depth)
{
    const int64_t size = (int64_t)mn_dtype_size(matrix->view->dtype), bytes = matrix->ld * size;
    if (rows <= 0 || matrix->view->numel * size < AHEAD_LEAST)
        return (mn_ahead){0};
    return mn_ahead_rows(mn_element(matrix->view, row * matrix->ld), bytes, rows, bytes, tiles,
                         depth);
}

mn_ahead mn_conv_strip_ahead(const mn_conv_strips *s, int64_t image, int64_t first, int64_t tiles,
                             int64_t depth)
{
    const int64_t images = mn_min(mn_max(s->together, 1), s->images - image);
    const int64_t top = first * s->y.step + mn_conv_low(&s->y);
    const int64_t end = top + mn_conv_extent(&s->y, mn_min(s->rows, s->y.points - first));
    const int64_t begin = mn_min(mn_max(top, 0), s->y.size);
    const int64_t rows = (images - 1) * s->y.size + mn_min(end, s->y.size) - begin;
    return mn_matrix_ahead(&s->image, image * s->y.size + begin, images > 0 ? rows : 0, tiles,
                           depth);
}
