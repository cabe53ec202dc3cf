"""Recorded runs through the control loop: what it would have decided, and when it would have ended.

Every run is a session of one fleet. Runs are read in groups of bounded size; in a group, round t of
all runs is one batch step, and a run's session is closed, with its outcome if the recording tells
it, as soon as its rounds are over. So a pool learns from recorded runs as it would from live ones
(docs/semantics.md, section 7), and the same runs in the same order give the same decisions.

What a replay cannot show: recorded rounds do not react to the decisions. A run goes on after a
terminate, and after a redirect as it did; so what the pool learns of an action is how runs went on
where it was decided, not what it would have done. A run's own round limit is not given to its
session either: each recorded run would seem to be ended by it.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast.action import Action
from cellium_fast.decision import Decisions
from cellium_fast.fleet import Fleet
from cellium_fast.policy import Policy
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS, RoundBatch
from cellium_fast.traces.packed import (
    CHUNK_SIZE,
    PackedRuns,
    RunFacts,
    RunName,
    call_offsets,
    packed,
    read_files,
)
from cellium_fast.traces.runs import USER_MESSAGE, Problem, RecordedRun

__all__ = [
    "INTERVENTIONS",
    "PackedRuns",
    "ReplayResult",
    "ReplayedRun",
    "RunName",
    "Summary",
    "read_files",
    "replay",
    "summarise",
]

# A group is driven once it has this many rounds, each run counted as one more.
GROUP_SIZE = 262_144

INTERVENTIONS = tuple(action for action in Action if action != Action.CONTINUE)
# Summaries go over many runs, most of which are a few continues.
_ACTIONS = tuple(Action)
_CONTINUE_ALONE = (Action.CONTINUE,)
_CONTINUE = bytes(_CONTINUE_ALONE)


OnDecisions = Callable[[Sequence[RunName], Decisions], None]
Actions = NDArray[np.uint8]


@dataclass(slots=True, frozen=True)
class ReplayedRun:
    """What was decided in one recorded run.

    Parameters
    ----------
    success
        Whether the run reached its goal, if the recording says so.
    actions
        (rounds,) uint8, the code of the action decided after each round.
    rounds_after_terminate
        Rounds recorded although the run would have been over: a terminate was decided after an
        earlier round, and no user message came in between (which would have begun a new task).
    rounds_after_redirect
        As `rounds_after_terminate`, of redirect: rounds that would have gone another way.
    """

    name: RunName
    success: bool | None
    actions: Actions
    rounds_after_terminate: int
    rounds_after_redirect: int

    @property
    def rounds(self) -> int:
        """The number of rounds recorded."""
        return len(self.actions)

    @property
    def first_intervention(self) -> int | None:
        """The first round, from 1, after which something else than continue was decided."""
        return _first_intervention(self.actions.tobytes())


@dataclass(slots=True)
class Summary:
    """Numbers of some replayed runs; `summarise` makes it.

    Parameters
    ----------
    succeeded, failed, unlabelled
        Runs by what their recordings say about the outcome.
    runs_with, decisions
        By action: runs in which it was decided at least once; how often it was decided.
    first_interventions
        By round: runs whose first decision other than continue came after this round.
    rounds_after_terminate, rounds_after_redirect
        Sums over the runs, see `ReplayedRun`.
    """

    runs: int = 0
    rounds: int = 0
    succeeded: int = 0
    failed: int = 0
    unlabelled: int = 0
    runs_with: Counter[Action] = field(default_factory=Counter)
    decisions: Counter[Action] = field(default_factory=Counter)
    first_interventions: Counter[int] = field(default_factory=Counter)
    rounds_after_terminate: int = 0
    rounds_after_redirect: int = 0

    @property
    def median_first_intervention(self) -> float | None:
        """Median round of the first intervention, over the runs that had one."""
        return median(self.first_interventions.elements()) if self.first_interventions else None

    def add(self, run: ReplayedRun) -> None:
        """Count one more run."""
        actions = run.actions.tobytes()
        self.runs += 1
        self.rounds += len(actions)
        self.succeeded += run.success is True
        self.failed += run.success is False
        self.unlabelled += run.success is None
        first = _first_intervention(actions)
        if first is not None:
            self.first_interventions[first] += 1
        for action in _CONTINUE_ALONE if first is None else _ACTIONS:
            if count := actions.count(action):
                self.runs_with[action] += 1
                self.decisions[action] += count
        self.rounds_after_terminate += run.rounds_after_terminate
        self.rounds_after_redirect += run.rounds_after_redirect


@dataclass(slots=True)
class ReplayResult:
    """What a replay gave.

    Parameters
    ----------
    runs, rounds
        The runs in the order they were read; rounds of all of them.
    problems
        How many problems there were: those handed in, and runs that no session can take.
    loop_seconds, seconds
        Time of opening, stepping and closing sessions; of everything, reading included.
    """

    runs: list[ReplayedRun]
    rounds: int
    problems: int
    loop_seconds: float
    seconds: float

    def by_source(self) -> dict[str, Summary]:
        """A summary of each format, in the order of their names."""
        summaries: defaultdict[str, Summary] = defaultdict(Summary)
        for run in self.runs:
            summaries[run.name.source].add(run)
        return dict(sorted(summaries.items()))


def summarise(runs: Iterable[ReplayedRun]) -> Summary:
    """Count what was decided in some runs."""
    summary = Summary()
    for run in runs:
        summary.add(run)
    return summary


def replay(
    found: Iterable[RecordedRun | PackedRuns | Problem],
    policy: Policy | None = None,
    *,
    seed: int = 0,
    on_decisions: OnDecisions | None = None,
    on_problem: Callable[[Problem], None] | None = None,
) -> ReplayResult:
    """Drive recorded runs through the control loop.

    Parameters
    ----------
    found
        What `read_files` yields, or `cellium_fast.traces.read` of one file.
    policy, seed
        The policy of all runs, None: `default`; seed of the fleet.
    on_decisions
        Called after every batch step with the names of its runs and the decisions, row by row.
        Each round of each run comes once: round 1 of all runs of a group, then round 2, ...
    on_problem
        Called with each problem.

    Examples
    --------
    >>> from pathlib import Path
    >>> from cellium_fast import Round, ToolCall
    >>> rounds = [Round([ToolCall("search", {"q": "x"}, "nothing")]) for _ in range(6)]
    >>> run = RecordedRun("made-up", Path("runs.json"), "1", rounds, [0] * 6, success=False)
    >>> result = replay([run], seed=7)
    >>> [str(Action(code)) for code in result.runs[0].actions]
    ['continue', 'continue', 'continue', 'retry', 'retry', 'redirect']
    """
    began = time.perf_counter()
    driver = _Driver(Fleet(seed=seed, policies={"replay": policy or Policy()}), on_decisions)
    runs: list[ReplayedRun] = []
    problems = 0
    for one in _groups(packed(found)):
        if isinstance(one, Problem):
            problems += 1
            if on_problem is not None:
                on_problem(one)
        else:
            runs += driver.drive(one)
    return ReplayResult(
        runs=runs,
        rounds=sum(run.rounds for run in runs),
        problems=problems,
        loop_seconds=driver.seconds,
        seconds=time.perf_counter() - began,
    )


def _groups(packed: Iterable[PackedRuns | Problem]) -> Iterator[list[PackedRuns] | Problem]:
    """Gather runs to groups, which end at the same runs however these came packed."""
    group: list[PackedRuns] = []
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
                yield [*group, one.part(start, end)]
                group, size, start = [], 0, end
        if start < len(one.runs):
            group.append(one.part(start, len(one.runs)))
    if group:
        yield group


class _Driver:
    """Drives groups of packed runs through one fleet, and times the fleet alone."""

    def __init__(self, fleet: Fleet, on_decisions: OnDecisions | None) -> None:
        self._fleet = fleet
        self._on_decisions = on_decisions
        self.seconds = 0.0

    def drive(self, group: list[PackedRuns]) -> Iterator[ReplayedRun]:
        """Yield the runs of a group, in order, with what was decided."""
        runs = [run for chunk in group for run in chunk.runs]
        rows = _Rows(runs, [chunk.rounds for chunk in group])
        actions = np.empty(len(rows.order), np.uint8)
        outcomes = np.array([-1 if run.success is None else run.success for run in runs], np.int8)
        limits = np.array([run.context_limit for run in runs], np.int64)
        over = np.flatnonzero(rows.lengths == 0)
        began = time.perf_counter()
        ids = self._fleet.open(len(runs), context_limit=limits)
        self._fleet.close(ids[over], outcomes[over])
        self.seconds += time.perf_counter() - began
        for number, (step, batch) in enumerate(rows.steps(self._on_decisions is not None), 1):
            running = rows.run[rows.order[step]]
            over = running[rows.lengths[running] == number]
            began = time.perf_counter()
            decisions = self._fleet.step(ids[running], batch)
            self._fleet.close(ids[over], outcomes[over])
            self.seconds += time.perf_counter() - began
            actions[rows.order[step]] = decisions.action
            if self._on_decisions is not None:
                self._on_decisions([runs[place].name for place in running], decisions)
        yield from _replayed(runs, rows, actions)


class _Rows:
    """The rounds of a group as rows, run after run, and the steps they are driven in.

    `order` has the rows in the order they are driven: round 1 of all runs, then round 2, ...
    The columns are put into that order once, so that the batch of a step is a part of them.
    """

    def __init__(self, runs: list[RunFacts], batches: list[RoundBatch]) -> None:
        self._tools = {key: name for batch in batches for key, name in batch.tools.items()}
        self._errors = {key: text for batch in batches for key, text in batch.errors.items()}
        self.lengths = np.array([run.length for run in runs], np.int64)
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.run = np.repeat(np.arange(len(runs)), self.lengths)
        self.event = _joined(batches, "event")
        number = np.arange(len(self.run)) - self.starts[self.run]
        # Stable, so that the rows of a step stay in the order the runs were read.
        self.order = np.argsort(number, kind="stable")
        self._ends = np.cumsum(np.bincount(number))
        counts = np.concatenate([np.diff(call_offsets(batch)) for batch in batches])
        starts = np.cumsum(counts) - counts
        counts = counts[self.order]
        self._offsets = np.concatenate([[0], np.cumsum(counts)])
        calls = np.repeat(starts[self.order] - self._offsets[:-1], counts)
        calls += np.arange(len(calls))
        self._calls = {name: _joined(batches, name)[calls] for name in CALL_COLUMNS}
        self._rounds = {name: _joined(batches, name)[self.order] for name in ROUND_COLUMNS}

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


def _joined(batches: list[RoundBatch], name: str) -> NDArray[Any]:
    return np.concatenate([getattr(batch, name) for batch in batches])


def _replayed(runs: list[RunFacts], rows: _Rows, actions: Actions) -> Iterator[ReplayedRun]:
    first_of_task = rows.event == USER_MESSAGE
    first_of_task[rows.starts[rows.lengths > 0]] = True
    after = {
        action: np.bincount(
            rows.run, _came_before(actions == action, first_of_task), minlength=len(runs)
        ).astype(int).tolist()
        for action in (Action.TERMINATE, Action.REDIRECT)
    }
    ends = (rows.starts + rows.lengths).tolist()
    for run, start, end, after_terminate, after_redirect in zip(
        runs, rows.starts.tolist(), ends, after[Action.TERMINATE], after[Action.REDIRECT],
        strict=True,
    ):
        yield ReplayedRun(
            run.name, run.success, actions[start:end], after_terminate, after_redirect
        )


def _first_intervention(actions: bytes) -> int | None:
    quiet = len(actions) - len(actions.lstrip(_CONTINUE))
    return quiet + 1 if quiet < len(actions) else None


def _came_before(chosen: NDArray[np.bool_], first: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether a row was chosen before this one and since the newest `first` row, that included."""
    before: NDArray[np.int64] = np.cumsum(chosen) - chosen
    return np.greater(before, np.maximum.accumulate(np.where(first, before, 0)))
