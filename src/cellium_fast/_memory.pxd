# Which slots of a fleet's memory are in use, for the modules that change it.

from libc.stdint cimport int64_t, uint64_t
from cellium_fast._records cimport Batch


cdef class SlotTable:
    cdef public Batch base
    cdef public int64_t used
    cdef public int64_t free_count
    cdef public uint64_t opened
    cdef public int64_t open_count
    cdef readonly object free
    cdef readonly object watched
    cdef int64_t* free_slots
    cdef char* watched_slots
    cdef int64_t watched_size
    cdef void take(self, const int64_t* slots, int64_t count) noexcept
    cdef void give_back(self, const int64_t* slots, int64_t count) noexcept
    cdef void watch(self, int64_t slot) noexcept
