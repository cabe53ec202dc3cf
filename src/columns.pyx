# cython: language_level=3
"""Checks of a batch's columns: the formulas of columns.pxd, for arrays."""

from libc.stdint cimport int8_t, int64_t, uint8_t
cimport columns


def first_fall(const int64_t[::1] values):
    """First element below the one before it."""
    cdef Py_ssize_t place
    with nogil:
        place = columns.first_fall(&values[0], values.shape[0]) if values.shape[0] else -1
    return place


def first_above(const uint8_t[::1] values, uint8_t most):
    """First element above `most`."""
    cdef Py_ssize_t place
    with nogil:
        place = columns.first_above(&values[0], values.shape[0], most) if values.shape[0] else -1
    return place


def first_bad_flags(const uint8_t[::1] values):
    """First element that is no sum of a call's flags, or one that contradicts itself."""
    cdef Py_ssize_t place
    with nogil:
        place = columns.first_bad_flags(&values[0], values.shape[0]) if values.shape[0] else -1
    return place


def first_outside(const int8_t[::1] values, int8_t least, int8_t most):
    """First element outside [least, most]."""
    cdef Py_ssize_t place
    with nogil:
        place = (
            columns.first_outside(&values[0], values.shape[0], least, most)
            if values.shape[0] else -1
        )
    return place


def first_no_fraction(const float[::1] values):
    """First element that is neither in [0, 1] nor NaN."""
    cdef Py_ssize_t place
    with nogil:
        place = columns.first_no_fraction(&values[0], values.shape[0]) if values.shape[0] else -1
    return place
