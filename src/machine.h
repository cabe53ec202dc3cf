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

/* Move `size` bytes up by a few, from the last to the first. With a constant size this is a few
 * loads and stores, where memmove would be a call. */
CELLIUM_INLINE void shift_bytes(void *bytes, size_t size, size_t by)
{
    char kept[16], *start = (char *)bytes;
    for (; size >= 16; size -= 16) {
        memcpy(kept, start + size - 16, 16);
        memcpy(start + size - 16 + by, kept, 16);
    }
    if (size & 8) {
        size -= 8;
        memcpy(kept, start + size, 8);
        memcpy(start + size + by, kept, 8);
    }
    if (size & 4) {
        memcpy(kept, start, 4);
        memcpy(start + by, kept, 4);
    }
}

/* Move the first `count` - 1 of `count` words one place up. */
CELLIUM_INLINE void shift_words(void *words, int count)
{
    shift_bytes(words, (size_t)(count - 1) * sizeof(uint32_t), sizeof(uint32_t));
}

/* Bit i says whether words[i] equals `word`, for the twelve words that are read. */
CELLIUM_INLINE uint32_t equal_words_12(const uint32_t *words, uint32_t word)
{
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi32((int)word);
    const __m128i from_0 = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i *)words), wanted);
    const __m128i from_4 = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i *)(words + 4)), wanted);
    const __m128i from_8 = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i *)(words + 8)), wanted);
    const __m128i first = _mm_packs_epi32(from_0, from_4);
    const __m128i last = _mm_packs_epi32(from_8, _mm_setzero_si128());
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(first, last));
#else
    uint32_t bits = 0;
    for (int i = 0; i < 12; i++)
        bits |= (uint32_t)(words[i] == word) << i;
    return bits;
#endif
}

/* Bit i says whether halves[i] equals the low half of `word`, for the sixteen halves that are
 * read. */
CELLIUM_INLINE uint32_t equal_halves_16(const uint16_t *halves, uint32_t word)
{
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi16((int16_t)word);
    const __m128i from_0 = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *)halves), wanted);
    const __m128i from_8 = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *)(halves + 8)), wanted);
    return (uint32_t)_mm_movemask_epi8(_mm_packs_epi16(from_0, from_8));
#else
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++)
        bits |= (uint32_t)(halves[i] == (uint16_t)word) << i;
    return bits;
#endif
}

/* Bit i says whether words[i] equals `word`, for the four words that are read. */
CELLIUM_INLINE uint32_t equal_words_4(const uint32_t *words, uint32_t word)
{
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi32((int)word);
    const __m128i equal = _mm_cmpeq_epi32(_mm_loadu_si128((const __m128i *)words), wanted);
    return (uint32_t)_mm_movemask_ps(_mm_castsi128_ps(equal));
#else
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++)
        bits |= (uint32_t)(words[i] == word) << i;
    return bits;
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

#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HAS_SHUFFLES
#endif
#endif

#if defined(HAS_SHUFFLES)

/* Anywhere in memory, whatever is there. */
typedef uint32_t Words4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t Words8 __attribute__((vector_size(32), aligned(4), may_alias));

/* Of four rows of two times four words: both squares transposed. */
CELLIUM_INLINE void transpose_squares(Words8 rows[4])
{
    Words8 a = rows[0], b = rows[1], c = rows[2], d = rows[3];
    Words8 ab = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
    Words8 cd = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13);
    Words8 ab_high = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
    Words8 cd_high = __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    rows[0] = __builtin_shufflevector(ab, cd, 0, 1, 8, 9, 4, 5, 12, 13);
    rows[1] = __builtin_shufflevector(ab, cd, 2, 3, 10, 11, 6, 7, 14, 15);
    rows[2] = __builtin_shufflevector(ab_high, cd_high, 0, 1, 8, 9, 4, 5, 12, 13);
    rows[3] = __builtin_shufflevector(ab_high, cd_high, 2, 3, 10, 11, 6, 7, 14, 15);
}

#endif

/* rows[k][i] = from[i][k] for k < 4, i < 8, with rows of eight words. `wide`: a constant, whether
 * the processor has vectors of eight words. */
CELLIUM_INLINE void transpose_in(int wide, const void *const from[8], uint32_t *rows)
{
#if defined(HAS_SHUFFLES)
    if (wide) {
        Words8 both[4];
        for (int i = 0; i < 4; i++) {
            Words4 first = *(const Words4 *)from[i], last = *(const Words4 *)from[i + 4];
            both[i] = __builtin_shufflevector(first, last, 0, 1, 2, 3, 4, 5, 6, 7);
        }
        transpose_squares(both);
        for (int k = 0; k < 4; k++)
            *(Words8 *)(rows + 8 * k) = both[k];
        return;
    }
#endif
    (void)wide;
    transpose(from, rows, 8);
    transpose(from + 4, rows + 4, 8);
}

/* to[i][k] = rows[k][i], likewise. */
CELLIUM_INLINE void transpose_out(int wide, const uint32_t *rows, void *const to[8])
{
#if defined(HAS_SHUFFLES)
    if (wide) {
        Words8 both[4];
        for (int k = 0; k < 4; k++)
            both[k] = *(const Words8 *)(rows + 8 * k);
        transpose_squares(both);
        for (int i = 0; i < 4; i++) {
            *(Words4 *)to[i] = __builtin_shufflevector(both[i], both[i], 0, 1, 2, 3);
            *(Words4 *)to[i + 4] = __builtin_shufflevector(both[i], both[i], 4, 5, 6, 7);
        }
        return;
    }
#endif
    (void)wide;
    for (int half = 0; half < 8; half += 4) {
        uint32_t words[4][4];
        const uint32_t *row = rows + half;
        const void *const from[4] = {row, row + 8, row + 16, row + 24};
        transpose(from, words[0], 4);
        for (int i = 0; i < 4; i++)
            memcpy(to[half + i], words[i], sizeof words[i]);
    }
}

/* Fields of 8 or 16 bits, side by side in memory, as a word: place of the k-th. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define PLACE_OF_PART(bits, k) (32 - (bits) * ((k) + 1))
#define PLACE_OF_WORD(k) (32 - 32 * (k))
#else
#define PLACE_OF_PART(bits, k) ((bits) * (k))
#define PLACE_OF_WORD(k) (32 * (k))
#endif

/* Of 64 bits the k-th word in memory. */
CELLIUM_INLINE uint32_t word_of_two(uint64_t words, int k)
{
    return (uint32_t)(words >> PLACE_OF_WORD(k));
}

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
