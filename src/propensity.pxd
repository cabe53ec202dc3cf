# The probability of each arm that Thompson sampling chooses it; how, and how exactly, is in
# propensity.h.

from libc.stdint cimport uint32_t

cdef extern from "propensity.h" nogil:
    # probability[arm], for five arms: 0 for those that are not among the candidates, of which there
    # is one at least.
    void win_probabilities(
        const double* alpha, const double* beta, const double* bias, uint32_t candidates,
        double* probability,
    ) noexcept

    # For tests: the same by one variant, 0 = plain, 1 = AVX2, 2 = AVX-512.
    void win_probabilities_with(
        int variant, const double* alpha, const double* beta, const double* bias,
        uint32_t candidates, double* probability,
    ) noexcept

cdef extern from "gauss.h" nogil:
    enum:
        GAUSS   # nodes

    # `first` plus the integral up to each node, and, returned, over all.
    double gauss_integrals(double first, const double* values, double* below) noexcept
