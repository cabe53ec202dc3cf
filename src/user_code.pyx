# cython: language_level=3
"""Stages of users' own functions, beside those that are built in."""

from libc.stdint cimport uint32_t
from libc.string cimport memset
from cellium_fast._spans cimport stage
from records cimport Batch, user_rules_of


cdef int rules_rows(const Batch* batch, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    # None fires.
    if batch.user_rules:
        memset(user_rules_of(batch, start), 0, (stop - start) * sizeof(uint32_t))
    return 0


rules = stage(rules_rows, "user_code.rules")
