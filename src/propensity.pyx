# cython: language_level=3
"""A loop over the formula of propensity.pxd."""

import numpy as np
from libc.stdint cimport uint8_t
from variants cimport require_variant
cimport propensity


def win_probabilities(
    const double[:, ::1] alpha, const double[:, ::1] beta, const uint8_t[::1] candidates,
    const double[:, ::1] bias, double[:, ::1] out,
):
    """The probability of each arm of each row that Thompson sampling chooses it."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(alpha.shape[0]):
            propensity.win_probabilities(
                &alpha[i, 0], &beta[i, 0], &bias[i, 0], candidates[i], &out[i, 0]
            )


def win_probabilities_with(
    int variant, const double[:, ::1] alpha, const double[:, ::1] beta,
    const uint8_t[::1] candidates, const double[:, ::1] bias, double[:, ::1] out,
):
    """`win_probabilities` by one of the variants of code that this processor can run."""
    cdef Py_ssize_t i
    require_variant(variant)
    for i in range(alpha.shape[0]):
        propensity.win_probabilities_with(
            variant, &alpha[i, 0], &beta[i, 0], &bias[i, 0], candidates[i], &out[i, 0]
        )


def gauss_integrals(const double[::1] values):
    """Of what has these values at the 16 nodes: the integral over [-1, 1], and up to each node."""
    below = np.empty(propensity.GAUSS)
    cdef double[::1] filled = below
    if values.shape[0] != propensity.GAUSS:
        raise ValueError(f"wanted {propensity.GAUSS} values, got {values.shape[0]}")
    whole = propensity.gauss_integrals(0.0, &values[0], &filled[0])
    return whole, below
