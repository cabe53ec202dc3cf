# cython: language_level=3
"""Which slots of a fleet's memory are in use.

Preparing a change only makes room; the change itself is C, so that nobody sees half of it.
"""

from libc.stdint cimport int64_t, uint64_t

from cellium_fast._records import address_of

cdef enum:
    LAST_GENERATION = 0x7FFFFFFF    # a slot closed that often is given up: its ids have run out


cdef class SlotTable:
    """The arrays of a fleet (`base`) and what of them is in use.

    Attributes
    ----------
    base
        A batch without columns: where the arrays are. It holds them.
    used
        Slots used so far, the free ones among them included.
    free, free_count
        The slots of closed sessions in the first places, the last one to be used first.
    watched
        Whether a `Session` object stands for a slot's session; as long as it has to be.
    opened, open_count
        Sessions opened so far, and those among them that are open.
    """

    def hold_free(self, free):
        """Keep free slots in this array (int64), which has room for them."""
        cdef size_t address = address_of(free)
        self.free = free
        self.free_slots = <int64_t*> address

    def hold_watched(self, watched):
        """Keep in this array (bool) what is watched."""
        cdef size_t address = address_of(watched)
        self.watched = watched
        self.watched_slots = <char*> address
        self.watched_size = len(watched)

    cdef void take(self, const int64_t* slots, int64_t count) noexcept:
        # These slots, as `Memory.slots_for` gave them, have new sessions.
        cdef int64_t again = min(count, self.free_count)
        self.free_count -= again
        self.used += count - again
        self.opened += <uint64_t> count
        self.open_count += count

    cdef void give_back(self, const int64_t* slots, int64_t count) noexcept:
        # The sessions of these slots are closed; there is room for as many in `free`.
        cdef int64_t i
        self.open_count -= count
        for i in range(count):
            if slots[i] < self.watched_size:
                self.watched_slots[slots[i]] = 0
            if self.base.batch.sessions[slots[i]].generation < LAST_GENERATION:
                self.free_slots[self.free_count] = slots[i]
                self.free_count += 1

    cdef void watch(self, int64_t slot) noexcept:
        # There is room for it in `watched`.
        self.watched_slots[slot] = 1
