"""`Fleet`: the sessions of a process, their memory, and the batch calls on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast import _records, arguments, checks, snapshot
from cellium_fast.changes import Changes, Rows
from cellium_fast.decision import Decisions
from cellium_fast.errors import InputError, LearnedStateError, SessionError, shown
from cellium_fast.names import Names
from cellium_fast.policy import Policy, Posterior
from cellium_fast.pool_history import PoolHistory
from cellium_fast.rounds import Round, RoundBatch
from cellium_fast.session import Session
from cellium_fast.state import FleetState

if TYPE_CHECKING:
    from cellium_fast.durable import DurableFleet
    from cellium_fast.learned import LearnedPosterior


class Fleet(Changes):
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
    max_sessions
        How many may be open, >= 1. To open one more closes, without an outcome, the one that was
        opened or stepped longest ago: sessions that nobody closes take no memory for ever. None:
        any number.

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
        max_sessions: int | None = None,
    ) -> None:
        seed = checks.whole_number("seed", seed, 0, 2**64 - 1)
        workers = (
            arguments.usable_cpus() if threads is None
            else checks.whole_number("threads", threads, 1, 1024)
        )
        most = None if max_sessions is None else checks.whole_number(
            "max_sessions", max_sessions, 1, 2**31 - 1
        )
        named = arguments.named_policies(policies)
        first = next(iter(named.values()))
        super().__init__(named, arguments.named_pools(pools, first.posterior), seed, workers, most)

    # --- saving and loading ----------------------------------------------------------------------
    def save(self, path: str | PathLike[str]) -> None:
        """Write all of the fleet into a file, a snapshot, from which `load` makes it again.

        The file is a safetensors file, see `docs/durability.md`. It takes the place of the one
        that is there, which stays beside it as ``<path>.bak``; whatever happens meanwhile, one of
        both is whole. When this returns, the file is on the disk. The state is copied between two
        calls of the fleet; while it is being written, other threads can go on.

        Raises
        ------
        SnapshotError
            The system refused to write; the message says whether the old file is still there, as
            it is unless the very last step failed.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from cellium_fast import Fleet, Round
        >>> fleet = Fleet(seed=7)
        >>> session = fleet.session("ticket")
        >>> decision = session.step(Round(text="Hello"))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     fleet.save(Path(directory) / "fleet.safetensors")
        ...     resumed = Fleet.load(Path(directory) / "fleet.safetensors")
        >>> resumed
        <Fleet of 1 sessions, policies default, pools default>
        """
        snapshot.write(path, self._lock.run(self._state))

    @classmethod
    def load(cls, path: str | PathLike[str], *, threads: int | None = None) -> Self:
        """The fleet that was saved: the same calls get the same decisions, bit for bit.

        What its pools learn from now on is told from what they learned before, so that what two
        fleets learned that were loaded from one file can be merged.

        Parameters
        ----------
        path
            A file written by `save`, of this version of the package or an older one.
        threads
            As for a new fleet.

        Raises
        ------
        SnapshotError
            There is no such file, or it is not whole, altered, of another kind, of a newer
            version, or says what no fleet can be: `reason` says which. It is left as it is. Where
            ``<path>.bak`` is good the message says so; nothing but `path` is ever loaded.
        InputError
            `threads` does not make sense.
        """
        fleet = cls._from_state(snapshot.read(path), threads=threads)
        fleet._begin_sources()      # another process may load the same file
        return fleet

    @classmethod
    def open_durable(
        cls,
        directory: str | PathLike[str],
        *,
        fsync: Literal["step", "interval", "never"] = "step",
        fsync_interval: float = 1.0,
        compact_bytes: int | None = 2**28,
        compact_seconds: float | None = None,
        seed: int | None = None,
        policies: Mapping[str, Policy | str] | None = None,
        pools: Sequence[str] | Mapping[str, Posterior] | None = None,
        max_sessions: int | None = None,
        threads: int | None = None,
    ) -> DurableFleet:
        """A fleet in a directory: whatever ends the process, each call that returned is kept.

        It goes on where the directory's fleet was, bit for bit; if there is none, it begins there.
        A call first appends what it is about to do to a journal, and each journal begins with a
        snapshot. `docs/durability.md` says more.

        Parameters
        ----------
        directory
            Made if it is not there; with files, but none of a fleet, it is refused. One process
            at a time can have it open.
        fsync
            What a crash of the machine, not only of the process, can take: ``"step"`` nothing, as
            each call waits for the disk; ``"interval"`` what was called within `fsync_interval`,
            or since the last call; ``"never"`` what the system had not yet written.
        fsync_interval
            Seconds, >= 0.
        compact_bytes, compact_seconds
            After a call that brings the journal to so many bytes, or comes so many seconds after
            the last time, that call writes a new snapshot, see `DurableFleet.compact`; None: size,
            or time, is no reason.
        seed, policies, pools, max_sessions
            Of a new fleet, as for `Fleet`. A stored fleet goes on with its own: another seed,
            number or name is refused, other parameters are logged and not taken.
        threads
            As for `Fleet`.

        Raises
        ------
        DirectoryInUseError
            Someone has it open; the message says which process.
        JournalError
            The directory cannot be written, or a journal is damaged, not only torn by a crash: the
            message names file and byte, ``cellium-fast recover`` says what is whole and mends it.
        SnapshotError
            A snapshot is of a newer version of this package, or the first one cannot be written.
        InputError, PolicyError, UnknownNameError
            An argument does not make sense, or not for the fleet that is stored.

        Examples
        --------
        >>> import tempfile
        >>> from cellium_fast import Fleet, Round
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with Fleet.open_durable(directory, seed=7) as fleet:
        ...         decision = fleet.session("ticket").step(Round(text="Hello"))
        ...     with Fleet.open_durable(directory) as again:
        ...         again.recovered.entries, len(again)
        (2, 1)
        """
        from cellium_fast.durable import JournalSettings, open_directory

        return open_directory(
            directory, JournalSettings(fsync, fsync_interval, compact_bytes, compact_seconds),
            seed=seed, policies=policies, pools=pools, max_sessions=max_sessions, threads=threads,
        )

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
        count = checks.whole_number("count", count, 0, self._max_sessions or 2**31 - 1)
        limits = arguments.opening_limits(count, context_limit, round_limit)
        rows = self._opening_rows(policy, pool, private)
        return self._lock.run(self._open, *limits, rows)

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
        limits = arguments.opening_limits(1, context_limit, round_limit)
        rows = self._opening_rows(policy, pool, private)
        return self._lock.run(self._open_session, name, names, *limits, rows)

    def _opening_rows(
        self, policy: str | None, pool: str | None, private: bool
    ) -> Rows:
        if not isinstance(private, bool):
            raise InputError(f"private: wanted True or False, got {shown(private)}")
        return Rows(
            arguments.row_of("policy", policy, self._policies),
            arguments.row_of("pool", pool, self._pools),
            private,
        )

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
        self._lock.run(self._close, checked, outcomes)

    def attach(self, session: int | str) -> Session:
        """The handle of an open session, by its id or name.

        The fleet keeps the handles that `session` gave until the sessions close. Of a session
        opened by `open`, a handle is made; its decision is continue until the next step. A name
        means the newest session of that name.

        Raises
        ------
        SessionError
            No such session is open.

        Examples
        --------
        >>> from cellium_fast import Fleet
        >>> fleet = Fleet()
        >>> first = fleet.session("ticket-4711")
        >>> fleet.attach("ticket-4711") is fleet.attach(first.id) is first
        True
        """
        if isinstance(session, str):
            return self._lock.run(self._attach_name, session)
        session_id = checks.whole_number("session", session, 0, arguments.MAX_TOKENS)
        return self._lock.run(self._attach_id, session_id)

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
        Whatever ends this or another call of a fleet, Ctrl-C or an exception set from another
        thread among it, the call took effect as a whole or not at all. The rounds of its sessions
        say which: with columns asked for, those of the next step. A finalizer or signal handler
        that runs within a call of the fleet and calls it gets a ReentryError.

        Calls from several threads wait for one another. A fork waits for the call that is
        underway; the fleet of the child is a copy that goes its own way.

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
        return self._lock.run(self._step, checked, rounds, columns, wanted, out)

    def user_message(self, ids: ArrayLike) -> None:
        """A real user message reached these sessions: a new task begins.

        Clears the window, stuck, trend, progress history, output run and `done`; rounds, totals,
        posteriors and pending returns stay. Raises SessionError as `step` does.
        """
        self._lock.run(self._user_message, arguments.session_ids(ids))

    def compacted(self, ids: ArrayLike) -> None:
        """The context of these sessions was compacted.

        Clears nothing, since a loop outlives a compaction; tell the new context size with the next
        round. Raises SessionError as `step` does.
        """
        self._lock.run(self._compacted, arguments.session_ids(ids))

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
        arguments.place_of("policy", name, self._policies)
        checked = arguments.given_policy(policy)
        self._lock.run(self._set_policy, name, checked, checked.record())

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
        self._lock.run(self._use_policy, arguments.session_ids(ids), row)

    # --- looking ---------------------------------------------------------------------------------
    def __len__(self) -> int:
        """Open sessions."""
        return self._memory.open_count

    @property
    def ids(self) -> NDArray[np.int64]:
        """(N,) int64 ids of the open sessions, in the order of their opening."""
        return self._lock.run(self._ids)

    def _ids(self) -> NDArray[np.int64]:
        return self._memory.ids_of(self._memory.open_slots())

    @property
    def max_sessions(self) -> int | None:
        """How many sessions may be open; None: any number."""
        return self._max_sessions

    @property
    def evicted(self) -> int:
        """Sessions that were closed so far because there were `max_sessions` others."""
        return self._memory.evicted

    @property
    def seed(self) -> int:
        """Key of every random number."""
        return self._memory.seed

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
        return self._lock.run(self._done, arguments.session_ids(ids))

    def _done(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        flags = self._memory.sessions["flags"][self._memory.slots_of(ids)]
        done: NDArray[np.bool_] = (flags & _records.SESSION_DONE) != 0
        return done

    def posterior(self, pool: str | None = None) -> dict[str, NDArray[Any]]:
        """What a pool has learned: ``alpha``, ``beta`` (5,) float64, ``updates`` (5,) uint64.

        Raises UnknownNameError if there is no such pool.
        """
        row = self._memory.pools[arguments.row_of("pool", pool, self._pools)]
        return self._lock.run(_posterior_of, row)

    def private_posterior(self, session_id: int) -> dict[str, NDArray[Any]]:
        """As `posterior`, of one session opened with ``private=True``."""
        session_id = checks.whole_number("session_id", session_id, 0, arguments.MAX_TOKENS)
        return self._lock.run(self._private_posterior, session_id)

    def _private_posterior(self, session_id: int) -> dict[str, NDArray[Any]]:
        row = self._memory.sessions[self._memory.slot_of(session_id)]
        if not row["flags"] & _records.SESSION_PRIVATE:
            raise SessionError(f"session: {session_id} has no private posterior")
        return _posterior_of(row)

    # --- what was learned, on its own ------------------------------------------------------------
    def export_posterior(self, pool: str | None = None) -> LearnedPosterior:
        """What a pool has learned, with its counts, to keep, to merge and to import elsewhere.

        Parameters
        ----------
        pool
            Its name; None: the fleet's first.

        Raises
        ------
        UnknownNameError
            There is no such pool.

        Examples
        --------
        >>> from cellium_fast import Fleet
        >>> fleet = Fleet(seed=7)
        >>> fleet.close(fleet.open(3), success=True)
        >>> learned = fleet.export_posterior()
        >>> learned.closed
        3
        >>> other = Fleet()
        >>> other.import_posterior(learned)
        >>> other.export_posterior() == learned
        True
        """
        from cellium_fast.learned import LearnedPosterior

        row = arguments.row_of("pool", pool, self._pools)
        name = list(self._pools)[row]
        record, history = self._lock.run(self._learned, row)
        return LearnedPosterior.of_pool(name, self._pools[name], record, history)

    def import_posterior(self, learned: LearnedPosterior, pool: str | None = None) -> None:
        """Replace what a pool has learned; the number of its closed sessions comes with it.

        Open sessions stay as they are, and what they have pending is still learned from.

        Parameters
        ----------
        learned
            From `export_posterior` or a file, with the prior and decay of the pool.
        pool
            Into which; None: the one of the name it was exported from.

        Raises
        ------
        LearnedStateError
            It is no `LearnedPosterior`, or of another prior or decay. Nothing was changed.
        UnknownNameError
            There is no such pool.
        """
        from cellium_fast.learned import LearnedPosterior

        if not isinstance(learned, LearnedPosterior):
            raise LearnedStateError(f"learned: wanted a LearnedPosterior, got {shown(learned)}")
        name = learned.pool if pool is None else pool
        row = arguments.place_of("pool", name, self._pools)
        if learned.settings != self._pools[name]:
            raise LearnedStateError(
                f"learned: its prior and decay are {learned.settings!r}, those of the pool "
                f"{name!r} {self._pools[name]!r}; wanted a fleet whose pool has the same: "
                f"Fleet(pools={{{name!r}: learned.settings}})"
            )
        record = np.zeros(1, _records.POOL)
        learned.fill(record[0])
        self._lock.run(self._set_pool, row, record, PoolHistory.begun(learned))

    def _is_open(self, session_id: int) -> bool:
        return self._lock.run(self._memory.is_open, session_id)

    # --- for snapshots ---------------------------------------------------------------------------
    @classmethod
    def _from_state(cls, state: FleetState, *, threads: int | None = None) -> Self:
        fleet = cls(
            seed=state.seed, policies=state.policies, pools=state.pools, threads=threads,
            max_sessions=state.max_sessions,
        )
        fleet._restore(state)
        return fleet

    def __reduce__(self) -> NoReturn:
        # A copy would share the memory of this one, or be another fleet of the same random numbers.
        raise TypeError("a Fleet cannot be copied or pickled; use its save, and Fleet.load")

    def __repr__(self) -> str:
        return (
            f"<Fleet of {len(self)} sessions, policies {'/'.join(self._policies)}, "
            f"pools {'/'.join(self._pools)}>"
        )


def _posterior_of(row: Any) -> dict[str, NDArray[Any]]:
    return {name: row[name].copy() for name in ("alpha", "beta", "updates")}
