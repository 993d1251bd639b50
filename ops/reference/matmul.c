/* Reference kernels of matrix products. */
#include "ops/reference/reference.h"

/* Where the matrix starts that `view` brings to matrix `index` of y; leading axes are broadcast. */
static int64_t matrix_start(const mn_view *view, const mn_view *y, const int64_t *index)
{
    mn_view leading = *view;
    leading.ndim -= 2;
    return mn_ref_broadcast(&leading, y->ndim - 2, index) * view->shape[view->ndim - 2] *
           view->shape[view->ndim - 1];
}

/* Element [row, column] of a matrix with `width` columns, or of its transpose. */
static int64_t at(int64_t row, int64_t column, int64_t width, int64_t transposed)
{
    return transposed ? column * width + row : row * width + column;
}

/* y[..., m, n] = sum_k a[..., m, k] b[..., k, n]; a and b each optionally transposed */
void mn_ref_matmul(const mn_call *call, double *const in[], double *const out[])
{
    const mn_matmul_attributes *t = (const void *)call->attributes.bytes;
    const mn_view *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    const int64_t M = y->shape[y->ndim - 2], N = y->shape[y->ndim - 1];
    const int64_t K = a->shape[a->ndim - (t->transpose_a ? 2 : 1)];
    const int64_t a_width = a->shape[a->ndim - 1], b_width = b->shape[b->ndim - 1];
    int64_t index[MN_MAX_DIMS];
    for (int64_t i = 0; i < y->numel; i++) {
        mn_ref_unravel(i, y->ndim, y->shape, index);
        const double *am = in[0] + matrix_start(a, y, index);
        const double *bm = in[1] + matrix_start(b, y, index);
        const int64_t m = i / N % M, n = i % N;
        for (int64_t k = 0; k < K; k++)
            out[0][i] +=
                am[at(m, k, a_width, t->transpose_a)] * bm[at(k, n, b_width, t->transpose_b)];
    }
}

/* y[..., o] = sum_i x[..., i] w[o, i] + b[o] */
void mn_ref_linear(const mn_call *call, double *const in[], double *const out[])
{
    const int64_t O = call->in[1].shape[0], I = call->in[1].shape[1];
    const bool has_bias = call->input_count > 2 && call->in[2].present;
    for (int64_t j = 0; j < call->out[0].numel; j++) {
        const int64_t row = j / O, o = j % O;
        double sum = has_bias ? in[2][o] : 0;
        for (int64_t i = 0; i < I; i++)
            sum += in[0][row * I + i] * in[1][o * I + i];
        out[0][j] = sum;
    }
}
