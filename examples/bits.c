/* The bits of f32, f16 and bf16: what becomes of a number, its neighbors, and how far apart they
 * are. Usage: bits [NUMBER...], as strtod reads them: 0.1, 0x1p-25, inf, nan. */
#include <math.h>
#include <minim.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct format {
    mn_dtype dtype;
    int exponent, fraction, bias; /* bits of exponent and fraction */
    uint32_t infinity;
} format;
static const format formats[] = {
    {MN_F32, 8, 23, 127, 0x7F800000}, {MN_F16, 5, 10, 15, 0x7C00}, {MN_BF16, 8, 7, 127, 0x7F80}};

static uint32_t encode(const format *f, double x)
{
    float single = (float)x;
    uint32_t bits = 0;
    memcpy(&bits, &single, sizeof bits);
    return f->dtype == MN_F32   ? bits
           : f->dtype == MN_F16 ? mn_f16_from_f64(x).bits
                                : mn_bf16_from_f64(x).bits;
}

static double decode(const format *f, uint32_t bits)
{
    float single = 0;
    memcpy(&single, &bits, sizeof single);
    return (double)(f->dtype == MN_F32   ? single
                    : f->dtype == MN_F16 ? mn_f16_to_f32((mn_f16){(uint16_t)bits})
                                         : mn_bf16_to_f32((mn_bf16){(uint16_t)bits}));
}

/* Halfway between two numbers the one whose last bit is 0 is taken: nearest, ties to even. */
static void describe_format(const format *f)
{
    double s = decode(f, encode(f, 1) + 1) - 1;
    printf("%-4s 1 + %d + %d bits, largest %.6g, smallest normal %.6g, subnormal %.6g\n",
           mn_dtype_name(f->dtype), f->exponent, f->fraction, decode(f, f->infinity - 1),
           decode(f, 1U << f->fraction), decode(f, 1));
    printf("     s = %.6g above 1: 1 + s/2 gives 1 + %gs, 1 + 3s/2 gives 1 + %gs\n", s,
           (decode(f, encode(f, 1 + s / 2)) - 1) / s, (decode(f, encode(f, 1 + 1.5 * s)) - 1) / s);
}

static void describe(const format *f, double x)
{
    uint32_t bits = encode(f, x), sign = 1U << (f->exponent + f->fraction), size = bits & ~sign;
    int field = (int)(size >> f->fraction), exponent = (field > 0 ? field : 1) - f->bias;
    double value = decode(f, bits), next = decode(f, bits + 1);
    printf("  %-4s ", mn_dtype_name(f->dtype));
    for (int i = f->exponent + f->fraction; i >= 0; i--)
        printf(i == f->exponent + f->fraction || i == f->fraction ? "%d " : "%d", bits >> i & 1);
    printf("%*s%.9g", 32 - f->exponent - f->fraction, "", value);
    if (size >= f->infinity) { /* no step leads on from here */
        printf(isfinite(x) ? ", overflow\n" : "\n");
        return;
    }
    printf(" = %.7g x 2^%d%s", ldexp(value, -exponent), exponent,
           size > 0 && field == 0 ? " (subnormal)" : "");
    printf(", off by %.3g, between %.9g and %.9g, step %.3g\n", value - x,
           decode(f, size > 0 ? bits - 1 : (bits ^ sign) + 1), next, fabs(next - value));
}

int main(int argc, char **argv)
{
    static const char *const list[] = {"1",      "0.1",  "-2049",   "257",     "65504", "65519",
                                       "65520",  "1e-5", "0x1p-24", "0x1p-25", "3e-8",  "1e-40",
                                       "3.4e38", "-0",   "inf",     "nan"};
    int count = argc > 1 ? argc - 1 : (int)(sizeof list / sizeof *list);
    for (int k = 0; k < 3; k++)
        describe_format(&formats[k]);
    for (int i = 0; i < count; i++) {
        char *end = NULL;
        const char *text = argc > 1 ? argv[i + 1] : list[i];
        double x = strtod(text, &end);
        if (end == text || *end != '\0')
            return fprintf(stderr, "not a number: %s\n", text), 2;
        printf("%s\n", text);
        for (int k = 0; k < 3; k++)
            describe(&formats[k], x);
    }
    return 0;
}
