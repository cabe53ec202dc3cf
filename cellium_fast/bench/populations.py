"""Sessions to measure with: what their rounds look like, as columns that move on every round.

Every session makes one tool call a round. Its kind decides which actions the `default` policy
leaves it, once its window is full:

* calm: always another call, now and then an error or an empty result; continue, seldom retry.
* crowded: calm at 84.5 % of its context, and every eighth round at 75.5 %, as if a summary had
  helped; a tie, continue or compress, whenever compress may be proposed.
* looping: two rounds of work, then six times the same call with the same result, or two such in
  turn; retry, then redirect, until the work begins anew.
* crammed: looping at 60 % of its context; with `compress_from` there, redirect or compress.
* failing: five failed rounds, then five good ones; retry, then redirect.
* exhausted: at 97 % of its context; terminate.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import Decisions, Fleet, Policy, RoundBatch, _ingest, _records

CONTEXT_LIMIT = 128_000
SEED = 7
WANTED = ("action", "candidates", "rules", "reward")     # what a batch step writes here
SETTLED = 14     # rounds after which a window is full and every kind does what it is there for

Kind = IntEnum("Kind", ["CALM", "CROWDED", "LOOPING", "CRAMMED", "FAILING", "EXHAUSTED"], start=0)
SATURATION = {Kind.CALM: 0.3, Kind.CROWDED: 0.845, Kind.LOOPING: 0.3, Kind.CRAMMED: 0.6,
              Kind.FAILING: 0.3, Kind.EXHAUSTED: 0.97}
LOOPS = (Kind.LOOPING, Kind.CRAMMED)

# Shares of each kind, by the name of the population.
POPULATIONS: dict[str, dict[Kind, float]] = {
    "calm": {Kind.CALM: 1.0},
    "looping": {Kind.LOOPING: 1.0},
    "tied": {Kind.CROWDED: 1.0},
    "usual": {Kind.CALM: 0.68, Kind.CROWDED: 0.27, Kind.LOOPING: 0.05},
    "mixed": {Kind.CALM: 0.25, Kind.CROWDED: 0.15, Kind.LOOPING: 0.2, Kind.CRAMMED: 0.2,
              Kind.FAILING: 0.15, Kind.EXHAUSTED: 0.05},
}

TOOLS = {_ingest.hash_tool(name): name for name in ("search", "read", "edit", "run")}
ERRORS, EMPTIES = 0.04, 0.02    # shares of a calm session's calls
LOOPED, PERIOD = 6, 8       # rounds of a loop, in so many
FAILURES, FAILURE_PERIOD = 5, 10
RELIEVED = 0.894    # share of its context that a crowded session has left once in a period
NEXT = np.uint64(0x9E3779B97F4A7C15)     # odd: adding it gives 2**64 different hashes


class Population:
    """N sessions of the kinds that a population has, in random order.

    Parameters
    ----------
    name
        One of `POPULATIONS`.
    count
        Sessions, N.
    named
        Whether the rounds bring the names of the tools, for texts.

    Attributes
    ----------
    kind
        (N,) uint8, codes of `Kind`.
    """

    def __init__(self, name: str, count: int, *, named: bool = False) -> None:
        chance = np.random.default_rng(SEED)
        self.kind = _shuffled(POPULATIONS[name], count, chance)
        self._round = 0
        self._tools = list(TOOLS)
        self._tool_at = chance.integers(0, len(TOOLS), count)
        self._loops = np.isin(self.kind, LOOPS)
        self._fails = self.kind == Kind.FAILING
        # Each crowded session has its own round to be relieved in.
        self._relief = np.where(
            self.kind == Kind.CROWDED, chance.integers(0, PERIOD, count), PERIOD
        )
        # A loop stays at its call, every other one changes between two.
        alternates = self._loops & (chance.random(count) < 0.5)
        self._toggle = np.where(alternates, NEXT, np.uint64(0))
        self._luck = _luck(count, chance)
        self._sizes = chance.integers(200, 2_200, count).astype(np.uint32)
        saturation = np.array([SATURATION[kind] for kind in Kind])[self.kind]
        fresh = chance.integers(1, 2**63, (3, count)).astype(np.uint64)
        self._columns: dict[str, Any] = {
            "call_offsets": np.arange(count + 1),
            "call_tool": np.empty(count, np.uint64),
            "call_signature": fresh[0],
            "call_result": fresh[1],
            "call_flags": np.empty(count, np.uint8),
            "call_size": np.empty(count, np.uint32),
            "text": fresh[2],
            "context_tokens": (saturation * CONTEXT_LIMIT).astype(np.int64),
        }
        self._full = self._columns["context_tokens"].copy()
        self._names = dict(TOOLS) if named else {}

    def next_round(self) -> RoundBatch:
        """The next round of every session. The columns are the same arrays each time."""
        column, number = self._columns, self._round
        works = number % PERIOD >= LOOPED
        stays = self._loops & (not works)
        for name in ("call_signature", "call_result"):
            column[name] += np.where(stays, np.uint64(0), NEXT)
            column[name] ^= np.where(stays, self._toggle, np.uint64(0))
        column["text"] += NEXT
        turn = np.where(stays, 0, number)
        np.take(self._tools, (self._tool_at + turn) % len(TOOLS), out=column["call_tool"])
        relieved = np.where(self._relief == number % PERIOD, RELIEVED, 1.0)
        column["context_tokens"][:] = self._full * relieved
        shift = 7_919 * number
        np.copyto(column["call_flags"], np.roll(self._luck, shift))
        column["call_flags"][self._loops] = 0
        column["call_flags"][self._fails] = (
            _records.CALL_ERROR if number % FAILURE_PERIOD < FAILURES else 0
        )
        np.copyto(column["call_size"], np.where(self._loops, self._sizes,
                                                np.roll(self._sizes, shift)))
        self._round += 1
        return RoundBatch(**column, tools=self._names)


class Herd:
    """A fleet with a population in it, past its first rounds.

    Parameters
    ----------
    population
        Its sessions.
    settled
        Rounds that they have behind them.
    policy
        Of the fleet; the `default` one unless told.
    threads
        Of the fleet; one unless told.
    want
        Columns that a step writes; None: all.
    fleet
        An empty one of the caller's; None: one of its own.
    """

    def __init__(
        self, population: Population, *, settled: int = SETTLED, threads: int = 1,
        want: tuple[str, ...] | None = WANTED, policy: Policy | str = "default",
        fleet: Fleet | None = None,
    ) -> None:
        self.population = population
        self.fleet = fleet if fleet is not None else Fleet(
            seed=SEED, threads=threads, policies={"measured": policy}
        )
        self.ids = self.fleet.open(len(population.kind), context_limit=CONTEXT_LIMIT)
        self.decisions: Decisions | None = None
        self._want = want
        for _ in range(settled):
            self.prepare()
            self.step()

    def prepare(self) -> None:
        """Let the sessions play their next round."""
        self.rounds = self.population.next_round()

    def step(self) -> Decisions:
        """Decide after that round: what every measure of the batch step times."""
        self.decisions = self.fleet.step(
            self.ids, self.rounds, want=self._want, out=self.decisions
        )
        return self.decisions

    def tie_breaks(self) -> float:
        """Share of the newest decisions that were tied."""
        assert self.decisions is not None
        masks = self.decisions.candidates
        return float(np.mean(masks & (masks - 1) != 0))


def _shuffled(
    shares: Mapping[Kind, float], count: int, chance: np.random.Generator
) -> NDArray[np.uint8]:
    bounds = np.cumsum([shares.get(kind, 0.0) for kind in Kind])
    places = (np.arange(count) + 0.5) / count
    kinds: NDArray[np.uint8] = np.searchsorted(bounds, places).astype(np.uint8)
    return chance.permutation(kinds)


def _luck(count: int, chance: np.random.Generator) -> NDArray[np.uint8]:
    """Flags of calls that mostly go well."""
    draws = chance.random(count)
    flags = np.zeros(count, np.uint8)
    flags[draws < ERRORS + EMPTIES] = _records.CALL_EMPTY
    flags[draws < ERRORS] = _records.CALL_ERROR
    return flags


def bytes_a_session(fleet: Fleet) -> dict[str, float]:
    """What a fleet's memory keeps for each session that it has room for, by the array's name."""
    memory = fleet._memory
    arrays = {
        "sessions": memory.sessions, "free": memory.free, "watched": memory.watched,
        "last_use": memory.last_use, "queue": memory.queue,
    }
    return {
        name: value.nbytes / len(memory.sessions)
        for name, value in arrays.items() if value is not None
    }
