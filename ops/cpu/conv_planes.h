/* Convolutions with few channels: lanes are neighbouring pixels of one channel. Images lie channel
 * by channel, so that a tap is a load at a shifted address. */
#ifndef MN_OPS_CPU_CONV_PLANES_H
#define MN_OPS_CPU_CONV_PLANES_H

#include "ops/cpu/conv.h"

/* gather: c[i ldc + v c_step + lane] = start[i] + sum_k weights[k ldw + i] b[v][offsets[k] + lane].
 * products: c[(i vectors + v) lanes + lane] (+)= the sum over the images and
 * depth, in steps of lanes, of weights[i ldw + k] b[v][k]. */
typedef struct mn_planes_tile {
    int64_t depth, images, b_step; /* b_step: from image to image */
    const ptrdiff_t *offsets;
    const float *weights, *start, *b[4];
    int64_t ldw, ldc, c_step;
    float *c;
    bool accumulate;
} mn_planes_tile;

typedef struct mn_planes_kernels {
    int lanes;
    struct {
        int rows, vectors;
        void (*gather)(const mn_planes_tile *tile);
    } tiles[2]; /* the first one has six rows, the second one four or eight */
    void (*products)(const mn_planes_tile *tile); /* of the first tile's size */
    /* dst[j dst_ld + i] = src[i src_ld + j] for i < rows, j < columns, j ascending. Up to seven
     * zeros may follow each of dst's rows, unless they are dense: dst_ld = rows, at most 8. */
    void (*transpose)(int64_t rows, int64_t columns, const float *src, int64_t src_ld, float *dst,
                      int64_t dst_ld);
} mn_planes_kernels;

extern const mn_planes_kernels mn_planes_portable;
extern const mn_planes_kernels mn_planes_avx2;
extern const mn_planes_kernels mn_planes_avx512;
void mn_planes_transpose_avx2(int64_t rows, int64_t columns, const float *src, int64_t src_ld,
                              float *dst, int64_t dst_ld);

#endif
