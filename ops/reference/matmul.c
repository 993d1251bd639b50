/* Reference kernels of matrix products. */
#include "ops/reference/reference.h"

/* Steps of matrix operand x for element [..., row, column] of y, or [..., column, row] if x is
 * transposed; returns its step along the axis that y has not. */
static int64_t operand_steps(const mn_view *x, int ndim, bool first, bool transposed, int64_t *step)
{
    const int64_t width = x->shape[x->ndim - 1], height = x->shape[x->ndim - 2];
    mn_view leading = *x;
    leading.ndim -= 2;
    mn_steps(&leading, ndim - 2, step);
    for (int d = 0; d < ndim - 2; d++)
        step[d] *= height * width;
    const int64_t row = transposed ? 1 : width, column = transposed ? width : 1;
    step[ndim - 2] = first ? row : 0;
    step[ndim - 1] = first ? 0 : column;
    return first ? column : row;
}

/* y[..., m, n] = sum_k a[..., m, k] b[..., k, n]; a and b each optionally transposed */
void mn_ref_matmul(const mn_call *call, double *const in[], double *const out[])
{
    const mn_matmul_attributes *t = (const void *)call->attributes.bytes;
    const mn_view *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
    const int64_t K = a->shape[a->ndim - (t->transpose_a ? 2 : 1)];
    int64_t a_step[MN_MAX_DIMS], b_step[MN_MAX_DIMS];
    const int64_t a_next = operand_steps(a, y->ndim, true, t->transpose_a != 0, a_step);
    const int64_t b_next = operand_steps(b, y->ndim, false, t->transpose_b != 0, b_step);
    for (int64_t i = 0; i < y->numel; i++) {
        const double *left = in[0] + mn_offset(i, y->ndim, y->shape, a_step);
        const double *right = in[1] + mn_offset(i, y->ndim, y->shape, b_step);
        for (int64_t k = 0; k < K; k++)
            out[0][i] += left[k * a_next] * right[k * b_next];
    }
}

/* y[..., o] = sum_i x[..., i] w[o, i] + b[o] */
void mn_ref_linear(const mn_call *call, double *const in[], double *const out[])
{
    const int64_t O = call->in[1].shape[0], I = call->in[1].shape[1];
    for (int64_t j = 0; j < call->out[0].numel; j++) {
        const int64_t row = j / O, o = j % O;
        double sum = mn_has_input(call, 2) ? in[2][o] : 0;
        for (int64_t i = 0; i < I; i++)
            sum += in[0][row * I + i] * in[1][o * I + i];
        out[0][j] = sum;
    }
}

void mn_ref_linear_relu(const mn_call *call, double *const in[], double *const out[])
{
    mn_ref_linear(call, in, out);
    mn_ref_finish_relu(call, NULL, out[0]);
}
