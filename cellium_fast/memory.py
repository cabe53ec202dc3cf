"""`Memory`: the arrays of a fleet, and which slot of them belongs to which session id.

A slot is used again after its session closed, an id is not: it is the slot and how often the slot
was closed before. The array of sessions grows by doubling; nobody else holds on to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _records, _step
from cellium_fast.errors import SessionError
from cellium_fast.policy import Policy, Posterior

FIRST_CAPACITY = 64
CACHE_LINE = 64     # bytes
LAST_GENERATION = 2**31 - 1     # a slot used that often is given up: its ids have run out

Slots = NDArray[np.int64]


class Memory:
    """Packed records of a fleet: sessions, policies and pools; not safe for threads.

    Attributes
    ----------
    sessions, policies, pools
        Structured arrays of the dtypes in ``_records``.
    base
        A batch without columns: where the arrays are.
    used
        Slots used so far, the free ones among them included.
    """

    def __init__(
        self, policies: Mapping[str, Policy], pools: Mapping[str, Posterior], seed: int
    ) -> None:
        self._seed = seed
        self.policies: NDArray[Any] = np.zeros(len(policies), _records.POLICY)
        for place, policy in enumerate(policies.values()):
            self.policies[place] = policy.record()[0]
        self.pools: NDArray[Any] = np.zeros(len(pools), _records.POOL)
        for row, posterior in zip(self.pools, pools.values(), strict=True):
            posterior.fill(row["prior"])
            row["alpha"] = posterior.alpha
            row["beta"] = posterior.beta
        self.sessions: NDArray[Any] = np.zeros(0, _records.SESSION)
        self.used = 0
        # The slots of closed sessions, the last one to be used first.
        self._free = np.empty(0, np.int64)
        self._free_count = 0
        # Whether a `Session` object stands for a slot's session; as long as it has to be.
        self._watched = np.zeros(0, np.bool_)
        self.base = self._empty_batch()
        self._allocate(FIRST_CAPACITY)

    def batch(
        self, slots: Slots, columns: Mapping[str, NDArray[Any]] | None = None
    ) -> _records.Batch:
        """A batch of the sessions in these slots, with the columns of their rounds if given."""
        batch = self._empty_batch()
        batch.set_input(slots=slots, **(columns or {}))
        return batch

    def use_policy(self, slots: Slots, row: int) -> None:
        """Put the sessions in these slots under the policy of this row."""
        self.sessions["policy"][slots] = row

    def take_slots(self, count: int) -> Slots:
        """Slots for new sessions: the free ones first, the last freed before all."""
        again = min(count, self._free_count)
        fresh = count - again
        if self.used + fresh > len(self.sessions):
            self._allocate(max(2 * len(self.sessions), self.used + fresh))
        self._free_count -= again
        slots = np.empty(count, np.int64)
        slots[:again] = self._free[self._free_count : self._free_count + again][::-1]
        slots[again:] = np.arange(self.used, self.used + fresh)
        self.used += fresh
        return slots

    def free_slots(self, slots: Slots) -> None:
        """Close the sessions in these slots and keep the slots for later ones."""
        batch = self.batch(slots)       # which lives as long as its address is used
        _step.close_sessions(batch.address, len(slots))
        reusable = slots[self.sessions["generation"][slots] < LAST_GENERATION]
        count = self._free_count + len(reusable)
        if count > len(self._free):
            more = np.empty(max(2 * len(self._free), count), np.int64)
            more[: self._free_count] = self._free[: self._free_count]
            self._free = more
        self._free[self._free_count : count] = reusable
        self._free_count = count
        self._watched[slots[slots < len(self._watched)]] = False

    def watch(self, slots: Slots) -> None:
        """Remember that Python objects stand for the sessions in these slots."""
        if len(self._watched) < len(self.sessions):
            watched = np.zeros(len(self.sessions), np.bool_)
            watched[: len(self._watched)] = self._watched
            self._watched = watched
        self._watched[slots] = True

    def watched(self, slots: Slots) -> list[int]:
        """Places of the slots whose sessions a Python object stands for."""
        known = slots < len(self._watched)
        places: list[int] = np.flatnonzero(known)[self._watched[slots[known]]].tolist()
        return places

    def slots_of(self, ids: NDArray[np.int64]) -> Slots:
        """Slots of open sessions, none twice; SessionError if an id is unknown, closed or twice.

        `ids` are checked: no code of a user's may run between finding a slot and using it.
        """
        slots = np.empty(len(ids), np.int64)
        problem, where, rising = _step.find_slots(self.base.address, self.used, ids, slots)
        if not rising:
            seen = np.zeros(-(-self.used // 8), np.uint8)
            repeated = _step.first_repeated(slots, where, seen)
            if repeated < where:
                problem, where = _step.ID_REPEATED, repeated
        if problem != _step.ID_OK:
            raise SessionError(f"ids[{where}]: {_what_is_wrong(problem, int(ids[where]))}")
        return slots

    def slot_of(self, session_id: int) -> int:
        """Slot of one open session; SessionError as in `slots_of`."""
        problem = _step.check_id(self.base.address, self.used, session_id)
        if problem != _step.ID_OK:
            raise SessionError(f"session: {_what_is_wrong(problem, session_id)}")
        return _step.slot_of(session_id)

    def is_open(self, session_id: int) -> bool:
        """Whether the id names an open session."""
        return _step.check_id(self.base.address, self.used, session_id) == _step.ID_OK

    def _allocate(self, capacity: int) -> None:
        sessions = _in_whole_lines(capacity)
        sessions[: self.used] = self.sessions[: self.used]
        self.sessions = sessions
        self.base = self._empty_batch()

    def _empty_batch(self) -> _records.Batch:
        batch = _records.Batch()
        batch.set_memory(
            sessions=self.sessions, policies=self.policies, pools=self.pools, key=self._seed
        )
        return batch


def _in_whole_lines(capacity: int) -> NDArray[Any]:
    """(capacity,) session records of zeros, each in whole lines of the cache."""
    size = capacity * _records.SESSION.itemsize
    room = np.zeros(size + CACHE_LINE, np.uint8)
    start = -room.ctypes.data % CACHE_LINE
    return room[start : start + size].view(_records.SESSION)


def _what_is_wrong(problem: int, session_id: int) -> str:
    return {
        _step.ID_CLOSED: f"session {session_id} is closed; open a new one",
        _step.ID_REPEATED: f"session {session_id} stands twice; wanted each session once",
    }.get(problem, f"there is no session {session_id}; wanted an id that `open` returned")
