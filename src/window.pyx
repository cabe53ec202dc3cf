# cython: language_level=3
"""Loops over the formulas of window.h."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from records cimport RUN_WINDOW, mix
from window cimport equal_neighbours, longest_run_length, run_score


def repetition_scores(
    const uint64_t[:, ::1] signatures, const int64_t[::1] lengths, double[::1] out
):
    """Score of the longest run among the last calls of each row, newest call last."""
    cdef Py_ssize_t i
    cdef int k, count
    cdef uint32_t recent[RUN_WINDOW]
    with nogil:
        for i in range(signatures.shape[0]):
            count = <int> min(lengths[i], <int64_t> RUN_WINDOW)
            for k in range(count):
                recent[k] = mix(signatures[i, lengths[i] - 1 - k])
            out[i] = (
                run_score(longest_run_length(equal_neighbours(recent, count)))
                if count else 0.0
            )
