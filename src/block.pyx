# cython: language_level=3
"""Blocks: sessions of a fleet that other compiled code steps, by an address and without the GIL.

What such code writes is checked here before a kernel reads it.
"""

from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.pythread cimport (
    NOWAIT_LOCK, WAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock,
    PyThread_release_lock,
)
from libc.stdint cimport int8_t, int64_t, uint64_t
from libc.string cimport memmove, memset
from records cimport ARMS, EVENT_COMPACTION, Batch, Increment, Session
from cellium_fast._memory cimport SlotTable, note_uses
from cellium_fast._records cimport Batch as BatchObject
from cellium_fast._spans cimport functions_of, run_stages
from step cimport keep_sessions, put_back_sessions
cimport columns
cimport learning

from cellium_fast import _commit
from cellium_fast._records import address_of
from cellium_fast.errors import BlockError

cdef enum:
    OPEN_MARK = 0x6B636F6C

# Names of the columns that a step found wrong, by the code it returns.
WRONG_COLUMNS = {
    OFFSETS_WRONG: "call_offsets", FLAGS_WRONG: "call_flags", PROGRESS_WRONG: "progress",
    REWARD_WRONG: "reward", SUCCESS_WRONG: "success", EVENT_WRONG: "event",
}
NOT_OPEN = BLOCK_NOT_OPEN
BUSY = BLOCK_BUSY
WRONG_ROWS = ROWS_WRONG


cdef int step_block(uint64_t address, int64_t start, int64_t stop) noexcept nogil:
    cdef BlockState* block = <BlockState*> <size_t> address
    cdef int failure = BLOCK_NOT_OPEN
    if block == NULL or block.mark != OPEN_MARK:
        return failure
    if not PyThread_acquire_lock(block.busy, NOWAIT_LOCK):
        return BLOCK_BUSY
    if block.mark == OPEN_MARK:     # another thread may have left it meanwhile
        block.batch.user_failure.row = -1
        failure = what_is_wrong(block, start, stop)
        if failure == 0:
            failure = step_rows(block, start, stop)
    PyThread_release_lock(block.busy)
    return failure


