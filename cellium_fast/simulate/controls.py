"""What agents are told: by a policy, by simple habits in wide use, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from cellium_fast import checks
from cellium_fast.action import Action
from cellium_fast.errors import InputError, shown
from cellium_fast.fleet import Fleet
from cellium_fast.policy import Policy
from cellium_fast.rounds import RoundBatch
from cellium_fast.simulate.environment import Columns

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
    threads: int | None


class Steering(Protocol):
    """A control at work on the agents of one run of the simulation."""

    def decide(self, rows: Rows, number: int, columns: Columns, actions: Actions) -> None:
        """Fill in what the agents `rows` are told after round `number`, from 1."""

    def close(self, rows: Rows, success: NDArray[np.bool_]) -> None:
        """The runs of these agents are over."""

    def posterior(self) -> NDArray[np.float64] | None:
        """Alpha and beta of each action, (5, 2); None: it learns nothing."""


# Makes a control for agents, whose hidden states it may look at: (agents,) uint8. None but
# `PerState` does, which shows what the others can at best come to.
Control = Callable[[Setting, NDArray[np.uint8]], Steering]


class _Plain:
    """What the simple controls have in common: they learn nothing."""

    def close(self, rows: Rows, success: NDArray[np.bool_]) -> None:
        """Forget nothing, since nothing was learned."""

    def posterior(self) -> None:
        """Nothing is learned."""


class Alone(_Plain):
    """No control: nothing but continue."""

    def __init__(self, setting: Setting, states: NDArray[np.uint8]) -> None:
        """Look at nothing."""

    def decide(self, rows: Rows, number: int, columns: Columns, actions: Actions) -> None:
        """Tell all to continue."""
        actions[:] = CONTINUE


@dataclass(frozen=True, slots=True)
class Cap:
    """A fixed cap of rounds, after which agents are stopped."""

    rounds: int = 20

    def __post_init__(self) -> None:
        checks.whole_number("rounds", self.rounds, 1, 2**31 - 1)

    def __call__(self, setting: Setting, states: NDArray[np.uint8]) -> Steering:
        """The control at work."""
        return _Capped(self.rounds)


class _Capped(_Plain):
    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def decide(self, rows: Rows, number: int, columns: Columns, actions: Actions) -> None:
        actions[:] = TERMINATE if number >= self._rounds else CONTINUE


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
        return _CountingCalls(setting.agents, self.calls, int(self.action))


class _CountingCalls(_Plain):
    def __init__(self, agents: int, calls: int, action: int) -> None:
        self._calls, self._action = calls, action
        self._newest = np.zeros(agents, np.uint64)
        self._counts = np.zeros(agents, np.int64)

    def decide(self, rows: Rows, number: int, columns: Columns, actions: Actions) -> None:
        _count_calls(
            rows, columns.call_offsets, columns.call_signature, self._newest, self._counts,
            self._calls, self._action, actions,
        )


@numba.njit(cache=True)
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
        return _Seeing(states, np.array(self.actions, np.uint8), self.visited)


class _Seeing(_Plain):
    def __init__(
        self, states: NDArray[np.uint8], told: Actions, visited: NDArray[np.bool_] | None
    ) -> None:
        self._states, self._told, self._visited = states, told, visited

    def decide(self, rows: Rows, number: int, columns: Columns, actions: Actions) -> None:
        states = self._states[rows]
        actions[:] = self._told[states]
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
        self._fleet = Fleet(
            seed=setting.seed, policies={"simulated": policy}, threads=setting.threads
        )
        self._ids = self._fleet.open(
            setting.agents, context_limit=setting.context_limit, round_limit=setting.rounds
        )

    def decide(self, rows: Rows, number: int, columns: Columns, actions: Actions) -> None:
        count = len(rows)
        calls = int(columns.call_offsets[count])
        given: dict[str, Any] = {
            name: column[: calls if name.startswith("call_") else count]
            for name, column in columns._asdict().items()
        }
        given["call_offsets"] = columns.call_offsets[: count + 1]
        decisions = self._fleet.step(self._ids[rows], RoundBatch(**given), want=())
        actions[:] = decisions.action

    def close(self, rows: Rows, success: NDArray[np.bool_]) -> None:
        self._fleet.close(self._ids[rows], success)

    def posterior(self) -> NDArray[np.float64]:
        learned = self._fleet.posterior()
        return np.stack([learned["alpha"], learned["beta"]], axis=1)


# The controls that results are shown for unless others are asked for, in the order of the table.
USUAL: dict[str, Control] = {
    "none": Alone,
    "cap": Cap(),
    "equal_calls_stop": EqualCalls(action=Action.TERMINATE),
    "equal_calls_redirect": EqualCalls(action=Action.REDIRECT),
    "cellium": UnderPolicy("cellium"),
    "default": UnderPolicy("default"),
}
