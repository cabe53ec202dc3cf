# The window of a session's last calls; its formulas are in window.h.
# cython: preliminary_late_includes_cy28=True

from libc.stdint cimport uint32_t
from records cimport Session

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
