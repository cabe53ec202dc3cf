# cython: language_level=3
"""Loops over the formulas of philox.pxd and beta_lanes.pxd."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset
from beta_lanes cimport LANES, VARIANTS, Wanted, fill_random_fast, has_variant, sample_beta_fast
from philox cimport Counter, Packed, Random
cimport beta_lanes
cimport philox


def random_words(const uint32_t[:, ::1] counters, uint64_t key, uint32_t[:, ::1] out):
    """The four Philox 4x32-10 words of each counter."""
    cdef Py_ssize_t i
    cdef Packed counter
    cdef Random words
    with nogil:
        for i in range(counters.shape[0]):
            counter.uid = counters[i, 0] | <uint64_t> counters[i, 1] << 32
            counter.rest = counters[i, 2] | <uint64_t> counters[i, 3] << 32
            words = philox.philox(key, counter)
            out[i, 0] = <uint32_t> (words.first >> 32)
            out[i, 1] = <uint32_t> words.first
            out[i, 2] = <uint32_t> (words.last >> 32)
            out[i, 3] = <uint32_t> words.last


def words_of_agents(
    const int64_t[::1] uids, const int64_t[::1] rounds, uint64_t key, uint32_t purpose,
    uint32_t[:, ::1] out,
):
    """Random words of agents in their rounds, four of each block: the first ones there are.

    Row i of `out` is of the agent uids[i] in the round rounds[i]; its length is a multiple of 4.
    """
    cdef uint64_t uid[LANES]
    cdef uint64_t rest[LANES]
    cdef uint64_t first[LANES]
    cdef uint64_t last[LANES]
    cdef Py_ssize_t start = 0, i, count
    cdef uint64_t block, blocks = <uint64_t> out.shape[1] // 4
    with nogil:
        memset(uid, 0, sizeof(uid))
        memset(rest, 0, sizeof(rest))
        while start < out.shape[0]:
            count = min(<Py_ssize_t> LANES, out.shape[0] - start)
            for block in range(blocks):
                for i in range(count):
                    uid[i] = <uint64_t> uids[start + i]
                    rest[i] = (
                        <uint64_t> purpose << 56 | block << 32 | <uint32_t> rounds[start + i]
                    )
                fill_random_fast(key, uid, rest, LANES, first, last)
                for i in range(count):
                    out[start + i, 4 * block] = <uint32_t> (first[i] >> 32)
                    out[start + i, 4 * block + 1] = <uint32_t> first[i]
                    out[start + i, 4 * block + 2] = <uint32_t> (last[i] >> 32)
                    out[start + i, 4 * block + 3] = <uint32_t> last[i]
            start += count


def first_no_shape(const double[::1] values):
    """The place of the first value that is not a finite number above 0, or -1."""
    cdef Py_ssize_t place = -1
    if values.shape[0]:
        with nogil:
            place = philox.first_no_shape(&values[0], values.shape[0])
    return place


def sample_beta(
    const double[::1] alpha, const double[::1] beta, uint64_t key, uint64_t first, double[::1] out
):
    """One draw for each row; row i is drawn with the counter first + i."""
    cdef Wanted wanted = wanted_of(alpha, beta, key, first)
    with nogil:
        sample_beta_fast(&wanted, &out[0] if wanted.count else NULL)


def beta_variants():
    """Numbers of the variants of the Beta sampler that this processor can run; 0 is plain code."""
    return [variant for variant in range(VARIANTS) if has_variant(variant)]


def sample_beta_with(
    int variant, const double[::1] alpha, const double[::1] beta, uint64_t key, uint64_t first,
    double[::1] out,
):
    """`sample_beta` by one of `beta_variants`."""
    if not has_variant(variant):
        raise ValueError(f"this processor cannot run variant {variant}")
    cdef Wanted wanted = wanted_of(alpha, beta, key, first)
    with nogil:
        beta_lanes.sample_beta_with(variant, &wanted, &out[0] if wanted.count else NULL)


def sample_beta_singly(
    const double[::1] alpha, const double[::1] beta, uint64_t key, uint64_t first, double[::1] out
):
    """`sample_beta`, one draw after the other."""
    cdef Py_ssize_t i
    cdef Counter counter
    counter.round = 0
    counter.purpose = 0
    with nogil:
        for i in range(alpha.shape[0]):
            counter.uid = first + <uint64_t> i
            out[i] = philox.sample_beta(alpha[i], beta[i], key, counter)


def elementary(const double[::1] x):
    """log x, e^-|x|, sin(pi/2 x) and cos(pi/2 x), each where it is defined for x."""
    return (
        [philox.log_of(one) for one in x], [philox.exp_of_negative(-abs(one)) for one in x],
        [philox.sine_of_quarter(one) for one in x], [philox.cosine_of_quarter(one) for one in x],
    )


cdef Wanted wanted_of(
    const double[::1] alpha, const double[::1] beta, uint64_t key, uint64_t first
) noexcept:
    cdef Wanted wanted
    wanted.count = alpha.shape[0]
    wanted.alpha = &alpha[0] if wanted.count else NULL
    wanted.beta = &beta[0] if wanted.count else NULL
    wanted.counters = NULL
    wanted.first = first
    wanted.key = key
    return wanted
