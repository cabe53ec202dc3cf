"""`Fleet`: the sessions of a process, their memory, and the batch calls on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast import _feedback, _records, _spans, _step, arguments, checks, pipeline
from cellium_fast.decision import Decision, Decisions, Setting
from cellium_fast.errors import InputError, SessionError, shown
from cellium_fast.memory import Memory
from cellium_fast.names import Names
from cellium_fast.policy import Policy, Posterior
from cellium_fast.rounds import Round, RoundBatch
from cellium_fast.session import Session

MAX_TOKENS = 2**63 - 1
MAX_ROUNDS = 2**32 - 1


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
    ['continue', 'compress', 'compress']
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
            arguments.usable_cpus() if threads is None
            else checks.whole_number("threads", threads, 1, 1024)
        )
        self._policies = arguments.named_policies(policies)
        first = next(iter(self._policies.values()))
        self._pools = arguments.named_pools(pools, first.posterior)
        self._memory = Memory(self._policies, self._pools, seed)
        self._names = Names()
        self._settings = [Setting(policy, self._names) for policy in self._policies.values()]

        self._lock = _spans.Turn()
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
        limits = arguments.limits_of("context_limit", context_limit, count, 0, MAX_TOKENS, np.int64)
        rounds = arguments.limits_of("round_limit", round_limit, count, 1, MAX_ROUNDS, np.uint32)
        policy_row = arguments.row_of("policy", policy, self._policies)
        pool_row = arguments.row_of("pool", pool, self._pools)
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
        names = arguments.given_names("tools", tools)
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
                self._settings[arguments.row_of("policy", policy, self._policies)],
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
        checked = arguments.session_ids(ids)
        outcomes = arguments.outcomes(success, len(checked))
        with self._lock:
            slots = self._memory.slots_of(checked)
            pipeline.close(self._memory.batch(slots), outcomes, self._increments)
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
        the batch stepped, or partly, and others not; the fleet stays usable. A finalizer or signal
        handler that runs within a call of the fleet and calls it gets a ReentryError. A process
        that was forked while another thread was in a call cannot use the fleet.

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
        checked = arguments.session_ids(ids)
        if not isinstance(rounds, RoundBatch):
            rounds = RoundBatch.from_rounds(rounds)
            if rounds.size != len(checked):
                raise InputError(
                    f"rounds: wanted {len(checked)}, as many as ids, got {rounds.size}"
                )
        columns = rounds.checked(len(checked))
        wanted = arguments.wanted(want)
        if out is not None:
            arguments.check_fit(out, len(checked), None if want is None else wanted)
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
            pipeline.step(batch, len(slots), self._increments, spans, self._lock.helpers)
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
        checked = arguments.session_ids(ids)
        with self._lock:
            slots = self._memory.slots_of(checked)
            batch = self._memory.batch(slots)     # which lives as long as its address is used
            _feedback.user_message(batch.address, len(slots))
            for _, handle in self._handles_of(checked, slots):
                handle._take(self._opening_of(handle.id))

    def compacted(self, ids: ArrayLike) -> None:
        """The context of these sessions was compacted.

        Clears nothing, since a loop outlives a compaction; tell the new context size with the next
        round. Raises SessionError as `step` does.
        """
        checked = arguments.session_ids(ids)
        with self._lock:
            self._memory.slots_of(checked)

    # --- policies --------------------------------------------------------------------------------
    def set_policy(self, name: str, policy: Policy | str) -> None:
        """Replace a policy by other parameters, for all sessions under it, from their next round.

        Decisions taken before explain themselves by the policy they were taken under. What
        sessions and pools have learned stays. Pools keep their prior and decay, while a private
        posterior decays by the new policy from now on. Where `n_step` changes, the decisions that
        are not yet rewarded in full may be learned from once more, or not at all.

        Parameters
        ----------
        name
            Of one of the fleet's policies.
        policy
            What it shall be: a `Policy`, or the name of a preset.

        Raises
        ------
        InputError, UnknownNameError
            An argument does not make sense; nothing was changed.

        Examples
        --------
        >>> from cellium_fast import Fleet, Policy
        >>> fleet = Fleet()
        >>> fleet.set_policy("default", Policy(tool_limits={"job_status": "poll"}))
        >>> fleet.policies["default"].tool_limits
        (('job_status', 'poll'),)
        """
        row = arguments.place_of("policy", name, self._policies)
        checked = arguments.given_policy(policy)
        record = checked.record()[0]
        with self._lock:
            self._memory.policies[row] = record
            self._policies[name] = checked
            # A list of its own: earlier decisions hold on to theirs.
            self._settings = [*self._settings]
            self._settings[row] = Setting(checked, self._names)
            for handle in list(self._handles.values()):
                if self._row_of_policy(handle) == row:
                    handle._use(checked)

    def use_policy(self, ids: ArrayLike, name: str) -> None:
        """Put sessions under another of the fleet's policies, from their next round.

        What was seen, decided and learned so far stays, private posteriors included.

        Parameters
        ----------
        ids
            (N,) of open sessions, none twice.
        name
            Of one of the fleet's policies.

        Raises
        ------
        SessionError, UnknownNameError
            As in `step`; or there is no such policy. Nothing was changed.
        """
        row = arguments.place_of("policy", name, self._policies)
        checked = arguments.session_ids(ids)
        with self._lock:
            slots = self._memory.slots_of(checked)
            self._memory.use_policy(slots, row)
            for _, handle in self._handles_of(checked, slots):
                handle._use(self._policies[name])

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
        checked = arguments.session_ids(ids)
        with self._lock:
            slots = self._memory.slots_of(checked)
            flags: NDArray[np.uint8] = self._memory.sessions["flags"][slots]
        done: NDArray[np.bool_] = (flags & _records.SESSION_DONE) != 0
        return done

    def posterior(self, pool: str | None = None) -> dict[str, NDArray[Any]]:
        """What a pool has learned: ``alpha``, ``beta`` (5,) float64, ``updates`` (5,) uint64.

        Raises UnknownNameError if there is no such pool.
        """
        row = self._memory.pools[arguments.row_of("pool", pool, self._pools)]
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
        # With the lock.
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

    def _row_of_policy(self, handle: Session) -> int:
        """Row of an open session's policy; -1 of a closed one."""
        if not self._memory.is_open(handle.id):
            return -1
        return int(self._memory.sessions["policy"][_step.slot_of(handle.id)])

    def _is_open(self, session_id: int) -> bool:
        with self._lock:
            return self._memory.is_open(session_id)

    # --- for the batch step ----------------------------------------------------------------------
    def _setting_rows(self, slots: NDArray[np.int64]) -> NDArray[np.uint16]:
        if len(self._settings) == 1:
            return np.zeros(len(slots), np.uint16)
        rows: NDArray[np.uint16] = self._memory.sessions["policy"][slots]
        return rows

    def __repr__(self) -> str:
        return (
            f"<Fleet of {len(self)} sessions, policies {'/'.join(self._policies)}, "
            f"pools {'/'.join(self._pools)}>"
        )
