# A block of sessions, which compiled code outside this package steps by its address.

from cpython.pythread cimport PyThread_type_lock
from libc.stdint cimport int64_t, uint64_t
from records cimport Batch, Session
from cellium_fast._spans cimport Stages

# Why a block was not stepped. Above 0: a function of a user's failed, as stages return it.
cdef enum:
    BLOCK_NOT_OPEN = -1     # or no block at all
    BLOCK_BUSY = -2         # another thread steps it
    ROWS_WRONG = -3
    OFFSETS_WRONG = -4
    FLAGS_WRONG = -5
    PROGRESS_WRONG = -6
    REWARD_WRONG = -7
    SUCCESS_WRONG = -8
    EVENT_WRONG = -9


ctypedef struct BlockState:
    uint64_t mark               # OPEN_MARK from entering to leaving
    Batch batch                 # of all sessions, with memory for a chunk
    Stages stages
    Py_ssize_t size
    Py_ssize_t chunk
    Py_ssize_t pools
    const int64_t* offsets      # as they are told; NULL: no calls
    int64_t* checked_offsets    # copies, which the batch reads
    int64_t call_capacity
    Session* kept               # room for the records, if functions of users may fail; or NULL
    uint64_t* uses              # where a fleet of limited size counts uses, or NULL
    uint64_t* use_of_slots
    PyThread_type_lock busy
    Py_ssize_t wrong_at         # where the newest step found something wrong


# The rows [start, stop) of a block, one step each: 0, or why not.
cdef int step_block(uint64_t address, int64_t start, int64_t stop) noexcept nogil
