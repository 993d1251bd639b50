/* What this machine offers: processor name and features, usable processors, kernel sets. */
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#include "core/cpu.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#endif

/* ---- features -------------------------------------------------------------------------------- */

#if defined(__x86_64__) || defined(__i386__)

typedef struct feature {
    const char *name;
    unsigned leaf, subleaf;
    int word; /* 0: eax, 1: ebx, 2: ecx, 3: edx */
    int bit;
    unsigned xcr0; /* register state that the system must save for it */
} feature;

#define XCR0_AVX    0x06U
#define XCR0_AVX512 0xE6U

static const feature feature_list[] = {
    {"avx2", 7, 0, 1, 5, XCR0_AVX},
    {"fma", 1, 0, 2, 12, XCR0_AVX},
    {"f16c", 1, 0, 2, 29, XCR0_AVX},
    {"avx512f", 7, 0, 1, 16, XCR0_AVX512},
    {"avx512bw", 7, 0, 1, 30, XCR0_AVX512},
    {"avx512vl", 7, 0, 1, 31, XCR0_AVX512},
    {"avx512_vnni", 7, 0, 2, 11, XCR0_AVX512},
    {"avx512_bf16", 7, 1, 0, 5, XCR0_AVX512},
    {"avx512_fp16", 7, 0, 3, 23, XCR0_AVX512},
};

static unsigned system_saves(void)
{
    unsigned a, b, c, d;
    const unsigned osxsave = 1U << 27;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & osxsave))
        return 0;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static bool has_feature(const feature *f)
{
    unsigned words[4];
    if (!__get_cpuid_count(f->leaf, f->subleaf, &words[0], &words[1], &words[2], &words[3]))
        return false;
    return (words[f->word] >> f->bit & 1) && (system_saves() & f->xcr0) == f->xcr0;
}

/* Space-separated names of the features present, as many as fit. */
static void describe_features(char *text, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < sizeof feature_list / sizeof *feature_list; i++) {
        size_t length = strlen(feature_list[i].name);
        if (!has_feature(&feature_list[i]) || used + length + 2 > size)
            continue;
        if (used > 0)
            text[used++] = ' ';
        memcpy(text + used, feature_list[i].name, length + 1);
        used += length;
    }
}

static bool describe_by_cpuid(char text[49])
{
    unsigned words[12];
    for (unsigned i = 0; i < 3; i++) {
        unsigned *w = words + 4 * i;
        if (!__get_cpuid(0x80000002U + i, &w[0], &w[1], &w[2], &w[3]))
            return false;
    }
    memcpy(text, words, sizeof words);
    text[48] = '\0';
    return true;
}

#else

static void describe_features(char *text, size_t size)
{
#if defined(__aarch64__)
    snprintf(text, size, "neon");
#else
    (void)text, (void)size;
#endif
}

static bool describe_by_cpuid(char text[49])
{
    (void)text;
    return false;
}

#endif

bool mn_cpu_has_kernels(mn_kernel_set set)
{
    switch (set) {
    case MN_KERNELS_AUTO:
    case MN_KERNELS_REFERENCE:
    case MN_KERNELS_PORTABLE:
        return true;
    case MN_KERNELS_AVX2:
#if defined(__x86_64__)
        return has_feature(&feature_list[0]) && has_feature(&feature_list[1]) &&
               has_feature(&feature_list[2]);
#else
        return false;
#endif
    }
    return false;
}

mn_kernel_set mn_cpu_best_kernels(void)
{
    return mn_cpu_has_kernels(MN_KERNELS_AVX2) ? MN_KERNELS_AVX2 : MN_KERNELS_PORTABLE;
}

/* ---- name ------------------------------------------------------------------------------------ */

/* The value of the first /proc/cpuinfo line that names the processor. */
static bool describe_by_proc(char *text, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (!file)
        return false;
    bool found = false;
    char line[256];
    while (!found && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        found = value && (!strncmp(line, "model name", 10) || !strncmp(line, "Hardware", 8) ||
                          !strncmp(line, "cpu model", 9) || !strncmp(line, "uarch", 5));
        if (found)
            snprintf(text, size, "%s", value + 1);
    }
    fclose(file);
    return found;
}

