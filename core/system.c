/* core/system.c: the clock, the process's memory, and threads. */
#define _DEFAULT_SOURCE /* madvise */
#include "core/base.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>

/* Smaller blocks would hold too much more than is used. */
#define HUGE_LEAST ((size_t)4 << 20)

double mn_clock_seconds(void)
{
    struct timespec now;
    if (clock_gettime(CLOCK_MONOTONIC, &now) != 0)
        return 0.0;
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t mn_peak_rss(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0 || usage.ru_maxrss < 0)
        return 0;
#if defined(__APPLE__)
    return (uint64_t)usage.ru_maxrss;
#else
    return (uint64_t)usage.ru_maxrss * 1024;
#endif
}

void mn_prefer_huge_pages(void *memory, size_t bytes)
{
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const size_t huge = (size_t)2 << 20;
    const size_t skip = (huge - (uintptr_t)memory % huge) % huge;
    if (bytes >= HUGE_LEAST)
        madvise((char *)memory + skip, (bytes - skip) / huge * huge, MADV_HUGEPAGE);
#else
    (void)memory;
    (void)bytes;
#endif
}

int mn_thread_start(pthread_t *thread, void *(*run)(void *argument), void *argument)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    int code = pthread_sigmask(SIG_SETMASK, &blocked, &before);
    if (code != 0)
        return code;
    code = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
