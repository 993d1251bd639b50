/* Runs examples/infer.c, in which main is called infer_main and mn_context_free infer_done, and
 * checks what the program took beyond weights and activations. For check_examples.sh. */
#include "minim.h"

#include <stdio.h>
#include <stdlib.h>

#define MOST 3000000

int infer_main(int argc, char **argv);
void infer_done(mn_context *context);

static long long tensor_bytes;

void infer_done(mn_context *context)
{
    tensor_bytes = (long long)mn_memory_stats_get(context).peak_bytes;
    mn_context_free(context);
}

/* The most that was ever resident. */
static long long resident_bytes(void)
{
    char line[256];
    long long kibibytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "VmHWM: %lld", &kibibytes);
    if (status)
        fclose(status);
    return 1024 * kibibytes;
}

int main(int argc, char **argv)
{
    int result = infer_main(argc, argv);
    long long resident = resident_bytes(), rest = resident - tensor_bytes;
    printf("%lld bytes, %lld of them weights and activations, %lld beyond (at most %d)\n", resident,
           tensor_bytes, rest, MOST);
    if (resident == 0 || tensor_bytes == 0 || rest >= MOST)
        return EXIT_FAILURE;
    return result;
}
