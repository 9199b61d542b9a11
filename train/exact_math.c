/* log, exp, sin, cos and powers: reduce the argument, sum a short series, rebuild.
 *
 * Series stop where the next term is below half a unit in the last place over the reduced range.
 * Each operation is one IEEE operation in the order written: the compiler must not contract or
 * reorder. */
#include "exact_math.h"

#include <string.h>

#define LN2_HIGH 0x1.62e42feep-1 /* 32 bits, so that n * LN2_HIGH is exact */
#define LN2_LOW 0x1.a39ef35793c76p-33
#define INV_LN2 0x1.71547652b82fep+0

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 2^n for -1022 <= n <= 1023. */
static double power_of_two(int64_t n)
{
    return from_bits((uint64_t)(n + 1023) << 52);
}

/* To the nearest whole number, |x| < 2^51: the sum's last place is 1. */
static double nearest(double x)
{
    const double shift = 0x1.8p+52;
    return (x + shift) - shift;
}

/* x = 2^n * m with m in [sqrt(1/2), sqrt(2)); log m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <
 * 0.172. */
double exact_log(double x)
{
    if (!(x > 0.0)) {
        return x == 0.0 ? from_bits(0xFFF0000000000000u) : from_bits(0x7FF8000000000000u);
    }
    if (bits_of(x) == 0x7FF0000000000000u) {
        return x;
    }
    int64_t n = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p+54;
        n = -54;
    }
    n += (int64_t)(bits_of(x) >> 52) - 1023;
    double m = from_bits((bits_of(x) & 0x000FFFFFFFFFFFFFu) | 0x3FF0000000000000u);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        n++;
    }
    const double f = m - 1.0;
    const double s = f / (2.0 + f);
    const double z = s * s;
    double series = 0.0;
    for (int k = 23; k >= 3; k -= 2) {
        series = (series + 1.0 / (double)k) * z;
    }
    /* 2 s (1 + series), with 2 s = f - s f, which keeps the leading part exact. */
    const double tail = s * (2.0 * series - f);
    const double whole = (double)n;
    return whole * LN2_HIGH + (f + (tail + whole * LN2_LOW));
}

double exact_exp(double x)
{
    if (!(x >= -700.0)) {
        return x < -700.0 ? 0.0 : x;
    }
    if (x > 700.0) {
        return from_bits(0x7FF0000000000000u);
    }
    const double n = nearest(x * INV_LN2);
    const double high = x - n * LN2_HIGH;
    const double r = high - n * LN2_LOW;
    double series = 0.0;
    for (int k = 14; k >= 2; k--) {
        series = (series + 1.0) * r / (double)k;
    }
    return (1.0 + (r + r * series)) * power_of_two((int64_t)n);
}

/* The reduced argument r in [-pi/4, pi/4] and the quadrant. pi/2 in three parts of 33, 33 and 53
 * bits: n * part is exact for the first two while n < 2^20. */
static double reduce(double x, int64_t *quadrant)
{
    const double n = nearest(x * 0x1.45f306dc9c883p-1);
    *quadrant = (int64_t)n;
    double r = x - n * 0x1.921fb544p+0;
    r -= n * 0x1.0b4611a6p-34;
    return r - n * 0x1.3198a2e037073p-69;
}

static double sin_series(double r)
{
    const double z = r * r;
    double series = 0.0;
    for (int k = 19; k >= 3; k -= 2) {
        series = (1.0 + series) * (-z / (double)(k * (k - 1)));
    }
    return r + r * series;
}

static double cos_series(double r)
{
    const double z = r * r;
    double series = 0.0;
    for (int k = 20; k >= 4; k -= 2) {
        series = (1.0 + series) * (-z / (double)(k * (k - 1)));
    }
    return 1.0 - (0.5 * z + 0.5 * z * series);
}

static double quarter(double r, int64_t quadrant)
{
    switch (quadrant & 3) {
    case 0:
        return sin_series(r);
    case 1:
        return cos_series(r);
    case 2:
        return -sin_series(r);
    default:
        return -cos_series(r);
    }
}

double exact_sin(double x)
{
    int64_t quadrant;
    const double r = reduce(x, &quadrant);
    return quarter(r, quadrant);
}

double exact_cos(double x)
{
    int64_t quadrant;
    const double r = reduce(x, &quadrant);
    return quarter(r, quadrant + 1);
}

double exact_pow_int(double base, int64_t power)
{
    double result = 1.0;
    for (; power > 0; power >>= 1) {
        if ((power & 1) != 0) {
            result *= base;
        }
        base *= base;
    }
    return result;
}

double exact_pow(double base, double power)
{
    return exact_exp(power * exact_log(base));
}
