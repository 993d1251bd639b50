/* The floating-point mode of the library: round to nearest even, subnormals kept, no traps. */
#include "core/cpu.h"

#if defined(__x86_64__) || defined(__SSE__)
#include <xmmintrin.h>

/* All exceptions masked, round to nearest, neither flush-to-zero nor denormals-are-zero. */
#define MXCSR_DEFAULT 0x1F80U

unsigned mn_fp_enter(void)
{
    unsigned mode = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
    return mode;
}

void mn_fp_restore(unsigned mode)
{
    _mm_setcsr(mode);
}

#elif defined(__aarch64__)

/* Every mode bit in use lies in the low 32; all clear is round to nearest, nothing flushed. */
unsigned mn_fp_enter(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return (unsigned)mode;
}

void mn_fp_restore(unsigned mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)mode));
}

#else
#include <fenv.h>

unsigned mn_fp_enter(void)
{
    int mode = fegetround();
    fesetround(FE_TONEAREST);
    return (unsigned)mode;
}

void mn_fp_restore(unsigned mode)
{
    fesetround((int)mode);
}

#endif
