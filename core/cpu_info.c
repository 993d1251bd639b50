/* What this machine offers: processor name and features, usable processors, kernel sets. */
#define _GNU_SOURCE /* sched_getaffinity, CPU_COUNT */
#include "core/cpu.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
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

/* Those that the AVX-512 kernels need come first, before these those of AVX2's. */
enum { AVX2_NEEDS = 3, AVX512_NEEDS = 7 };
static const feature feature_list[] = {
    {"avx2", 7, 0, 1, 5, XCR0_AVX},           {"fma", 1, 0, 2, 12, XCR0_AVX},
    {"f16c", 1, 0, 2, 29, XCR0_AVX},          {"avx512f", 7, 0, 1, 16, XCR0_AVX512},
    {"avx512bw", 7, 0, 1, 30, XCR0_AVX512},   {"avx512dq", 7, 0, 1, 17, XCR0_AVX512},
    {"avx512vl", 7, 0, 1, 31, XCR0_AVX512},   {"avx512_vnni", 7, 0, 2, 11, XCR0_AVX512},
    {"avx512_bf16", 7, 1, 0, 5, XCR0_AVX512}, {"avx512_fp16", 7, 0, 3, 23, XCR0_AVX512},
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

#if defined(MINIM_AVX2)
/* The first `count` of the list. */
static bool has_features(int count)
{
    bool all = true;
    for (int i = 0; i < count; i++)
        all = all && has_feature(&feature_list[i]);
    return all;
}
#endif

/* Space-separated names of the features present, as many as fit. */
static void describe_features(char *text, size_t size)
{
    for (size_t i = 0; i < sizeof feature_list / sizeof *feature_list; i++) {
        size_t used = strlen(text);
        if (has_feature(&feature_list[i]) && used + strlen(feature_list[i].name) + 2 <= size)
            snprintf(text + used, size - used, "%s%s", used ? " " : "", feature_list[i].name);
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
#if defined(MINIM_AVX2)
    if (set == MN_KERNELS_AVX2)
        return has_features(AVX2_NEEDS);
    if (set == MN_KERNELS_AVX512)
        return has_features(AVX512_NEEDS);
#elif defined(MINIM_NEON)
    if (set == MN_KERNELS_NEON) /* a part of AArch64 */
        return true;
#endif
    return set == MN_KERNELS_AUTO || set == MN_KERNELS_REFERENCE || set == MN_KERNELS_PORTABLE;
}

mn_kernel_set mn_cpu_best_kernels(void)
{
    mn_kernel_set set = MN_KERNELS_COUNT - 1;
    while (!mn_cpu_has_kernels(set))
        set--;
    return set;
}

/* ---- name ------------------------------------------------------------------------------------ */

/* The value of the first /proc/cpuinfo line that names the processor. */
static void describe_by_proc(char *text, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (file && !*text && fgets(line, sizeof line, file)) {
        const char *value = strchr(line, ':');
        if (value && (!strncmp(line, "model name", 10) || !strncmp(line, "Hardware", 8) ||
                      !strncmp(line, "cpu model", 9) || !strncmp(line, "uarch", 5)))
            snprintf(text, size, "%s", value + 1);
    }
    if (file)
        fclose(file);
}

/* Copies printable text with runs of blanks made one and none at the ends. */
static void copy_trimmed(char *out, size_t size, const char *text)
{
    size_t used = 0;
    for (; *text && used + 1 < size; text++) {
        bool blank = *text <= ' ' || *text > '~';
        if (!blank)
            out[used++] = *text;
        else if (used > 0 && out[used - 1] != ' ')
            out[used++] = ' ';
    }
    out[used - (used > 0 && out[used - 1] == ' ')] = '\0';
}

void mn_cpu_describe(char *name, size_t name_size, char *features, size_t features_size)
{
    char text[256] = "";
    if (!describe_by_cpuid(text))
        describe_by_proc(text, sizeof text);
    if (name_size > 0)
        copy_trimmed(name, name_size, text);
    if (name_size > 0 && !*name)
        snprintf(name, name_size, "unknown");
    if (features_size > 0) {
        *features = '\0';
        describe_features(features, features_size);
    }
}

/* ---- usable processors ----------------------------------------------------------------------- */

/* Up to two whole numbers from a file of a group; how many there are. */
static int read_numbers(const char *before, const char *group, const char *after, long long *out)
{
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "/sys/fs/cgroup%s%s/%s", before, group, after);
    FILE *file = length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
    if (!file)
        return 0;
    int count = fscanf(file, "%18lld %18lld", &out[0], &out[1]);
    fclose(file);
    return count;
}

/* Processors that a group's quota of microseconds in every period buys, rounded up; INT_MAX: no
 * limit. Version 2 has one file, "max 100000" or "150000 100000", version 1 has two. */
static int group_quota(const char *group, bool v2)
{
    long long quota[3] = {0, 0, 0}; /* quota, period */
    if (v2) {
        read_numbers("", group, "cpu.max", quota);
    } else {
        read_numbers("/cpu", group, "cpu.cfs_quota_us", quota);
        read_numbers("/cpu", group, "cpu.cfs_period_us", quota + 1);
    }
    if (quota[0] <= 0 || quota[1] <= 0)
        return INT_MAX;
    long long count = quota[0] / quota[1] + (quota[0] % quota[1] != 0);
    return count < INT_MAX ? (int)count : INT_MAX;
}

/* Smallest limit of a group and of all groups above it; cuts `group` up. */
static int limit_upwards(char *group, bool v2)
{
    int least = INT_MAX;
    for (;;) {
        int here = group_quota(group, v2);
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
        bool v2 = *controllers == '\0';
        int limit = v2 || lists(controllers, "cpu") ? limit_upwards(group, v2) : INT_MAX;
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
