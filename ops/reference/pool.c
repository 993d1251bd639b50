/* Reference kernels of pooling and resizing. Images are [N,H,W,C]. */
#include "ops/reference/reference.h"

/* Where the part of a window that lies inside of an image begins and ends: kernels of any size cost
 * no more than the image. */
static int64_t start(int64_t first)
{
    return first > 0 ? first : 0;
}

static int64_t end(int64_t first, int64_t kernel, int64_t extent)
{
    return first + kernel < extent ? first + kernel : extent;
}

/* Element of x in the window of y's element `at` that is its maximum: the first NaN, else the first
 * largest. -1: the window lies outside of the image. Padding never wins. */
static int64_t window_maximum(const mn_call *call, const mn_view *view, const double *x,
                              const mn_view *y, int64_t at)
{
    const mn_pool2d_attributes *a = (const void *)call->attributes.bytes;
    const int64_t H = view->shape[1], W = view->shape[2], C = view->shape[3];
    const int64_t c = at % C, q = at / C % y->shape[2], p = at / C / y->shape[2] % y->shape[1];
    const int64_t n = at / C / y->shape[2] / y->shape[1];
    const int64_t top = p * a->stride[0] - a->padding[0];
    const int64_t left = q * a->stride[1] - a->padding[1];
    int64_t best = -1;
    for (int64_t h = start(top); h < end(top, a->kernel[0], H); h++)
        for (int64_t w = start(left); w < end(left, a->kernel[1], W); w++) {
            const int64_t i = ((n * H + h) * W + w) * C + c;
            if (best < 0 || (!mn_isnan_f64(x[best]) && (mn_isnan_f64(x[i]) || x[i] > x[best])))
                best = i;
        }
    return best;
}

/* y[n,p,q,c] = max over the window of x[n,h,w,c] */
void mn_ref_max_pool2d(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *y = &call->out[0];
    for (int64_t i = 0; i < y->numel; i++) {
        const int64_t best = window_maximum(call, &call->in[0], in[0], y, i);
        out[0][i] = best < 0 ? (double)-INFINITY : in[0][best];
    }
}

/* dx = sum of g over the windows whose maximum x is   (inputs g, x) */
void mn_ref_max_pool2d_backward(const mn_call *call, double *const in[], double *const out[])
{
    const mn_view *g = &call->in[0];
    for (int64_t i = 0; i < g->numel; i++) {
        const int64_t best = window_maximum(call, &call->in[1], in[1], g, i);
        if (best >= 0)
            out[0][best] += in[0][i];
    }
}

/* y[at] = mean of the window's pixels of x, or its adjoint, which spreads y[at] over them. */
static void average_window(const mn_call *call, const mn_view *image, double *x,
                           const mn_view *view, double *y, int64_t at, bool adjoint)
{
    const mn_pool2d_attributes *a = (const void *)call->attributes.bytes;
    const int64_t H = image->shape[1], W = image->shape[2], C = image->shape[3];
    const int64_t P = view->shape[1], Q = view->shape[2];
    const int64_t top = at / C / Q % P * a->stride[0] - a->padding[0];
    const int64_t left = at / C % Q * a->stride[1] - a->padding[1];
    int64_t inside = 0;
    for (int pass = 0; pass < 2; pass++) {
        const int64_t all = a->kernel[0] * a->kernel[1];
        const double count = (double)(a->exclude_padding ? inside : all);
        for (int64_t h = start(top); h < end(top, a->kernel[0], H); h++)
            for (int64_t w = start(left); w < end(left, a->kernel[1], W); w++) {
                const int64_t i = ((at / C / Q / P * H + h) * W + w) * C + at % C;
                if (pass == 0)
                    inside++;
                else if (adjoint)
                    x[i] += y[at] / count;
                else
                    y[at] += x[i] / count;
            }
    }
}

/* y[n,p,q,c] = 1/count sum over the window of x[n,h,w,c]; or the gradient, dx = sum of g / count
 * over the windows that x lies in */
void mn_ref_avg_pool2d(const mn_call *call, double *const in[], double *const out[])
{
    const bool adjoint = call->op == &mn_ops[MN_OP_avg_pool2d_backward];
    const mn_view *x = adjoint ? &call->out[0] : &call->in[0];
    const mn_view *y = adjoint ? &call->in[0] : &call->out[0];
    for (int64_t i = 0; i < y->numel; i++)
        average_window(call, x, adjoint ? out[0] : in[0], y, adjoint ? in[0] : out[0], i, adjoint);
}

/* y[n,p,q,c] = sum over taps of weight x[n,h,w,c] for pixel `at` of y, or the adjoint. */
static void resize_pixel(const mn_call *call, const mn_view *image, double *x, double *y,
                         int64_t at, bool adjoint)
{
    const mn_resize_attributes *a = (const void *)call->attributes.bytes;
    const int64_t H = image->shape[1], W = image->shape[2], C = image->shape[3];
    const int64_t Q = a->size[1], P = a->size[0];
    const mn_taps rows = mn_resize_taps(a, 0, H, at / C / Q % P);
    const mn_taps columns = mn_resize_taps(a, 1, W, at / C % Q);
    for (int r = 0; r < rows.count; r++)
        for (int s = 0; s < columns.count; s++) {
            const double weight = rows.weight[r] * columns.weight[s];
            const int64_t pixel = (at / C / Q / P * H + rows.index[r]) * W + columns.index[s];
            double *from = adjoint ? y + at : x + pixel * C + at % C;
            double *to = adjoint ? x + pixel * C + at % C : y + at;
            *to += weight * *from;
        }
}

void mn_ref_upsample2d(const mn_call *call, double *const in[], double *const out[])
{
    const bool adjoint = call->op == &mn_ops[MN_OP_upsample2d_backward];
    const mn_view *x = adjoint ? &call->out[0] : &call->in[0];
    const mn_view *y = adjoint ? &call->in[0] : &call->out[0];
    for (int64_t i = 0; i < y->numel; i++)
        resize_pixel(call, x, adjoint ? out[0] : in[0], adjoint ? in[0] : out[0], i, adjoint);
}
