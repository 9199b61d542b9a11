/* Which instruction sets this CPU and its operating system offer to the kernel tables. */
#ifndef MOK_CORE_CPU_FEATURES_H
#define MOK_CORE_CPU_FEATURES_H

#include <stdbool.h>

bool mok_cpu_has_avx2(void);   /* AVX2 and FMA */
bool mok_cpu_has_avx512(void); /* those and AVX-512 F, BW, DQ, VL */

#endif
