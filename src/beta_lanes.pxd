# Many draws from the Beta law at once. Apart from philox.pxd, so that only modules that make many
# are compiled with it.

from libc.stdint cimport uint64_t
from philox cimport Counter

cdef extern from "beta_lanes.h" nogil:
    enum:
        VARIANTS
        LANES

    # The random words of counters, by columns; width is a multiple of LANES.
    void fill_random_fast(
        uint64_t key, const uint64_t* uid, const uint64_t* rest, int width,
        uint64_t* first_words, uint64_t* last_words,
    ) noexcept

    # What draws are of. counters may be NULL: the counters are first, first + 1, ..., all of round
    # 0 and purpose 0.
    ctypedef struct Wanted:
        const double* alpha
        const double* beta
        const Counter* counters
        uint64_t first, key
        Py_ssize_t count

    # out[i] = sample_beta(alpha[i], beta[i], key, counters[i]), the same bits; out may be alpha or
    # beta.
    void sample_beta_fast(const Wanted* wanted, double* out) noexcept
    void sample_beta_many(
        const double* alpha, const double* beta, const Counter* counters, uint64_t key,
        Py_ssize_t count, double* out,
    ) noexcept

    # For tests: the same by one variant, 0 = plain, 1 = AVX2, 2 = AVX-512.
    bint has_variant(int variant) noexcept
    void sample_beta_with(int variant, const Wanted* wanted, double* out) noexcept
