"""`Session`: the handle of one agent run under control."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

from cellium_fast import _step
from cellium_fast.decision import Decision, Setting

if TYPE_CHECKING:
    from cellium_fast.fleet import Fleet
    from cellium_fast.state import HandleState


class Session(_step.Handle):
    """One agent run; opened by `Fleet.session`.

    ``step(round)`` takes a `Round` and returns the `Decision` on it. ``done`` says whether
    terminate was decided (also by `Fleet.step`), and no user message came since. Both raise
    SessionError once the session is closed.

    As a context manager it closes itself, without an outcome, on an exception too; call `close`
    with the outcome before if you know it.

    Examples
    --------
    >>> from cellium_fast import Fleet, Round, ToolCall
    >>> with Fleet(seed=7).session("ticket-4711", tools=["search", "read"]) as session:
    ...     for _ in range(6):
    ...         decision = session.step(Round([ToolCall("search", {"q": "x"}, "nothing new")]))
    ...     session.close(success=False)
    >>> str(decision.action)
    'redirect'
    """

    __slots__ = ("__weakref__", "_fleet", "_name")

    _id: int
    _decision: Decision
    _setting: Setting
    _unused: frozenset[str]     # tools that the agent has and did not use so far

    def __init__(
        self, fleet: Fleet, session_id: int, name: str, tools: tuple[str, ...], setting: Setting
    ) -> None:
        self._fleet = fleet
        self._name = name
        self._unused = frozenset(tools)
        self._setting = Setting(setting.policy, setting.names, tools)
        self._decision = Decision(_step.DecisionRecord(), self._setting)    # filled in at once

    def user_message(self) -> None:
        """A real user message arrived: a new task begins, see `Fleet.user_message`."""
        self._fleet.user_message([self._id])

    def compacted(self) -> None:
        """The context was compacted, see `Fleet.compacted`."""
        self._fleet.compacted([self._id])

    def use_policy(self, name: str) -> None:
        """Go on under another of the fleet's policies, see `Fleet.use_policy`."""
        self._fleet.use_policy([self._id], name)

    def close(self, success: bool | None = None) -> None:
        """Close the session, with its outcome if you know it; raises SessionError if closed."""
        self._fleet.close([self._id], None if success is None else [success])

    @property
    def id(self) -> int:
        """The id for `Fleet.step` and its like."""
        return self._id

    @property
    def name(self) -> str:
        """The name it was opened with."""
        return self._name

    @property
    def policy(self) -> str:
        """Name of the policy that it is under; raises SessionError if closed."""
        return self._fleet.policy_of([self._id])[0]

    @property
    def decision(self) -> Decision:
        """The newest decision, by `step` or in a batch of the fleet.

        At the opening, and after a user message, it is continue.
        """
        return self._decision

    @property
    def prompt(self) -> str:
        """The newest decision's constraint for the system prompt, see `Decision.prompt`."""
        return self._decision.prompt

    def _state(self) -> HandleState:
        from cellium_fast.state import HandleState

        setting, decided = self._setting, self._decision.setting
        return HandleState(
            self._id, self._name, tuple(setting.tools), setting.used_tools,
            None if decided.policy is setting.policy else decided.policy,
            self._decision._record.packed(),
        )

    def _restore(self, state: HandleState) -> None:
        # Of a fleet that nobody knows yet.
        self._unused, self._setting = self._after_using(state.used_tools)
        decided = self._setting
        if state.decided_under is not None:
            decided = replace(decided, policy=state.decided_under)
        self._decision = Decision(_step.unpacked(state.outcome), decided)

    def _after_using(self, used: frozenset[str]) -> tuple[frozenset[str], Setting]:
        # Unused tools and setting once these were used.
        return self._unused - used, replace(
            self._setting, used_tools=self._setting.used_tools | used
        )

    def __copy__(self) -> Self:
        return self     # a handle is no more than a name of the session

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Session stands for one in its fleet and cannot be copied or pickled")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._fleet._is_open(self._id):
            self.close()

    def __repr__(self) -> str:
        state = repr(self._decision) if self._fleet._is_open(self._id) else "closed"
        return f"<Session {self._name or self._id}: {state}>"
