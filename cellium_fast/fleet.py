"""`Fleet`: the sessions of a process, their memory, and the batch calls on them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast import arguments, checks, user_calls
from cellium_fast.block import MOST_CALLS, Block, columns_given
from cellium_fast.changes import Rows
from cellium_fast.decision import Decisions
from cellium_fast.errors import InputError, shown
from cellium_fast.looking import Looking
from cellium_fast.policy import Policy, Posterior
from cellium_fast.rounds import Round, RoundBatch
from cellium_fast.session import Session

if TYPE_CHECKING:
    from cellium_fast.state import FleetState


class Fleet(Looking):
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
    UserCodeError
        A function of a policy's does not compile.

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
            Names; None: the fleet's first. With the policy ``"auto"`` each session gets the one of
            the fleet's policies that Thompson sampling chooses for it, by how sessions of the pool
            ended under those it chose before: `policy_of` says which, `policy_choice` what was
            learned, and `docs/semantics.md`, "Choice of a policy", what counts.
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
        opening = self._opening(count, context_limit, round_limit, policy, pool, private)
        return self._lock.run(self._open, *opening)

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
        opening = self._opening_session(
            name, tools, context_limit, round_limit, policy, pool, private
        )
        return self._lock.run(self._open_session, *opening)

    def _opening_session(
        self, name: str, tools: Sequence[str], context_limit: int | None,
        round_limit: int | float | None, policy: str | None, pool: str | None, private: bool,
    ) -> tuple[str, tuple[str, ...], NDArray[np.int64], NDArray[np.uint32], Rows]:
        """The checked arguments of `session`, for `_open_session`."""
        if not isinstance(name, str):
            raise InputError(f"name: wanted a text, got {shown(name)}")
        names = arguments.given_names("tools", tools)
        for limit, what in ((context_limit, "context_limit"), (round_limit, "round_limit")):
            if checks.as_given(what, limit).ndim != 0:
                raise InputError(f"{what}: wanted one number, got {shown(limit)}")
        return name, names, *self._opening(1, context_limit, round_limit, policy, pool, private)

    def _opening(
        self, count: int, context_limit: ArrayLike | None, round_limit: ArrayLike | None,
        policy: str | None, pool: str | None, private: bool,
    ) -> tuple[NDArray[np.int64], NDArray[np.uint32], Rows]:
        """The checked arguments of `open`, for `_open`."""
        count = checks.whole_number("count", count, 0, self._max_sessions or 2**31 - 1)
        limits = arguments.opening_limits(count, context_limit, round_limit)
        if not isinstance(private, bool):
            raise InputError(f"private: wanted True or False, got {shown(private)}")
        return *limits, Rows(
            arguments.policy_row(policy, self._policies, self._pools),
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
        UserCodeError
            A function of a policy's raised, or returned what it may not; nothing was stepped, and
            `out` is as it was.

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

    def block(
        self,
        ids: ArrayLike,
        *,
        calls: int = 1,
        given: Collection[str] | None = None,
        want: Collection[str] | None = None,
    ) -> Block:
        """Sessions to be stepped many times, also by code that Numba compiled.

        A context manager. Inside its ``with`` it has the fleet's turn, ``block.rounds`` are the
        columns in, ``block.decisions`` those out, and ``block.step(start, stop)`` or
        ``cellium_fast.nopython.step(block.address, start, stop)`` is a `step` of those rows.

        Parameters
        ----------
        ids
            (N,) of open sessions, none twice, without `Session` objects; row i is session ids[i].
        calls
            Room for so many tool calls a round, on average over the rows.
        given
            Names of the columns of `RoundBatch` that your code fills, for every call and every
            round it steps; the others are as if left out. None: all but ``call_shape``,
            ``call_result``, ``call_size`` and ``text_sketch``, which say something in any case.
        want
            Names of the columns of `Decisions` to write, as in `step`.

        Raises
        ------
        InputError
            An argument does not make sense, or the fleet is durable.
        SessionError
            On entering: an id is unknown, closed, stands twice or has a `Session` object.
        """
        checked = arguments.session_ids(ids)
        calls = checks.whole_number("calls", calls, 0, MOST_CALLS)
        columns = columns_given(given)
        wanted = arguments.wanted(want)
        if self._journal is not None:
            raise InputError(
                "fleet: every step of a durable fleet goes into its journal, and those of a block "
                "would not; step it by `step`, or use a block of a fleet in memory"
            )
        return Block(self, checked, calls, columns, wanted)

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
        UserCodeError
            A function of the policy's does not compile; nothing was changed.

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
        code = user_calls.record_of(checked)
        self._lock.run(self._set_policy, name, checked, checked.record(), code)

    def use_policy(self, ids: ArrayLike, name: str) -> None:
        """Put sessions under another of the fleet's policies, from their next round.

        What was seen, decided and learned so far stays, private posteriors included. A policy that
        was chosen for a session (``policy="auto"``) learns nothing from how it ends under another.

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

    # --- for Session and snapshots --------------------------------------------------------------
    def _is_open(self, session_id: int) -> bool:
        return self._lock.run(self._memory.is_open, session_id)

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
