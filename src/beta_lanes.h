/* Many draws from the Beta law at once: the formulas of beta.h in loops over columns, which
   compilers turn into vector code.

   The code is compiled once for the machine the package is built for and, where compiler and
   machine are GCC or clang and x86-64, for AVX2 and AVX-512 too; sample_beta_many takes what the
   processor has. All variants, and sample_beta, give the same bits. */

#ifndef CELLIUM_BETA_LANES_H
#define CELLIUM_BETA_LANES_H

#include <stddef.h>

#include "beta.h"

#define LANES 128       /* draws in work at a time */
#define VECTOR 16       /* loops run over a multiple of this: twice the widest vector */

/* Draws in work, by columns: a lane is one draw. */
typedef struct {
    double a[LANES], b[LANES];                      /* shapes */
    uint64_t uid[LANES], rest[LANES];               /* counter */
    uint64_t random[4][LANES];                      /* words */
    double k[LANES], f[LANES], s[LANES];            /* Parts of a logarithm */
    double k2[LANES], f2[LANES], s2[LANES];
    double square1[LANES], square2[LANES];          /* scaled_square of each variate */
    double d1[LANES], d2[LANES], y1[LANES], y2[LANES], u[LANES];
    double first[LANES], second[LANES];             /* variates */
    double result[LANES];
    int32_t accepted[LANES], powered[LANES];
    ptrdiff_t place[LANES];                         /* in the arrays of the caller */
} Columns;

ALWAYS_INLINE int whole_vectors(int count)
{
    return (count + VECTOR - 1) & -VECTOR;
}

ALWAYS_INLINE Words words_at(uint64_t words[4][LANES], int lane)
{
    return (Words){{words[0][lane], words[1][lane], words[2][lane], words[3][lane]}};
}

typedef void FillRandom(uint64_t key, const uint64_t *uid, const uint64_t *rest, int width,
                        uint64_t random[4][LANES]);

/* One try of each lane: its result, and what it takes to accept it. In several short loops, see
   log_parts. */
ALWAYS_INLINE void try_lanes(Columns *at, int width)
{
    for (int i = 0; i < width; i++) {
        Parts parts = log_parts(radial(words_at(at->random, i)));
        at->k[i] = parts.k;
        at->f[i] = parts.f;
        at->s[i] = parts.s;
    }
    for (int i = 0; i < width; i++) {
        double square = -2.0 * log_of_parts((Parts){at->k[i], at->f[i], at->s[i]});
        at->d1[i] = shape_less_third(at->a[i]);
        at->d2[i] = shape_less_third(at->b[i]);
        at->square1[i] = scaled_square(square, at->d1[i]);
        at->square2[i] = scaled_square(square, at->d2[i]);
    }
    for (int i = 0; i < width; i++) {
        Direction to = direction(words_at(at->random, i));
        at->y1[i] = to.cosine * sqrt(at->square1[i]);
        at->y2[i] = to.sine * sqrt(at->square2[i]);
    }
    for (int i = 0; i < width; i++) {
        at->u[i] = deciding(words_at(at->random, i));
        at->first[i] = variate(at->d1[i], at->y1[i]);
        at->second[i] = variate(at->d2[i], at->y2[i]);
        at->result[i] = at->first[i] / (at->first[i] + at->second[i]);
        at->accepted[i] = (int32_t)is_surely_accepted(
            at->y1[i], at->y2[i], at->d1[i], at->d2[i], at->u[i]);
        at->powered[i] = (at->a[i] < 1.0) | (at->b[i] < 1.0);
    }
}

/* The full test, of picked lanes; they are gathered into `of`. */
ALWAYS_INLINE void decide_lanes(Columns *at, const int *picked, int count, Columns *of)
{
    int width = whole_vectors(count);
    for (int k = 0; k < width; k++) {
        int i = picked[k < count ? k : 0];
        of->y1[k] = at->y1[i];
        of->y2[k] = at->y2[i];
        of->d1[k] = at->d1[i];
        of->d2[k] = at->d2[i];
        of->u[k] = at->u[i];
    }
    for (int k = 0; k < width; k++)
        of->accepted[k] = (int32_t)is_accepted(
            of->y1[k], of->y2[k], of->d1[k], of->d2[k], of->u[k]);
    for (int k = 0; k < count; k++)
        at->accepted[picked[k]] = of->accepted[k];
}

