"""`simulate`: the same agents under several controls, with the same luck."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cellium_fast import arguments, checks
from cellium_fast.action import Action
from cellium_fast.errors import InputError, shown
from cellium_fast.policy import Policy
from cellium_fast.simulate.controls import USUAL, Alone, Control, PerState, Setting, UnderPolicy
from cellium_fast.simulate.counterfactual import Counterfactuals
from cellium_fast.simulate.environments import Environment
from cellium_fast.simulate.loop import Runs, run
from cellium_fast.simulate.populations import population
from cellium_fast.simulate.report import SimulationResult, figures_of, result_of, worth_of

Progress = Callable[[str, int, int], None]

NONE = "none"               # the control that the others are compared with
SEARCHED = 20_000           # agents on which the best actions are looked for
BEYOND_DOUBT = 3.0          # standard errors
OTHER_LUCK = 0x5EED         # mixed into the seed for these
LARGEST = 2**31 - 1


def simulate(
    sessions: int = 10_000,
    rounds: int = 60,
    *,
    seed: int = 0,
    controls: Mapping[str, Control | Policy | str] | None = None,
    environment: Environment | None = None,
    round_price: float = 0.005,
    progress: Progress | None = None,
) -> SimulationResult:
    """Let agents run in a closed loop, under each of several controls.

    Parameters
    ----------
    sessions
        Agents, >= 1.
    rounds
        Rounds that each has at most, >= 1.
    seed
        In [0, 2**63): of the agents, their luck and the fleets that control them.
    controls
        By name: a policy, the name of a preset, or a control of
        `cellium_fast.simulate.controls`. None: `USUAL`. "none", no control, is added if it is
        missing, since the others are compared with it.
    environment
        What the agents do; None: the built-in population.
    round_price
        What a round costs, in [0, 1], as a part of what a success is worth: by this it is judged
        which actions are best, and whether an intervention helped.
    progress
        Called with what is being done, rounds done, and rounds in all.

    Returns
    -------
    SimulationResult
        The same for the same arguments, but for the times in it.

    Raises
    ------
    InputError, UnknownNameError
        An argument does not make sense; the message names it.

    Examples
    --------
    >>> from cellium_fast.simulate import Cap, simulate
    >>> result = simulate(500, 40, seed=1, controls={"cap": Cap(10), "default": "default"})
    >>> list(result)
    ['none', 'cap', 'default']
    >>> result["cap"].figures.rounds.mean < result["none"].figures.rounds.mean
    True
    >>> result.best_actions["failing_stays"]
    'redirect'
    """
    began = time.perf_counter()
    chosen = _chosen(controls)
    environment = _environment(environment)
    price = checks.number("round_price", round_price, 0.0, 1.0)
    if progress is not None and not callable(progress):
        raise InputError(f"progress: wanted a function or None, got {shown(progress)}")
    setting = Setting(
        agents=checks.whole_number("sessions", sessions, 1, LARGEST),
        rounds=checks.whole_number("rounds", rounds, 1, LARGEST),
        seed=checks.whole_number("seed", seed, 0, 2**63 - 1),
        context_limit=environment.context_limit,
    )
    bar = _Bar(progress, setting.rounds, 2 + len(chosen))
    bar.part("best actions")
    best_actions = best_of_each_state(environment, setting, price)
    best = run(environment, PerState(best_actions), setting, on_round=bar.part("best"))
    alone: Runs | None = None
    results = {}
    for name, control in chosen.items():
        following = Counterfactuals(environment, setting, price)
        runs = run(environment, control, setting, following, bar.part(name))
        alone = runs if alone is None else alone
        results[name] = result_of(
            runs, alone, best, best_actions, following.effects(), environment.states, price
        )
    bar.finish()
    return SimulationResult(
        sessions=setting.agents, round_limit=setting.rounds, seed=setting.seed, round_price=price,
        controls=results,
        best_actions={
            state: str(action)
            for state, action in zip(environment.states, best_actions, strict=True)
        },
        best=figures_of(best, price), seconds=time.perf_counter() - began,
    )


def best_of_each_state(
    environment: Environment, setting: Setting, round_price: float
) -> tuple[Action, ...]:
    """The fixed action for each hidden state with which agents are worth most, on average.

    Found by simulation, on 20,000 agents with other luck than those of `setting`: from continue
    everywhere, one state after the other takes the action that is best with those that the other
    states have by now, until none changes. One that is not better beyond doubt, by three standard
    errors of the paired differences, is not taken. So no table that differs in one state is better,
    which does not rule out that another table is.
    """
    searched = replace(setting, agents=SEARCHED, seed=setting.seed ^ OTHER_LUCK)
    states = len(environment.states)
    best = (Action.CONTINUE,) * states
    worth, visited = _worth_and_visits(environment, best, searched, round_price)
    unchanged = place = 0
    while unchanged < states:
        unchanged += 1
        # Agents that are never in this state run as before.
        concerned = np.flatnonzero(visited[:, place])
        gain, chosen = 0.0, best
        for action in Action if len(concerned) > 1 else ():
            tried = (*best[:place], action, *best[place + 1:])
            found, _ = _worth_and_visits(environment, tried, searched, round_price, concerned)
            gains = found - worth[concerned]
            if gains.mean() > max(gain, BEYOND_DOUBT * gains.std() / math.sqrt(len(gains))):
                gain, chosen = gains.mean(), tried
        if chosen != best:
            best, unchanged = chosen, 0
            worth, visited = _worth_and_visits(environment, best, searched, round_price)
        place = (place + 1) % states
    return best


def _worth_and_visits(
    environment: Environment, actions: tuple[Action, ...], setting: Setting, round_price: float,
    identities: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(agents,) worth under fixed actions per state, and (agents, states) where each has been."""
    if identities is not None:
        setting = replace(setting, agents=len(identities))
    visited = np.zeros((setting.agents, len(environment.states)), bool)
    runs = run(environment, PerState(actions, visited), setting, identities=identities)
    return worth_of(runs, round_price), visited


