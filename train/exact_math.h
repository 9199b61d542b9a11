/* log, sin, cos and integer powers from IEEE double operations alone.
 *
 * The C library's versions differ between releases and machines, so nothing that reaches the
 * training state or a printed loss may call them. These are not correctly rounded; they are the
 * same everywhere, and within a few units in the last place of a double
 * (tests/train/test_exact_math.c). */
#ifndef TRAIN_EXACT_MATH_H
#define TRAIN_EXACT_MATH_H

#include <stdint.h>

#define EXACT_PI 0x1.921fb54442d18p+1

/* x finite and > 0; 0 gives -infinity, a negative x or NaN gives NaN, infinity gives infinity. */
double exact_log(double x);

/* e to the x, |x| <= 700. */
double exact_exp(double x);

/* |x| <= 2^20, enough for any position of a sequence. */
double exact_sin(double x);
double exact_cos(double x);

/* base to a whole power >= 0, by squaring. */
double exact_pow_int(double base, int64_t power);

/* base > 0, |power * log(base)| <= 700. Error grows with that product. */
double exact_pow(double base, double power);

#endif