/* The results of picked lanes, each with a shape below 1; gathered as above. */
ALWAYS_INLINE void power_lanes(
    Columns *at, const int *picked, int count, Columns *of, uint64_t key, FillRandom *fill_random)
{
    int width = whole_vectors(count);
    for (int k = 0; k < width; k++) {
        int i = picked[k < count ? k : 0];
        of->uid[k] = at->uid[i];
        of->rest[k] = at->rest[i] & WITHOUT_BLOCK;
        of->a[k] = at->a[i];
        of->b[k] = at->b[i];
        of->first[k] = at->first[i];
        of->second[k] = at->second[i];
    }
    fill_random(key, of->uid, of->rest, width, of->random);
    for (int k = 0; k < width; k++) {
        Words random = words_at(of->random, k);
        Parts one = log_parts(long_unit(random.word[0], random.word[1]));
        Parts two = log_parts(long_unit(random.word[2], random.word[3]));
        of->k[k] = one.k;
        of->f[k] = one.f;
        of->s[k] = one.s;
        of->k2[k] = two.k;
        of->f2[k] = two.f;
        of->s2[k] = two.s;
    }
    for (int k = 0; k < width; k++)
        of->square1[k] = log_power(log_of_parts((Parts){of->k[k], of->f[k], of->s[k]}), of->a[k]);
    for (int k = 0; k < width; k++)
        of->square1[k] -= log_power(
            log_of_parts((Parts){of->k2[k], of->f2[k], of->s2[k]}), of->b[k]);
    for (int k = 0; k < width; k++)
        of->result[k] = powered_ratio(of->first[k], of->second[k], of->square1[k]);
    for (int k = 0; k < count; k++)
        at->result[picked[k]] = of->result[k];
}

/* Each round of the loop makes one try of up to LANES draws. The first `old` lanes were rejected
   in the round before; behind them new draws fill up. */
ALWAYS_INLINE void draw_all(
    const double *alpha, const double *beta, const Counter *counters, uint64_t key,
    ptrdiff_t count, double *out, FillRandom *fill_random)
{
    Columns at, of;
    int open[LANES], powered[LANES];
    int old = 0;
    for (ptrdiff_t next = 0; old > 0 || next < count;) {
        int fresh = count - next < LANES - old ? (int)(count - next) : LANES - old;
        int lanes = old + fresh, width = whole_vectors(lanes);
        memcpy(at.a + old, alpha + next, fresh * sizeof(double));
        memcpy(at.b + old, beta + next, fresh * sizeof(double));
        for (int i = 0; i < fresh; i++) {
            Packed counter = packed(counters[next + i]);
            at.uid[old + i] = counter.uid;
            at.rest[old + i] = counter.rest + NEXT_BLOCK;
        }
        for (int i = 0; i < fresh; i++)
            at.place[old + i] = next + i;
        for (int i = lanes; i < width; i++) {
            at.a[i] = at.b[i] = 1.0;
            at.uid[i] = at.rest[i] = 0;
        }

        fill_random(key, at.uid, at.rest, width, at.random);
        try_lanes(&at, width);
        int open_count = 0, powered_count = 0;
        for (int i = 0; i < lanes; i++) {
            open[open_count] = powered[powered_count] = i;
            open_count += !at.accepted[i];
            powered_count += at.powered[i];
        }
        decide_lanes(&at, open, open_count, &of);
        power_lanes(&at, powered, powered_count, &of, key, fill_random);

        /* What is not accepted is overwritten by a later try. */
        for (int i = 0; i < old; i++)
            out[at.place[i]] = at.result[i];
        memcpy(out + next, at.result + old, fresh * sizeof(double));
        next += fresh;
        old = 0;
        for (int k = 0; k < open_count; k++) {
            int i = open[k];
            if (at.accepted[i])
                continue;
            at.uid[old] = at.uid[i];
            at.rest[old] = at.rest[i] + NEXT_BLOCK;
            at.a[old] = at.a[i];
            at.b[old] = at.b[i];
            at.place[old++] = at.place[i];
        }
    }
}

/* A variant of the code above: a function `name`, compiled with `attributes`. Only Philox is spelt
   out in vectors of 64-bit integers, since compilers do not see that 32-bit products will do. */
#define VARIANT(name, attributes, Vector, multiply)                                        \
    attributes static void name##_random(                                                       \
