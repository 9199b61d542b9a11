/* The floating-point state that every result assumes: round to nearest, subnormals kept, no traps.
 *
 * A host process may have loaded a library that sets flush-to-zero, or changed the rounding mode.
 * Every entry point and every worker thread brackets its work: const uint32_t saved =
 * mok_fpenv_enter();
 *     ...
 *     mok_fpenv_leave(saved);
 * Both are calls' distance from the arithmetic (kernels live in other translation units), so a
 * compiler cannot move any of it across them. */
#ifndef MOK_CORE_FPENV_H
#define MOK_CORE_FPENV_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

#define MOK_FPENV_FLAGS 0x003Fu   /* sticky exception flags, which do not change results */
#define MOK_FPENV_DEFAULT 0x1F80u /* all exceptions masked, nearest, FTZ = DAZ = 0 */

static inline uint32_t mok_fpenv_enter(void)
{
    const uint32_t saved = _mm_getcsr();
    if ((saved & ~MOK_FPENV_FLAGS) != MOK_FPENV_DEFAULT) {
        _mm_setcsr(MOK_FPENV_DEFAULT);
    }
    return saved;
}

static inline void mok_fpenv_leave(uint32_t saved)
{
    if ((saved & ~MOK_FPENV_FLAGS) != MOK_FPENV_DEFAULT) {
        _mm_setcsr(saved);
    }
}

#else
#include <fenv.h>

/* Elsewhere C gives the rounding mode; flush-to-zero is off unless a process asks for it. */
static inline uint32_t mok_fpenv_enter(void)
{
    const int saved = fegetround();
    if (saved != FE_TONEAREST) {
        (void)fesetround(FE_TONEAREST);
    }
    return (uint32_t)saved;
}

static inline void mok_fpenv_leave(uint32_t saved)
{
    if ((int)saved != FE_TONEAREST) {
        (void)fesetround((int)saved);
    }
}

#endif
#endif
