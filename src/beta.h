/* Draws from the Beta law.

   If G and H are gamma variates of shapes a and b, then G / (G + H) is a Beta(a, b) variate. Both
   come from one block of random words and are accepted or rejected together:

   - Gamma, shape >= 1: Marsaglia and Tsang, "A simple method for generating gamma variables", ACM
     TOMS 26(3), 2000, section 2: d (1 + y)^3 with d = shape - 1/3 and y = n / sqrt(9 d), n normal.
   - Two normals: Box and Muller, "A note on the generation of random normal deviates", Annals of
     Mathematical Statistics 29(2), 1958.
   - Gamma, shape < 1: G(shape + 1) times U^(1 / shape), Marsaglia and Tsang, section 6; here as a
     logarithm, since the power alone would underflow.

   Each draw is a function of its shapes, key and counter. Block 0 holds the two U of shapes below
   1, blocks 1, 2, ... the tries; fewer than one in nine is rejected, whatever the shapes. Of the
   128 bits of a try, 52 are the radius of the normals, 32 their angle, 44 decide on acceptance.

   sample_beta below makes one draw; beta_lanes.h makes many at once by the same formulas, which
   therefore have no branches. Compile without fused multiply-add (-ffp-contract=off), which would
   change bits. */

#ifndef CELLIUM_BETA_H
#define CELLIUM_BETA_H

#include <math.h>
#include <stddef.h>

#include "elementary.h"
#include "philox.h"

/* The top bit is set unless the value is a finite number above 0, whose bits are from 1 to those of
   infinity less 1. Additions alone, as the smallest vector units have no such comparison. */
ALWAYS_INLINE uint64_t no_shape(double value)
{
    uint64_t before = bits_of(value) - 1;
    return before | (before + 0x0010000000000001);
}

/* The place of the first value that is not a finite number above 0, or -1. */
static inline ptrdiff_t first_no_shape(const double *values, ptrdiff_t count)
{
    uint64_t any = 0;
    for (ptrdiff_t i = 0; i < count; i++)
        any |= no_shape(values[i]);
    if (any >> 63 == 0)
        return -1;
    ptrdiff_t first = 0;
    while (no_shape(values[first]) >> 63 == 0)
        first++;
    return first;
}

/* Of the two normals; their radius is apart. */
typedef struct {
    double cosine, sine;
} Direction;

/* The d of a gamma variate, that of shape + 1 for a shape below 1; bounded, so that sums of
   variates are finite. */
ALWAYS_INLINE double shape_less_third(double shape)
{
    double bounded = shape < 1e300 ? shape : 1e300;
    return bounded + either(shape < 1.0, 1.0, 0.0) - 1.0 / 3.0;
}

/* Uniform on (0, 1): the square of the radius is -2 log of it. */
ALWAYS_INLINE double radial(Random random)
{
    return unit_of(random.first >> 12) - (1.0 - 0x1p-53);
}

/* On the half circle around the x axis, by the double angle; then the sign of x. */
ALWAYS_INLINE Direction direction(Random random)
{
    double half = unit_of((random.last & 0xFFFFFFFE) << 20) - (1.5 - 0x1p-32);
    double sine = sine_of_quarter(half), twice = sine + sine;
    double cosine = 1.0 - twice * sine;
    return (Direction){
        double_of(bits_of(cosine) ^ random.last << 63), twice * cosine_of_quarter(half)};
}

/* Uniform on (0, 1): a try is accepted if this is below the ratio of densities. */
ALWAYS_INLINE double deciding(Random random)
{
    uint64_t bits = random.last >> 32 << 12 | (random.first & 0xFFF);
    return unit_of(bits << 8) - (1.0 - 0x1p-45);
}

/* Not below 1 + deciding(random), and above it by less than 2^-30. */
ALWAYS_INLINE double deciding_at_most(Random random)
{
    return unit_of(random.last >> 12) + 0x1p-31;
}

/* Times the d of the other variate this is the square of 1 / sqrt(9 d), by which a variate's
   y = n / sqrt(9 d) is made from its normal n; one division for both. It is 0 where the product of
   both d overflows, since there a normal makes no difference to the result. */
