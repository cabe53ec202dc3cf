/* What C itself has no word for: trailing zeros, prefetching, comparing many words at once.
 * Every function gives the same result on every machine. */

#ifndef CELLIUM_MACHINE_H
#define CELLIUM_MACHINE_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif
#if defined(_MSC_VER)
#include <intrin.h>
#endif

#if defined(__GNUC__)
#define CELLIUM_INLINE static inline __attribute__((always_inline))
#else
#define CELLIUM_INLINE static inline
#endif

/* Place of the lowest bit that is set; there is one. */
CELLIUM_INLINE int lowest_bit(uint32_t bits)
{
#if defined(__GNUC__)
    return __builtin_ctz(bits);
#elif defined(_MSC_VER)
    unsigned long place;
    _BitScanForward(&place, bits);
    return (int)place;
#else
    int place = 0;
    while (!(bits >> place & 1))
        place++;
    return place;
#endif
}

/* Bring the lines that hold [start, start + size) into the cache. */
CELLIUM_INLINE void prefetch(const void *start, size_t size)
{
#if defined(__GNUC__)
    for (size_t offset = 0; offset < size; offset += 64)
        __builtin_prefetch((const char *)start + offset, 1);
#else
    (void)start;
    (void)size;
#endif
}

/* Move the first `count` - 1 (at most 15) of `count` words one place up. With a constant count
 * this is a few loads and stores, where memmove would be a call. */
CELLIUM_INLINE void shift_words(void *words, int count)
{
    uint32_t kept[16];
    memcpy(kept, words, (size_t)(count - 1) * sizeof(uint32_t));
    memcpy((uint32_t *)words + 1, kept, (size_t)(count - 1) * sizeof(uint32_t));
}

/* Bit i says whether words[i] equals `word`, for eleven words. */
CELLIUM_INLINE uint32_t equal_words(const uint32_t *words, uint32_t word)
{
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi32((int)word);
    const __m128i from_0 = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i *)words), wanted);
    const __m128i from_4 = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i *)(words + 4)), wanted);
    const __m128i from_7 = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i *)(words + 7)), wanted);
    const __m128i first = _mm_packs_epi32(from_0, from_4);
    const __m128i last = _mm_packs_epi32(from_7, from_7);
    const uint32_t bits = (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(first, last));
    return (bits & 0xFF) | (bits >> 8 & 0xF) << 7;
#else
    uint32_t bits = 0;
    for (int i = 0; i < 11; i++)
        bits |= (uint32_t)(words[i] == word) << i;
    return bits;
#endif
}

/* Bit i says whether words[i] equals `word`, for three words; a fourth one is read. */
CELLIUM_INLINE uint32_t equal_words_3(const uint32_t *words, uint32_t word)
{
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi32((int)word);
    const __m128i equal = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i *)words), wanted);
    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(equal)) & 7;
#else
    return (uint32_t)(words[0] == word) | (uint32_t)(words[1] == word) << 1
        | (uint32_t)(words[2] == word) << 2;
#endif
}

/* Bit i says whether words[i] equals one before it, for four words. */
CELLIUM_INLINE uint32_t repeated_words_4(const uint32_t *words)
{
#if defined(__SSE2__)
    const __m128i all = _mm_loadu_si128((const __m128i *)words);
    const __m128i lag_1 = _mm_cmpeq_epi32(all, _mm_slli_si128(all, 4));
    const __m128i lag_2 = _mm_cmpeq_epi32(all, _mm_slli_si128(all, 8));
    const __m128i lag_3 = _mm_cmpeq_epi32(all, _mm_slli_si128(all, 12));
    return ((uint32_t)_mm_movemask_ps(_mm_castsi128_ps(lag_1)) & 14)
        | ((uint32_t)_mm_movemask_ps(_mm_castsi128_ps(lag_2)) & 12)
        | ((uint32_t)_mm_movemask_ps(_mm_castsi128_ps(lag_3)) & 8);
#else
    const uint32_t a = words[0], b = words[1], c = words[2], d = words[3];
    return (uint32_t)(b == a) << 1 | (uint32_t)(c == a || c == b) << 2
        | (uint32_t)(d == a || d == b || d == c) << 3;
#endif
}

/* `value`, but not below `low`, not above `high`: one instruction each, no branch. */
CELLIUM_INLINE double at_least(double value, double low)
{
    return value < low ? low : value;
}

CELLIUM_INLINE double at_most(double value, double high)
{
    return value > high ? high : value;
}

/* The nearest whole number, halves to the even one, for |value| below 2**51: rint as two
 * additions, where the oldest x86-64 has no instruction for it. */
CELLIUM_INLINE double nearest(double value)
{
    return (value + 6755399441055744.0) - 6755399441055744.0;
}

#endif
