/* The exact elementwise functions as programs call them: at the fastest level, in the right
 * rounding mode. */
#include "core/fpenv.h"
#include "cpu/kernels.h"

void mok_exp(float *out, const float *x, int64_t count)
{
    const uint32_t environment = mok_fpenv_enter();
    mok_kernels_select(MOK_LEVEL_AUTO)->exp(out, x, count);
    mok_fpenv_leave(environment);
}

void mok_sigmoid(float *out, const float *x, int64_t count)
{
    const uint32_t environment = mok_fpenv_enter();
    mok_kernels_select(MOK_LEVEL_AUTO)->sigmoid(out, x, count);
    mok_fpenv_leave(environment);
}

void mok_bf16_from_f32(uint16_t *out, const float *x, int64_t count)
{
    const uint32_t environment =
        mok_fpenv_enter(); /* a signalling NaN traps where a caller asked for that */
    mok_kernels_select(MOK_LEVEL_AUTO)->bf16_from_f32(out, x, count);
    mok_fpenv_leave(environment);
}

void mok_f32_from_bf16(float *out, const uint16_t *x, int64_t count)
{
    mok_kernels_select(MOK_LEVEL_AUTO)->f32_from_bf16(out, x, count);
}

bool mok_level_available(mok_level level)
{
    return mok_kernels_select(level) != NULL;
}

const char *mok_level_string(mok_level level)
{
    static const char *const names[] = {"auto", "ref", "avx2", "avx512"};
    const int idx = (int)level;
    return idx >= 0 && idx < (int)(sizeof names / sizeof names[0]) ? names[idx] : "unknown";
}
