/* Hashes of 64 bits down to the 32 that a record keeps. */

#ifndef CELLIUM_MIXING_H
#define CELLIUM_MIXING_H

#include "machine.h"

/* Multiplicative hashing, Knuth, "The Art of Computer Programming", vol. 3, section 6.4, after the
 * high half is folded into the low one. */
CELLIUM_INLINE uint32_t fold(uint64_t value)
{
    return (uint32_t)((value ^ value >> 32) * 0x9E3779B97F4A7C15 >> 32);
}

/* As `fold`, but 0 stands for "none" and stays 0; nothing else becomes 0. */
CELLIUM_INLINE uint32_t mix(uint64_t value)
{
    uint32_t folded = fold(value);
    return folded + (uint32_t)((folded == 0) & (value != 0));
}

/* 32 bits of two hashes together. */
CELLIUM_INLINE uint32_t fold_pair(uint64_t first, uint64_t second)
{
    return fold(first + 0xFF51AFD7ED558CCD * second);
}

#endif
