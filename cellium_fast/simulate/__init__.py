"""Simulated agents under control, against the same agents left alone.

>>> from cellium_fast.simulate import simulate
>>> result = simulate(sessions=500, rounds=60, seed=1)
>>> result.controlled.success > result.uncontrolled.success
True
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cellium_fast import checks
from cellium_fast.action import Action
from cellium_fast.errors import InputError, shown
from cellium_fast.fleet import Fleet
from cellium_fast.policy import Policy
from cellium_fast.simulate.population import CONTEXT_LIMIT, KINDS, Population

__all__ = ["KINDS", "Outcome", "SimulationResult", "simulate"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a population fared.

    Attributes
    ----------
    success
        Share of agents that reached their goal, in [0, 1].
    rounds
        Rounds played by all agents.
    actions
        How often each action was told, by name.
    by_kind
        By kind of agent: how many there were, and the share that reached its goal.
    """

    success: float
    rounds: int
    actions: dict[str, int]
    by_kind: dict[str, tuple[int, float]]


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """The same population with and without control.

    Attributes
    ----------
    sessions, round_limit
        Agents, and the rounds each had at most.
    seconds
        Time inside the fleet.
    rounds_per_second
        Rounds decided in that time.
    """

    sessions: int
    round_limit: int
    controlled: Outcome
    uncontrolled: Outcome
    seconds: float
    rounds_per_second: float


class _Control:
    """What the agents are told, round by round, by a fleet."""

    def __init__(self, sessions: int, rounds: int, seed: int, policy: Policy | str) -> None:
        self._fleet = Fleet(seed=seed, policies={"simulated": policy})
        self._ids = self._fleet.open(sessions, context_limit=CONTEXT_LIMIT, round_limit=rounds)
        self.seconds = 0.0

    def __call__(self, who: NDArray[np.int64], rounds: object) -> NDArray[np.uint8]:
        started = time.perf_counter()
        decisions = self._fleet.step(self._ids[who], rounds)  # type: ignore[arg-type]
        self.seconds += time.perf_counter() - started
        return decisions.action

    def close(self, who: NDArray[np.int64], success: NDArray[np.bool_]) -> None:
        self._fleet.close(self._ids[who], success)


def simulate(
    sessions: int = 1_000,
    rounds: int = 60,
    *,
    seed: int = 0,
    policy: Policy | str | None = None,
    progress: Progress | None = None,
) -> SimulationResult:
    """Run a population of agents twice, under a fleet's control and left alone.

    Parameters
    ----------
    sessions
        Agents, >= 1.
    rounds
        Rounds each has at most, >= 1.
    seed
        In [0, 2**63): of the population and of the fleet.
    policy
        The control policy, or the name of a preset; None: `default`.
    progress
        Called after each round with rounds played and rounds in all (both runs counted).

    Raises
    ------
    InputError, UnknownNameError
        A number is out of range, or there is no such preset.
    """
    sessions = checks.whole_number("sessions", sessions, 1, 2**31 - 1)
    rounds = checks.whole_number("rounds", rounds, 1, 2**31 - 1)
    seed = checks.whole_number("seed", seed, 0, 2**63 - 1)
    if progress is not None and not callable(progress):
        raise InputError(f"progress: wanted a function or None, got {shown(progress)}")
    progress = progress or _no_progress
    control = _Control(sessions, rounds, seed, Policy() if policy is None else policy)
    controlled = _run(Population(sessions, seed), rounds, control, progress, 0)
    uncontrolled = _run(Population(sessions, seed), rounds, None, progress, rounds)
    return SimulationResult(
        sessions=sessions,
        round_limit=rounds,
        controlled=controlled,
        uncontrolled=uncontrolled,
        seconds=control.seconds,
        rounds_per_second=controlled.rounds / control.seconds if control.seconds else 0.0,
    )


def _run(
    population: Population, rounds: int, control: _Control | None, progress: Progress, before: int
) -> Outcome:
    alive = np.arange(len(population.kind))
    told = np.full(len(alive), Action.CONTINUE, np.uint8)
    counts = np.zeros(len(Action), np.int64)
    played = 0
    for number in range(1, rounds + 1):
        batch = population.play(alive, number, told)
        played += len(alive)
        if control is None:
            told = np.full(len(alive), Action.CONTINUE, np.uint8)
        else:
            told = control(alive, batch)
        counts += np.bincount(told, minlength=len(Action))
        over = (
            population.solved[alive] | population.overflowed[alive] | (told == Action.TERMINATE)
            | (number == rounds)
        )
        if control is not None and over.any():
            control.close(alive[over], population.solved[alive[over]])
        alive, told = alive[~over], told[~over]
        progress(before + number, 2 * rounds)
        if not len(alive):
            break
    progress(before + rounds, 2 * rounds)
    return Outcome(
        success=float(population.solved.mean()),
        rounds=played,
        actions={str(action): int(counts[action]) for action in Action},
        by_kind={
            name: _share(population.solved[population.kind == kind])
            for kind, name in enumerate(KINDS)
        },
    )


def _share(solved: NDArray[np.bool_]) -> tuple[int, float]:
    return len(solved), float(solved.mean()) if len(solved) else 0.0


def _no_progress(done: int, total: int) -> None:
    """Say nothing."""
