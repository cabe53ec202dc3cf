"""What a simulation found: figures of each control, with intervals, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cellium_fast.action import Action
from cellium_fast.quality import Z_95
from cellium_fast.simulate.counterfactual import Effects
from cellium_fast.simulate.loop import End, Runs


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over agents, with a 95 % interval for what it would be over all there could be.

    The interval is mean ± 1.96 standard errors; over few agents it is too narrow, and over one
    there is none: low and high are NaN.

    Examples
    --------
    >>> estimate = Estimate.of([1.0, 0.0, 1.0, 1.0])
    >>> estimate.mean, round(estimate.low, 2), round(estimate.high, 2)
    (0.75, 0.26, 1.24)
    """

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: ArrayLike) -> Self:
        """The mean of (agents,) numbers, at least one."""
        each = np.asarray(values, np.float64)
        mean = float(each.mean())
        if len(each) < 2:
            return cls(mean, math.nan, math.nan)
        margin = Z_95 * float(each.std(ddof=1)) / math.sqrt(len(each))
        return cls(mean, mean - margin, mean + margin)


@dataclass(frozen=True, slots=True)
class Figures:
    """How agents fared, or how they fared better than others: means over agents.

    Parameters
    ----------
    success
        Share of runs that reached their goal.
    rounds
        Rounds a run.
    tokens
        Tokens that the model had to read in a run: those in the context, summed over its rounds.
    worth
        Success minus the price of the rounds.
    """

    success: Estimate
    rounds: Estimate
    tokens: Estimate
    worth: Estimate


@dataclass(frozen=True, slots=True)
class Effect:
    """What interventions of a kind did, see `cellium_fast.simulate.counterfactual`.

    Parameters
    ----------
    count
        Interventions.
    helped, hurt
        How many of them left the agent worth more, or less, than no intervention would have.
    rescued, spoiled
        How many of them made the difference between failure and success, or the reverse.
    worth, rounds
        Mean effect of one on worth and on rounds; 0 without interventions.
    """

    count: int
    helped: int
    hurt: int
    rescued: int
    spoiled: int
    worth: float
    rounds: float


@dataclass(frozen=True, slots=True)
class ControlResult:
    """What became of the agents under one control.

    Parameters
    ----------
    figures
        Means over the agents.
    gain
        The same as differences to the same agents without control, agent by agent.
    regret
        Worth that is lost against the best fixed action of each state, agent by agent.
    ends
        How many runs ended how.
    told
        By hidden state and action: how often agents in it were told so.
    told_best
        By hidden state: share of these decisions that were its best fixed action; None of none.
    interventions
        All of them together.
    effects
        By hidden state and action, where there were any.
    running
        Agents that began each round, from round 1 on.
    posterior
        Before the first round and after each: by action, alpha and beta; None: nothing is learned.
    played
        Rounds in all.
    rounds_per_second
        Of the closed loop, the environment included.
    """

    figures: Figures
    gain: Figures
    regret: Estimate
    ends: dict[str, int]
    told: dict[str, dict[str, int]]
    told_best: dict[str, float | None]
    interventions: Effect
    effects: dict[str, dict[str, Effect]]
    running: list[int]
    posterior: list[dict[str, tuple[float, float]]] | None
    played: int
    rounds_per_second: float

    @property
    def success(self) -> float:
        """Share of runs that reached their goal."""
        return self.figures.success.mean


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The same agents under several controls, with the same luck.

    Parameters
    ----------
    sessions, round_limit, seed, round_price
        What was asked for.
    controls
        By name, in the order asked for; the first one is "none".
    best_actions
        By hidden state: its best fixed action.
    best
        How agents fare that are always told it.
    seconds
        All that it took.
    """

    sessions: int
    round_limit: int
    seed: int
    round_price: float
    controls: dict[str, ControlResult]
    best_actions: dict[str, str]
    best: Figures
    seconds: float

    def __getitem__(self, control: str) -> ControlResult:
        """The result of one control."""
        return self.controls[control]

    def __iter__(self) -> Iterator[str]:
        """The names of the controls."""
        return iter(self.controls)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain objects, for JSON."""
        return asdict(self)


def worth_of(runs: Runs, round_price: float) -> NDArray[np.float64]:
    """(agents,): success, 1 or 0, minus the price of the rounds."""
    worth: NDArray[np.float64] = (runs.end == End.SUCCEEDED) - round_price * runs.rounds
    return worth


def figures_of(runs: Runs, round_price: float, minus: Runs | None = None) -> Figures:
    """Means over the agents; with `minus`, of the differences to other runs of the same agents."""

    def measured(one: Runs) -> tuple[NDArray[Any], ...]:
        success = (one.end == End.SUCCEEDED).astype(np.float64)
        return success, one.rounds, one.tokens, worth_of(one, round_price)

    values = measured(runs)
    if minus is not None:
        values = tuple(one - other for one, other in zip(values, measured(minus), strict=True))
    return Figures(*map(Estimate.of, values))


def result_of(
    runs: Runs, alone: Runs, best: Runs, best_actions: tuple[Action, ...], effects: Effects,
    states: tuple[str, ...], round_price: float,
) -> ControlResult:
    """Sum up the runs under a control, beside those of no control and of the best per state."""
    told = runs.told
    played = int(runs.rounds.sum())
    return ControlResult(
        figures=figures_of(runs, round_price),
        gain=figures_of(runs, round_price, alone),
        regret=Estimate.of(worth_of(best, round_price) - worth_of(runs, round_price)),
        ends={end.name.lower(): int((runs.end == end).sum()) for end in End},
        told={
            state: {str(action): int(told[place, action]) for action in Action}
            for place, state in enumerate(states)
        },
        told_best={
            state: float(told[place, action] / told[place].sum()) if told[place].any() else None
            for place, (state, action) in enumerate(zip(states, best_actions, strict=True))
        },
        interventions=_effect(effects, ...),
        effects={
            state: {
                str(action): _effect(effects, (place, action))
                for action in Action if effects.count[place, action]
            }
            for place, state in enumerate(states)
        },
        running=runs.running[runs.running > 0].tolist(),
        posterior=None if runs.posterior is None else [
            {str(action): (float(row[action, 0]), float(row[action, 1])) for action in Action}
            for row in runs.posterior
        ],
        played=played,
        rounds_per_second=played / runs.seconds,
    )


def _effect(effects: Effects, place: Any) -> Effect:
    count, helped, hurt, rescued, spoiled = (
        int(part[place].sum()) for part in
        (effects.count, effects.helped, effects.hurt, effects.rescued, effects.spoiled)
    )
    worth, rounds = (
        float(part[place].sum()) / max(count, 1) for part in (effects.worth, effects.rounds)
    )
    return Effect(count, helped, hurt, rescued, spoiled, worth, rounds)
