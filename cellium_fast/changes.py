"""`Changes`: what a fleet does in its turn, with arguments that were checked.

Each method prepares a change, which may take any time and be interrupted anywhere, and then hands
it to one function of `_commit`, which makes all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _choice, _commit, _records, _spans, _step, pipeline, user_calls
from cellium_fast.arguments import CHOOSE
from cellium_fast.decision import Decision, Decisions, Setting
from cellium_fast.errors import ForkedError, JournalError, SessionError, shown
from cellium_fast.memory import Memory, Slots
from cellium_fast.names import Names
from cellium_fast.policy import Policy, Posterior
from cellium_fast.pool_history import PoolHistory
from cellium_fast.session import Session

if TYPE_CHECKING:
    from cellium_fast.fleet import Fleet
    from cellium_fast.rounds import RoundBatch

Ids = NDArray[np.int64]


class Rows(NamedTuple):
    """Policy and pool of sessions that are opened, and whether each owns its posterior.

    The policy may be `CHOOSE`.
    """

    policy: int
    pool: int
    private: bool


class Changes:
    """State of a fleet, and the calls that change it; `Fleet` is this with checks and a lock."""

    def __init__(
        self, policies: Mapping[str, Policy], pools: Mapping[str, Posterior], seed: int,
        threads: int, max_sessions: int | None,
    ) -> None:
        self._policies = dict(policies)
        self._pools = dict(pools)
        self._threads = threads
        self._max_sessions = max_sessions
        self._memory = Memory(policies, pools, seed, max_sessions)
        self._learned_from = {name: PoolHistory.begun() for name in pools}
        self._names = Names()
        self._settings = [Setting(policy, self._names) for policy in policies.values()]
        self._handles: dict[int, Session] = {}
        self._lock = _spans.Turn()
        self._lock.call_in_child(WeakMethod(self._go_on_in_child))
        self._journal: Any = None
        self._increments = pipeline.no_increments(len(pools))
        self._stepper = _step.Stepper()
        self._stepper.set_fleet(
            memory=self._memory, names=self._names, lock=self._lock,
            increments=self._increments, decision=Decision,
        )

    # --- in the fleet's turn ---------------------------------------------------------------------
    def _open(
        self, context_limit: NDArray[np.int64], round_limit: NDArray[np.uint32], rows: Rows,
        chosen: NDArray[np.uint16] | None = None,
    ) -> Ids:
        policies = self._policy_rows(len(context_limit), rows, chosen)
        victims = self._memory.victims_of(len(context_limit))
        slots = self._memory.slots_for(len(context_limit), victims)
        ids = self._memory.ids_of(slots, opening=True)
        self._commit_open(slots, context_limit, round_limit, rows, policies, [], victims)
        return ids

    def _open_session(
        self, name: str, tools: tuple[str, ...], context_limit: NDArray[np.int64],
        round_limit: NDArray[np.uint32], rows: Rows, chosen: NDArray[np.uint16] | None = None,
    ) -> Session:
        policies = self._policy_rows(1, rows, chosen)
        victims = self._memory.victims_of(1)
        slots = self._memory.slots_for(1, victims)
        self._memory.make_room_for_watched()
        session_id = int(self._memory.ids_of(slots, opening=True)[0])
        handle = Session(
            cast("Fleet", self), session_id, name, tools, self._settings[policies[0]]
        )
        self._commit_open(slots, context_limit, round_limit, rows, policies, [handle], victims)
        return handle

    def _policy_rows(
        self, count: int, rows: Rows, chosen: NDArray[np.uint16] | None
    ) -> NDArray[np.uint16]:
        """The policy of each session that is opened; what is `chosen` already stands."""
        if rows.policy != CHOOSE:
            return np.full(count, rows.policy, np.uint16)
        self._memory.make_room_for_choices()
        if chosen is None:
            chosen = np.empty(count, np.uint16)
            known = self._memory.choices_in(rows.pool)
            _choice.choose(known, self._memory.seed, self._memory.opened, chosen)
        return chosen

    def _commit_open(
        self, slots: Slots, context_limit: NDArray[np.int64], round_limit: NDArray[np.uint32],
        rows: Rows, policies: NDArray[np.uint16], handles: list[Session], victims: Slots,
    ) -> None:
        closing = None
        if len(victims):
            evicted = self._handles_in(victims)
            outcomes = np.full(len(victims), -1, np.int8)
            closing = (self._closing(victims), victims, outcomes, evicted)
        entry = None if self._journal is None else self._journal.entry_of_open(
            context_limit, round_limit, rows, policies, handles
        )
        _commit.open(
            self._journal, entry, self._memory, slots, policies, rows.policy == CHOOSE,
            rows.pool, rows.private, context_limit, round_limit,
            self._to_show(list(enumerate(handles))), self._handles, closing,
        )

    def _attach_id(self, session_id: int) -> Session:
        slot = self._memory.slot_of(session_id)
        known = self._handles.get(session_id)
        if known is not None:
            return known
        self._memory.make_room_for_watched()
        policy = int(self._memory.sessions["policy"][slot])
        handle = Session(cast("Fleet", self), session_id, "", (), self._settings[policy])
        entry = None if self._journal is None else self._journal.entry_of_attach(session_id)
        _commit.attach(
            self._journal, entry, self._memory, self._to_show([(0, handle)]), self._handles
        )
        return handle

    def _attach_name(self, name: str) -> Session:
        for handle in reversed(self._handles.values()):
            if handle.name == name:
                return handle
        raise SessionError(f"session: none that is open is called {shown(name)}")

    def _close(self, ids: Ids, outcomes: NDArray[np.int8]) -> None:
        slots = self._memory.slots_of(ids)
        # Held until the end: with a handle may go objects of the user's, and their finalizers.
        handles = self._handles_in(slots)
        batch = self._closing(slots)
        entry = None if self._journal is None else self._journal.entry_of_close(ids, outcomes)
        _commit.close(
            self._journal, entry, self._memory, batch, slots, outcomes,
            handles, self._handles,
        )

    def _closing(self, slots: Slots) -> _records.Batch:
        """A batch of sessions to close, for which there is room among the free ones."""
        self._memory.make_room_for_free(len(slots))
        batch = self._memory.batch(slots)
        batch.set_increments(self._increments)
        return batch

    def _step(
        self, ids: Ids, rounds: RoundBatch, columns: dict[str, NDArray[Any]],
        wanted: frozenset[str], out: Decisions | None,
    ) -> Decisions:
        slots = self._memory.slots_of(ids)
        tools, errors = self._names.missing(rounds.tools, rounds.errors)
        setting_rows = self._setting_rows(slots)
        result = out
        if result is None:
            result = Decisions(len(slots), setting_rows, self._settings, wanted)
        handles = self._handles_of(slots)
        fallible = self._is_fallible(setting_rows)
        decisions = result
        if handles:     # whose decision can be asked for anything
            decisions = Decisions(len(slots), setting_rows, self._settings)
        elif fallible and out is not None:      # which is to stay as it is if one fails
            decisions = Decisions(len(slots), setting_rows, self._settings, out.columns())
        batch = self._memory.batch(slots, columns)
        batch.set_output(**decisions.columns())
        spans = pipeline.spans_of(batch, len(slots), self._threads, self._increments)
        entry = None if self._journal is None else self._journal.entry_of_step(
            ids, columns, tools, errors
        )
        kept = np.empty(len(slots), _records.SESSION) if fallible else None
        to_show = self._to_show(handles)
        former = result.setting_rows, result.settings
        result.concern(setting_rows, self._settings)
        try:
            failure = _commit.step(
                self._journal, entry, self._memory, batch, spans, slots, self._lock.helpers,
                self._names, tools, errors, to_show, kept,
            )
            if failure is not None:
                result.concern(*former)     # now, since what follows may be an interrupt
                raise user_calls.error_of(self._settings[failure.policy].policy, failure)
        except (JournalError, ForkedError):     # nothing was stepped
            result.concern(*former)
            raise
        if decisions is not result:
            result.copy_from(decisions)
        return result

    def _user_message(self, ids: Ids) -> None:
        slots = self._memory.slots_of(ids)
        handles = self._to_show(self._handles_of(slots))
        entry = None if self._journal is None else self._journal.entry_of_user_message(ids)
        _commit.user_message(
            self._journal, entry, self._memory, self._memory.batch(slots), len(slots), handles
        )

    def _compacted(self, ids: Ids) -> None:
        self._memory.slots_of(ids)
        entry = None if self._journal is None else self._journal.entry_of_compacted(ids)
        _commit.compacted(self._journal, entry)

    def _set_policy(
        self, name: str, policy: Policy, record: NDArray[Any], code: NDArray[Any]
    ) -> None:
        row = list(self._policies).index(name)
        # Dicts and lists of their own: earlier decisions hold on to theirs.
        policies = self._policies | {name: policy}
        settings = [*self._settings]
        settings[row] = Setting(policy, self._names)
        handles = [
            (handle, replace(handle._setting, policy=policy))
            for handle in self._handles.values() if self._policy_row(handle) == row
        ]
        entry = None if self._journal is None else self._journal.entry_of_set_policy(name, policy)
        _commit.set_policy(
            self._journal, entry, self._memory, row, record, code, self, policies, settings,
            handles,
        )

    def _use_policy(self, ids: Ids, row: int) -> None:
        slots = self._memory.slots_of(ids)
        policy = self._settings[row].policy
        handles = [
            (handle, replace(handle._setting, policy=policy))
            for handle in self._handles_in(slots)
        ]
        entry = None if self._journal is None else self._journal.entry_of_use_policy(ids, row)
        _commit.use_policy(self._journal, entry, self._memory, slots, row, handles)

    def _draw_as(self, ids: Ids, uids: NDArray[np.uint64]) -> None:
        """Have sessions just opened draw what sessions of these uids would.

        For fleets that are never saved: several sessions may draw the same.
        """
        self._memory.sessions["uid"][self._memory.slots_of(ids)] = uids

    # --- what was learned ------------------------------------------------------------------------
    def _learned(self, row: int) -> tuple[np.void, PoolHistory]:
        name = list(self._pools)[row]
        return self._memory.pools[row].copy(), self._learned_from[name]

    def _go_on_in_child(self) -> None:
        """After a fork, in the child: what both learn from now on can be told apart."""
        self._begin_sources()

    def _begin_sources(self) -> None:
        """Tell what the pools learn from now on from what they learned before.

        For a fleet that goes on from where another one was, which may go on as well.
        """
        self._learned_from = {
            name: self._learned_from[name].continued(settings, record)
            for (name, settings), record in zip(
                self._pools.items(), self._memory.pools, strict=True
            )
        }

    def _set_pool(self, row: int, record: NDArray[Any], history: PoolHistory) -> None:
        name = list(self._pools)[row]
        entry = (
            None if self._journal is None
            else self._journal.entry_of_set_pool(row, record, history)
        )
        _commit.set_pool(
            self._journal, entry, self._memory, row, record, self,
            self._learned_from | {name: history},
        )

    # --- handles ---------------------------------------------------------------------------------
    def _handles_of(self, slots: Slots) -> list[tuple[int, Session]]:
        """`Session` objects that stand for some of these open sessions, with their place."""
        if not self._handles:
            return []
        places = self._memory.places_watched(slots)
        ids = self._memory.ids_of(slots[places]).tolist()
        return [
            (place, self._handles[session_id])
            for place, session_id in zip(places, ids, strict=True)
        ]

    def _handles_in(self, slots: Slots) -> list[Session]:
        return [handle for _, handle in self._handles_of(slots)]

    def _to_show(
        self, handles: Sequence[tuple[int, Session]]
    ) -> list[tuple[int, Session, Decision]]:
        """The handles, each with a decision that is still to be taken."""
        return [
            (place, handle, Decision(_step.DecisionRecord(), handle._setting))
            for place, handle in handles
        ]

    def _policy_row(self, handle: Session) -> int:
        return int(self._memory.sessions["policy"][_step.slot_of(handle.id)])

    def _is_fallible(self, setting_rows: NDArray[np.uint16]) -> bool:
        """Whether functions of users may fail for sessions with these rows of policies."""
        if not self._memory.base.user_parts & _records.HAS_FALLIBLE:
            return False
        fallible = self._memory.user_code["parts"] & _records.HAS_FALLIBLE != 0
        return bool(fallible[setting_rows].any())

    def _setting_rows(self, slots: Slots) -> NDArray[np.uint16]:
        if len(self._settings) == 1:
            return np.zeros(len(slots), np.uint16)
        rows: NDArray[np.uint16] = self._memory.sessions["policy"][slots]
        return rows
