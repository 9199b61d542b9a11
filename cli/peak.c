/* The rate of fused multiply-adds of one core, from a loop that stays in registers. */
#include <math.h>

#include "products.h"

#define MIN_SECONDS 0.05
#define CHAINS 12 /* more than latency times width needs */
#define STEPS 20000

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx512f"))) static float spin_avx512(void)
{
    __m512 acc[CHAINS];
    const __m512 a = _mm512_set1_ps(0.999f);
    const __m512 b = _mm512_set1_ps(0.001f);
    for (int i = 0; i < CHAINS; i++) {
        acc[i] = _mm512_set1_ps((float)i);
    }
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < CHAINS; i++) {
            acc[i] = _mm512_fmadd_ps(acc[i], a, b);
        }
    }
    __m512 sum = acc[0];
    for (int i = 1; i < CHAINS; i++) {
        sum = _mm512_add_ps(sum, acc[i]);
    }
    return _mm512_reduce_add_ps(sum);
}

__attribute__((target("avx2,fma"))) static float spin_avx2(void)
{
    __m256 acc[CHAINS];
    float lanes[8];
    const __m256 a = _mm256_set1_ps(0.999f);
    const __m256 b = _mm256_set1_ps(0.001f);
    for (int i = 0; i < CHAINS; i++) {
        acc[i] = _mm256_set1_ps((float)i);
    }
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < CHAINS; i++) {
            acc[i] = _mm256_fmadd_ps(acc[i], a, b);
        }
    }
    __m256 sum = acc[0];
    for (int i = 1; i < CHAINS; i++) {
        sum = _mm256_add_ps(sum, acc[i]);
    }
    _mm256_storeu_ps(lanes, sum);
    return lanes[0];
}
#endif

static float spin_scalar(void)
{
    float acc[CHAINS];
    for (int i = 0; i < CHAINS; i++) {
        acc[i] = (float)i;
    }
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < CHAINS; i++) {
            acc[i] = fmaf(acc[i], 0.999f, 0.001f);
        }
    }
    return acc[0] + acc[CHAINS - 1];
}

double product_bench_peak(void)
{
    float (*spin)(void) = spin_scalar;
    int lanes = 1;
#if defined(__x86_64__)
    if (mok_level_available(MOK_LEVEL_AVX512)) {
        spin = spin_avx512;
        lanes = 16;
    } else if (mok_level_available(MOK_LEVEL_AVX2)) {
        spin = spin_avx2;
        lanes = 8;
    }
#endif
    volatile float keep = 0.0f;
    int count = 0;
    const double begin = group_now_s();
    double spent = 0.0;
    while (spent < MIN_SECONDS) {
        keep = keep + spin();
        count++;
        spent = group_now_s() - begin;
    }
    return 2.0 * count * (double)STEPS * CHAINS * lanes * 1e-9 / spent;
}