def _chosen(controls: Mapping[str, Control | Policy | str] | None) -> dict[str, Control]:
    """The controls by name, that of no control first."""
    if controls is None:
        return USUAL
    if not isinstance(controls, Mapping):
        raise InputError(f"controls: wanted controls by name, or None, got {shown(controls)}")
    chosen: dict[str, Control] = {NONE: Alone}
    for name, control in controls.items():
        if not isinstance(name, str):
            raise InputError(f"controls: wanted controls by name, got {shown(name)}")
        if isinstance(control, Policy | str):
            chosen[name] = UnderPolicy(arguments.given_policy(control))
        elif callable(control):
            chosen[name] = control
        else:
            raise InputError(
                f"controls: {name}: wanted a Policy, a preset's name or a control, got "
                f"{shown(control)}"
            )
    return chosen


def _environment(given: Environment | None) -> Environment:
    if given is not None and not isinstance(given, Environment):
        raise InputError(
            f"environment: wanted one that @environment made, or None, got {shown(given)}"
        )
    return population() if given is None else given


class _Bar:
    """Tells progress, in rounds of all parts of a simulation."""

    def __init__(self, progress: Progress | None, rounds: int, parts: int) -> None:
        self._progress, self._rounds, self._parts = progress, rounds, parts
        self._part, self._what = -1, ""

    def part(self, what: str) -> Callable[[int, int], None]:
        """What is done now; returns what to call after each round."""
        self._part += 1
        self._what = what
        self._tell(self._part * self._rounds)
        return self._round

    def finish(self) -> None:
        """All is done."""
        self._tell(self._parts * self._rounds)

    def _round(self, number: int, left: int) -> None:
        self._tell(self._part * self._rounds + number)

    def _tell(self, done: int) -> None:
        if self._progress is not None:
            self._progress(self._what, done, self._parts * self._rounds)
