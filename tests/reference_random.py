"""Philox and Cheng's Beta sampler in plain Python, written from the papers; no code shared.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11, section 4.3.
Cheng, "Generating beta variates with nonintegral shape parameters", CACM 21(4), 1978, section 2,
algorithm BA.
"""

import math

WORD = 2**32 - 1


def philox(counter, key):
    """Philox 4x32-10: four counter words and two key words to four random words."""
    a, b, c, d = counter
    low, high = key
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b = second >> 32 ^ b ^ low, second & WORD
        c, d = first >> 32 ^ d ^ high, first & WORD
        low, high = low + 0x9E3779B9 & WORD, high + 0xBB67AE85 & WORD
    return a, b, c, d


def uniform_bits(key, uid, round, purpose, block):
    """The two 64-bit numbers of one block of one draw."""
    counter = (uid & WORD, uid >> 32, round, purpose << 24 | block)
    a, b, c, d = philox(counter, (key & WORD, key >> 32))
    return a << 32 | b, c << 32 | d


def log_sum(x, y):
    """log(e^x + e^y)."""
    high, low = max(x, y), min(x, y)
    return high + math.log1p(math.exp(low - high))


def beta(a, b, key, uid, round=0, purpose=0):
    """One draw from Beta(a, b) by algorithm BA, in logarithms so that nothing overflows."""
    alpha = a + b
    spread = max(1 / a, 1 / b)
    if min(a, b) > 1:
        spread = math.sqrt((alpha - 2) / (2 * a * b - alpha))
    gamma = a + 1 / spread
    for block in range(10_000):
        first, second = uniform_bits(key, uid, round, purpose, block)
        # u = (bits + 1/2) / 2^64; the quotient of whole numbers is rounded once.
        v = spread * math.log((2 * first + 1) / (2 * (2**64 - 1 - first) + 1))
        w = math.log(a) + v
        z = 2 * math.log((first + 0.5) / 2**64) + math.log((second + 0.5) / 2**64)
        if alpha * (math.log(alpha) - log_sum(math.log(b), w)) + gamma * v - math.log(4) >= z:
            odds = w - math.log(b)
            return math.exp(odds - log_sum(0.0, odds))
    raise AssertionError("no draw after 10,000 tries")
