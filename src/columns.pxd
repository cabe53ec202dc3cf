# Checks of a batch's columns, one pass each: the place of the first bad element, or -1. Rounds that
# are all good take one pass without branches.

from libc.stdint cimport int8_t, int64_t, uint8_t
from records cimport bad_flags


cdef inline Py_ssize_t first_fall(const int64_t* values, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint bad = False
    for i in range(1, count):
        bad |= values[i] < values[i - 1]
    if bad:
        for i in range(1, count):
            if values[i] < values[i - 1]:
                return i
    return -1


cdef inline Py_ssize_t first_above(
    const uint8_t* values, Py_ssize_t count, uint8_t most
) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint bad = False
    for i in range(count):
        bad |= values[i] > most
    if bad:
        for i in range(count):
            if values[i] > most:
                return i
    return -1


cdef inline Py_ssize_t first_bad_flags(const uint8_t* values, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint bad = False
    for i in range(count):
        bad |= bad_flags(values[i])
    if bad:
        for i in range(count):
            if bad_flags(values[i]):
                return i
    return -1


cdef inline Py_ssize_t first_outside(
    const int8_t* values, Py_ssize_t count, int8_t least, int8_t most
) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint bad = False
    for i in range(count):
        bad |= (values[i] < least) | (values[i] > most)
    if bad:
        for i in range(count):
            if values[i] < least or values[i] > most:
                return i
    return -1


cdef inline Py_ssize_t first_no_fraction(const float* values, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    cdef bint bad = False
    for i in range(count):
        bad |= (values[i] < 0) | (values[i] > 1)
    if bad:
        for i in range(count):
            if values[i] < 0 or values[i] > 1:
                return i
    return -1
