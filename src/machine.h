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

/* The nearest whole number, halves to the even one, for |value| below 2**51: rint as two
 * additions, where the oldest x86-64 has no instruction for it. */
CELLIUM_INLINE double nearest(double value)
{
    return (value + 6755399441055744.0) - 6755399441055744.0;
}

#endif
