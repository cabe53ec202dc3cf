"""`Memory`: the arrays of a fleet, and which slot of them belongs to which session id.

A slot is used again after its session closed, an id is not: it is the slot and how often the slot
was closed before. The array of sessions grows by doubling; nobody else holds on to it.

Nothing here changes a fleet: that is done in `_commit`, and this makes room for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _memory, _records, _step, user_calls
from cellium_fast.errors import SessionError
from cellium_fast.policy import Policy, Posterior

FIRST_CAPACITY = 64
CACHE_LINE = 64     # bytes

Slots = NDArray[np.int64]


class Memory(_memory.SlotTable):
    """Packed records of a fleet: sessions, policies and pools; not safe for threads.

    Attributes
    ----------
    sessions, policies, pools
        Structured arrays of the dtypes in ``_records``.
    seed
        Key of the random numbers.
    """

    def __init__(
        self, policies: Mapping[str, Policy], pools: Mapping[str, Posterior], seed: int,
        max_sessions: int | None = None,
    ) -> None:
        self.seed = seed
        self._max_sessions = max_sessions
        policy_rows: NDArray[Any] = np.zeros(len(policies), _records.POLICY)
        code_rows: NDArray[Any] = np.zeros(len(policies), _records.USER_CODE)
        for place, policy in enumerate(policies.values()):
            policy_rows[place] = policy.record()[0]
            code_rows[place] = user_calls.record_of(policy)[0]
        pool_rows: NDArray[Any] = np.zeros(len(pools), _records.POOL)
        for row, posterior in zip(pool_rows, pools.values(), strict=True):
            posterior.fill(row["prior"])
            row["alpha"] = posterior.alpha
            row["beta"] = posterior.beta
        self.hold_free(np.empty(0, np.int64))
        self.hold_watched(np.zeros(0, np.bool_))
        if max_sessions is not None:
            self.hold_last_use(np.zeros(FIRST_CAPACITY, np.uint64))
            self.hold_queue(np.empty(0, np.int64))
        self.base = self._batch_of(
            _in_whole_lines(FIRST_CAPACITY), policy_rows, code_rows, pool_rows
        )

    @property
    def sessions(self) -> NDArray[Any]:
        """(capacity,) session records."""
        return self.base.sessions

    @property
    def policies(self) -> NDArray[Any]:
        """A record of each policy."""
        return self.base.policies

    @property
    def user_code(self) -> NDArray[Any]:
        """A record of each policy's functions of users; their addresses hold in this process."""
        code = self.base.user_code
        assert code is not None
        return code

    @property
    def pools(self) -> NDArray[Any]:
        """A record of each pool."""
        return self.base.pools

    def choices_in(self, pool: int) -> NDArray[Any]:
        """A record of what is known of each policy in the pool of this row."""
        if self.choices is None:
            return np.zeros(len(self.policies), _records.CHOICE)
        known: NDArray[Any] = self.choices[pool]
        return known

    def batch(
        self, slots: Slots, columns: Mapping[str, NDArray[Any]] | None = None
    ) -> _records.Batch:
        """A batch of the sessions in these slots, with the columns of their rounds if given."""
        batch = self.base.again()
        batch.set_input(slots=slots, **(columns or {}))
        return batch

    def slots_for(self, count: int, victims: Slots) -> Slots:
        """Slots for new sessions, not yet taken: the free ones first, the last freed before all.

        That is once the sessions in the slots of the victims are closed.
        """
        free = self.free[: self.free_count]
        if len(victims):
            closed_before = self.sessions["generation"][victims]
            free = np.concatenate([free, victims[closed_before + 1 < _memory.LAST_GENERATION]])
        again = min(count, len(free))
        end = self.used + count - again
        if end > len(self.sessions):
            self._grow(max(2 * len(self.sessions), end))
        slots = np.empty(count, np.int64)
        slots[:again] = free[len(free) - again :][::-1]
        slots[again:] = np.arange(self.used, end)
        return slots

    def victims_of(self, count: int) -> Slots:
        """Slots of the sessions that have to go if so many more are opened.

        They are those that were opened or stepped longest ago; of several in one call, the one
        that was opened first.
        """
        over = 0 if self._max_sessions is None else self.open_count + count - self._max_sessions
        slots = np.empty(max(over, 0), np.int64)
        if over > 0 and self.unused_longest(slots) < over:
            # Sorted once for many calls: who was not used since keeps the place.
            open_slots = np.flatnonzero(self.sessions["flags"][: self.used])
            last_use = np.asarray(self.last_use)[open_slots]
            order = np.lexsort((self.sessions["uid"][open_slots], last_use))
            self.hold_queue(open_slots[order])
            self.unused_longest(slots)
        return slots

    def open_slots(self) -> Slots:
        """Slots of the open sessions, in the order of their opening."""
        slots = np.flatnonzero(self.sessions["flags"][: self.used])
        return slots[np.argsort(self.sessions["uid"][slots])]

    def ids_of(self, slots: Slots, opening: bool = False) -> NDArray[np.int64]:
        """Ids of the open sessions in these slots; of those to be opened there, with `opening`."""
        ids = np.empty(len(slots), np.int64)
        _step.ids_of(self.base.address, slots, opening, ids)
        return ids

    def make_room_for_free(self, count: int) -> None:
        """Room to note that many slots as free."""
        wanted = self.free_count + count
        if wanted > len(self.free):
            more = np.empty(max(2 * len(self.free), wanted), np.int64)
            more[: self.free_count] = self.free[: self.free_count]
            self.hold_free(more)

    def make_room_for_watched(self) -> None:
        """Room to note of every slot that a Python object stands for its session."""
        if len(self.watched) < len(self.sessions):
            watched = np.zeros(len(self.sessions), np.bool_)
            watched[: len(self.watched)] = self.watched
            self.hold_watched(watched)

    def make_room_for_choices(self) -> None:
        """Room to note what becomes of sessions that a policy is chosen for."""
        if self.choices is None:
            self.hold_choices(np.zeros((len(self.pools), len(self.policies)), _records.CHOICE))
        if self.base.trials is None:
            self.base.hold_trials(np.zeros(len(self.sessions), _records.TRIAL))

    def places_watched(self, slots: Slots) -> list[int]:
        """Places of the slots whose sessions a Python object stands for."""
        known = slots < len(self.watched)
        places: list[int] = np.flatnonzero(known)[self.watched[slots[known]]].tolist()
        return places

    def state(self) -> tuple[NDArray[Any], Slots, NDArray[Any]]:
        """Copies of the records of the slots used, of the free slots, of the pools."""
        free = self.free[: self.free_count].copy()
        return copy_of(self.sessions[: self.used]), free, copy_of(self.pools)

    def last_uses(self) -> NDArray[np.uint64] | None:
        """A copy of `last_use`, for the slots used."""
        return None if self.last_use is None else self.last_use[: self.used].copy()

    def choices_made(self) -> tuple[NDArray[Any], NDArray[Any]] | tuple[None, None]:
        """Copies of `choices`, and of the trials of the slots used; None: no policy was chosen."""
        choices, trials = self.choices, self.base.trials
        if choices is None or trials is None or not choices["opened"].any():
            return None, None
        return copy_of(choices), copy_of(trials[: self.used])

    def restore(
        self, opened: int, sessions: NDArray[Any], free: Slots, pools: NDArray[Any]
    ) -> None:
        """Be as another memory was, of the same policies and pools; the arrays are copied."""
        here = _in_whole_lines(max(FIRST_CAPACITY, len(sessions)))
        bytes_of(here[: len(sessions)])[:] = bytes_of(sessions)
        self.base = self._batch_of(here, self.policies, self.user_code, copy_of(pools))
        self.hold_free(free.copy())
        self.used, self.free_count, self.opened = len(sessions), len(free), opened
        self.open_count = int(np.count_nonzero(here["flags"]))

    def restore_uses(
        self, calls: int, evicted: int, last_use: NDArray[np.uint64] | None
    ) -> None:
        """After `restore`: who was used when."""
        self.calls, self.evicted = calls, evicted
        if last_use is not None:
            here = np.zeros(len(self.sessions), np.uint64)
            here[: len(last_use)] = last_use
            self.hold_last_use(here)

    def restore_choices(
        self, choices: NDArray[Any] | None, trials: NDArray[Any] | None
    ) -> None:
        """After `restore`: what was chosen, as `choices_made` had it."""
        if choices is None or trials is None:
            return
        self.hold_choices(copy_of(choices))
        here = np.zeros(len(self.sessions), _records.TRIAL)
        here[: len(trials)] = trials
        self.base.hold_trials(here)

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

    def slot_of(self, session_id: int, evicted: bool = False) -> int:
        """Slot of one open session; SessionError as in `slots_of`."""
        problem = _step.check_id(self.base.address, self.used, session_id)
        if problem == _step.ID_CLOSED and evicted:
            raise SessionError(
                f"session: session {session_id} is closed: the fleet has room for "
                f"{self._max_sessions} sessions, and this one was used longest ago; open a new one"
            )
        if problem != _step.ID_OK:
            raise SessionError(f"session: {_what_is_wrong(problem, session_id)}")
        return _step.slot_of(session_id)

    def is_open(self, session_id: int) -> bool:
        """Whether the id names an open session."""
        return _step.check_id(self.base.address, self.used, session_id) == _step.ID_OK

    def _grow(self, capacity: int) -> None:
        sessions = _in_whole_lines(capacity)
        bytes_of(sessions[: self.used])[:] = bytes_of(self.sessions[: self.used])
        if self.last_use is not None:
            last_use = np.zeros(capacity, np.uint64)
            last_use[: self.used] = self.last_use[: self.used]
            self.hold_last_use(last_use)
        base = self._batch_of(sessions, self.policies, self.user_code, self.pools)
        if self.base.trials is not None:
            trials = np.zeros(capacity, _records.TRIAL)
            trials[: self.used] = self.base.trials[: self.used]
            base.hold_trials(trials)
        self.base = base

    def _batch_of(
        self, sessions: NDArray[Any], policies: NDArray[Any], user_code: NDArray[Any],
        pools: NDArray[Any],
    ) -> _records.Batch:
        batch = _records.Batch()
        batch.set_memory(
            sessions=sessions, policies=policies, user_code=user_code, pools=pools, key=self.seed
        )
        return batch


def bytes_of(records: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of records in a row."""
    return records.view(np.uint8)


def copy_of(records: NDArray[Any]) -> NDArray[Any]:
    """A copy of records in a row, all their bytes at once; NumPy would go field by field."""
    copy: NDArray[Any] = bytes_of(records).copy().view(records.dtype)
    return copy


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
