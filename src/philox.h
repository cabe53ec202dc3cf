/* Philox 4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
   SC'11, section 4.3. What is random about a draw is a function of key and counter alone. */

#ifndef CELLIUM_PHILOX_H
#define CELLIUM_PHILOX_H

#include <stdint.h>

#if defined(__GNUC__)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE static inline
#endif

typedef struct {
    uint64_t uid;
    uint32_t round;
    uint32_t purpose;   /* 0..255 */
} Counter;

/* The four 32-bit words of a counter: session uid (64 bits), round (32), block (24) and above it
   purpose (8). */
typedef struct {
    uint64_t uid, rest;
} Packed;

#define NEXT_BLOCK ((uint64_t)1 << 32)      /* added to `rest` */
#define WITHOUT_BLOCK 0xFF000000FFFFFFFF

/* Four random words of 32 bits: the first two and the last two, the earlier above. */
typedef struct {
    uint64_t first, last;
} Random;

ALWAYS_INLINE uint64_t multiply_words(uint64_t x, uint32_t factor)
{
    return (uint64_t)(uint32_t)x * factor;
}

/* One of the ten rounds on the counter `word[4]`: 64-bit integers or, as `Type`, vectors of them.
   `multiply` gives products of the lower halves; the upper halves only hold what is left over. */
#define PHILOX_ROUND(Type, word, key_low, key_high, multiply)                                   \
    do {                                                                                        \
        Type product0 = multiply((word)[0], 0xD2511F53);                                        \
        Type product1 = multiply((word)[2], 0xCD9E8D57);                                        \
        (word)[0] = product1 >> 32 ^ (word)[1] ^ (key_low);                                     \
        (word)[1] = product1;                                                                   \
        (word)[2] = product0 >> 32 ^ (word)[3] ^ (key_high);                                    \
        (word)[3] = product0;                                                                   \
    } while (0)

/* The last round; its result is that of Random. */
#define PHILOX_LAST_ROUND(word, key_low, key_high, multiply, first, last)                       \
    do {                                                                                        \
        (first) = multiply((word)[2], 0xCD9E8D57) ^ ((word)[1] ^ (key_low)) << 32;              \
        (last) = multiply((word)[0], 0xD2511F53) ^ ((word)[3] ^ (key_high)) << 32;              \
    } while (0)

#define PHILOX_ROUNDS 10
#define NEXT_KEY(key_low, key_high) ((key_low) += 0x9E3779B9, (key_high) += 0xBB67AE85)

ALWAYS_INLINE Random philox(uint64_t key, Packed counter)
{
    uint64_t key_low = key, key_high = key >> 32;
    uint64_t word[4] = {counter.uid, counter.uid >> 32, counter.rest, counter.rest >> 32};
    Random made;
    for (int round = 1; round < PHILOX_ROUNDS; round++) {
        PHILOX_ROUND(uint64_t, word, key_low, key_high, multiply_words);
        NEXT_KEY(key_low, key_high);
    }
    PHILOX_LAST_ROUND(word, key_low, key_high, multiply_words, made.first, made.last);
    return made;
}

/* The counter of block 0. */
ALWAYS_INLINE Packed packed(Counter counter)
{
    return (Packed){counter.uid, (uint64_t)counter.purpose << 56 | counter.round};
}

/* Of users' environments, whose own number of a draw takes the place of the block. */
#define ENVIRONMENT_PURPOSE 255

/* Uniform on [0, 1), a multiple of 2^-53, for an environment; of `number` 24 bits count. */
ALWAYS_INLINE double environment_uniform(
    uint64_t key, uint64_t uid, uint32_t round, uint32_t number)
{
    Packed counter = packed((Counter){uid, round, ENVIRONMENT_PURPOSE});
    counter.rest += (number & 0xFFFFFF) * NEXT_BLOCK;
    return (double)(philox(key, counter).first >> 11) * 0x1p-53;
}

#endif