ALWAYS_INLINE double common_inverse(double d1, double d2)
{
    return 1.0 / (9.0 * d1 * d2);
}

ALWAYS_INLINE double variate(double d, double y)
{
    double root = 1.0 + y;
    return d * (root * root * root);
}

/* Whether the try is certainly accepted, without a logarithm; by deciding_at_most. The paper's
   1 - 0.0331 n^4 for any d holds with 0.0331 (2/3) / d too: the difference to the ratio of
   densities is convex in d and 0 at d = 0, so that what holds at the smallest d, 2/3, holds above.
   1.787 is 81 times that. */
ALWAYS_INLINE uint64_t is_surely_accepted(
    double y1, double y2, double d1, double d2, double at_most)
{
    double square1 = y1 * y1, square2 = y2 * y2;
    return at_most < 2.0 - 1.787 * (d1 * (square1 * square1) + d2 * (square2 * square2));
}

/* log(1 + y) - (y - y^2 / 2 + y^3 / 3), y > -1 */
ALWAYS_INLINE double log_remainder(double y)
{
    double sum = 1.0 + y;
    double lost = y - (sum - 1.0);
    return log_of(sum) + lost / sum - y * (1.0 - y * (0.5 - y * (1.0 / 3.0)));
}

/* The full test. For each variate the ratio of densities is exp(n^2 / 2 + d (1 - v + log v)) with
   v = (1 + y)^3, which is exp(3 d log_remainder(y)); 0 if v <= 0. */
ALWAYS_INLINE uint64_t is_accepted(double y1, double y2, double d1, double d2, double u)
{
    uint64_t positive = (uint64_t)(y1 > -1.0) & (uint64_t)(y2 > -1.0);
    y1 = either(y1 > -1.0, y1, 0.0);
    y2 = either(y2 > -1.0, y2, 0.0);
    double ratio = 3.0 * (d1 * log_remainder(y1) + d2 * log_remainder(y2));
    return positive & (uint64_t)(log_of(u) < ratio);
}

/* Uniform on (0, 1], 64 bits. */
ALWAYS_INLINE double long_unit(uint64_t bits)
{
    return (real_of(bits >> 32) * 0x1p32 + (real_of(bits & 0xFFFFFFFF) + 0.5)) * 0x1p-64;
}

/* log(U^(1/shape)), or 0 for a shape that needs no power. */
ALWAYS_INLINE double log_power(double log_unit, double shape)
{
    double bounded = either(shape > 1e-300, shape, 1e-300);     /* for a finite quotient */
    return either(shape < 1.0, log_unit / bounded, 0.0);
}

/* first / (first + second) with both times their powers; only one of them is scaled, down. */
ALWAYS_INLINE double powered_ratio(double first, double second, double log_powers)
{
    uint64_t lower = log_powers < 0.0;
    double factor = exp_of_negative(-fabs(log_powers));
    first *= either(lower, factor, 1.0);
    second *= either(lower, 1.0, factor);
    return first / (first + second);
}

/* One draw from Beta(a, b), any a, b > 0; in [0, 1], never NaN. */
static inline double sample_beta(double a, double b, uint64_t key, Counter counter)
{
    double d1 = shape_less_third(a), d2 = shape_less_third(b);
    double inverse = common_inverse(d1, d2), y1, y2;
    Packed block = packed(counter);
    Random random;
    do {
        block.rest += NEXT_BLOCK;
        random = philox(key, block);
        double square = -2.0 * log_of(radial(random));
        Direction to = direction(random);
        y1 = to.cosine * sqrt(inverse * d2 * square);
        y2 = to.sine * sqrt(inverse * d1 * square);
    } while (!is_surely_accepted(y1, y2, d1, d2, deciding_at_most(random))
             && !is_accepted(y1, y2, d1, d2, deciding(random)));
    double first = variate(d1, y1), second = variate(d2, y2);
    if (a >= 1.0 && b >= 1.0)
        return first / (first + second);
    block.rest &= WITHOUT_BLOCK;
    random = philox(key, block);
    return powered_ratio(
        first, second,
        log_power(log_of(long_unit(random.first)), a)
        - log_power(log_of(long_unit(random.last)), b));
}

#endif
