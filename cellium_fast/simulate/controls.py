"""What agents are told: by a policy, by simple habits in wide use, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from cellium_fast import checks
from cellium_fast.action import Action
from cellium_fast.errors import InputError, shown
from cellium_fast.fleet import Fleet
from cellium_fast.policy import Policy
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS
from cellium_fast.simulate.compiled import compiled
from cellium_fast.simulate.environments import Columns

Rows = NDArray[np.int64]
Actions = NDArray[np.uint8]

CONTINUE, REDIRECT, TERMINATE = (
    int(action) for action in (Action.CONTINUE, Action.REDIRECT, Action.TERMINATE)
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a control is told of the agents before their first round."""

    agents: int
    rounds: int
    seed: int
    context_limit: int | None


class Steering(Protocol):
    """A control at work on the agents of one run of the simulation.

    Row i of its columns is the i-th of the agents that are still running, in their order. It is
    used in a ``with``.
    """

    def __enter__(self) -> Self:
        """Take control."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Let go."""

    columns: Columns
    """Where the rounds of these agents are written, before each `decide`."""
    actions: Actions
    """(running agents,) uint8: what they were told last."""

    def decide(self, rows: Rows, number: int) -> None:
        """Fill in `actions` of the agents `rows` after their round `number`, from 1."""

    def close(self, places: Rows, success: NDArray[np.bool_]) -> None:
        """The runs of the agents in these rows are over; the others move up."""

    def posterior(self) -> NDArray[np.float64] | None:
        """Alpha and beta of each action, (5, 2); None: it learns nothing."""


# Takes control of agents. It may look at their hidden states, (agents,) uint8. None but `PerState`
# does, which shows what the others can at best come to.
Control = Callable[[Setting, NDArray[np.uint8]], Steering]


def new_columns(count: int) -> Columns:
    """Columns for the rounds of so many agents."""
    dtypes = {"call_offsets": np.int64, **CALL_COLUMNS, **ROUND_COLUMNS}
    return Columns(**{
        name: np.zeros(count + (name == "call_offsets"), dtypes[name]) for name in Columns._fields
    })


