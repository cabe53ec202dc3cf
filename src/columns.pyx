# cython: language_level=3
"""Checks of a batch's columns, one pass each: the place of the first bad element, or -1."""

from libc.stdint cimport int8_t, int64_t, uint8_t
from records cimport bad_flags


def first_fall(const int64_t[::1] values):
    """First element below the one before it."""
    cdef Py_ssize_t i
    cdef bint bad = False
    with nogil:
        for i in range(1, values.shape[0]):
            bad |= values[i] < values[i - 1]
        if bad:
            for i in range(1, values.shape[0]):
                if values[i] < values[i - 1]:
                    break
    return i if bad else -1


def first_above(const uint8_t[::1] values, uint8_t most):
    """First element above `most`."""
    cdef Py_ssize_t i
    cdef bint bad = False
    with nogil:
        for i in range(values.shape[0]):
            bad |= values[i] > most
        if bad:
            for i in range(values.shape[0]):
                if values[i] > most:
                    break
    return i if bad else -1


def first_bad_flags(const uint8_t[::1] values):
    """First element that is no sum of a call's flags, or one that contradicts itself."""
    cdef Py_ssize_t i
    cdef bint bad = False
    with nogil:
        for i in range(values.shape[0]):
            bad |= bad_flags(values[i])
        if bad:
            for i in range(values.shape[0]):
                if bad_flags(values[i]):
                    break
    return i if bad else -1


def first_outside(const int8_t[::1] values, int8_t least, int8_t most):
    """First element outside [least, most]."""
    cdef Py_ssize_t i
    cdef bint bad = False
    with nogil:
        for i in range(values.shape[0]):
            bad |= (values[i] < least) | (values[i] > most)
        if bad:
            for i in range(values.shape[0]):
                if values[i] < least or values[i] > most:
                    break
    return i if bad else -1


def first_no_fraction(const float[::1] values):
    """First element that is neither in [0, 1] nor NaN."""
    cdef Py_ssize_t i
    cdef bint bad = False
    with nogil:
        for i in range(values.shape[0]):
            bad |= (values[i] < 0) | (values[i] > 1)
        if bad:
            for i in range(values.shape[0]):
                if values[i] < 0 or values[i] > 1:
                    break
    return i if bad else -1
