# The window of a session's last calls; its formulas are in window.h.
# cython: preliminary_late_includes_cy28=True

from libc.stdint cimport int64_t, uint32_t, uint64_t
from records cimport RUN_WINDOW, Session, mix

cdef extern from "window.h" nogil:
    double run_score(uint32_t length)
    # Of at most RUN_WINDOW calls; bit i = call i equals the one before it.
    uint32_t longest_run_length(uint32_t equal_next)


cdef inline void clear(Session* session) noexcept nogil:
    session.window_count = 0
    session.error_bits = 0
    session.empty_bits = 0
    session.twins = 0
    session.failed_rounds = 0


cdef inline uint32_t equal_neighbours(const uint32_t* newest_first, int count) noexcept nogil:
    # As the window keeps them, for calls that are in none.
    cdef uint32_t mask = 0
    cdef int i
    for i in range(count - 1):
        mask |= <uint32_t>(newest_first[i] == newest_first[i + 1]) << i
    return mask


cdef inline double repetition_score(const uint64_t* signatures, int64_t length) noexcept nogil:
    # Of the longest run among the last calls, of which the newest comes last.
    cdef uint32_t recent[RUN_WINDOW]
    cdef int count = <int> min(max(length, <int64_t> 0), <int64_t> RUN_WINDOW)
    cdef int k
    for k in range(count):
        recent[k] = mix(signatures[length - 1 - k])
    return run_score(longest_run_length(equal_neighbours(recent, count))) if count else 0.0
