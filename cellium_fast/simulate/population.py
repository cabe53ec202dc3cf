"""A small population of agents with hidden troubles, as columns over sessions.

Every agent works towards a goal of so many productive rounds. Its kind says how often it falls
into a trouble of its own; the trouble shows in its rounds (the same call again, errors, a filling
context), and the action it is told changes its chance to get out. The numbers are plausible and
round, not fitted to recordings.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _records
from cellium_fast.action import Action
from cellium_fast.rounds import RoundBatch

KINDS = ("working", "looping", "failing", "filling")
SHARE_OF_KIND = (0.4, 0.25, 0.2, 0.15)


class State(IntEnum):
    """What troubles an agent just now."""

    WORKING = 0
    LOOPING = 1
    FAILING = 2


# Chance a round to fall into a trouble: by kind, then looping, failing.
FALL = np.array([[0.01, 0.01], [0.15, 0.01], [0.01, 0.15], [0.01, 0.01]])

# Chance to get out of a trouble: by state, then by the action told before the round.
ESCAPE = np.array([
    # continue retry redirect compress terminate
    [0.00, 0.00, 0.00, 0.00, 0.00],
    [0.02, 0.10, 0.35, 0.05, 0.00],
    [0.05, 0.25, 0.30, 0.05, 0.00],
])

# Productive rounds lost when an agent that works well is told this.
#                   continue retry redirect compress terminate
COST = np.array([0, 0, 3, 1, 0])

CONTEXT_LIMIT = 100_000
TOKENS_A_ROUND = np.array([700, 700, 700, 5_000])   # by kind
TOKENS_AT_START = 3_000
LEFT_BY_COMPRESSION = 0.3
# Above this share of the window the model gets worse, down to no productive round at its end.
CROWDED = 0.8
GOALS = (8, 25)     # productive rounds that a task takes, at least and below

TOOLS = {0x7001: "search", 0x7002: "read", 0x7003: "edit", 0x7004: "run"}
TOOL_HASHES = np.array(list(TOOLS), np.uint64)


class Population:
    """Agents in the middle of their runs; all arrays are (N,).

    Parameters
    ----------
    count
        Agents, N.
    seed
        Of the population: the same seed gives the same agents and the same luck, whatever they
        are told, so that two ways of control can be compared agent by agent.
    """

    def __init__(self, count: int, seed: int) -> None:
        self._seed = seed
        chance = np.random.Generator(np.random.Philox(key=[seed, 0]))
        self.kind = chance.choice(len(KINDS), size=count, p=SHARE_OF_KIND)
        self.goal = chance.integers(*GOALS, size=count)
        self.work = np.zeros(count, np.int64)
        self.state = np.full(count, State.WORKING, np.int64)
        self.tokens = np.full(count, TOKENS_AT_START, np.int64)
        self.episode = np.zeros(count, np.uint64)   # round in which the trouble began
        self.overflowed = np.zeros(count, bool)

    @property
    def solved(self) -> NDArray[np.bool_]:
        """Who reached the goal."""
        return self.work >= self.goal

    def play(
        self, who: NDArray[np.int64], round_number: int, told: NDArray[np.uint8]
    ) -> RoundBatch:
        """The next round of the agents `who`, after they were told the actions `told`."""
        luck = self._luck(round_number)[:, who]
        self._move(who, round_number, told, luck)
        productive = (self.state[who] == State.WORKING) & (luck[2] < self._clarity(who))
        self.work[who] += productive
        self.tokens[who] += TOKENS_A_ROUND[self.kind[who]]
        self.overflowed[who] |= self.tokens[who] >= CONTEXT_LIMIT
        return self._rounds(who, round_number, luck)

    def _luck(self, round_number: int) -> NDArray[np.float64]:
        # For all agents, those who are through included: no one's luck depends on another's.
        key = [self._seed, round_number]
        return np.random.Generator(np.random.Philox(key=key)).random((4, len(self.kind)))

    def _move(
        self, who: NDArray[np.int64], round_number: int, told: NDArray[np.uint8],
        luck: NDArray[np.float64],
    ) -> None:
        state, kind = self.state[who], self.kind[who]
        escapes = (state != State.WORKING) & (luck[0] < ESCAPE[state, told])
        loops = (state == State.WORKING) & (luck[1] < FALL[kind, 0])
        fails = (state == State.WORKING) & (luck[1] > 1.0 - FALL[kind, 1])
        state[escapes] = State.WORKING
        state[loops] = State.LOOPING
        state[fails] = State.FAILING
        self.state[who] = state
        self.episode[who[loops | fails]] = round_number
        disturbed = np.where(state == State.WORKING, COST[told], 0)
        self.work[who] = np.maximum(self.work[who] - disturbed, 0)
        compressed = who[told == Action.COMPRESS]
        self.tokens[compressed] = (self.tokens[compressed] * LEFT_BY_COMPRESSION).astype(np.int64)

    def _clarity(self, who: NDArray[np.int64]) -> NDArray[np.float64]:
        crowding = (self.tokens[who] / CONTEXT_LIMIT - CROWDED) / (1.0 - CROWDED)
        return 1.0 - np.clip(crowding, 0.0, 1.0)

    def _rounds(
        self, who: NDArray[np.int64], round_number: int, luck: NDArray[np.float64]
    ) -> RoundBatch:
        state = self.state[who]
        fresh = _hash(who, np.uint64(round_number))
        of_episode = _hash(who, self.episode[who] + np.uint64(1 << 32))
        tool = TOOL_HASHES[(luck[3] * len(TOOL_HASHES)).astype(np.int64)]
        tool[state == State.LOOPING] = TOOL_HASHES[0]
        return RoundBatch(
            call_offsets=np.arange(len(who) + 1),
            call_tool=tool,
            call_signature=np.where(state == State.LOOPING, of_episode, fresh),
            call_result=np.where(state == State.WORKING, fresh, of_episode),
            call_flags=np.where(state == State.FAILING, _records.CALL_ERROR, 0).astype(np.uint8),
            call_size=(200 + 2_000 * luck[3]).astype(np.uint32),
            text=fresh,
            context_tokens=self.tokens[who],
            tools=TOOLS,
        )


def _hash(who: NDArray[np.int64], salt: NDArray[np.uint64] | np.uint64) -> NDArray[np.uint64]:
    # Distinct numbers for distinct pairs; the fleet mixes them.
    return (who.astype(np.uint64) << np.uint64(33)) + salt + np.uint64(1)
