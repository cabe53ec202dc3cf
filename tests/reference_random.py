"""Philox and the Beta sampler in plain Python, written from the papers; no code shared.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC'11, section 4.3.
Marsaglia and Tsang, "A simple method for generating gamma variables", ACM TOMS 26(3), 2000.
Box and Muller, "A note on the generation of random normal deviates", Annals of Mathematical
Statistics 29(2), 1958.
"""

import math
from fractions import Fraction

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


def block_bits(key, uid, round, purpose, block):
    """The 128 random bits of one block of one draw, the first word highest."""
    counter = (uid & WORD, uid >> 32, round, purpose << 24 | block)
    a, b, c, d = philox(counter, (key & WORD, key >> 32))
    return a << 96 | b << 64 | c << 32 | d


def middle(number, bits):
    """The middle of cell `number` of the unit interval cut into 2^bits cells."""
    return float(Fraction(2 * number + 1, 2 ** (bits + 1)))


def normals(bits):
    """Two normals from 52 bits for the radius and 32 for the angle."""
    radius = math.sqrt(-2 * math.log(middle(bits >> 76, 52)))
    # 31 bits for the half circle with positive cosines; the last bit is the sign of the cosine.
    angle = math.pi * (middle(bits >> 1 & 2**31 - 1, 31) - 0.5)
    return (-1) ** (bits & 1) * radius * math.cos(angle), radius * math.sin(angle)


def deciding(bits):
    """A number in (0, 1) from the 44 bits that the normals leave: the third word, then the 12."""
    third, twelve = bits >> 32 & WORD, bits >> 64 & 2**12 - 1
    return middle(third << 12 | twelve, 44)


def log_acceptance(normal, d):
    """log of target over proposal density for a gamma variate d v; None if v is not positive."""
    root = 1 + normal / math.sqrt(9 * d)
    if root <= 0:
        return None
    return normal**2 / 2 + d - d * root**3 + 3 * d * math.log(root)


def accepted_try(a, b, key, uid, round=0, purpose=0):
    """Number and normals of the first try at Beta(a, b) whose gamma variates are accepted."""
    for block in range(1, 10_000):
        bits = block_bits(key, uid, round, purpose, block)
        x, y = normals(bits)
        one, two = log_acceptance(x, third_less(a)), log_acceptance(y, third_less(b))
        if one is None or two is None:
            continue
        if math.log(deciding(bits)) < one + two:
            return block, x, y
    raise AssertionError("no draw after 10,000 tries")


def third_less(shape):
    """d of the gamma variate of a shape, or of shape + 1 below 1."""
    return shape + (shape < 1) - 1 / 3


def beta(a, b, key, uid, round=0, purpose=0):
    """One draw from Beta(a, b): G / (G + H) of two gamma variates, accepted together."""
    _, x, y = accepted_try(a, b, key, uid, round, purpose)
    d, e = third_less(a), third_less(b)
    odds = 3 * math.log1p(x / math.sqrt(9 * d)) - 3 * math.log1p(y / math.sqrt(9 * e))
    odds += math.log(d) - math.log(e)
    powers = block_bits(key, uid, round, purpose, 0)
    if a < 1:
        odds += math.log(middle(powers >> 64, 64)) / a
    if b < 1:
        odds -= math.log(middle(powers & 2**64 - 1, 64)) / b
    if odds < 0:
        return math.exp(odds) / (1 + math.exp(odds)) if odds > -750 else 0.0
    return 1 / (1 + math.exp(-odds)) if odds < 750 else 1.0
