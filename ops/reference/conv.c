/* Reference kernels of convolution (cross-correlation) and its two adjoints. All three visit the
 * same triples of elements: y[n,p,q,k], x[n,h,w,c] and w[k,r,s,c'], where h = p stride - padding +
 * r dilation and likewise w; input channel c is channel c' of the group that k belongs to. */
#include "ops/reference/reference.h"

/* Indices of elements of x, w and y: a term of the sums. */
typedef struct term {
    int64_t x, w, y;
} term;
/* Adds a term to the result. */
typedef void (*visit_fn)(term t, double *const in[], double *out);

/* The terms of y[n,p,q,k]. */
static void visit_window(const mn_call *call, const mn_view *x, const mn_view *w, const mn_view *y,
                         int64_t at, visit_fn visit, double *const in[], double *out)
{
    const mn_conv2d_attributes *a = (const void *)call->attributes.bytes;
    const int64_t K = y->shape[3], Q = y->shape[2], P = y->shape[1], C = w->shape[3];
    const int64_t k = at % K, q = at / K % Q, p = at / K / Q % P, n = at / K / Q / P;
    const int64_t first = k / (K / a->groups) * C; /* channel of x */
    for (int64_t r = 0; r < w->shape[1]; r++)
        for (int64_t s = 0; s < w->shape[2]; s++) {
            const int64_t row = p * a->stride[0] - a->padding[0] + r * a->dilation[0];
            const int64_t column = q * a->stride[1] - a->padding[1] + s * a->dilation[1];
            if (row < 0 || row >= x->shape[1] || column < 0 || column >= x->shape[2])
                continue;
            term t = {((n * x->shape[1] + row) * x->shape[2] + column) * x->shape[3] + first,
                      ((k * w->shape[1] + r) * w->shape[2] + s) * C, at};
            for (int64_t c = 0; c < C; c++, t.x++, t.w++)
                visit(t, in, out);
        }
}

static void visit_all(const mn_call *call, const mn_view *x, const mn_view *w, const mn_view *y,
                      visit_fn visit, double *const in[], double *out)
{
    for (int64_t at = 0; at < y->numel; at++)
        visit_window(call, x, w, y, at, visit, in, out);
}

static void add_to_y(term t, double *const in[], double *y)
{
    y[t.y] += in[0][t.x] * in[1][t.w];
}

static void add_to_x(term t, double *const in[], double *dx)
{
    dx[t.x] += in[0][t.y] * in[1][t.w];
}

static void add_to_w(term t, double *const in[], double *dw)
{
    dw[t.w] += in[0][t.y] * in[1][t.x];
}

/* y[n,p,q,k] = b[k] + sum_{r,s,c'} x[n,h,w,c] w[k,r,s,c'] */
void mn_ref_conv2d(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *y = &call->out[0];
    for (int64_t i = 0; i < y->numel && mn_has_input(call, 2); i++)
        out[0][i] = in[2][i % y->shape[3]];
    visit_all(call, &call->in[0], &call->in[1], y, add_to_y, in, out[0]);
}

void mn_ref_conv2d_relu(const mn_call *call, double *const in[], double *const out[])
{
    mn_ref_conv2d(call, in, out);
    mn_ref_finish_relu(call, NULL, out[0]);
}

/* dx[n,h,w,c] = sum over the terms that hold x[n,h,w,c] of g[n,p,q,k] w[k,r,s,c'] */
void mn_ref_conv2d_backward_input(const mn_call *call, double *const in[], double *const out[])
{
    visit_all(call, &call->out[0], &call->in[1], &call->in[0], add_to_x, in, out[0]);
}

/* dw[k,r,s,c'] = sum over the terms that hold w[k,r,s,c'] of g[n,p,q,k] x[n,h,w,c] */
void mn_ref_conv2d_backward_weight(const mn_call *call, double *const in[], double *const out[])
{
    visit_all(call, &call->in[1], &call->out[0], &call->in[0], add_to_w, in, out[0]);
}
