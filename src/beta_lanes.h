/* Many draws from the Beta law at once: the formulas of beta.h in loops over columns, which
   compilers turn into vector code.

   The code is compiled once for the machine the package is built for and, where compiler and
   machine are GCC or clang and x86-64, for AVX2 and AVX-512 too; sample_beta_many takes what the
   processor has. All variants, and sample_beta, give the same bits. */

#ifndef CELLIUM_BETA_LANES_H
#define CELLIUM_BETA_LANES_H

#include <stddef.h>

#include "beta.h"
#include "variants.h"

#define LANES 128       /* draws in work at a time */
#define VECTOR 16       /* loops run over a multiple of this: twice the widest vector */

/* What draws are of, by columns. */
typedef struct {
    const double *alpha, *beta;
    const Counter *counters;    /* or null: draw i has the counter first + i, 0, 0 */
    uint64_t first, key;
    ptrdiff_t count;
} Wanted;

/* Draws in work, by columns: parts of the arrays of the caller, or a Scattered. */
typedef struct {
    const double *a, *b;                            /* shapes */
    const uint64_t *uid, *rest;                     /* counter */
    int lanes;
} Draws;

/* Tries of a batch, by columns: a lane is one draw. */
typedef struct {
    uint64_t first_words[LANES], last_words[LANES];
    double k[LANES], f[LANES], s[LANES];            /* Parts of a logarithm */
    double k2[LANES], f2[LANES], s2[LANES];
    double square1[LANES], square2[LANES];          /* of y1 and y2, but for the direction */
    double d1[LANES], d2[LANES], y1[LANES], y2[LANES];
    double first[LANES], second[LANES];             /* variates */
    double result[LANES];
    uint64_t unsure[LANES];                         /* takes the full test */
} Tries;

/* Draws to make a try of that are not side by side in the arrays of the caller. */
typedef struct {
    double a[LANES], b[LANES];
    uint64_t uid[LANES], rest[LANES];
    ptrdiff_t place[LANES];                         /* in the arrays of the caller */
    int count;
} Scattered;

/* Draws whose last try waits for the full test, until there are enough to fill vectors. */
typedef struct {
    double a[2 * LANES], b[2 * LANES], y1[2 * LANES], y2[2 * LANES];
    uint64_t uid[2 * LANES], rest[2 * LANES], first_words[2 * LANES], last_words[2 * LANES];
    ptrdiff_t place[2 * LANES];
    int count;
} Unsure;

typedef void FillRandom(uint64_t key, const uint64_t *uid, const uint64_t *rest, int width,
                        uint64_t *first_words, uint64_t *last_words);

ALWAYS_INLINE int whole_vectors(int count)
{
    return (count + VECTOR - 1) & -VECTOR;
}

ALWAYS_INLINE Random random_of(const Tries *at, int lane)
{
    return (Random){at->first_words[lane], at->last_words[lane]};
}

/* One try of each lane: its result, and whether it takes the full test to accept it. Returns
   whether any shape is below 1. In several short loops, see log_parts. */
ALWAYS_INLINE uint64_t try_lanes(Tries *at, const Draws *batch)
{
    const double *a = batch->a, *b = batch->b;
    int width = whole_vectors(batch->lanes);
    uint64_t any_below = 0;
    for (int i = 0; i < width; i++) {
        Parts parts = log_parts(radial(random_of(at, i)));
        double d1 = shape_less_third(a[i]), d2 = shape_less_third(b[i]);
        double inverse = common_inverse(d1, d2);
        any_below |= (uint64_t)(a[i] < 1.0) | (uint64_t)(b[i] < 1.0);
        at->k[i] = parts.k;
        at->f[i] = parts.f;
        at->s[i] = parts.s;
        at->d1[i] = d1;
        at->d2[i] = d2;
        at->square1[i] = inverse * d2;
        at->square2[i] = inverse * d1;
    }
    for (int i = 0; i < width; i++) {
        double square = -2.0 * log_of_parts((Parts){at->k[i], at->f[i], at->s[i]});
        at->square1[i] *= square;
        at->square2[i] *= square;
    }
    for (int i = 0; i < width; i++) {
        Direction to = direction(random_of(at, i));
        at->y1[i] = to.cosine * sqrt(at->square1[i]);
        at->y2[i] = to.sine * sqrt(at->square2[i]);
    }
    for (int i = 0; i < width; i++) {
        double d1 = at->d1[i], d2 = at->d2[i], y1 = at->y1[i], y2 = at->y2[i];
        double first = variate(d1, y1), second = variate(d2, y2);
        at->first[i] = first;
        at->second[i] = second;
        at->result[i] = first / (first + second);
        at->unsure[i] = !is_surely_accepted(y1, y2, d1, d2, deciding_at_most(random_of(at, i)));
    }
    for (int i = batch->lanes; i < width; i++)
        at->unsure[i] = 0;
    return any_below;
}

