/* Sketches of texts: 16 numbers of four bits, most of which nearly equal texts share.
 *
 * MinHash over grams of three characters (A. Z. Broder, "On the resemblance and containment of
 * documents", SEQUENCES 1997) under 16 permutations of their 16-bit hashes, multiplications by odd
 * numbers; of each minimum four bits (P. Li, A. C. König, "b-Bit Minwise Hashing", WWW 2010). */

#ifndef CELLIUM_SKETCH_H
#define CELLIUM_SKETCH_H

#include "machine.h"

enum {
    SKETCH_NUMBERS = 16,
    SKETCH_LEAST = 16,      /* characters from which a text can be told */
    SKETCH_MOST = 256,      /* normalised characters that are looked at, */
    SKETCH_FIRST = 1024,    /* and characters that these are taken from */
    SKETCH_BLOCK = 16       /* characters that are normalised at once, if they are plain */
};

static const uint16_t SKETCH_FACTORS[SKETCH_NUMBERS] = {
    0x9E37, 0x79B9, 0x7F4B, 0xD6E9, 0xFEB9, 0x6659, 0xFD93, 0x51AF,
    0xD7ED, 0x558D, 0xC2B3, 0xAE3D, 0x85EB, 0xCA77, 0x27D5, 0xEB2F,
};

#define SKETCH_SPREAD 0x9E37

/* Hash of the gram that ends at the last of three characters of 21 bits each. */
CELLIUM_INLINE uint16_t gram_hash(uint64_t gram)
{
    return (uint16_t)(gram * 0x9E3779B97F4A7C15 >> 48);
}

CELLIUM_INLINE uint64_t next_gram(uint64_t gram, uint32_t character)
{
    return gram >> 21 | (uint64_t)character << 42;
}

/* Of the next SKETCH_BLOCK characters of one byte each, those before the first one that is neither
 * an ASCII letter nor a blank between two words go to `out`, in lower case; their number is
 * returned. Behind them, `out` is written to as well. */
CELLIUM_INLINE int take_plain(const uint8_t *text, int after_blank, uint32_t *out)
{
#if defined(__SSE2__)
    const __m128i chars = _mm_loadu_si128((const __m128i *)text), zero = _mm_setzero_si128();
    const __m128i lower = _mm_or_si128(chars, _mm_set1_epi8(0x20));
    const __m128i letters = _mm_and_si128(
        _mm_cmpgt_epi8(lower, _mm_set1_epi8('a' - 1)),
        _mm_cmpgt_epi8(_mm_set1_epi8('z' + 1), lower));
    const uint32_t letter = (uint32_t)_mm_movemask_epi8(letters);
    const uint32_t blank = (uint32_t)_mm_movemask_epi8(_mm_cmpeq_epi8(chars, _mm_set1_epi8(' ')));
    const uint32_t behind = letter << 1 | (uint32_t)!after_blank;
    const __m128i low = _mm_unpacklo_epi8(lower, zero), high = _mm_unpackhi_epi8(lower, zero);
    __m128i *to = (__m128i *)out;
    _mm_storeu_si128(to, _mm_unpacklo_epi16(low, zero));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(low, zero));
    _mm_storeu_si128(to + 2, _mm_unpacklo_epi16(high, zero));
    _mm_storeu_si128(to + 3, _mm_unpackhi_epi16(high, zero));
    return lowest_bit(~(letter | (blank & behind)));
#else
    (void)text, (void)after_blank, (void)out;
    return 0;
#endif
}

/* The sketch of normalised characters: 0 for too few of them, else not 0. Minima are compared as
 * signed numbers. As their high bits are all alike, each is multiplied once more and gives the
 * highest four bits of the product. */
CELLIUM_INLINE uint64_t sketch_of(const uint32_t *chars, int count)
{
    uint64_t sketch, gram;
    if (count < SKETCH_LEAST)
        return 0;
    gram = next_gram(next_gram(0, chars[0]), chars[1]);
#if defined(__SSE2__)
    const __m128i *factors = (const __m128i *)SKETCH_FACTORS;
    const __m128i first = _mm_loadu_si128(factors), last = _mm_loadu_si128(factors + 1);
    const __m128i spread = _mm_set1_epi16((int16_t)SKETCH_SPREAD);
    __m128i least_first = _mm_set1_epi16(INT16_MAX), least_last = least_first, numbers;
    for (int i = 2; i < count; i++) {
        gram = next_gram(gram, chars[i]);
        const __m128i hash = _mm_set1_epi16((int16_t)gram_hash(gram));
        least_first = _mm_min_epi16(least_first, _mm_mullo_epi16(hash, first));
        least_last = _mm_min_epi16(least_last, _mm_mullo_epi16(hash, last));
    }
    numbers = _mm_packus_epi16(
        _mm_srli_epi16(_mm_mullo_epi16(least_first, spread), 12),
        _mm_srli_epi16(_mm_mullo_epi16(least_last, spread), 12));
    /* Two bytes become one. */
    numbers = _mm_or_si128(numbers, _mm_srli_epi16(numbers, 4));
    numbers = _mm_packus_epi16(_mm_and_si128(numbers, _mm_set1_epi16(0xFF)), numbers);
    _mm_storel_epi64((__m128i *)&sketch, numbers);
#else
    int16_t least[SKETCH_NUMBERS];
    for (int k = 0; k < SKETCH_NUMBERS; k++)
        least[k] = INT16_MAX;
    for (int i = 2; i < count; i++) {
        gram = next_gram(gram, chars[i]);
        const uint32_t hash = gram_hash(gram);
        for (int k = 0; k < SKETCH_NUMBERS; k++) {
            int16_t value = (int16_t)(hash * SKETCH_FACTORS[k]);
            least[k] = value < least[k] ? value : least[k];
        }
    }
    sketch = 0;
    for (int k = 0; k < SKETCH_NUMBERS; k++) {
        uint64_t number = (uint16_t)((uint32_t)(uint16_t)least[k] * SKETCH_SPREAD) >> 12;
        sketch |= number << 4 * k;
    }
#endif
    return sketch ? sketch : 1;
}

/* A one in each of the 8 numbers of a word that are not 0. */
CELLIUM_INLINE uint32_t numbers_set(uint32_t numbers)
{
    numbers |= numbers >> 1;
    return (numbers | numbers >> 2) & 0x11111111;
}

/* How many of the 16 numbers two sketches, of two words each, share. Unrelated texts share a few
 * by chance. */
CELLIUM_INLINE uint32_t alike(uint32_t a, uint32_t a_last, uint32_t b, uint32_t b_last)
{
    uint32_t different = numbers_set(a ^ b) + numbers_set(a_last ^ b_last);
    different = (different & 0x0F0F0F0F) + (different >> 4 & 0x0F0F0F0F);
    return SKETCH_NUMBERS - (different * 0x01010101 >> 24);
}

#endif