uint64_t key, const uint64_t *uid, const uint64_t *rest, int width,                     \
        uint64_t random[4][LANES])                                                              \
    {                                                                                           \
        int step = sizeof(Vector) / sizeof(uint64_t);                                           \
        for (int i = 0; i < width; i += 2 * step) {                                             \
            /* Two at a time: a round is a chain, and one alone would wait for itself. */       \
            Vector uid1 = *(const Vector *)&uid[i], uid2 = *(const Vector *)&uid[i + step];     \
            Vector rest1 = *(const Vector *)&rest[i], rest2 = *(const Vector *)&rest[i + step]; \
            Vector one[4] = {uid1, uid1 >> 32, rest1, rest1 >> 32};                             \
            Vector two[4] = {uid2, uid2 >> 32, rest2, rest2 >> 32};                             \
            Vector key_low = (uid1 & 0) + key, key_high = (uid1 & 0) + (key >> 32);         \
            for (int round = 0; round < PHILOX_ROUNDS; round++) {                               \
                PHILOX_ROUND(Vector, one, key_low, key_high, multiply);                         \
                PHILOX_ROUND(Vector, two, key_low, key_high, multiply);                         \
                NEXT_KEY(key_low, key_high);                                                    \
            }                                                                                   \
            *(Vector *)&random[0][i] = one[0] & 0xFFFFFFFF;                                                       \
            *(Vector *)&random[1][i] = one[1] & 0xFFFFFFFF;                                                       \
            *(Vector *)&random[2][i] = one[2] & 0xFFFFFFFF;                                                       \
            *(Vector *)&random[3][i] = one[3] & 0xFFFFFFFF;                                                       \
            *(Vector *)&random[0][i + step] = two[0] & 0xFFFFFFFF;                                                \
            *(Vector *)&random[1][i + step] = two[1] & 0xFFFFFFFF;                                                \
            *(Vector *)&random[2][i + step] = two[2] & 0xFFFFFFFF;                                                \
            *(Vector *)&random[3][i + step] = two[3] & 0xFFFFFFFF;                                                \
        }                                                                                       \
    }                                                                                           \
    attributes static void name(                                                                \
        const double *alpha, const double *beta, const Counter *counters, uint64_t key,         \
        ptrdiff_t count, double *out)                                                           \
    {                                                                                           \
        draw_all(alpha, beta, counters, key, count, out, name##_random);                        \
    }

VARIANT(sample_beta_plain, , uint64_t, multiply_words)

enum { PLAIN, AVX2, AVX512, VARIANTS };

#if defined(__GNUC__) && defined(__x86_64__)

#include <immintrin.h>

typedef uint64_t Vector4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef uint64_t Vector8 __attribute__((vector_size(64), aligned(8), may_alias));

#define MULTIPLY4(x, factor) \
    ((Vector4)_mm256_mul_epu32((__m256i)(x), _mm256_set1_epi64x(factor)))
#define MULTIPLY8(x, factor) \
    ((Vector8)_mm512_mul_epu32((__m512i)(x), _mm512_set1_epi64(factor)))

#if defined(__clang__)
#define TARGET_AVX512 "avx512f,avx512dq,avx512vl"
#else
#define TARGET_AVX512 "avx512f,avx512dq,avx512vl,prefer-vector-width=512"
#endif

VARIANT(sample_beta_avx2, __attribute__((target("avx2"))), Vector4, MULTIPLY4)
VARIANT(sample_beta_avx512, __attribute__((target(TARGET_AVX512))), Vector8, MULTIPLY8)

/* Whether this processor can run a variant. */
static inline int has_variant(int variant)
{
    __builtin_cpu_init();
    switch (variant) {
    case AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512vl");
    case AVX2:
        return __builtin_cpu_supports("avx2") != 0;
    default:
        return variant == PLAIN;
    }
}

#else

#define sample_beta_avx2 sample_beta_plain
#define sample_beta_avx512 sample_beta_plain

static inline int has_variant(int variant)
{
    return variant == PLAIN;
}

#endif

/* out[i] = sample_beta(alpha[i], beta[i], key, counters[i]) by one variant, which the processor
   must have. `out` may be `alpha` or `beta`. */
static inline void sample_beta_with(
    int variant, const double *alpha, const double *beta, const Counter *counters, uint64_t key,
    ptrdiff_t count, double *out)
{
    switch (variant) {
    case AVX512:
        sample_beta_avx512(alpha, beta, counters, key, count, out);
        break;
    case AVX2:
        sample_beta_avx2(alpha, beta, counters, key, count, out);
        break;
    default:
        sample_beta_plain(alpha, beta, counters, key, count, out);
    }
}

/* The same by the fastest way. */
static inline void sample_beta_many(
    const double *alpha, const double *beta, const Counter *counters, uint64_t key,
    ptrdiff_t count, double *out)
{
    int variant = VARIANTS - 1;
    if (count < 4) {
        for (ptrdiff_t i = 0; i < count; i++)
            out[i] = sample_beta(alpha[i], beta[i], key, counters[i]);
        return;
    }
    while (!has_variant(variant))
        variant--;
    sample_beta_with(variant, alpha, beta, counters, key, count, out);
}

#endif