/* The results of lanes with a shape below 1, which are gathered into `of`. */
ALWAYS_INLINE void power_lanes(
    Tries *at, const Draws *batch, Tries *of, uint64_t key, FillRandom *fill_random)
{
    int picked[LANES + 1], count = 0;
    for (int i = 0; i < batch->lanes; i++) {
        picked[count] = i;
        count += (batch->a[i] < 1.0) | (batch->b[i] < 1.0);
    }
    int width = whole_vectors(count);
    uint64_t uid[LANES], rest[LANES];
    for (int k = 0; k < width; k++) {
        int i = picked[k < count ? k : 0];
        uid[k] = batch->uid[i];
        rest[k] = batch->rest[i] & WITHOUT_BLOCK;
        of->d1[k] = batch->a[i];
        of->d2[k] = batch->b[i];
        of->first[k] = at->first[i];
        of->second[k] = at->second[i];
    }
    fill_random(key, uid, rest, width, of->first_words, of->last_words);
    for (int k = 0; k < width; k++) {
        Parts one = log_parts(long_unit(of->first_words[k]));
        Parts two = log_parts(long_unit(of->last_words[k]));
        of->k[k] = one.k;
        of->f[k] = one.f;
        of->s[k] = one.s;
        of->k2[k] = two.k;
        of->f2[k] = two.f;
        of->s2[k] = two.s;
    }
    for (int k = 0; k < width; k++)
        of->square1[k] = log_power(log_of_parts((Parts){of->k[k], of->f[k], of->s[k]}), of->d1[k]);
    for (int k = 0; k < width; k++)
        of->square1[k] -= log_power(
            log_of_parts((Parts){of->k2[k], of->f2[k], of->s2[k]}), of->d2[k]);
    for (int k = 0; k < width; k++)
        of->result[k] = powered_ratio(of->first[k], of->second[k], of->square1[k]);
    for (int k = 0; k < count; k++)
        at->result[picked[k]] = of->result[k];
}

/* The counters of draws start, start + 1, ... at their first try. */
ALWAYS_INLINE void fill_counters(
    const Wanted *wanted, ptrdiff_t start, int count, uint64_t *uid, uint64_t *rest)
{
    if (wanted->counters) {
        for (int i = 0; i < count; i++) {
            Packed counter = packed(wanted->counters[start + i]);
            uid[i] = counter.uid;
            rest[i] = counter.rest + NEXT_BLOCK;
        }
    } else {
        for (int i = 0; i < count; i++) {
            uid[i] = wanted->first + (uint64_t)start + (uint64_t)i;
            rest[i] = NEXT_BLOCK;
        }
    }
}

/* Adds the lanes that are unsure. Lane i is of the draw place[i] or, if that is null, next + i. */
ALWAYS_INLINE void keep_unsure(
    Unsure *unsure, const Draws *batch, const Tries *at, const ptrdiff_t *place, ptrdiff_t next)
{
    int picked[LANES + 1], count = 0;
    for (int i = 0; i < whole_vectors(batch->lanes); i += 4) {
        for (int j = i; j < i + 4; j++) {
            picked[count] = j;
            count += (int)at->unsure[j];
        }
    }
    for (int k = 0; k < count; k++) {
        int i = picked[k], to = unsure->count++;
        unsure->a[to] = batch->a[i];
        unsure->b[to] = batch->b[i];
        unsure->y1[to] = at->y1[i];
        unsure->y2[to] = at->y2[i];
        unsure->uid[to] = batch->uid[i];
        unsure->rest[to] = batch->rest[i];
        unsure->first_words[to] = at->first_words[i];
        unsure->last_words[to] = at->last_words[i];
        unsure->place[to] = place ? place[i] : next + i;
    }
}