/* Copies printable text with runs of blanks made one and none at the ends. */
static void copy_trimmed(char *out, size_t size, const char *text)
{
    size_t used = 0;
    bool blank = false;
    for (; *text; text++) {
        if (*text <= ' ' || *text > '~') {
            blank = used > 0;
            continue;
        }
        if (used + (size_t)blank + 2 > size)
            break;
        if (blank)
            out[used++] = ' ';
        blank = false;
        out[used++] = *text;
    }
    out[used] = '\0';
}

void mn_cpu_describe(char *name, size_t name_size, char *features, size_t features_size)
{
    if (name_size > 0) {
        char text[256];
        name[0] = '\0';
        if (describe_by_cpuid(text) || describe_by_proc(text, sizeof text))
            copy_trimmed(name, name_size, text);
        if (name[0] == '\0')
            snprintf(name, name_size, "unknown");
    }
    if (features_size > 0) {
        features[0] = '\0';
        describe_features(features, features_size);
    }
}

/* ---- usable processors ----------------------------------------------------------------------- */

#define GROUP_ROOT "/sys/fs/cgroup"

static bool read_text(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t length = fread(text, 1, size - 1, file);
    text[length] = '\0';
    fclose(file);
    return length > 0;
}

/* Processors that `quota` of every `period` microseconds buys, rounded up; INT_MAX: no limit. */
static int from_quota(long long quota, long long period)
{
    if (quota <= 0 || period <= 0)
        return INT_MAX;
    long long count = quota / period + (quota % period != 0);
    return count < INT_MAX ? (int)count : INT_MAX;
}

/* Limit of one group, version 2: "max 100000" or "150000 100000". */
static int limit_v2(const char *group)
{
    char path[PATH_MAX], text[128];
    int length = snprintf(path, sizeof path, GROUP_ROOT "%s/cpu.max", group);
    if (length < 0 || (size_t)length >= sizeof path || !read_text(path, text, sizeof text))
        return INT_MAX;
    char *rest;
    long long quota = strtoll(text, &rest, 10);
    return rest == text ? INT_MAX : from_quota(quota, strtoll(rest, NULL, 10));
}

static long long read_v1(const char *group, const char *file)
{
    char path[PATH_MAX], text[64];
    int length = snprintf(path, sizeof path, GROUP_ROOT "/cpu%s/cpu.cfs_%s_us", group, file);
    if (length < 0 || (size_t)length >= sizeof path || !read_text(path, text, sizeof text))
        return 0;
    return strtoll(text, NULL, 10);
}

static int limit_v1(const char *group)
{
    return from_quota(read_v1(group, "quota"), read_v1(group, "period"));
}

/* Smallest limit of a group and of all groups above it; cuts `group` up. */
static int limit_upwards(char *group, int (*limit)(const char *group))
{
    int least = INT_MAX;
    for (;;) {
        int here = limit(group);
        least = here < least ? here : least;
        char *end = strrchr(group, '/');
        if (!end)
            return least;
        *end = '\0';
    }
}

/* True if `name` is among the comma-separated controllers. */
static bool lists(const char *controllers, const char *name)
{
    size_t length = strlen(name);
    for (const char *c = controllers; c; c = strchr(c, ',')) {
        c += *c == ',';
        if (!strncmp(c, name, length) && (c[length] == ',' || c[length] == '\0'))
            return true;
    }
    return false;
}

/* Limit by control groups; lines of /proc/self/cgroup are "id:controllers:/group". Inside a
 * container the path may be the outer one; the root, tried last, is then the container's group. */
static int group_limit(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return INT_MAX;
    int least = INT_MAX;
    char line[PATH_MAX];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *controllers++ = '\0';
        *group++ = '\0';
        int limit = INT_MAX;
        if (*controllers == '\0')
            limit = limit_upwards(group, limit_v2);
        else if (lists(controllers, "cpu"))
            limit = limit_upwards(group, limit_v1);
        least = limit < least ? limit : least;
    }
    fclose(file);
    return least;
}

/* Counts the affinity mask, in a buffer that grows until the kernel's mask fits. */
static int affinity_count(void)
{
    for (size_t processors = CPU_SETSIZE; processors <= 1 << 18; processors *= 4) {
        cpu_set_t *set = CPU_ALLOC(processors);
        if (!set)
            break;
        size_t size = CPU_ALLOC_SIZE(processors);
        int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 && online < INT_MAX ? (int)online : 1;
}

int mn_cpu_available(void)
{
    int processors = affinity_count();
    int limit = group_limit();
    return limit < processors ? limit : processors;
}
