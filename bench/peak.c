/* bench/peak.c: loops of nothing but multiply-adds, and of nothing but memory. */
#include "bench/peak.h"
#include "ops/kernels.h"

#include <stdlib.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define MAX_THREADS 64

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- multiply-adds --------------------------------------------------------------------------- */

#define PEAK_STEPS 2000000
#define PEAK_SUMS  12

/* Sums start from different values, or the compiler computes equal ones once. */
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void peak_avx2(void *arg, int64_t index, int slot)
{
    (void)slot;
    float *memory = arg;
    const __m256 a = _mm256_set1_ps(memory[0]), b = _mm256_set1_ps(memory[1]);
    __m256 s[PEAK_SUMS];
    for (int j = 0; j < PEAK_SUMS; j++)
        s[j] = _mm256_set1_ps((float)j);
    for (int i = 0; i < PEAK_STEPS; i++)
        for (int j = 0; j < PEAK_SUMS; j++)
            s[j] = _mm256_fmadd_ps(s[j], a, b);
    for (int j = 1; j < PEAK_SUMS; j++)
        s[0] = _mm256_add_ps(s[0], s[j]);
    _mm256_storeu_ps(memory + 8 + 8 * index, s[0]);
}

__attribute__((target("avx512f"))) static void peak_avx512(void *arg, int64_t index, int slot)
{
    (void)slot;
    float *memory = arg;
    const __m512 a = _mm512_set1_ps(memory[0]), b = _mm512_set1_ps(memory[1]);
    __m512 s[PEAK_SUMS];
    for (int j = 0; j < PEAK_SUMS; j++)
        s[j] = _mm512_set1_ps((float)j);
    for (int i = 0; i < PEAK_STEPS; i++)
        for (int j = 0; j < PEAK_SUMS; j++)
            s[j] = _mm512_fmadd_ps(s[j], a, b);
    for (int j = 1; j < PEAK_SUMS; j++)
        s[0] = _mm512_add_ps(s[0], s[j]);
    _mm512_storeu_ps(memory + 16 + 16 * index, s[0]);
}
#endif

static void peak_portable(void *arg, int64_t index, int slot)
{
    (void)slot;
    float *memory = arg;
    const float a = memory[0], b = memory[1];
    float s[PEAK_SUMS][4];
    for (int j = 0; j < PEAK_SUMS * 4; j++)
        s[j / 4][j % 4] = (float)j;
    for (int i = 0; i < PEAK_STEPS; i++)
        for (int j = 0; j < PEAK_SUMS; j++)
            for (int k = 0; k < 4; k++)
                s[j][k] = s[j][k] * a + b;
    for (int j = 1; j < PEAK_SUMS; j++)
        s[0][0] += s[j][0] + s[j][1] + s[j][2] + s[j][3];
    memory[8 + 8 * index] = s[0][0];
}

double mn_peak_gflops(mn_workers *workers, int threads)
{
    float memory[16 + 16 * MAX_THREADS] = {0.5F, 0.25F};
    void (*task)(void *, int64_t, int) = peak_portable;
    double lanes = 4, best = 0;
    threads = threads < MAX_THREADS ? threads : MAX_THREADS;
#if defined(__x86_64__)
    if (mn_cpu_has_kernels(MN_KERNELS_AVX512)) {
        task = peak_avx512;
        lanes = 16;
    } else if (mn_cpu_has_kernels(MN_KERNELS_AVX2)) {
        task = peak_avx2;
        lanes = 8;
    }
#endif
    for (int i = 0; i < 5; i++) {
        double start = now();
        mn_workers_run(workers, threads, task, memory);
        double flops = 2.0 * PEAK_SUMS * PEAK_STEPS * lanes;
        double rate = flops * threads / (now() - start) / 1e9;
        best = rate > best ? rate : best;
    }
    return best;
}

/* ---- memory ---------------------------------------------------------------------------------- */

#define TRIAD_FLOATS ((size_t)32 << 20)
#define TRIAD_TASKS  64

static void triad(void *arg, int64_t index, int slot)
{
    (void)slot;
    const size_t part = TRIAD_FLOATS / TRIAD_TASKS;
    const float *a = (float *)arg + (size_t)index * part, *b = a + TRIAD_FLOATS;
    float *restrict c = (float *)arg + 2 * TRIAD_FLOATS + (size_t)index * part;
    for (size_t i = 0; i < part; i++)
        c[i] = a[i] + 0.5F * b[i];
}

static void clear(void *arg, int64_t index, int slot)
{
    (void)slot;
    const size_t part = 3 * TRIAD_FLOATS / TRIAD_TASKS;
    for (size_t i = 0; i < part; i++)
        ((float *)arg)[(size_t)index * part + i] = 1;
}

double mn_peak_gbytes(mn_workers *workers)
{
    double best = 0;
    float *memory = malloc(3 * TRIAD_FLOATS * sizeof *memory);
    if (!memory)
        return 0;
    mn_workers_run(workers, TRIAD_TASKS, clear, memory);
    for (int i = 0; i < 5; i++) {
        double start = now();
        mn_workers_run(workers, TRIAD_TASKS, triad, memory);
        double rate = 3e-9 * (double)(TRIAD_FLOATS * sizeof *memory) / (now() - start);
        best = rate > best ? rate : best;
    }
    free(memory);
    return best;
}
