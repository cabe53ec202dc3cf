# cython: language_level=3
"""Formulas of the core as plain C functions, for compiled code outside this package.

A program compiled against one of them may be kept for long, so that a function here never changes
what it takes and gives: what shall change gets a new name.
"""

from libc.math cimport NAN
from libc.stdint cimport int64_t, uint32_t, uint64_t
from philox cimport Counter, first_no_shape
from cellium_fast._block cimport step_block
cimport features
cimport learning
cimport philox
cimport window


cdef double ema(double value, double state, double alpha) noexcept nogil:
    return features.ema(value, state, alpha)


cdef double repetition_score(const uint64_t* signatures, int64_t count) noexcept nogil:
    return window.repetition_score(signatures, count)


cdef double nstep_return(const double* rewards, int64_t count, double gamma) noexcept nogil:
    return learning.weighted_return(rewards, count, gamma) if count > 0 else NAN


cdef double sample_beta(
    double alpha, double beta, uint64_t key, uint64_t uid, uint32_t round, uint32_t purpose
) noexcept nogil:
    cdef Counter counter
    if first_no_shape(&alpha, 1) == 0 or first_no_shape(&beta, 1) == 0:
        return NAN      # no try would ever be accepted
    counter.uid = uid
    counter.round = round
    counter.purpose = purpose & 0xFF
    return philox.sample_beta(alpha, beta, key, counter)


cdef double uniform(
    uint64_t key, uint64_t uid, uint32_t round, uint32_t purpose
) noexcept nogil:
    return philox.environment_uniform(key, uid, round, purpose)


def addresses():
    """Where each function is, by the name that `cellium_fast.nopython` gives it."""
    return {
        "ema": <size_t> <void*> ema, "repetition_score": <size_t> <void*> repetition_score,
        "nstep_return": <size_t> <void*> nstep_return, "sample_beta": <size_t> <void*> sample_beta,
        "uniform": <size_t> <void*> uniform, "step": <size_t> <void*> step_block,
    }
