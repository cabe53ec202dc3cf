# cython: language_level=3
"""The tables behind `cellium_fast.names.Names`: compiled, so that no interrupt leaves one half
changed.
"""

from libc.stdint cimport uint64_t
from records cimport mix

CAPACITY = 10_000       # names kept of each kind


cdef class NameTable:
    """Tool names and shortened error texts by their mixed hash; the oldest go when it is full."""

    cdef public dict _tools
    cdef public dict _errors
    cdef public Py_ssize_t _capacity
    cdef public Py_ssize_t forgotten    # names that had to go so far

    def __init__(self, Py_ssize_t capacity=CAPACITY):
        self._capacity = capacity
        self._tools = {}
        self._errors = {}
        self.forgotten = 0

    def missing(self, tools, errors):
        """What `add` would take in of names by their 64-bit hashes, by their mixed ones."""
        return missing_in(self._tools, tools), missing_in(self._errors, errors)

    def add(self, dict tools not None, dict errors not None):
        """Take in names by their mixed hashes."""
        self.add_to(self._tools, tools)
        self.add_to(self._errors, errors)

    cdef int add_to(self, dict table, dict more) except -1:
        for mixed, text in more.items():
            if mixed in table:
                continue
            while len(table) >= self._capacity:
                del table[next(iter(table))]
                self.forgotten += 1
            table[mixed] = text
        return 0


cdef dict missing_in(dict table, more):
    # All of `more` if one of them is not there: those there may have to go before their turn.
    cdef dict named = {}
    cdef uint64_t digest
    cdef bint complete = True
    for key, text in more.items():
        digest = key
        mixed = mix(digest)
        complete = complete and mixed in table
        named.setdefault(mixed, text)
    return {} if complete else named
