/* What a waiting loop does between two looks. */
#ifndef MOK_CORE_RELAX_H
#define MOK_CORE_RELAX_H

static inline void mok_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

#endif
