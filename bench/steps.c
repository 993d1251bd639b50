/* Whole training steps of models with two kernel sets in turns: medians and, for a busy machine,
 * the shortest steps; and how many times as fast the second set is. Usage: steps [rounds] [batch]
 * [steps of a round] [model] */
#include "bench/median.h"
#include "core/core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define MAX_ROUNDS   99

static const mn_kernel_set sets[2] = {MN_KERNELS_AVX2, MN_KERNELS_AVX512};

static const struct model {
    const char *name;
    int side, channels;
} models[] = {{"lenet5", 28, 1}, {"cnn-small", 28, 1}, {"resnet8", 32, 3}, {"resnet18", 32, 3}};

static void measure(const struct model *model, mn_dtype amp, int rounds, int64_t batch,
                    int64_t steps)
{
    double times[2][MAX_ROUNDS], ratios[MAX_ROUNDS], least[2] = {1e30, 1e30};
    mn_bench_options o = mn_bench_options_default();
    o.model = model->name;
    o.height = o.width = model->side;
    o.channels = model->channels;
    o.amp = amp;
    o.batch = batch;
    o.steps = steps;
    o.warmup = 1;
    for (int i = 0; i < rounds; i++) {
        for (int s = 0; s < 2; s++) {
            mn_bench_result r;
            mn_error error;
            o.context.kernels = sets[s];
            if (mn_bench(&o, &r, &error) != MN_OK) {
                fprintf(stderr, "%s\n", error.message);
                exit(EXIT_FAILURE);
            }
            times[s][i] = r.step_ms_median;
            least[s] = r.step_ms_min < least[s] ? r.step_ms_min : least[s];
        }
        ratios[i] = times[0][i] / times[1][i];
    }
    printf("%-10s %-5s %9.2f %9.2f ms  x%.3f", model->name, mn_dtype_name(amp),
           median(times[0], rounds), median(times[1], rounds), median(ratios, rounds));
    printf(" (%.3f to %.3f); shortest %.2f %.2f ms  x%.3f\n", ratios[0], ratios[rounds - 1],
           least[0], least[1], least[0] / least[1]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 5;
    const int64_t batch = argc > 2 ? atoi(argv[2]) : 64, steps = argc > 3 ? atoi(argv[3]) : 10;
    if (rounds < 1 || rounds > MAX_ROUNDS || batch < 1 || steps < 1 ||
        !mn_cpu_has_kernels(MN_KERNELS_AVX512)) {
        fprintf(stderr, "usage: %s [rounds] [batch] [steps] [model], on a processor with AVX-512\n",
                argv[0]);
        return EXIT_FAILURE;
    }
    printf("batch %d, %d rounds of %d steps: medians with avx2 and avx512\n", (int)batch, rounds,
           (int)steps);
    for (size_t m = 0; m < COUNT(models); m++) {
        if (argc > 4 && strcmp(argv[4], models[m].name) != 0)
            continue;
        measure(&models[m], MN_F32, rounds, batch, steps);
        measure(&models[m], MN_BF16, rounds, batch, steps);
    }
    return EXIT_SUCCESS;
}
