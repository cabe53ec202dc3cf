"""A made-up world of agents, and the fleet that controls them, in one loop compiled by Numba.

    python examples/closed_loop.py

An agent needs some steps for its task, and makes one in most rounds. Now and then it falls into a
loop and makes the same call over and over. A redirect gets it out more often than not; nothing else
does. Its context grows with every round until it is full, unless it is compressed.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
from numba import njit

from cellium_fast import Action, Fleet
from cellium_fast.nopython import step, uniform

CONTINUE, REDIRECT, COMPRESS, TERMINATE = (
    int(action) for action in (Action.CONTINUE, Action.REDIRECT, Action.COMPRESS, Action.TERMINATE)
)
CONTEXT_LIMIT, ROUND_LIMIT, STEPS = 60_000, 80, 25
SEARCH, EDIT = np.uint64(11), np.uint64(12)     # hashes of the names of tools
CHANCE = 0                                      # the number of this world's only draw in a round

# An agent: its steps to go, whether it is in a loop, tokens in its context, rounds it has played.
AGENT = np.dtype([("to_go", "i4"), ("loops", "?"), ("tokens", "i8"), ("rounds", "i4")])


@njit(cache=True)
def live(agent: Any, action: int, chance: float) -> None:
    """One round of an agent: what the last decision and chance make of it."""
    agent["rounds"] += 1
    agent["tokens"] = agent["tokens"] // 4 if action == COMPRESS else agent["tokens"] + 2_000
    if agent["loops"]:
        agent["loops"] = action != REDIRECT or chance > 0.7
    elif chance < 0.04:
        agent["loops"] = True
    else:
        agent["to_go"] -= 1


@njit(cache=True)
def is_over(agent: Any, action: int) -> bool:
    """Whether it is done, was ended, or can go on no longer."""
    return (
        agent["to_go"] == 0 or action == TERMINATE or agent["rounds"] >= ROUND_LIMIT
        or agent["tokens"] >= CONTEXT_LIMIT
    )


@njit(cache=True)
def rows_over(agents: Any, actions: Any) -> Any:
    """The rows of the agents that are to be closed."""
    over = [row for row in range(len(agents)) if is_over(agents[row], actions[row])]
    return np.array(over, np.int64)


@njit(cache=True)
def play(
    block: int, rounds: Any, decisions: Any, agents: Any, uids: Any, key: int, turns: int,
    controlled: bool,
) -> int:
    """So many rounds of all agents; returns what is wrong, or 0."""
    for _ in range(turns):
        for row in range(len(agents)):
            agent = agents[row]
            action = decisions.action[row] if controlled else CONTINUE
            rounds.call_offsets[row + 1] = rounds.call_offsets[row]
            if is_over(agent, action):
                continue        # an empty round, until it is closed
            live(agent, action, uniform(key, uids[row], agent["rounds"], CHANCE))
            place = rounds.call_offsets[row]
            rounds.call_offsets[row + 1] = place + 1
            rounds.call_tool[place] = SEARCH if agent["loops"] else EDIT
            rounds.call_signature[place] = 1 if agent["loops"] else 1_000 + agent["rounds"]
            rounds.call_result[place] = rounds.call_signature[place]
            rounds.context_tokens[row] = agent["tokens"]
        wrong = step(block, 0, len(agents))
        if wrong != 0:
            return wrong
    return 0


def run(count: int, controlled: bool, seed: int = 7) -> tuple[float, float]:
    """Share of agents that succeed, and rounds an agent takes; decisions are heeded or not."""
    fleet = Fleet(seed=seed)
    ids = fleet.open(count, context_limit=CONTEXT_LIMIT, round_limit=ROUND_LIMIT)
    given = ["call_tool", "call_signature", "call_result", "context_tokens"]
    agents = np.zeros(count, AGENT)
    agents["to_go"] = STEPS
    successes = rounds = 0
    with fleet.block(ids, given=given, want=[]) as block:
        while len(block):
            actions = block.decisions.action if controlled else np.zeros(len(block), np.uint8)
            over = rows_over(agents, actions)
            succeeded = agents["to_go"][over] == 0
            successes += succeeded.sum()
            rounds += agents["rounds"][over].sum()
            agents = agents[block.close(over, succeeded)]
            block.check(play(
                block.address, block.rounds, block.decisions, agents, block.uids, seed, 8,
                controlled,
            ))
    return successes / count, rounds / count


def main() -> None:
    """Play the world with and without control, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--agents", type=int, default=20_000)
    count = parser.parse_args().agents
    for controlled in (False, True):
        run(100, controlled)        # compiled here, or taken from Numba's cache
        start = time.perf_counter()
        share, rounds = run(count, controlled)
        seconds = time.perf_counter() - start
        print(
            f"{'with' if controlled else 'without'} control: {share:.1%} of {count:,} agents "
            f"succeed, in {rounds:.1f} rounds each ({count * rounds / seconds:,.0f} rounds/s)"
        )


if __name__ == "__main__":
    main()
