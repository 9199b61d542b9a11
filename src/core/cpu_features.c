/* CPU detection through the compiler's own CPUID reader, which also asks XGETBV whether the
 * operating system saves the wide registers; a CPU that has AVX-512 under a kernel that does not is
 * reported without. */
#include "core/cpu_features.h"

#if defined(__x86_64__)

bool mok_cpu_has_avx2(void)
{
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

bool mok_cpu_has_avx512(void)
{
    return mok_cpu_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

#else

bool mok_cpu_has_avx2(void)
{
    return false;
}

bool mok_cpu_has_avx512(void)
{
    return false;
}

#endif
