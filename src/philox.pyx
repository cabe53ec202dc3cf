# cython: language_level=3
"""Loops over the formulas of philox.pxd."""

from libc.stdint cimport uint32_t, uint64_t
from philox cimport Block, Counter
cimport philox


def random_words(const uint32_t[:, ::1] counters, uint64_t key, uint32_t[:, ::1] out):
    """The four Philox 4x32-10 words of each counter."""
    cdef Py_ssize_t i
    cdef int k
    cdef Block block
    with nogil:
        for i in range(counters.shape[0]):
            for k in range(4):
                block.word[k] = counters[i, k]
            block = philox.philox(key, block)
            for k in range(4):
                out[i, k] = block.word[k]


def sample_beta(
    const double[::1] alpha, const double[::1] beta, uint64_t key, uint64_t first, double[::1] out
):
    """One draw for each row; row i is drawn with the counter first + i."""
    cdef Py_ssize_t i
    cdef Counter counter
    counter.round = 0
    counter.purpose = 0
    with nogil:
        for i in range(alpha.shape[0]):
            counter.uid = first + <uint64_t> i
            out[i] = philox.sample_beta(alpha[i], beta[i], key, counter)