class _Plain:
    """What the simple controls have in common: they learn nothing."""

    def __init__(self, setting: Setting) -> None:
        self.columns = new_columns(setting.agents)
        self.actions = np.zeros(setting.agents, np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is held."""

    def close(self, places: Rows, success: NDArray[np.bool_]) -> None:
        """Those who go on move up."""
        self.actions = np.delete(self.actions, places)

    def posterior(self) -> None:
        """Nothing is learned."""


class Alone(_Plain):
    """No control: nothing but continue."""

    def __init__(self, setting: Setting, states: NDArray[np.uint8]) -> None:
        super().__init__(setting)

    def decide(self, rows: Rows, number: int) -> None:
        """Tell nothing."""


@dataclass(frozen=True, slots=True)
class Cap:
    """A fixed cap of rounds, after which agents are stopped."""

    rounds: int = 20

    def __post_init__(self) -> None:
        checks.whole_number("rounds", self.rounds, 1, 2**31 - 1)

    def __call__(self, setting: Setting, states: NDArray[np.uint8]) -> Steering:
        """The control at work."""
        return _Capped(setting, self.rounds)


class _Capped(_Plain):
    def __init__(self, setting: Setting, rounds: int) -> None:
        super().__init__(setting)
        self._rounds = rounds

    def decide(self, rows: Rows, number: int) -> None:
        self.actions[:] = TERMINATE if number >= self._rounds else CONTINUE


@dataclass(frozen=True, slots=True)
class EqualCalls:
    """Steps in at so many calls in a row with the same tool and arguments, and again at as many.

    Rounds without a call do not end a row. Parallel calls count one by one.
    """

    calls: int = 3
    action: Action = Action.TERMINATE

    def __post_init__(self) -> None:
        checks.whole_number("calls", self.calls, 2, 2**31 - 1)
        if not isinstance(self.action, Action):
            raise InputError(f"action: wanted an Action, got {shown(self.action)}")

    def __call__(self, setting: Setting, states: NDArray[np.uint8]) -> Steering:
        """The control at work."""
        return _CountingCalls(setting, self.calls, int(self.action))


class _CountingCalls(_Plain):
    def __init__(self, setting: Setting, calls: int, action: int) -> None:
        super().__init__(setting)
        self._calls, self._action = calls, action
        self._newest = np.zeros(setting.agents, np.uint64)
        self._counts = np.zeros(setting.agents, np.int64)

    def decide(self, rows: Rows, number: int) -> None:
        _count_calls(
            rows, self.columns.call_offsets, self.columns.call_signature, self._newest,
            self._counts, self._calls, self._action, self.actions,
        )


@compiled
def _count_calls(
    rows: Rows, offsets: NDArray[np.int64], signatures: NDArray[np.uint64],
    newest: NDArray[np.uint64], counts: NDArray[np.int64], most: int, action: int,
    actions: Actions,
) -> None:
    for k in range(len(rows)):
        row = rows[k]
        actions[k] = CONTINUE
        for call in range(offsets[k], offsets[k + 1]):
            if counts[row] > 0 and signatures[call] == newest[row]:
                counts[row] += 1
            else:
                newest[row] = signatures[call]
                counts[row] = 1
            if counts[row] >= most:
                actions[k] = action
                counts[row] = 0


@dataclass(frozen=True, slots=True)
class PerState:
    """One fixed action for each hidden state: what only someone who sees these can do.

    Parameters
    ----------
    actions
        By state.
    visited
        (agents, states) bool, or None: where to note in which states agents were told something.
    """

    actions: tuple[Action, ...]
    visited: NDArray[np.bool_] | None = None

    def __call__(self, setting: Setting, states: NDArray[np.uint8]) -> Steering:
        """The control at work."""
        return _Seeing(setting, states, self)


class _Seeing(_Plain):
    def __init__(self, setting: Setting, states: NDArray[np.uint8], control: PerState) -> None:
        super().__init__(setting)
        self._states, self._visited = states, control.visited
        self._told = np.array(control.actions, np.uint8)

    def decide(self, rows: Rows, number: int) -> None:
        states = self._states[rows]
        self.actions[:] = self._told[states]
        if self._visited is not None:
            self._visited[rows, states] = True


@dataclass(frozen=True, slots=True)
class UnderPolicy:
    """A fleet under a policy; all agents share a pool."""

    policy: Policy | str = "default"

    def __call__(self, setting: Setting, states: NDArray[np.uint8]) -> Steering:
        """The control at work."""
        return _Steered(setting, self.policy)


class _Steered:
    def __init__(self, setting: Setting, policy: Policy | str) -> None:
        self._fleet = Fleet(seed=setting.seed, policies={"simulated": policy}, threads=1)
        ids = self._fleet.open(
            setting.agents, context_limit=setting.context_limit, round_limit=setting.rounds
        )
        self._block = self._fleet.block(ids, given=Columns._fields, want=())

    def __enter__(self) -> Self:
        self._block.__enter__()
        # When sessions close, rows move within the same memory, which need not be looked up again.
        rounds = self._block.rounds
        self.columns = Columns(*(getattr(rounds, name) for name in Columns._fields))
        self._all_actions = self.actions = self._block.decisions.action
        # Not by the fleet's method: the block has the fleet's turn.
        pool = self._fleet._memory.pools[0]
        self._learned = pool["alpha"], pool["beta"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, traceback)

    def decide(self, rows: Rows, number: int) -> None:
        self._block.step()

    def close(self, places: Rows, success: NDArray[np.bool_]) -> None:
        self._block.close(places, success)
        self.actions = self._all_actions[: len(self._block)]

    def posterior(self) -> NDArray[np.float64]:
        return np.array(self._learned).T


# The controls that results are shown for unless others are asked for, in the order of the table.
USUAL: dict[str, Control] = {
    "none": Alone,
    "cap": Cap(),
    "equal_calls_stop": EqualCalls(action=Action.TERMINATE),
    "equal_calls_redirect": EqualCalls(action=Action.REDIRECT),
    "cellium": UnderPolicy("cellium"),
    "default": UnderPolicy("default"),
}