/* Puts up to LANES draws to the full test; those rejected are due for another try. */
ALWAYS_INLINE void decide(Unsure *unsure, Scattered *rejected)
{
    int count = unsure->count < LANES ? unsure->count : LANES, start = unsure->count - count;
    int width = whole_vectors(count);
    const double *a = unsure->a + start, *b = unsure->b + start;
    const double *y1 = unsure->y1 + start, *y2 = unsure->y2 + start;
    const uint64_t *first = unsure->first_words + start, *last = unsure->last_words + start;
    uint64_t accepted[LANES];
    for (int i = unsure->count; i < start + width; i++) {
        unsure->a[i] = unsure->b[i] = 1.0;
        unsure->y1[i] = unsure->y2[i] = 0.0;
        unsure->first_words[i] = unsure->last_words[i] = 0;
    }
    for (int i = 0; i < width; i++)
        accepted[i] = is_accepted(
            y1[i], y2[i], shape_less_third(a[i]), shape_less_third(b[i]),
            deciding((Random){first[i], last[i]}));
    unsure->count = start;
    rejected->count = 0;
    for (int k = 0; k < count; k++) {
        int i = start + k, to = rejected->count;
        rejected->a[to] = unsure->a[i];
        rejected->b[to] = unsure->b[i];
        rejected->uid[to] = unsure->uid[i];
        rejected->rest[to] = unsure->rest[i] + NEXT_BLOCK;
        rejected->place[to] = unsure->place[i];
        rejected->count += !accepted[k];
    }
}

/* The last draws, fewer than LANES; copied, as there is room behind them to fill up a vector. */
ALWAYS_INLINE void copy_last(const Wanted *wanted, ptrdiff_t next, Scattered *last)
{
    last->count = (int)(wanted->count - next);
    memcpy(last->a, wanted->alpha + next, last->count * sizeof(double));
    memcpy(last->b, wanted->beta + next, last->count * sizeof(double));
    fill_counters(wanted, next, last->count, last->uid, last->rest);
    for (int i = 0; i < last->count; i++)
        last->place[i] = next + i;
}

ALWAYS_INLINE Draws batch_of(Scattered *draws)
{
    for (int i = draws->count; i < whole_vectors(draws->count); i++) {
        draws->a[i] = draws->b[i] = 1.0;
        draws->uid[i] = draws->rest[i] = 0;
    }
    return (Draws){draws->a, draws->b, draws->uid, draws->rest, draws->count};
}

/* Each round of the loop makes one try of up to LANES draws: of the next ones or, once enough of
   them have gathered, of those that were rejected. A result is written before it is known to be
   accepted; if it is not, a later try overwrites it. */
ALWAYS_INLINE void draw_all(const Wanted *wanted, double *out, FillRandom *fill_random)
{
    Tries at, of;
    Scattered scattered;
    Unsure unsure;
    uint64_t uid[LANES], rest[LANES];
    unsure.count = 0;
    for (ptrdiff_t next = 0; next < wanted->count || unsure.count > 0;) {
        int side_by_side = unsure.count < LANES && wanted->count - next >= LANES;
        Draws batch = {wanted->alpha + next, wanted->beta + next, uid, rest, LANES};
        if (side_by_side) {
            fill_counters(wanted, next, LANES, uid, rest);
        } else {
            if (unsure.count >= LANES || next == wanted->count) {
                decide(&unsure, &scattered);
            } else {
                copy_last(wanted, next, &scattered);
                next = wanted->count;
            }
            batch = batch_of(&scattered);
        }
        fill_random(wanted->key, batch.uid, batch.rest, whole_vectors(batch.lanes),
                    at.first_words, at.last_words);
        if (try_lanes(&at, &batch))
            power_lanes(&at, &batch, &of, wanted->key, fill_random);

        /* `out` may be where the shapes are: what is yet needed of them is kept first. */
        keep_unsure(&unsure, &batch, &at, side_by_side ? NULL : scattered.place, next);
        if (side_by_side) {
            memcpy(out + next, at.result, sizeof at.result);
            next += LANES;
        } else {
            for (int i = 0; i < batch.lanes; i++)
                out[scattered.place[i]] = at.result[i];
        }
    }
}

/* A variant of the code above: a function `name`, compiled with `attributes`. Only Philox is spelt
   out in vectors of 64-bit integers, since compilers do not see that 32-bit products will do. */