cdef int step_rows(BlockState* block, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    cdef Batch part
    cdef int failure
    if block.kept != NULL:
        part = block.batch
        part.slots += start
        keep_sessions(&part, stop - start, block.kept)
    failure = run_stages(&block.stages, &block.batch, start, stop, block.chunk)
    if failure != 0 and block.kept != NULL:
        put_back_sessions(&part, stop - start, block.kept)
        memset(block.batch.increments, 0, block.pools * ARMS * sizeof(Increment))
        return failure
    learn_in_pools(block, start, stop)
    if block.uses != NULL:
        note_uses(block.uses, block.use_of_slots, block.batch.slots + start, stop - start)
    return failure


cdef void learn_in_pools(BlockState* block, Py_ssize_t start, Py_ssize_t stop) noexcept nogil:
    # Of few rows, only their pools can have learned something.
    cdef const Batch* batch = &block.batch
    cdef Py_ssize_t pool, i
    if stop - start < block.pools:
        for i in range(start, stop):
            pool = batch.sessions[batch.slots[i]].pool
            learning.apply_increments(&batch.pools[pool], batch.increments + pool * ARMS)
    else:
        for pool in range(block.pools):
            learning.apply_increments(&batch.pools[pool], batch.increments + pool * ARMS)


cdef inline int wrong(BlockState* block, int failure, Py_ssize_t place) noexcept nogil:
    block.wrong_at = place
    return failure


cdef int what_is_wrong(BlockState* block, int64_t start, int64_t stop) noexcept nogil:
    # What the columns say, as `RoundBatch.checked` asks for it.
    cdef const Batch* batch = &block.batch
    cdef Py_ssize_t count = stop - start
    cdef Py_ssize_t place
    if not 0 <= start <= stop <= block.size:
        return wrong(block, ROWS_WRONG, -1)
    if batch.progress:
        place = columns.first_no_fraction(batch.progress + start, count)
        if place >= 0:
            return wrong(block, PROGRESS_WRONG, start + place)
    if batch.reward_given:
        place = columns.first_no_fraction(batch.reward_given + start, count)
        if place >= 0:
            return wrong(block, REWARD_WRONG, start + place)
    if batch.success:
        place = columns.first_outside(batch.success + start, count, -1, 1)
        if place >= 0:
            return wrong(block, SUCCESS_WRONG, start + place)
    if batch.event:
        place = columns.first_above(batch.event + start, count, EVENT_COMPACTION)
        if place >= 0:
            return wrong(block, EVENT_WRONG, start + place)
    return wrong_calls(block, start, count) if block.offsets != NULL else 0


cdef int wrong_calls(BlockState* block, Py_ssize_t start, Py_ssize_t count) noexcept nogil:
    # Offsets are read as positions: what is checked is a copy that no other thread writes to.
    cdef const Batch* batch = &block.batch
    cdef int64_t* offsets = block.checked_offsets + start
    cdef Py_ssize_t i, place
    for i in range(count + 1):
        offsets[i] = block.offsets[start + i]
    place = columns.first_fall(offsets, count + 1)
    if place >= 0:
        return wrong(block, OFFSETS_WRONG, start + place)
    if offsets[0] < 0:
        return wrong(block, OFFSETS_WRONG, start)
    if offsets[count] > block.call_capacity:
        place = 0
        while offsets[place] <= block.call_capacity:
            place += 1
        return wrong(block, OFFSETS_WRONG, start + place)
    if batch.call_flags:
        place = columns.first_bad_flags(
            batch.call_flags + offsets[0], offsets[count] - offsets[0]
        )
        if place >= 0:
            return wrong(block, FLAGS_WRONG, offsets[0] + place)
    return 0


cdef class BlockBase:
    """What is compiled of a `cellium_fast.block.Block`: its turn, its address, its steps."""

    cdef BlockState state
    cdef object acquire     # its fleet's turn
    cdef object release
    cdef BatchObject batch
    cdef SlotTable memory
    cdef tuple kept         # arrays that `state` points into
    cdef tuple moved        # arrays with a row a session
    cdef bint begun

    def __cinit__(self, *others, **more):
        self.state.busy = PyThread_allocate_lock()
        if self.state.busy == NULL:
            raise MemoryError("no lock can be made for the block")

    def __dealloc__(self):
        self.state.mark = 0
        if self.state.busy != NULL:
            PyThread_free_lock(self.state.busy)

    def set_turn(self, turn):
        """Whose turn the block is in while it is open."""
        self.acquire = turn.acquire
        self.release = turn.release

    def __enter__(self):
        if self.begun:
            raise BlockError("a block is entered once; ask the fleet for another one")
        self.acquire()
        try:
            self.prepare()
        except BaseException:
            self.release()
            raise
        self.begun = True
        self.state.mark = OPEN_MARK
        return self

    def __exit__(self, *error):
        # A thread that is stepping works on the fleet's memory: the turn is given away after it.
        with nogil:
            PyThread_acquire_lock(self.state.busy, WAIT_LOCK)
        self.state.mark = 0
        PyThread_release_lock(self.state.busy)
        self.release()

    def set_up(
        self, *, SlotTable memory not None, BatchObject batch not None, tuple stages not None,
        Py_ssize_t size, Py_ssize_t chunk, offsets, checked_offsets, int64_t call_capacity,
        tuple moved not None, kept,
    ):
        """What the block steps: a batch with scratch memory and increments, in these stages.

        `offsets` and `checked_offsets`, (size + 1,) int64, or None for rounds without calls, are
        what the user tells and what the batch reads. `moved` are the arrays with a row for each
        session, the slots among them. `kept` has room for the records of as many sessions, if
        functions of users may fail; else it is None.
        """
        cdef size_t told = address_of(offsets) if offsets is not None else 0
        cdef size_t read = address_of(checked_offsets) if offsets is not None else 0
        cdef size_t records = address_of(kept) if kept is not None else 0
        self.state.stages = functions_of(stages)
        if self.state.stages.count == 0:
            raise TypeError("a block can only be stepped in stages that are C functions")
        self.batch = batch
        self.memory = memory
        self.kept = (offsets, checked_offsets, kept)
        self.moved = moved
        self.state.batch = batch.batch
        self.state.size = size
        self.state.chunk = chunk
        self.state.pools = len(memory.base.pools)
        self.state.offsets = <const int64_t*> told
        self.state.checked_offsets = <int64_t*> read
        self.state.call_capacity = call_capacity
        self.state.kept = <Session*> records
        self.state.use_of_slots = memory.use_of_slots
        self.state.uses = &memory.calls if memory.use_of_slots != NULL else NULL

    @property
    def address(self):
        """What `cellium_fast.nopython.step` takes; good as long as this object is there."""
        return <size_t> &self.state

    @property
    def is_open(self):
        """Whether the block was entered and not left yet."""
        return self.state.mark == OPEN_MARK

    @property
    def failure(self):
        """What failed of users' functions in the newest step, a `_records.UserFailure`; or None."""
        return self.batch.failure

    @property
    def wrong_at(self):
        """Place in a column at which the newest step that failed found something wrong."""
        return self.state.wrong_at

    def __len__(self):
        return self.state.size

    def run(self, int64_t start, int64_t stop):
        """Step the rows [start, stop); 0 or why not, as `cellium_fast.nopython.step`."""
        cdef int failure
        with nogil:
            failure = step_block(<size_t> &self.state, start, stop)
        return failure

    def close_rows(
        self, BatchObject batch not None, const int64_t[::1] slots, const int8_t[::1] outcomes,
        dict handles not None, const int64_t[::1] kept,
    ):
        """Close the sessions of a batch, which are all but those in the rows `kept`, in order."""
        if not PyThread_acquire_lock(self.state.busy, NOWAIT_LOCK):
            raise BlockError("another thread is stepping this block; one at a time can")
        try:
            if not self.is_open:
                raise BlockError("the block is not open: another thread has left it")
            _commit.close(None, None, self.memory, batch, slots, outcomes, [], handles)
            for array in self.moved:
                keep_rows(array, kept)
            self.state.size = kept.shape[0]
        finally:
            PyThread_release_lock(self.state.busy)


cdef int keep_rows(array, const int64_t[::1] rows) except -1:
    # Move these rows of an array, in rising order, to its beginning: as many at once as follow one
    # another.
    cdef Py_buffer view
    cdef Py_ssize_t size, start = 0, stop
    cdef char* first
    PyObject_GetBuffer(array, &view, PyBUF_WRITABLE)
    first = <char*> view.buf
    size = view.len // max(<Py_ssize_t> len(array), 1)
    while start < rows.shape[0]:
        stop = start + 1
        while stop < rows.shape[0] and rows[stop] - rows[start] == stop - start:
            stop += 1
        if rows[start] != start:
            memmove(
                first + start * size, first + rows[start] * size, <size_t> ((stop - start) * size)
            )
        start = stop
    PyBuffer_Release(&view)
    return 0
