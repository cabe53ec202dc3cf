"""The closed loop: agents play a round, a control decides, agents react.

All agents play their round 1, then all that are left their round 2, and so on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _philox
from cellium_fast.action import Action
from cellium_fast.simulate.compiled import compiled
from cellium_fast.simulate.controls import Control, Setting
from cellium_fast.simulate.environments import (
    FAILED,
    ROUND,
    RUNNING,
    SUCCEEDED,
    Columns,
    Environment,
)

OnRound = Callable[[int, int], None]
Clock = Callable[[], int]
Watch = Callable[["Play", NDArray[np.int64], int, NDArray[np.uint8]], None]

PURPOSE = 127       # of the Philox counter: what simulated agents draw, see ARCHITECTURE.md
WORDS = 4           # of a block of Philox
TERMINATE = int(Action.TERMINATE)


class End(IntEnum):
    """How the run of an agent ended."""

    SUCCEEDED = 0
    FAILED = 1          # by itself
    STOPPED = 2         # told to terminate
    OUT_OF_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Runs:
    """What became of the agents under one control.

    Attributes
    ----------
    end
        (agents,) uint8, an `End`.
    rounds, tokens
        (agents,) int64: rounds played; tokens in the context, summed over the rounds: what the
        model had to read.
    told
        (states, 5) int64: how often agents in a hidden state were told each action.
    running
        (rounds + 1,) int64: agents that began each round, from round 1; the last one is 0.
    posterior
        (rounds + 1, 5, 2) float64: alpha and beta of each action before the first round and after
        each; None: the control learns nothing.
    seconds, opening
        What it took; of that, opening and closing sessions.
    """

    end: NDArray[np.uint8]
    rounds: NDArray[np.int64]
    tokens: NDArray[np.int64]
    told: NDArray[np.int64]
    running: NDArray[np.int64]
    posterior: NDArray[np.float64] | None
    seconds: float
    opening: float


class Words:
    """Random words of agents: Philox of the seed, the agent, the round and the purpose."""

    def __init__(self, seed: int, draws: int, agents: int) -> None:
        self._seed = seed
        self._words = np.zeros((agents, -(-draws // WORDS) * WORDS), np.uint32)

    def __call__(
        self, agents: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.uint32]:
        """(agents, draws or more) words of these agents in their rounds; 0: before the first."""
        words = self._words[: len(agents)]
        _philox.words_of_agents(agents, numbers, self._seed, PURPOSE, words)
        return words


class Play:
    """Agents of an environment in memory, and the rounds that they have just played.

    Attributes
    ----------
    agents
        (agents,) of the environment's dtype.
    ended
        (agents,) uint8: what `play` returned for each of the agents that played last.
    tokens
        (agents,) int64: tokens in the context, summed over the rounds so far.
    told
        (states, 5) int64: how often agents in a hidden state were told each action.
    """

    def __init__(self, environment: Environment, seed: int, count: int) -> None:
        self._kernels = environment.kernels
        self._parameters = environment.arguments()
        self._words = Words(seed, environment.draws, count)
        self._luck, self._scratch = np.zeros(environment.draws), np.zeros(1, ROUND)
        self.agents = np.zeros(count, environment.agent)
        self.ended = np.zeros(count, np.uint8)
        self.tokens = np.zeros(count, np.int64)
        self.told = np.zeros((len(environment.states), len(Action)), np.int64)

    def begin(self, identities: NDArray[np.int64]) -> None:
        """Fill in all agents before their first round."""
        words = self._words(identities, np.zeros_like(identities))
        self._kernels.begin(self.agents, words, self._luck, self._parameters)

    def play(
        self, rows: NDArray[np.int64], identities: NDArray[np.int64], numbers: NDArray[np.int64],
        actions: NDArray[np.uint8], columns: Columns,
    ) -> None:
        """The round `numbers` of the agents in `rows`, who were told `actions`, into `columns`."""
        words = self._words(identities, numbers)
        self._kernels.play(
            self.agents, rows, actions, words, self._luck, self._scratch, self._parameters,
            columns, self.ended, self.tokens, self.told,
        )


def run(
    environment: Environment, control: Control, setting: Setting,
    watch: Watch | None = None, on_round: OnRound | None = None,
    identities: NDArray[np.int64] | None = None, clock: Clock = time.perf_counter_ns,
) -> Runs:
    """All agents through all their rounds under one control.

    `watch` is shown every decision before it takes effect; its time is not counted. With
    `identities`, (agents,), the agents are these of a larger population. The `clock` says
    nanoseconds.
    """
    whole, opening = Stopwatch(clock), Stopwatch(clock)
    whole.go_on()
    count, most = setting.agents, setting.rounds
    play = Play(environment, setting.seed, count)
    ending = Ending(count, most)
    play.begin(ending.rows if identities is None else identities)
    learned = []
    opening.go_on()
    with control(setting, play.agents["state"]) as steering:
        opening.stop()
        learned.append(steering.posterior())
        for number in range(1, most + 1):
            rows = ending.begin_round(number)
            play.play(
                rows, rows if identities is None else identities[rows], ending.numbers,
                steering.actions, steering.columns,
            )
            steering.decide(rows, number)
            if watch is not None and number < most:
                whole.stop()
                watch(play, rows, number, steering.actions)
                whole.go_on()
            places, success = ending.end_round(play, steering.actions, number)
            if len(places):
                opening.go_on()
                steering.close(places, success)
                opening.stop()
            learned.append(steering.posterior())
            if on_round is not None:
                whole.stop()
                on_round(number, len(ending.rows))
                whole.go_on()
            if not len(ending.rows):
                break
    learned += learned[-1:] * (most + 1 - len(learned))
    return Runs(
        end=ending.end, rounds=ending.rounds, tokens=play.tokens, told=play.told,
        running=ending.running,
        posterior=None if learned[0] is None else np.stack(learned),    # type: ignore[arg-type]
        seconds=whole.stop(), opening=opening.seconds,
    )


class Ending:
    """Who is still running, and how and when the runs of the others ended."""

    def __init__(self, agents: int, rounds: int) -> None:
        self._last = rounds
        self._places = np.zeros(agents, np.int64)
        self._numbers = np.zeros(agents, np.int64)
        self.rows = np.arange(agents)
        self.end, self.rounds = np.zeros(agents, np.uint8), np.zeros(agents, np.int64)
        self.running = np.zeros(rounds + 1, np.int64)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """(running,): the round that is played."""
        return self._numbers[: len(self.rows)]

    def begin_round(self, number: int) -> NDArray[np.int64]:
        """The agents that play it."""
        self.running[number - 1] = len(self.rows)
        self.numbers[:] = number
        return self.rows

    def end_round(
        self, play: Play, actions: NDArray[np.uint8], number: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Part with those whose run is over; their places among the running, and success."""
        gone = _part(
            play.agents["state"], self.rows, actions, play.ended, number, number == self._last,
            self.end, self.rounds, self._places, play.told,
        )
        places = self._places[:gone]
        success = play.ended[places] == SUCCEEDED
        self.rows = self.rows[: len(self.rows) - gone]
        return places, success


