# cython: language_level=3
"""Loops over the formulas of philox.pxd and beta_lanes.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from beta_lanes cimport VARIANTS, has_variant, sample_beta_many
from philox cimport Counter, Packed, Words
cimport beta_lanes
cimport philox

cdef enum:
    CHUNK = 1024    # counters made at a time


def random_words(const uint32_t[:, ::1] counters, uint64_t key, uint32_t[:, ::1] out):
    """The four Philox 4x32-10 words of each counter."""
    cdef Py_ssize_t i
    cdef int k
    cdef Packed counter
    cdef Words words
    with nogil:
        for i in range(counters.shape[0]):
            counter.uid = counters[i, 0] | <uint64_t> counters[i, 1] << 32
            counter.rest = counters[i, 2] | <uint64_t> counters[i, 3] << 32
            words = philox.philox(key, counter)
            for k in range(4):
                out[i, k] = <uint32_t> words.word[k]


def sample_beta(
    const double[::1] alpha, const double[::1] beta, uint64_t key, uint64_t first, double[::1] out
):
    """One draw for each row; row i is drawn with the counter first + i."""
    _sample_beta(-1, alpha, beta, key, first, out)


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
    _sample_beta(variant, alpha, beta, key, first, out)


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


cdef _sample_beta(
    int variant, const double[::1] alpha, const double[::1] beta, uint64_t key, uint64_t first,
    double[::1] out,
):
    # Variant -1 is the fastest.
    cdef Counter counters[CHUNK]
    cdef Py_ssize_t i, count
    cdef Py_ssize_t start = 0
    cdef Py_ssize_t total = alpha.shape[0]
    with nogil:
        for i in range(CHUNK):
            counters[i].round = 0
            counters[i].purpose = 0
        while start < total:
            count = min(CHUNK, total - start)
            for i in range(count):
                counters[i].uid = first + <uint64_t> (start + i)
            if variant < 0:
                sample_beta_many(&alpha[start], &beta[start], counters, key, count, &out[start])
            else:
                beta_lanes.sample_beta_with(
                    variant, &alpha[start], &beta[start], counters, key, count, &out[start])
            start += count
