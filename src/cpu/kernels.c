/* Chooses the table of kernels. The only place outside cpu/x86 that knows which levels exist. */
#include "cpu/kernels.h"

#include "core/cpu_features.h"

const mok_kernels *mok_kernels_select(mok_level level)
{
    switch (level) {
    case MOK_LEVEL_REF:
        return &mok_kernels_ref;
#if defined(__x86_64__)
    case MOK_LEVEL_AVX2:
        return mok_cpu_has_avx2() ? &mok_kernels_avx2 : NULL;
    case MOK_LEVEL_AVX512:
        return mok_cpu_has_avx512() ? &mok_kernels_avx512 : NULL;
    case MOK_LEVEL_AUTO:
        if (mok_cpu_has_avx512()) {
            return &mok_kernels_avx512;
        }
        return mok_cpu_has_avx2() ? &mok_kernels_avx2 : &mok_kernels_ref;
#else
    case MOK_LEVEL_AUTO:
        return &mok_kernels_ref;
    case MOK_LEVEL_AVX2:
    case MOK_LEVEL_AVX512:
        return NULL;
#endif
    default:
        return NULL;
    }
}