class Stopwatch:
    """Adds up the time that passes between `go_on` and `stop`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._passed = self._began = 0

    def go_on(self) -> None:
        """Measure from now on."""
        self._began = self._clock()

    def stop(self) -> float:
        """Stop, and return the seconds so far."""
        self._passed += self._clock() - self._began
        return self.seconds

    @property
    def seconds(self) -> float:
        """All that passed before the last stop."""
        return self._passed / 1e9


@compiled
def _part(
    states: NDArray[np.uint8], rows: NDArray[np.int64], actions: NDArray[np.uint8],
    ended: NDArray[np.uint8], number: int, last: bool, end: NDArray[np.uint8],
    rounds: NDArray[np.int64], places: NDArray[np.int64], told: NDArray[np.int64],
) -> int:
    """Move those who go on to the front of `rows`; return how many others are in `places`."""
    gone = 0
    for k in range(len(rows)):
        row = rows[k]
        if ended[k] == RUNNING and actions[k] != TERMINATE and not last:
            rows[k - gone] = row
            continue
        if ended[k] == SUCCEEDED:
            end[row] = 0
        elif ended[k] == FAILED:
            end[row] = 1
        elif last:
            end[row] = 3
        else:
            end[row] = 2
            told[states[row], TERMINATE] += 1
        rounds[row] = number
        places[gone] = k
        gone += 1
    return gone
