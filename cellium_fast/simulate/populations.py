"""The built-in population: agents with hidden states, as an environment.

docs/simulator.md says what the states look like, how agents react, and where the numbers come from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cellium_fast.simulate.compiled import compiled
from cellium_fast.simulate.environments import FAILED, RUNNING, SUCCEEDED, Environment, environment
from cellium_fast.simulate.tables import GOALS, STATES, Tables

AGENT = np.dtype([
    ("state", np.uint8),        # place in STATES
    ("profile", np.uint8),      # place in the profiles
    ("right", np.uint8),        # whether the summit ahead is the goal
    ("looks", np.uint8),        # how the trouble shows, 0 to 7
    ("since", np.int32),        # round in which the trouble began
    ("round", np.int32),        # rounds played
    ("left", np.int32),         # productive rounds to the summit
    ("tokens", np.int64),       # in the context
])

(WORKING, SLOW, LOOPING_SAME, LOOPING_CHANGING, FAILING_RECOVERS, FAILING_STAYS, POLLING,
 CONTEXT_GROWTH, FALSE_SUMMIT) = range(len(STATES))
CONTINUE, COMPRESS = 0, 3

ERROR, TRANSIENT = 1, 4         # flags of a call
TOOLS = 5                       # 1 to 4 while all goes well, 5 for polling
CONTEXT_LIMIT = 128_000
# Hashes: one of the round, so that it comes once, or one of the trouble, for all its rounds.
OF_TROUBLE = 1 << 32


def begin(agent: Any, random: Any, table: Any) -> None:
    """A new agent: its profile, its task, and whether it will get it right."""
    profile = 0
    while random[0] >= table.share[profile]:
        profile += 1
    agent.profile = profile
    agent.left = table.goals[profile, int(random[1] * GOALS)]
    agent.right = random[2] < table.right[profile]
    agent.tokens = table.tokens_at_start


@compiled
def of_quarter(number: float) -> float:
    """Where in its quarter of [0, 1) a number is, as a number in [0, 1)."""
    return 4 * number - int(4 * number)


@compiled
def react(agent: Any, action: int, random: Any, table: Any) -> None:
    """What the agent was told takes effect; by itself, a trouble may end or begin."""
    state = agent.state
    if action != CONTINUE:
        agent.left += table.cost[state, action]
        if action == COMPRESS:
            agent.tokens = int(agent.tokens * table.left_by_compression)
    reached = state
    if random[0] < table.out[state, action]:
        reached = WORKING
    elif random[0] < table.out_or_worse[state, action]:
        reached = table.worse_into[state]
    elif state == WORKING and random[1] < table.entering[agent.profile, CONTEXT_GROWTH]:
        reached = SLOW
        while random[1] >= table.entering[agent.profile, reached]:
            reached += 1
    if reached != state:
        if state == FALSE_SUMMIT:
            agent.left += table.rework
            agent.right = random[2] < table.right_after_rework
        agent.state = reached
        agent.since = agent.round
        agent.looks = int(8 * random[3])


@compiled
def work(agent: Any, random: Any, round: Any, table: Any) -> int:
    """A round of an agent that works, at its pace."""
    profile = agent.profile
    talk = table.talk[profile]
    error = talk + (1.0 - talk) * table.error[profile]
    productive = True
    if agent.tokens > table.crowded_from * CONTEXT_LIMIT:
        room = 1.0 - agent.tokens / CONTEXT_LIMIT
        productive = of_quarter(random[3]) * (1.0 - table.crowded_from) < room
    if random[2] >= talk:
        round.calls = 1
        if random[2] < error:
            round.flags = ERROR
            round.size = 100
            productive = False
    if agent.state == SLOW:
        # Slight results that come again and again to other questions.
        round.size = 12
        round.result = OF_TROUBLE + 8 * agent.since + agent.round % 3
        productive = productive and random[2] >= 1.0 - table.slow_pace
    agent.left -= productive
    if agent.left > 0:
        return RUNNING
    if agent.right:
        return SUCCEEDED
    agent.state = FALSE_SUMMIT
    agent.since = agent.round
    agent.looks = int(8 * random[3])
    return RUNNING


@compiled
def struggle(agent: Any, random: Any, round: Any) -> None:
    """A round of an agent that gets nowhere: how its trouble shows."""
    state = agent.state
    trouble = OF_TROUBLE + 8 * agent.since
    even = agent.looks % 2 == 0
    round.calls = 1
    if state == FALSE_SUMMIT:
        round.calls = 0
        if even:
            round.text = trouble
    elif state == LOOPING_SAME:
        round.signature = trouble
        round.result = trouble
    elif state == LOOPING_CHANGING:
        round.result = trouble
    elif state == FAILING_RECOVERS:
        round.flags = ERROR + TRANSIENT * (agent.looks == 0)
        round.signature = trouble
        round.result = trouble
        round.size = 100
    elif state == FAILING_STAYS:
        round.flags = ERROR
        round.size = 100
        if even:
            round.signature = trouble
        if agent.looks < 6:
            round.result = trouble
    elif state == POLLING:
        round.tool = TOOLS
        round.signature = trouble
        if even:
            round.result = trouble


@environment(agent=AGENT, states=STATES, begin=begin, context_limit=CONTEXT_LIMIT)
def play(agent: Any, action: int, random: Any, round: Any, table: Any) -> int:
    """One round of an agent of the built-in population."""
    agent.round += 1
    react(agent, action, random, table)
    # What comes once, unless the trouble says otherwise.
    round.tool = 1 + int(4 * random[3])
    round.signature = agent.round
    round.result = agent.round
    round.text = agent.round
    round.size = 40 + int(2_000 * of_quarter(random[3]))
    tokens = table.tokens[agent.profile] * (0.5 + random[3])
    if agent.state == CONTEXT_GROWTH:
        tokens *= table.growth
    agent.tokens += int(tokens)
    round.tokens = agent.tokens
    if agent.tokens >= CONTEXT_LIMIT:
        return FAILED
    # The other end of the number by which the trouble ended or got worse.
    if agent.state != WORKING and random[0] >= 1.0 - table.giving_up[agent.state]:
        return FAILED
    if agent.state == WORKING or agent.state == SLOW or agent.state == CONTEXT_GROWTH:
        return work(agent, random, round, table)
    struggle(agent, random, round)
    return RUNNING


def population(tables: Tables | None = None) -> Environment:
    """The built-in population with these tables; None: the shipped ones."""
    return play.with_parameters((Tables.shipped() if tables is None else tables).record())
