/* Reference kernels of convolution (cross-correlation) and its two adjoints. All three visit the
 * same triples of elements: y[n,p,q,k], x[n,h,w,c] and w[k,r,s,c'], where h = p stride - padding +
 * r dilation and likewise w; input channel c is channel c' of the group that k belongs to. */
#include "ops/reference/reference.h"

typedef struct geometry {
    const mn_conv2d_attributes *a;
    int64_t N, H, W, C, K, R, S, P, Q;
} geometry;

static geometry geometry_of(const mn_call *call, const mn_view *x, const mn_view *w,
                            const mn_view *y)
{
    return (geometry){(const void *)call->attributes.bytes,
                      x->shape[0],
                      x->shape[1],
                      x->shape[2],
                      x->shape[3],
                      w->shape[0],
                      w->shape[1],
                      w->shape[2],
                      y->shape[1],
                      y->shape[2]};
}

/* One term of the sums: indices of elements of x, w and y. */
typedef struct term {
    int64_t x, w, y;
} term;
typedef void (*term_fn)(term t, const double *left, const double *right, double *sum);

/* Calls term for all (r, s, c') of the output element [n, p, q, k]. */
static void visit_window(const geometry *g, const int64_t y[4], term_fn visit,
                         const double *operands[2], double *sum)
{
    const mn_conv2d_attributes *a = g->a;
    const int64_t n = y[0], p = y[1], q = y[2], k = y[3];
    const int64_t per_group = g->C / a->groups, group = k / (g->K / a->groups);
    for (int64_t r = 0; r < g->R; r++)
        for (int64_t s = 0; s < g->S; s++) {
            const int64_t h = p * a->stride[0] - a->padding[0] + r * a->dilation[0];
            const int64_t w = q * a->stride[1] - a->padding[1] + s * a->dilation[1];
            if (h < 0 || h >= g->H || w < 0 || w >= g->W)
                continue;
            for (int64_t c = 0; c < per_group; c++) {
                term t = {((n * g->H + h) * g->W + w) * g->C + group * per_group + c,
                          ((k * g->R + r) * g->S + s) * per_group + c,
                          ((n * g->P + p) * g->Q + q) * g->K + k};
                visit(t, operands[0], operands[1], sum);
            }
        }
}

static void visit_all(const geometry *g, term_fn visit, const double *left, const double *right,
                      double *sum)
{
    const int64_t shape[4] = {g->N, g->P, g->Q, g->K};
    const double *operands[2] = {left, right};
    int64_t index[4];
    for (int64_t i = 0; i < g->N * g->P * g->Q * g->K; i++) {
        mn_ref_unravel(i, 4, shape, index);
        visit_window(g, index, visit, operands, sum);
    }
}

static void add_to_y(term t, const double *x, const double *w, double *y)
{
    y[t.y] += x[t.x] * w[t.w];
}

static void add_to_x(term t, const double *g, const double *w, double *dx)
{
    dx[t.x] += g[t.y] * w[t.w];
}

static void add_to_w(term t, const double *g, const double *x, double *dw)
{
    dw[t.w] += g[t.y] * x[t.x];
}

/* y[n,p,q,k] = b[k] + sum_{r,s,c'} x[n,h,w,c] w[k,r,s,c'] */
void mn_ref_conv2d(const mn_call *call, double *const in[], double *const out[])
{
    const geometry g = geometry_of(call, &call->in[0], &call->in[1], &call->out[0]);
    if (call->input_count > 2 && call->in[2].present)
        for (int64_t i = 0; i < call->out[0].numel; i++)
            out[0][i] = in[2][i % g.K];
    visit_all(&g, add_to_y, in[0], in[1], out[0]);
}

/* dx[n,h,w,c] = sum over the terms that hold x[n,h,w,c] of g[n,p,q,k] w[k,r,s,c'] */
void mn_ref_conv2d_backward_input(const mn_call *call, double *const in[], double *const out[])
{
    const geometry g = geometry_of(call, &call->out[0], &call->in[1], &call->in[0]);
    visit_all(&g, add_to_x, in[0], in[1], out[0]);
}

/* dw[k,r,s,c'] = sum over the terms that hold w[k,r,s,c'] of g[n,p,q,k] x[n,h,w,c] */
void mn_ref_conv2d_backward_weight(const mn_call *call, double *const in[], double *const out[])
{
    const geometry g = geometry_of(call, &call->in[1], &call->out[0], &call->in[0]);
    visit_all(&g, add_to_w, in[0], in[1], out[0]);
}
