"""The closed loop: agents play a round, a control decides, agents react.

All agents play their round 1, then all that are left their round 2, and so on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from cellium_fast import _philox, _records
from cellium_fast.action import Action
from cellium_fast.simulate.controls import Control, Setting
from cellium_fast.simulate.environment import FAILED, ROUND, RUNNING, SUCCEEDED, Columns, Environment
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS

OnRound = Callable[[int, int], None]

PURPOSE = 32        # of the Philox counter: what an environment draws, see ARCHITECTURE.md
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
    seconds
        What it took.
    """

    end: NDArray[np.uint8]
    rounds: NDArray[np.int64]
    tokens: NDArray[np.int64]
    told: NDArray[np.int64]
    running: NDArray[np.int64]
    posterior: NDArray[np.float64] | None
    seconds: float


class Words:
    """Random words of agents: Philox of the seed, the agent, the round and the purpose."""

    def __init__(self, seed: int, draws: int, agents: int) -> None:
        self._seed = seed
        self._blocks = -(-draws // WORDS)
        self._counters = np.zeros((agents * self._blocks, WORDS), np.uint32)
        self._words = np.zeros((agents * self._blocks, WORDS), np.uint32)

    def __call__(self, rows: NDArray[np.int64], number: int) -> NDArray[np.uint32]:
        """(rows, draws or more) words of these agents in a round; 0 is before the first."""
        count = len(rows) * self._blocks
        counters, words = self._counters[:count], self._words[:count]
        _count(rows, number, self._blocks, counters)
        _philox.random_words(counters, self._seed, words)
        return words.reshape(len(rows), self._blocks * WORDS)


@numba.njit(cache=True)
def _count(
    rows: NDArray[np.int64], number: int, blocks: int, counters: NDArray[np.uint32]
) -> None:
    for k in range(len(rows)):
        for block in range(blocks):
            counter = counters[k * blocks + block]
            counter[0] = rows[k] & 0xFFFFFFFF
            counter[1] = rows[k] >> 32
            counter[2] = number
            counter[3] = block | PURPOSE << 24


def run(
    environment: Environment, control: Control, setting: Setting, on_round: OnRound
) -> Runs:
    """All agents through all their rounds under one control."""
    began = time.perf_counter()
    count = setting.agents
    agents = np.zeros(count, environment.agent)
    words = Words(setting.seed, environment.draws, count)
    luck, scratch = np.zeros(environment.draws), np.zeros(1, ROUND)
    parameters = () if environment.parameters is None else (environment.parameters[0],)
    rows = np.arange(count)
    environment.kernels.begin(agents, words(rows, 0), luck, parameters)
    steering = control(setting)
    columns, actions = new_columns(count), np.zeros(count, np.uint8)
    ended = np.zeros(count, np.uint8)
    told = np.zeros((len(environment.states), len(Action)), np.int64)
    end, rounds = np.zeros(count, np.uint8), np.zeros(count, np.int64)
    tokens = np.zeros(count, np.int64)
    running = np.zeros(setting.rounds + 1, np.int64)
    learned = [steering.posterior()]
    for number in range(1, setting.rounds + 1):
        playing = len(rows)
        running[number - 1] = playing
        environment.kernels.play(
            agents, rows, actions, words(rows, number), luck, scratch, parameters, columns,
            ended, tokens, told,
        )
        steering.decide(rows, number, columns, actions[:playing])
        over = rows.copy()
        left = _part(
            agents["state"], rows, actions, ended, number, number == setting.rounds, end, rounds,
            over, told,
        )
        over = over[: playing - left]
        steering.close(over, end[over] == End.SUCCEEDED)
        learned.append(steering.posterior())
        rows = rows[:left]
        on_round(number, left)
        if not left:
            break
    learned += learned[-1:] * (setting.rounds + 1 - len(learned))
    return Runs(
        end=end, rounds=rounds, tokens=tokens, told=told, running=running,
        posterior=None if learned[0] is None else np.stack(learned),    # type: ignore[arg-type]
        seconds=time.perf_counter() - began,
    )


def new_columns(count: int) -> Columns:
    """Columns for the rounds of so many agents."""
    dtypes = {"call_offsets": np.int64, **CALL_COLUMNS, **ROUND_COLUMNS}
    return Columns(**{
        name: np.zeros(count + (name == "call_offsets"), dtypes[name]) for name in Columns._fields
    })


@numba.njit(cache=True)
def _part(
    states: NDArray[np.uint8], rows: NDArray[np.int64], actions: NDArray[np.uint8],
    ended: NDArray[np.uint8], number: int, last: bool, end: NDArray[np.uint8],
    rounds: NDArray[np.int64], over: NDArray[np.int64], told: NDArray[np.int64],
) -> int:
    """Move those who go on to the front of `rows` and `actions`, the others into `over`."""
    left = gone = 0
    for k in range(len(rows)):
        row = rows[k]
        if ended[k] == RUNNING and actions[k] != TERMINATE and not last:
            rows[left] = row
            actions[left] = actions[k]
            left += 1
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
        over[gone] = row
        gone += 1
    return left
