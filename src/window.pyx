# cython: language_level=3
"""Loops over the formulas of window.h."""

from libc.stdint cimport int64_t, uint64_t
cimport window


def repetition_scores(
    const uint64_t[:, ::1] signatures, const int64_t[::1] lengths, double[::1] out
):
    """Score of the longest run among the last calls of each row, newest call last."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(signatures.shape[0]):
            out[i] = window.repetition_score(&signatures[i, 0], lengths[i])
