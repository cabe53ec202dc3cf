# cython: language_level=3
"""Which slots of a fleet's memory are in use.

Preparing a change only makes room; the change itself is C, so that nobody sees half of it.
"""

from libc.stdint cimport int8_t, int64_t, uint16_t, uint32_t, uint64_t
from records cimport SESSION_OPEN, Choice, Trial
cimport choice

from cellium_fast._records import address_of

cpdef enum:
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
    opened, open_count, evicted
        Sessions opened so far; those among them that are open; those that had to go for others.
    calls, last_use
        Where the number of sessions is limited: calls so far that opened or stepped sessions, and
        the newest of them for each slot. Else 0 and None.
    choices
        What is known of each policy in each pool, once one was to be chosen; `base` then has
        trials. Else None.
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

    def hold_last_use(self, last_use):
        """Keep in this array (uint64, one for each slot) in which call each slot was used last."""
        cdef size_t address = address_of(last_use)
        self.last_use = last_use
        self.use_of_slots = <uint64_t*> address

    def hold_choices(self, choices):
        """Keep in this array of records, (pools, policies), what is known of each policy."""
        cdef size_t address = address_of(choices)
        self.choices = choices
        self.choices_known = <Choice*> address
        self.policy_count = choices.shape[1]

    def hold_queue(self, queue):
        """Keep this array (int64): slots in use, the one used longest ago first."""
        cdef size_t address = address_of(queue)
        self.queue = queue
        self.queued = <const int64_t*> address
        self.queue_size = len(queue)
        self.queue_place = 0
        self.queued_at = self.calls

    def unused_longest(self, int64_t[::1] slots):
        """Fill `slots` with those used longest ago, from the queue; returns how many it has.

        Who was used since it was made stands no longer in its place, and is passed over for good.
        """
        cdef int64_t place = self.queue_place
        cdef int64_t found = 0
        cdef int64_t slot
        while place < self.queue_size and found < slots.shape[0]:
            slot = self.queued[place]
            if (
                self.base.batch.sessions[slot].flags & SESSION_OPEN
                and self.use_of_slots[slot] <= self.queued_at
            ):
                slots[found] = slot
                found += 1
            elif found == 0:
                self.queue_place = place + 1
            place += 1
        return found

    cdef void take(self, int64_t count) noexcept:
        # So many slots, as `Memory.slots_for` gave them, have new sessions.
        cdef int64_t again = min(count, self.free_count)
        self.free_count -= again
        self.used += count - again
        self.opened += <uint64_t> count
        self.open_count += count

    cdef void use(self, const int64_t[::1] slots) noexcept:
        # A call used these slots.
        if self.use_of_slots != NULL:
            note_uses(&self.calls, self.use_of_slots, &slots[0], slots.shape[0])

    cdef void use_one(self, int64_t slot) noexcept:
        if self.use_of_slots != NULL:
            note_uses(&self.calls, self.use_of_slots, &slot, 1)

    cdef Choice* choices_of(self, int64_t slot) noexcept:
        # Those of the pool that the session of this slot is in.
        return self.choices_known + self.base.batch.sessions[slot].pool * self.policy_count

    cdef void begin_trials(
        self, const int64_t[::1] slots, const uint16_t[::1] policies
    ) noexcept:
        # The sessions of these slots were opened under policies that were chosen.
        cdef Py_ssize_t i
        for i in range(slots.shape[0]):
            choice.begin(
                &self.base.batch.trials[slots[i]], self.choices_of(slots[i]), policies[i]
            )

    cdef void end_trials(
        self, const int64_t[::1] slots, const int8_t[::1] outcomes
    ) noexcept:
        # The sessions of these slots close, with these outcomes.
        cdef Trial* trials = self.base.batch.trials
        cdef Py_ssize_t i
        if trials != NULL:
            for i in range(slots.shape[0]):
                choice.end(&trials[slots[i]], self.choices_of(slots[i]), outcomes[i])

    cdef void leave_trials(self, const int64_t[::1] slots, uint16_t policy) noexcept:
        # The sessions of these slots go on under this policy.
        cdef Trial* trials = self.base.batch.trials
        cdef Py_ssize_t i
        if trials != NULL:
            for i in range(slots.shape[0]):
                choice.leave(&trials[slots[i]], policy)

    cdef void give_back(self, const int64_t[::1] slots) noexcept:
        # The sessions of these slots are closed; there is room for as many in `free`.
        cdef int64_t slot
        cdef Py_ssize_t i
        self.open_count -= slots.shape[0]
        for i in range(slots.shape[0]):
            slot = slots[i]
            if slot < self.watched_size:
                self.watched_slots[slot] = 0
            if self.base.batch.sessions[slot].generation < <uint32_t> LAST_GENERATION:
                self.free_slots[self.free_count] = slot
                self.free_count += 1

    cdef void watch(self, int64_t slot) noexcept:
        # There is room for it in `watched`.
        self.watched_slots[slot] = 1
