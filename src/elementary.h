/* Logarithm, exponential, sine and cosine from additions, multiplications, divisions and bit
   operations alone. IEEE 754 rounds each of these in one way only, so the results have the same
   bits on every machine and in a vector register as in a scalar one; those of the C library do
   not. There are no branches, so that compilers turn a loop over these into vector code.

   Polynomials are minimax fits; results are off by at most 1.1 (log), 1.0 (exp) and 1.6 (sin, cos)
   units in the last place. */

#ifndef CELLIUM_ELEMENTARY_H
#define CELLIUM_ELEMENTARY_H

#include <stdint.h>
#include <string.h>

#define LN2_HIGH 0.6931471805592082     /* 40 bits: times a whole number below 2^13 is exact */
#define LN2_LOW 7.371002565167799e-13
#define TWO_52 4503599627370496.0

static inline uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* `yes` where the condition, 0 or 1, holds, else `no`. As bits, since a compiler that sees ?: may
   make a branch of it, and then no vector code. */
static inline double either(uint64_t condition, double yes, double no)
{
    return double_of(bits_of(no) ^ ((bits_of(yes) ^ bits_of(no)) & -condition));
}

/* A whole number below 2^52 as a double. */
static inline double real_of(uint64_t whole)
{
    return double_of(whole | bits_of(TWO_52)) - TWO_52;
}

/* 1 + bits / 2^52 for bits below 2^52 */
static inline double unit_of(uint64_t bits)
{
    return double_of(bits | 0x3FF0000000000000);
}

/* log(x) for normal x > 0 in two steps, with x = 2^k (1 + f), 1 + f in [sqrt(1/2), sqrt(2)) and
   s = f / (2 + f): log(1 + f) = 2 atanh(s), added up as f - f^2 / 2 + s (f^2 / 2 + ...), since f is
   exact. Two steps, because a loop over both at once is one long chain of operations, of which
   a processor has too few in sight to do anything else meanwhile. */
typedef struct {
    double k, f, s;
} Parts;

static inline Parts log_parts(double x)
{
    const uint64_t one = 0x3FF0000000000000, root_half = 0x3FE6A09E667F3BCD;
    uint64_t moved = bits_of(x) + (one - root_half);
    double k = double_of(moved >> 52 | bits_of(TWO_52)) - (TWO_52 + 1023.0);
    double f = double_of((moved & 0xFFFFFFFFFFFFF) + root_half) - 1.0;
    return (Parts){k, f, f / (2.0 + f)};
}

static inline double log_of_parts(Parts parts)
{
    double k = parts.k, f = parts.f, s = parts.s;
    double z = s * s, w = z * z, ww = w * w;
    double odd = (0.6666666666666734 + w * 0.28571428742387633)
        + ww * (0.1818356432645545 + w * 0.14795949810482026);
    double even = (0.39999999999414676 + w * 0.22222198573179955) + ww * 0.15314050542042326;
    double half_square = 0.5 * f * f;
    double rest = s * (half_square + (z * odd + w * even));
    return (k * LN2_HIGH + f) + (rest + (k * LN2_LOW - half_square));
}

static inline double log_of(double x)
{
    return log_of_parts(log_parts(x));
}

/* exp(x) for x <= 0, -infinity included; subnormal results are rounded twice. */
static inline double exp_of_negative(double x)
{
    const double shift = 1.5 * TWO_52;      /* adding it rounds to a whole number */
    uint64_t vanishes = x < -746.0;
    double bounded = either(vanishes, 0.0, x);
    double shifted = bounded * 1.4426950408889634 + shift;
    double k = shifted - shift;
    double r = (bounded - k * LN2_HIGH) - k * LN2_LOW;
    double w = r * r;
    double even = 0.5 + w * (0.04166666666666667 + w * (0.0013888888888883748 + w * (
        2.4801587325547743e-05 + w * (2.75572736431103e-07 + w * 2.0914686968086876e-09))));
    double odd = 0.1666666666666667 + w * (0.008333333333326136 + w * (
        0.00019841269874820627 + w * (2.7557255400206422e-06 + w * 2.5105217004720745e-08)));
    double power = 1.0 + (r + w * (even + r * odd));
    /* By 2^(k + 64), whose exponent is in range for every k, and back. */
    double scale = double_of((bits_of(shifted) + 1023 + 64) << 52);
    return either(vanishes, 0.0, power * scale * 0x1p-64);
}

/* sin(pi/2 f) for f in [-1/2, 1/2] */
static inline double sine_of_quarter(double f)
{
    double z = f * f, w = z * z;
    double even = (-0.6459640975062463 + w * -0.004681754135315218)
        + w * w * (-3.5988427375780747e-06 + w * -6.628212329688377e-10);
    double odd = (0.07969262624616695 + w * 0.0001604411847305431) + w * w * 5.6919333319798333e-08;
    return f * 1.5707963267948966 + f * (6.123233995736766e-17 + z * (even + z * odd));
}

/* cos(pi/2 f) for f in [-1/2, 1/2] */
static inline double cosine_of_quarter(double f)
{
    double z = f * f, w = z * z;
    double even = (-1.2337005501361697 + w * -0.020863480763315442)
        + w * w * (-2.520203699152642e-05 + w * -6.321892428418116e-09);
    double odd = (0.2536695079010469 + w * 0.0009192602742250312) + w * w * 4.7106156574779636e-07;
    return 1.0 + z * (even + z * odd);
}

#endif