#define VARIANT(name, attributes, Vector, multiply)                                             \
    attributes static void name##_random(                                                       \
        uint64_t key, const uint64_t *uid, const uint64_t *rest, int width,                     \
        uint64_t *first_words, uint64_t *last_words)                                            \
    {                                                                                           \
        int step = sizeof(Vector) / sizeof(uint64_t);                                           \
        for (int i = 0; i < width; i += 2 * step) {                                             \
            /* Two at a time: a round is a chain, and one alone would wait for itself. */       \
            Vector uid1 = *(const Vector *)&uid[i], uid2 = *(const Vector *)&uid[i + step];     \
            Vector rest1 = *(const Vector *)&rest[i], rest2 = *(const Vector *)&rest[i + step]; \
            Vector one[4] = {uid1, uid1 >> 32, rest1, rest1 >> 32};                             \
            Vector two[4] = {uid2, uid2 >> 32, rest2, rest2 >> 32};                             \
            Vector key_low = (uid1 & 0) + key, key_high = (uid1 & 0) + (key >> 32);             \
            for (int round = 1; round < PHILOX_ROUNDS; round++) {                               \
                PHILOX_ROUND(Vector, one, key_low, key_high, multiply);                         \
                PHILOX_ROUND(Vector, two, key_low, key_high, multiply);                         \
                NEXT_KEY(key_low, key_high);                                                    \
            }                                                                                   \
            PHILOX_LAST_ROUND(                                                                  \
                one, key_low, key_high, multiply, *(Vector *)&first_words[i],                   \
                *(Vector *)&last_words[i]);                                                     \
            PHILOX_LAST_ROUND(                                                                  \
                two, key_low, key_high, multiply, *(Vector *)&first_words[i + step],            \
                *(Vector *)&last_words[i + step]);                                              \
        }                                                                                       \
    }                                                                                           \
    attributes static void name(const Wanted *wanted, double *out)                              \
    {                                                                                           \
        draw_all(wanted, out, name##_random);                                                   \
    }

VARIANT(sample_beta_plain, , uint64_t, multiply_words)

#if defined(HAS_WIDE_VARIANTS)

#include <immintrin.h>

typedef uint64_t Vector4 __attribute__((vector_size(32), aligned(8), may_alias));
typedef uint64_t Vector8 __attribute__((vector_size(64), aligned(8), may_alias));

#define MULTIPLY4(x, factor) \
    ((Vector4)_mm256_mul_epu32((__m256i)(x), _mm256_set1_epi64x(factor)))
#define MULTIPLY8(x, factor) \
    ((Vector8)_mm512_mul_epu32((__m512i)(x), _mm512_set1_epi64(factor)))

VARIANT(sample_beta_avx2, FOR_AVX2, Vector4, MULTIPLY4)
VARIANT(sample_beta_avx512, FOR_AVX512, Vector8, MULTIPLY8)

#else

#define sample_beta_avx2 sample_beta_plain
#define sample_beta_avx512 sample_beta_plain
#define sample_beta_avx2_random sample_beta_plain_random
#define sample_beta_avx512_random sample_beta_plain_random

#endif

/* The random words of counters, by columns, as the fastest variant makes them; `width` is a multiple
   of VECTOR. */
static inline void fill_random_fast(
    uint64_t key, const uint64_t *uid, const uint64_t *rest, int width, uint64_t *first_words,
    uint64_t *last_words)
{
    switch (fastest_variant()) {
    case AVX512:
        sample_beta_avx512_random(key, uid, rest, width, first_words, last_words);
        break;
    case AVX2:
        sample_beta_avx2_random(key, uid, rest, width, first_words, last_words);
        break;
    default:
        sample_beta_plain_random(key, uid, rest, width, first_words, last_words);
    }
}

/* Draws by one variant, which the processor must have. `out` may be `alpha` or `beta`. */
static inline void sample_beta_with(int variant, const Wanted *wanted, double *out)
{
    switch (variant) {
    case AVX512:
        sample_beta_avx512(wanted, out);
        break;
    case AVX2:
        sample_beta_avx2(wanted, out);
        break;
    default:
        sample_beta_plain(wanted, out);
    }
}

/* The same by the fastest. */
static inline void sample_beta_fast(const Wanted *wanted, double *out)
{
    sample_beta_with(fastest_variant(), wanted, out);
}

/* out[i] = sample_beta(alpha[i], beta[i], key, counters[i]) */
static inline void sample_beta_many(
    const double *alpha, const double *beta, const Counter *counters, uint64_t key,
    ptrdiff_t count, double *out)
{
    if (count >= 4) {
        sample_beta_fast(&(Wanted){alpha, beta, counters, 0, key, count}, out);
        return;
    }
    for (ptrdiff_t i = 0; i < count; i++)
        out[i] = sample_beta(alpha[i], beta[i], key, counters[i]);
}

#endif
