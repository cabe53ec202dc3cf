# Decisions of one session, and its handle, for the modules that set them.

from libc.stdint cimport int64_t
from records cimport Batch, Increment
from step cimport Outcome
from cellium_fast._memory cimport SlotTable


cdef class DecisionRecord:
    cdef Outcome outcome


cdef class DecisionBase:
    cdef public DecisionRecord _record
    cdef public object _setting


cdef class Stepper:
    cdef SlotTable memory
    cdef object names
    cdef object turn
    cdef object acquire
    cdef object release
    cdef object kept
    cdef Increment* increments
    cdef type decision
    cdef object packer          # for the next step; None while one uses it
    cdef public object journal  # a `_journal.Journal`; None for a fleet without
    cdef const Batch* batch_of(self, int64_t id, bint evicted) except NULL
    cdef DecisionBase new_decision(self, setting)


cdef class Handle:
    cdef Stepper stepper
    cdef readonly int64_t _id
    cdef public object _decision
    cdef public object _setting
    cdef public object _unused      # tools the agent has and has not used, a frozenset
    cdef public bint _evicted       # closed by the fleet, for others
    cdef DecisionBase take(self, packer, used)
