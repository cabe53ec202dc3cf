# Which slots of a fleet's memory are in use, for the modules that change it.

from libc.stdint cimport int8_t, int64_t, uint16_t, uint64_t
from records cimport Choice
from cellium_fast._records cimport Batch


cdef inline void note_uses(
    uint64_t* calls, uint64_t* use_of_slots, const int64_t* slots, Py_ssize_t count
) noexcept nogil:
    # A call used these slots.
    cdef Py_ssize_t i
    calls[0] += 1
    for i in range(count):
        use_of_slots[slots[i]] = calls[0]


cdef class SlotTable:
    cdef public Batch base
    cdef public int64_t used
    cdef public int64_t free_count
    cdef public uint64_t opened
    cdef public int64_t open_count
    cdef public uint64_t calls
    cdef public uint64_t evicted
    cdef readonly object free
    cdef readonly object watched
    cdef readonly object last_use
    cdef readonly object queue
    cdef readonly object choices
    cdef int64_t* free_slots
    cdef char* watched_slots
    cdef int64_t watched_size
    cdef uint64_t* use_of_slots
    cdef const int64_t* queued
    cdef uint64_t queued_at
    cdef int64_t queue_place
    cdef int64_t queue_size
    cdef Choice* choices_known
    cdef Py_ssize_t policy_count
    cdef void take(self, int64_t count) noexcept
    cdef void use(self, const int64_t[::1] slots) noexcept
    cdef void use_one(self, int64_t slot) noexcept
    cdef Choice* choices_of(self, int64_t slot) noexcept
    cdef void begin_trials(
        self, const int64_t[::1] slots, const uint16_t[::1] policies
    ) noexcept
    cdef void end_trials(self, const int64_t[::1] slots, const int8_t[::1] outcomes) noexcept
    cdef void leave_trials(self, const int64_t[::1] slots, uint16_t policy) noexcept
    cdef void give_back(self, const int64_t[::1] slots) noexcept
    cdef void watch(self, int64_t slot) noexcept
