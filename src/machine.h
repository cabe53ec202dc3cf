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
#define NOT_INLINE __attribute__((noinline))
#else
#define NOT_INLINE
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

/* Bit i says whether halves[i] equals the low half of `word`, for eleven halves. */
CELLIUM_INLINE uint32_t equal_halves(const uint16_t *halves, uint32_t word)
{
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi16((int16_t)word);
    const __m128i from_0 = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *)halves), wanted);
    const __m128i from_3 = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *)(halves + 3)), wanted);
    const uint32_t bits = (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(from_0, from_3));
    return (bits & 0xFF) | (bits >> 13) << 8;
#else
    uint32_t bits = 0;
    for (int i = 0; i < 11; i++)
        bits |= (uint32_t)(halves[i] == (uint16_t)word) << i;
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

/* Sixteen words: rows[k][i] = from[i][k] for k, i < 4, with rows `stride` words apart. */
CELLIUM_INLINE void transpose(const void *const from[4], uint32_t *rows, size_t stride)
{
#if defined(__SSE2__)
    const __m128i a = _mm_loadu_si128((const __m128i *)from[0]);
    const __m128i b = _mm_loadu_si128((const __m128i *)from[1]);
    const __m128i c = _mm_loadu_si128((const __m128i *)from[2]);
    const __m128i d = _mm_loadu_si128((const __m128i *)from[3]);
    const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
    const __m128i ab_high = _mm_unpackhi_epi32(a, b), cd_high = _mm_unpackhi_epi32(c, d);
    _mm_storeu_si128((__m128i *)rows, _mm_unpacklo_epi64(ab, cd));
    _mm_storeu_si128((__m128i *)(rows + stride), _mm_unpackhi_epi64(ab, cd));
    _mm_storeu_si128((__m128i *)(rows + 2 * stride), _mm_unpacklo_epi64(ab_high, cd_high));
    _mm_storeu_si128((__m128i *)(rows + 3 * stride), _mm_unpackhi_epi64(ab_high, cd_high));
#else
    for (int i = 0; i < 4; i++) {
        uint32_t words[4];
        memcpy(words, from[i], sizeof words);
        for (int k = 0; k < 4; k++)
            rows[(size_t)k * stride + (size_t)i] = words[k];
    }
#endif
}

/* Fields of 8 or 16 bits, side by side in memory, as a word: place of the k-th. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define PLACE_OF_PART(bits, k) (32 - (bits) * ((k) + 1))
#else
#define PLACE_OF_PART(bits, k) ((bits) * (k))
#endif

CELLIUM_INLINE uint32_t byte_of(uint32_t word, int k)
{
    return word >> PLACE_OF_PART(8, k) & 0xFF;
}

CELLIUM_INLINE uint32_t half_of(uint32_t word, int k)
{
    return word >> PLACE_OF_PART(16, k) & 0xFFFF;
}

CELLIUM_INLINE uint32_t of_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return a << PLACE_OF_PART(8, 0) | b << PLACE_OF_PART(8, 1) | c << PLACE_OF_PART(8, 2)
        | d << PLACE_OF_PART(8, 3);
}

CELLIUM_INLINE uint32_t of_halves(uint32_t a, uint32_t b)
{
    return a << PLACE_OF_PART(16, 0) | b << PLACE_OF_PART(16, 1);
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

CELLIUM_INLINE double clip(double value, double low, double high)
{
    return at_most(at_least(value, low), high);
}

/* The nearest whole number, halves to the even one, for |value| below 2**51: rint as two
 * additions, where the oldest x86-64 has no instruction for it. */
CELLIUM_INLINE double nearest(double value)
{
    return (value + 6755399441055744.0) - 6755399441055744.0;
}

#endif
