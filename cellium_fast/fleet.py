"""`Fleet`: the sessions of a process, their memory, and the batch calls on them."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast import _feedback, _records, _step, checks, pipeline
from cellium_fast.decision import ALWAYS, COLUMNS, Decision, Decisions, Setting
from cellium_fast.errors import InputError, SessionError, UnknownNameError, shown
from cellium_fast.memory import Memory
from cellium_fast.names import Names
from cellium_fast.policy import Policy, Posterior
from cellium_fast.rounds import Round, RoundBatch
from cellium_fast.session import Session

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MAX_TOKENS = 2**63 - 1
MAX_ROUNDS = 2**32 - 1
MAX_TABLE = 2**16


class Fleet:
    """Sessions under control: one or a million, opened and closed at any time.

    Parameters
    ----------
    seed
        Key of every random number, in [0, 2**64). Same seed and calls, same decisions.
    policies
        Policies by name (a `Policy`, or the name of a preset). The first one is what a session
        gets that names none. Left out: the `default` policy.
    pools
        Names of pools, or their prior and decay (`Posterior`) by name. Sessions of a pool share
        one Beta posterior per action. The first one is what a session gets that names none. A
        pool given by name alone has the prior and decay of the first policy.
    threads
        Threads a batch step may use, this one included; None: as many as there are CPUs that this
        process may use. Only large batches use more than one. The decisions do not depend on it.

    Raises
    ------
    InputError, PolicyError, UnknownNameError
        An argument does not make sense; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> from cellium_fast import Fleet, RoundBatch
    >>> fleet = Fleet(seed=7)
    >>> ids = fleet.open(3, context_limit=128_000)
    >>> decisions = fleet.step(ids, RoundBatch(context_tokens=np.array([10, 100_000, 127_000])))
    >>> [str(decision.action) for decision in decisions]
    ['continue', 'compress', 'terminate']
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        policies: Mapping[str, Policy | str] | None = None,
        pools: Sequence[str] | Mapping[str, Posterior] | None = None,
        threads: int | None = None,
    ) -> None:
        seed = checks.whole_number("seed", seed, 0, 2**64 - 1)
        self._threads = (
            usable_cpus() if threads is None else checks.whole_number("threads", threads, 1, 1024)
        )
        self._policies = _named_policies(policies)
        first = next(iter(self._policies.values()))
        self._pools = _named_pools(pools, first.posterior)
        self._memory = Memory(self._policies, self._pools, seed)
        self._names = Names()
        self._settings = [Setting(policy, self._names) for policy in self._policies.values()]

        self._lock = threading.RLock()
        self._executor: ThreadPoolExecutor | None = None
        self._executor_of: int | None = None
        self._handles: WeakValueDictionary[int, Session] = WeakValueDictionary()
        self._increments = pipeline.no_increments(len(self._pools))
        self._stepper = _step.Stepper()
        self._stepper.set_fleet(
            memory=self._memory, names=self._names, lock=self._lock,
            increments=self._increments, decision=Decision,
        )
        self._opened = 0

    # --- opening and closing ---------------------------------------------------------------------
    def open(
        self,
        count: int,
        *,
        context_limit: ArrayLike | None = None,
        round_limit: ArrayLike | None = None,
        policy: str | None = None,
        pool: str | None = None,
        private: bool = False,
    ) -> NDArray[np.int64]:
        """Open sessions and return their ids, (count,) int64.

        Parameters
        ----------
        count
            How many, >= 0.
        context_limit
            Tokens, one number or one a session; None, 0 or infinity: unknown, and no context rule
            fires.
        round_limit
            Rounds, >= 1, one number or one a session; None or infinity: no limit.
        policy, pool
            Names; None: the fleet's first.
        private
            Whether each session owns its posterior instead of sharing its pool's.

        Raises
        ------
        InputError, UnknownNameError
            An argument does not make sense; nothing was opened.

        Examples
        --------
        >>> from cellium_fast import Fleet
        >>> Fleet().open(3, round_limit=20)
        array([0, 1, 2])
        """
        count = checks.whole_number("count", count, 0, 2**31 - 1)
        limits = _limits("context_limit", context_limit, count, 0, MAX_TOKENS, np.int64)
        rounds = _limits("round_limit", round_limit, count, 1, MAX_ROUNDS, np.uint32)
        policy_row = _row_of("policy", policy, self._policies)
        pool_row = _row_of("pool", pool, self._pools)
        if not isinstance(private, bool):
            raise InputError(f"private: wanted True or False, got {shown(private)}")
        ids = np.empty(count, np.int64)
        with self._lock:
            slots = self._memory.take_slots(count)
            _step.open_sessions(
                self._memory.base.address, slots, self._opened, policy_row, pool_row, private,
                limits, rounds, ids,
            )
            self._opened += count
        return ids

    def session(
        self,
        name: str = "",
        *,
        context_limit: int | None = None,
        round_limit: int | float | None = None,
        tools: Sequence[str] = (),
        policy: str | None = None,
        pool: str | None = None,
        private: bool = False,
    ) -> Session:
        """Open one session and return its handle; as a context manager it closes itself.

        Parameters
        ----------
        name
            Yours, for logs; it need not be unique.
        tools
            Names of the tools the agent has, for hints such as "not used yet".
        context_limit, round_limit, policy, pool, private
            As in `open`.

        Raises
        ------
        InputError, UnknownNameError
            An argument does not make sense; nothing was opened.
        """
        if not isinstance(name, str):
            raise InputError(f"name: wanted a text, got {shown(name)}")
        names = _names("tools", tools)
        for limit, what in ((context_limit, "context_limit"), (round_limit, "round_limit")):
            if checks.as_given(what, limit).ndim != 0:
                raise InputError(f"{what}: wanted one number, got {shown(limit)}")
        ids = self.open(
            1, context_limit=context_limit, round_limit=round_limit, policy=policy, pool=pool,
            private=private,
        )
        with self._lock:
            self._memory.watch(self._memory.slots_of(ids))
            handle = Session(
                self, int(ids[0]), name, names,
                self._settings[_row_of("policy", policy, self._policies)],
            )
            self._handles[handle.id] = handle
        return handle

    def close(self, ids: ArrayLike, success: ArrayLike | None = None) -> None:
        """Close sessions; what they have pending is learned from.

        Parameters
        ----------
        ids
            (N,) of open sessions, none twice.
        success
            Whether each succeeded: (N,) of bool, or int8 with -1 = not told; one value for all;
            None: not told.

        Raises
        ------
        SessionError
            An id is unknown, closed or stands twice; nothing was closed.
        InputError
            `success` has a wrong length or value; nothing was closed.
        """
        checked = _session_ids(ids)
        outcomes = _outcomes(success, len(checked))
        with self._lock:
            slots = self._memory.slots_of(checked)
            pipeline.close(self._memory.batch(slots).address, outcomes, self._increments)
            self._memory.free_slots(slots)

    # --- stepping --------------------------------------------------------------------------------
    def step(
        self,
        ids: ArrayLike,
        rounds: RoundBatch | Sequence[Round],
        *,
        want: Collection[str] | None = None,
        out: Decisions | None = None,
    ) -> Decisions:
        """One round of each session in, one decision of each out.

        Parameters
        ----------
        ids
            (N,) of open sessions, none twice.
        rounds
            Round i is session ids[i]'s: columns, or `Round` objects.
        want
            Names of the columns of `Decisions` to write, beside ``action`` and ``candidates``,
            which always are; None: all of them, or those of `out`.
        out
            `Decisions` of an earlier step of N sessions, with the columns wanted, to be
            overwritten and returned.

        Raises
        ------
        SessionError
            An id is unknown, closed or stands twice; nothing was stepped.
        InputError
            A column has a wrong dtype, shape or value, `want` names none that there is, or `out`
            does not fit; nothing was stepped.

        Notes
        -----
        An exception from a signal handler, such as Ctrl-C, can end the call with some sessions of
        the batch stepped and others not; the fleet stays usable.

        Examples
        --------
        >>> from cellium_fast import Fleet, Round, ToolCall
        >>> fleet = Fleet()
        >>> ids = fleet.open(2)
        >>> rounds = [Round([ToolCall("ls", "-l", "a b")]), Round(text="Hello")]
        >>> decisions = fleet.step(ids, rounds, want=["reward"])
        >>> decisions
        <Decisions of 2: continue 2>
        >>> fleet.step(ids, rounds, out=decisions).reward
        array([1., 1.], dtype=float32)
        """
        checked = _session_ids(ids)
        if not isinstance(rounds, RoundBatch):
            rounds = RoundBatch.from_rounds(rounds)
            if rounds.size != len(checked):
                raise InputError(
                    f"rounds: wanted {len(checked)}, as many as ids, got {rounds.size}"
                )
        columns = rounds.checked(len(checked))
        wanted = _wanted(want)
        if out is not None:
            _check_fit(out, len(checked), None if want is None else wanted)
        with self._lock:
            slots = self._memory.slots_of(checked)
            self._names.learn(rounds.tools, rounds.errors)
            setting_rows = self._setting_rows(slots)
            if out is None:
                result = Decisions(len(slots), setting_rows, self._settings, wanted)
            else:
                result = out
                result.concern(setting_rows, self._settings)
            # A handle's decision can be asked for anything.
            handles = self._handles_of(checked, slots)
            decisions = (
                Decisions(len(slots), setting_rows, self._settings) if handles else result
            )
            batch = self._memory.batch(slots, columns)
            batch.set_output(**decisions.columns())
            spans = pipeline.spans_of(len(slots), self._threads)
            workers = self._workers() if spans > 1 else None
            pipeline.step(batch, len(slots), self._increments, workers, spans)
            for place, handle in handles:
                handle._take(decisions.record(place))
            if decisions is not result:
                result.copy_from(decisions)
        return result

    def user_message(self, ids: ArrayLike) -> None:
        """A real user message reached these sessions: a new task begins.

        Clears the window, stuck, trend, progress history, output run and `done`; rounds, totals,
        posteriors and pending returns stay. Raises SessionError as `step` does.
        """
        checked = _session_ids(ids)
        with self._lock:
            slots = self._memory.slots_of(checked)
            _feedback.user_message(self._memory.batch(slots).address, len(slots))
            for _, handle in self._handles_of(checked, slots):
                handle._take(self._opening_of(handle.id))

    def compacted(self, ids: ArrayLike) -> None:
        """The context of these sessions was compacted.

        Clears nothing, since a loop outlives a compaction; tell the new context size with the next
        round. Raises SessionError as `step` does.
        """
        checked = _session_ids(ids)
        with self._lock:
            self._memory.slots_of(checked)

    # --- looking ---------------------------------------------------------------------------------
    def __len__(self) -> int:
        """Open sessions."""
        return int(np.count_nonzero(self._memory.sessions["flags"]))

    @property
    def policies(self) -> dict[str, Policy]:
        """The policies by name."""
        return dict(self._policies)

    @property
    def pools(self) -> dict[str, Posterior]:
        """Prior and decay of the pools by name."""
        return dict(self._pools)

    @property
    def names(self) -> Names:
        """The table of tool names and error texts behind explanations."""
        return self._names

    def done(self, ids: ArrayLike) -> NDArray[np.bool_]:
        """(N,) bool: whether terminate was decided. Raises SessionError as `step` does."""
        checked = _session_ids(ids)
        with self._lock:
            slots = self._memory.slots_of(checked)
            flags: NDArray[np.uint8] = self._memory.sessions["flags"][slots]
        done: NDArray[np.bool_] = (flags & _records.SESSION_DONE) != 0
        return done

    def posterior(self, pool: str | None = None) -> dict[str, NDArray[Any]]:
        """What a pool has learned: ``alpha``, ``beta`` (5,) float64, ``updates`` (5,) uint64.

        Raises UnknownNameError if there is no such pool.
        """
        row = self._memory.pools[_row_of("pool", pool, self._pools)]
        with self._lock:
            return {name: row[name].copy() for name in ("alpha", "beta", "updates")}

    def private_posterior(self, session_id: int) -> dict[str, NDArray[Any]]:
        """As `posterior`, of one session opened with ``private=True``."""
        session_id = checks.whole_number("session_id", session_id, 0, MAX_TOKENS)
        with self._lock:
            row = self._memory.sessions[self._memory.slot_of(session_id)]
            if not row["flags"] & _records.SESSION_PRIVATE:
                raise SessionError(f"session: {session_id} has no private posterior")
            return {name: row[name].copy() for name in ("alpha", "beta", "updates")}

    # --- for Session -----------------------------------------------------------------------------
    def _opening_of(self, session_id: int) -> _step.DecisionRecord:
        with self._lock:
            slot = self._memory.slot_of(session_id)
            return _step.opening(self._memory.base.address, slot)

    def _handles_of(
        self, ids: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> list[tuple[int, Session]]:
        """`Session` objects that stand for some of these sessions, with their place."""
        if not self._handles:
            return []
        found = [(place, self._handles.get(int(ids[place])))
                 for place in self._memory.watched(slots)]
        return [(place, handle) for place, handle in found if handle is not None]

    def _is_open(self, session_id: int) -> bool:
        with self._lock:
            return self._memory.is_open(session_id)

    # --- for the batch step ----------------------------------------------------------------------
    def _setting_rows(self, slots: NDArray[np.int64]) -> NDArray[np.uint16]:
        if len(self._settings) == 1:
            return np.zeros(len(slots), np.uint16)
        rows: NDArray[np.uint16] = self._memory.sessions["policy"][slots]
        return rows

    def _workers(self) -> ThreadPoolExecutor | None:
        # Beside this thread. Threads do not live on in a forked process.
        if self._executor_of != os.getpid():
            from concurrent.futures import ThreadPoolExecutor

            self._executor = ThreadPoolExecutor(self._threads - 1, "cellium_fast")
            self._executor_of = os.getpid()
        return self._executor

    def __repr__(self) -> str:
        return (
            f"<Fleet of {len(self)} sessions, policies {'/'.join(self._policies)}, "
            f"pools {'/'.join(self._pools)}>"
        )


def _named_policies(policies: Mapping[str, Policy | str] | None) -> dict[str, Policy]:
    if policies is None:
        return {"default": Policy.defaults()}
    if not isinstance(policies, Mapping) or not 0 < len(policies) <= MAX_TABLE:
        raise InputError(f"policies: wanted policies by name, at least one, got {shown(policies)}")
    named = {}
    for name, policy in policies.items():
        if isinstance(policy, str):
            policy = Policy.preset(policy)
        if not isinstance(name, str) or not isinstance(policy, Policy):
            raise InputError(
                f"policies: wanted names with a Policy or a preset's name, got {shown(name)}: "
                f"{shown(policy)}"
            )
        named[name] = policy.model_copy()    # checked again: pydantic can be told not to
    return named


def _named_pools(
    pools: Sequence[str] | Mapping[str, Posterior] | None, posterior: Posterior
) -> dict[str, Posterior]:
    if pools is None:
        return {"default": posterior}
    if isinstance(pools, Mapping):
        named = dict(pools)
    else:
        names = _names("pools", pools)
        named = dict.fromkeys(names, posterior)
        if len(named) != len(names):
            raise InputError(f"pools: a name stands twice in {shown(pools)}")
    if not 0 < len(named) <= MAX_TABLE:
        raise InputError(f"pools: wanted at least one, got {shown(pools)}")
    for name, settings in named.items():
        if not isinstance(name, str) or not isinstance(settings, Posterior):
            raise InputError(
                f"pools: wanted names, or names with a Posterior, got {shown(name)}: "
                f"{shown(settings)}"
            )
        named[name] = settings.model_copy()
    return named


def usable_cpus() -> int:
    """CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _wanted(want: Collection[str] | None) -> frozenset[str]:
    """The columns to write."""
    if want is None:
        return frozenset(COLUMNS)
    names = frozenset(_names("want", want))
    unknown = sorted(names - set(COLUMNS))
    if unknown:
        raise InputError(f"want: there is no column {unknown[0]!r}; there is {', '.join(COLUMNS)}")
    return names | set(ALWAYS)


def _check_fit(out: Decisions, size: int, wanted: frozenset[str] | None) -> None:
    """InputError unless a step of `size` sessions can overwrite `out`."""
    if not isinstance(out, Decisions):
        raise InputError(f"out: wanted Decisions of an earlier step, got {shown(out)}")
    if len(out) != size:
        raise InputError(f"out: wanted Decisions of {size} sessions, got {len(out)}")
    found = out.columns()
    if wanted is not None and wanted != set(found):
        raise InputError(
            f"out: wanted the columns {', '.join(sorted(wanted))}, got {', '.join(sorted(found))}"
        )


def _session_ids(ids: ArrayLike) -> NDArray[np.int64]:
    return checks.array("ids", ids, np.int64, (None,))


def _names(argument: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InputError(f"{argument}: wanted names, got {shown(names)}")
    given = tuple(names)
    if not all(isinstance(name, str) for name in given):
        raise InputError(f"{argument}: wanted names, got {shown(names)}")
    return given


def _row_of(kind: str, name: str | None, table: Mapping[str, object]) -> int:
    if name is None:
        return 0
    names = list(table)
    if name not in names:
        raise UnknownNameError(kind, name, names)
    return names.index(name)


def _limits(
    name: str, value: ArrayLike | None, count: int, low: int, high: int, dtype: type
) -> NDArray[Any]:
    """(count,) limits; 0 stands for none."""
    if value is None or (isinstance(value, float) and value == math.inf):
        return np.zeros(count, dtype)
    given = checks.as_given(name, value)
    if given.ndim == 0:
        return np.full(count, checks.whole_number(name, value, low, high), dtype)
    if given.shape == (count,) and not count:
        return np.zeros(count, dtype)
    if given.dtype.kind == "f" and np.isposinf(given).any():    # some have no limit
        unlimited = np.isposinf(given)
        given = np.where(unlimited, low, given)
        checks.every(name, (given >= low) & (given <= high), given, f"[{low:,}, {high:,}]")
        checks.every(name, given % 1 == 0, given, "whole numbers, or infinity for no limit")
        limits = _limits(name, given.astype(np.int64), count, low, high, dtype)
        return np.where(unlimited, 0, limits).astype(dtype)
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise InputError(
            f"{name}: wanted one whole number, or ({count},) of them, got {given.dtype} "
            f"{given.shape}"
        )
    checks.every(name, (given >= low) & (given <= high), given, f"[{low:,}, {high:,}]")
    return given.astype(dtype)


def _outcomes(success: ArrayLike | None, count: int) -> NDArray[np.int8]:
    if success is None:
        return np.full(count, -1, np.int8)
    given = checks.as_given("success", success)
    if given.shape == (count,) and not count:
        return np.zeros(count, np.int8)
    if given.dtype.kind not in "bi" or given.shape not in ((), (count,)):
        raise InputError(
            f"success: wanted bool, or int8 with -1 for not told, one or ({count},) of them, got "
            f"{given.dtype} {given.shape}"
        )
    given = np.broadcast_to(given, (count,))
    checks.every("success", (given >= -1) & (given <= 1), given, "1, 0, or -1 for not told")
    return given.astype(np.int8)
