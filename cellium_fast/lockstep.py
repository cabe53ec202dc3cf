"""Groups of recorded runs through a fleet: round 1 of all runs, then round 2, as batch steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast.decision import COLUMNS, Decisions
from cellium_fast.fleet import Fleet
from cellium_fast.policy import Policy
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS, RoundBatch
from cellium_fast.traces.packed import CHUNK_SIZE, PackedRuns, RunName, call_offsets
from cellium_fast.traces.runs import USER_MESSAGE, Problem

# A group is driven once it has this many rounds, each run counted as one more.
GROUP_SIZE = 262_144

OnDecisions = Callable[[Sequence[RunName], Decisions], None]


def groups(packed: Iterable[PackedRuns | Problem]) -> Iterator[Group | Problem]:
    """Gather runs to groups, which end at the same runs however these came packed."""
    chunks: list[PackedRuns] = []
    size = waiting = 0
    for one in packed:
        if isinstance(one, Problem):
            yield one
            continue
        start = 0
        for end, run in enumerate(one.runs, 1):
            waiting += 1 + run.length
            if waiting < CHUNK_SIZE:
                continue
            size, waiting = size + waiting, 0
            if size >= GROUP_SIZE:
                yield Group([*chunks, one.part(start, end)])
                chunks, size, start = [], 0, end
        if start < len(one.runs):
            chunks.append(one.part(start, len(one.runs)))
    if chunks:
        yield Group(chunks)


class Group:
    """The rounds of some runs as rows, run after run, and the steps they are driven in.

    Attributes
    ----------
    runs
        What is known of the runs beside their rounds.
    lengths, starts
        (runs,) int64: the rounds of a run; its first row.
    run
        (rows,) int64: place in `runs` of the run of a row.
    first_of_task
        (rows,) bool: the first round of a run or after a user message.
    order
        (rows,) int64: the rows in the order they are driven.
    call_row
        (calls,) int64: the row of each call, calls in the order they were made.
    """

    def __init__(self, chunks: Sequence[PackedRuns]) -> None:
        self._batches = batches = [chunk.rounds for chunk in chunks]
        self._tools = {key: name for batch in batches for key, name in batch.tools.items()}
        self._errors = {key: text for batch in batches for key, text in batch.errors.items()}
        self.runs = [run for chunk in chunks for run in chunk.runs]
        self.lengths = np.array([run.length for run in self.runs], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.run = np.repeat(np.arange(len(self.runs)), self.lengths)
        self.first_of_task = self.column("event") == USER_MESSAGE
        self.first_of_task[self.starts[self.lengths > 0]] = True
        number = np.arange(len(self.run)) - self.starts[self.run]
        # Stable, so that the rows of a step stay in the order the runs were read.
        self.order = np.argsort(number, kind="stable")
        self._ends = np.cumsum(np.bincount(number))
        counts = np.concatenate([np.diff(call_offsets(batch)) for batch in batches])
        self.call_row = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum(counts) - counts
        counts = counts[self.order]
        self._offsets = np.concatenate([[0], np.cumsum(counts)])
        calls = np.repeat(starts[self.order] - self._offsets[:-1], counts)
        calls += np.arange(len(calls))
        # Put in order once, so that the batch of a step is a part of them.
        self._calls = {name: self.column(name)[calls] for name in CALL_COLUMNS}
        self._rounds = {name: self.column(name)[self.order] for name in ROUND_COLUMNS}

    def column(self, name: str) -> NDArray[Any]:
        """A column of `RoundBatch`, rows or calls in the order of the runs."""
        return np.concatenate([getattr(batch, name) for batch in self._batches])

    def steps(self, named: bool) -> Iterator[tuple[slice, RoundBatch]]:
        """Yield, for each round number, the part of `order` with its rows, and their batch.

        `named`: with the tool names and error texts that explanations need.
        """
        for start, end in pairwise([0, *self._ends.tolist()]):
            offsets = self._offsets[start : end + 1]
            calls = slice(offsets[0], offsets[-1])
            columns = {name: column[calls] for name, column in self._calls.items()}
            columns |= {name: column[start:end] for name, column in self._rounds.items()}
            batch = RoundBatch(call_offsets=offsets - offsets[0], **columns)
            if named:
                self._name(batch)
            yield slice(start, end), batch

    def _name(self, batch: RoundBatch) -> None:
        # Only what this step speaks of: a fleet keeps a bounded number of texts, a group has more.
        assert batch.call_tool is not None and batch.call_result is not None
        batch.tools = {tool: self._tools[tool] for tool in set(batch.call_tool.tolist())}
        results = self._errors.keys() & batch.call_result.tolist()
        batch.errors = {result: self._errors[result] for result in results}


@dataclass(slots=True, frozen=True)
class DecidedRows:
    """What was decided in a group, for each of its rows; the columns are those of `Decisions`."""

    action: NDArray[np.uint8]
    candidates: NDArray[np.uint8]
    rules: NDArray[np.uint32]
    user_rules: NDArray[np.uint32]


DECIDED = tuple(field.name for field in fields(DecidedRows))


def side_by_side(
    policies: Sequence[Policy], seed: int = 0, threads: int | None = None
) -> Fleet:
    """Make a fleet for a `Driver` of these policies, which learn nothing from one another."""
    named = {str(place): policy for place, policy in enumerate(policies)}
    pools = {name: policy.posterior for name, policy in named.items()}
    return Fleet(seed=seed, policies=named, pools=pools, threads=threads)


class Driver:
    """Drives groups through one fleet, and times the fleet alone.

    Each run is a session under every policy of the fleet, in the pool at the policy's place. It
    draws the random numbers of its number among all runs, whatever the policy: so each policy
    decides as it would alone, and differences between policies are not those of chance.

    Parameters
    ----------
    fleet
        As `side_by_side` makes it, or with one policy and one pool.
    on_decisions
        Called after every batch step with the names of its runs and the decisions, row by row:
        those of the first policy, then those of the next.
    """

    def __init__(self, fleet: Fleet, on_decisions: OnDecisions | None = None) -> None:
        self._fleet = fleet
        self._sides = list(zip(fleet.policies, fleet.pools, strict=True))
        self._on_decisions = on_decisions
        self._repeated = _Repeater(len(self._sides))
        self._runs = 0
        self.seconds = 0.0

    def drive(self, group: Group) -> list[DecidedRows]:
        """Open sessions for each run, step them through its rounds, and close them.

        Returns what was decided under each policy.
        """
        runs, lengths, sides = group.runs, group.lengths, len(self._sides)
        outcomes = np.array([-1 if run.success is None else run.success for run in runs], np.int8)
        # In the order of the steps, until all is decided.
        decided = {
            name: np.empty((sides, len(group.order)), COLUMNS[name][0]) for name in DECIDED
        }
        named = self._on_decisions is not None
        began = time.perf_counter()
        ids = self._open(np.array([run.context_limit for run in runs], np.int64))
        self._close(ids, np.flatnonzero(lengths == 0), outcomes)
        self.seconds += time.perf_counter() - began
        for number, (step, batch) in enumerate(group.steps(named), 1):
            running = group.run[group.order[step]]
            batch = self._repeated(batch)
            began = time.perf_counter()
            decisions = self._fleet.step(
                ids[:, running].ravel(), batch, want=None if named else DECIDED
            )
            self._close(ids, running[lengths[running] == number], outcomes)
            self.seconds += time.perf_counter() - began
            for name, rows in decided.items():
                rows[:, step] = getattr(decisions, name).reshape(sides, -1)
            if self._on_decisions is not None:
                self._on_decisions([runs[place].name for place in running] * sides, decisions)
        for name, rows in decided.items():
            decided[name] = np.empty_like(rows)
            decided[name][:, group.order] = rows
        return [
            DecidedRows(**{name: rows[side] for name, rows in decided.items()})
            for side in range(sides)
        ]

    def _open(self, context_limit: NDArray[np.int64]) -> NDArray[np.int64]:
        """Open a session for each run under each policy, (policies, runs)."""
        count = len(context_limit)
        numbers = np.arange(self._runs, self._runs + count, dtype=np.uint64)
        self._runs += count
        ids = np.empty((len(self._sides), count), np.int64)
        for side, (policy, pool) in enumerate(self._sides):
            opened = self._fleet.open(count, context_limit=context_limit, policy=policy, pool=pool)
            # By their slots, so that the records of a step lie in the order it goes through them.
            ids[side] = np.sort(opened)
            self._fleet._lock.run(self._fleet._draw_as, ids[side], numbers)
        return ids

    def _close(
        self, ids: NDArray[np.int64], over: NDArray[np.int64], outcomes: NDArray[np.int8]
    ) -> None:
        if len(over):
            self._fleet.close(ids[:, over].ravel(), np.tile(outcomes[over], len(ids)))


class _Repeater:
    """Repeats batches, in memory of its own that the next one overwrites: new pages cost time."""

    def __init__(self, times: int) -> None:
        self._times = times
        self._room: dict[str, NDArray[Any]] = {}

    def __call__(self, batch: RoundBatch) -> RoundBatch:
        """The rounds of a batch, then the same rounds once more, so many times in all."""
        if self._times == 1:
            return batch
        offsets = call_offsets(batch)
        total = offsets[-1] * self._times
        starts = offsets[:-1] + offsets[-1] * np.arange(self._times)[:, np.newaxis]
        columns = {
            name: self._repeated(name, getattr(batch, name))
            for name in (*CALL_COLUMNS, *ROUND_COLUMNS)
        }
        return RoundBatch(
            call_offsets=np.append(starts.ravel(), total), tools=batch.tools, errors=batch.errors,
            **columns,
        )

    def _repeated(self, name: str, column: NDArray[Any]) -> NDArray[Any]:
        size = self._times * len(column)
        if name not in self._room or len(self._room[name]) < size:
            self._room[name] = np.empty(size, column.dtype)
        repeated = self._room[name][:size]
        repeated.reshape(self._times, -1)[:] = column
        return repeated
