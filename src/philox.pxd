# Counter-based random numbers and the Beta sampler, in C: philox.h, elementary.h, beta.h and
# beta_lanes.h say what they compute and why it is exact.
#
# A draw is a function of key and counter alone:
#   key     = the fleet's seed (64 bits)
#   counter = session uid (64 bits), round (32), purpose (8), block (24)
# so it cannot depend on threads, on the order of a batch or on what else is in it. Block 0 is for
# shapes below 1, blocks 1, 2, ... are the tries of the rejection sampler.

from libc.stdint cimport uint32_t, uint64_t

cdef extern from "philox.h" nogil:
    ctypedef struct Counter:
        uint64_t uid
        uint32_t round
        uint32_t purpose    # 0..255

    ctypedef struct Packed:
        uint64_t uid
        uint64_t rest

    ctypedef struct Random:
        uint64_t first, last

    Random philox(uint64_t key, Packed counter) noexcept
    double environment_uniform(
        uint64_t key, uint64_t uid, uint32_t round, uint32_t number
    ) noexcept

cdef extern from "elementary.h" nogil:
    double log_of(double x) noexcept
    double exp_of_negative(double x) noexcept
    double sine_of_quarter(double f) noexcept
    double cosine_of_quarter(double f) noexcept

cdef extern from "beta.h" nogil:
    # One draw from Beta(a, b), any a, b > 0; in [0, 1], never NaN.
    double sample_beta(double a, double b, uint64_t key, Counter counter) noexcept

    # The place of the first value that is not a finite number above 0, or -1.
    Py_ssize_t first_no_shape(const double* values, Py_ssize_t count) noexcept
