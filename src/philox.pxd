# Counter-based random numbers and the Beta sampler.
#
# Generator: Philox 4x32-10, Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
# 1, 2, 3", SC'11, section 4.3. A draw is a function of key and counter alone:
#   key     = the fleet's seed (64 bits)
#   counter = session uid (64 bits), round (32), purpose (8), block (24)
# so it cannot depend on threads, on the order of a batch or on what else is in it. The block
# counts the tries of one rejection sampler.
#
# Beta: algorithm BA, R. C. H. Cheng, "Generating beta variates with nonintegral shape
# parameters", CACM 21(4), 1978, section 2: rejection from a log-logistic, one try per Philox
# block. Both uniforms have 64 bits and every term is written so that nothing cancels, overflows
# or underflows on the way: the law is exact for shapes in [1e-3, 1e6], far tails included.

from libc.math cimport exp, expm1, log, log1p, sqrt
from libc.stdint cimport uint32_t, uint64_t

cdef extern from *:
    """
    #define CELLIUM_LN4 1.38629436111989061883
    """
    const double LN4 "CELLIUM_LN4"

ctypedef struct Counter:
    uint64_t uid
    uint32_t round
    uint32_t purpose    # 0..255

ctypedef struct Block:
    uint32_t word[4]


cdef inline Block philox(uint64_t key, Block counter) noexcept nogil:
    cdef uint32_t key_low = <uint32_t>key
    cdef uint32_t key_high = <uint32_t>(key >> 32)
    cdef uint64_t product0, product1
    cdef Block next
    for _ in range(10):
        product0 = <uint64_t>0xD2511F53 * counter.word[0]
        product1 = <uint64_t>0xCD9E8D57 * counter.word[2]
        next.word[0] = <uint32_t>(product1 >> 32) ^ counter.word[1] ^ key_low
        next.word[1] = <uint32_t>product1
        next.word[2] = <uint32_t>(product0 >> 32) ^ counter.word[3] ^ key_high
        next.word[3] = <uint32_t>product0
        counter = next
        key_low += <uint32_t>0x9E3779B9
        key_high += <uint32_t>0xBB67AE85
    return counter


cdef inline Block random_block(uint64_t key, Counter counter, uint32_t block) noexcept nogil:
    cdef Block packed
    packed.word[0] = <uint32_t>counter.uid
    packed.word[1] = <uint32_t>(counter.uid >> 32)
    packed.word[2] = counter.round
    packed.word[3] = counter.purpose << 24 | (block & 0xFFFFFF)
    return philox(key, packed)


cdef inline double open_unit(uint64_t bits) noexcept nogil:
    # (0, 1), or 1.0 by rounding; never 0.
    return (<double>bits + 0.5) * 5.421010862427522e-20     # 2**-64


cdef inline double logit(uint64_t bits) noexcept nogil:
    # log(u / (1 - u)) of the uniform u behind `bits`, with both tails at full precision.
    return log((<double>bits + 0.5) / (<double>(~bits) + 0.5))


cdef inline double log_mixture(double v, double a, double b) noexcept nogil:
    # log((b + a e^v) / (a + b)) - max(v, 0)
    cdef double u = -v if v > 0 else v
    cdef double moving = b if v > 0 else a
    cdef double fixed = a if v > 0 else b
    if u > -1.0:
        return log1p(moving * expm1(u) / (a + b))
    return log((fixed + moving * exp(u)) / (a + b))


cdef inline double logistic(double z) noexcept nogil:
    cdef double e
    if z >= 0:
        return 1.0 / (1.0 + exp(-z))
    e = exp(z)
    return e / (1.0 + e)


cdef inline double sample_beta(double a, double b, uint64_t key, Counter counter) noexcept nogil:
    # One draw from Beta(a, b), any finite a, b > 0; in [0, 1], never NaN.
    cdef uint32_t tries = 0
    cdef Block random
    cdef uint64_t first, second
    cdef double smaller, scale, v, slope, height
    # Sums and products below stay finite for any finite shape.
    a = min(max(a, 1e-300), 1e300)
    b = min(max(b, 1e-300), 1e300)
    if a + b < 1e-20:
        # All mass sits within rounding of 0 and 1.
        random = random_block(key, counter, 0)
        first = <uint64_t>random.word[0] << 32 | random.word[1]
        return 1.0 if open_unit(first) < a / (a + b) else 0.0
    smaller = min(a, b)
    if smaller < 1.000001:      # the root below is 0/0 at 1
        scale = min(smaller, 1.0)
    else:
        scale = sqrt((2.0 * (a / (a + b)) * b - 1.0) / (1.0 - 2.0 / (a + b)))
    while True:
        random = random_block(key, counter, tries)
        first = <uint64_t>random.word[0] << 32 | random.word[1]
        second = <uint64_t>random.word[2] << 32 | random.word[3]
        v = logit(first) / scale
        slope = scale - b if v > 0 else a + scale
        height = slope * v - (a + b) * log_mixture(v, a, b) - LN4
        if height >= 2.0 * log(open_unit(first)) + log(open_unit(second)):
            return logistic(v + log(a / b))
        tries += 1
