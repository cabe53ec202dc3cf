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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from cellium_fast.action import Action
from cellium_fast.fleet import Fleet
from cellium_fast.lockstep import DecidedRows, Driver, Group, OnDecisions, groups
from cellium_fast.policy import Policy
from cellium_fast.traces.packed import PackedRuns, RunName, packed, read_files
from cellium_fast.traces.runs import Problem, RecordedRun

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

INTERVENTIONS = tuple(action for action in Action if action != Action.CONTINUE)
# Summaries go over many runs, most of which are a few continues.
_ACTIONS = tuple(Action)
_CONTINUE_ALONE = (Action.CONTINUE,)
_CONTINUE = bytes(_CONTINUE_ALONE)

OnGroup = Callable[[Group, DecidedRows], None]
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
    on_group: OnGroup | None = None,
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
    on_group
        Called with each group of runs once it is driven, and with what was decided in it.
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
    ['continue', 'continue', 'continue', 'redirect', 'redirect', 'redirect']
    """
    began = time.perf_counter()
    driver = Driver(Fleet(seed=seed, policies={"replay": policy or Policy()}), on_decisions)
    runs: list[ReplayedRun] = []
    problems = 0
    for one in groups(packed(found)):
        if isinstance(one, Problem):
            problems += 1
            if on_problem is not None:
                on_problem(one)
            continue
        (decided,) = driver.drive(one)
        runs += _replayed(one, decided.action)
        if on_group is not None:
            on_group(one, decided)
    return ReplayResult(
        runs=runs,
        rounds=sum(run.rounds for run in runs),
        problems=problems,
        loop_seconds=driver.seconds,
        seconds=time.perf_counter() - began,
    )


def _replayed(group: Group, actions: Actions) -> Iterator[ReplayedRun]:
    after = {
        action: np.bincount(
            group.run, _came_before(actions == action, group.first_of_task),
            minlength=len(group.runs),
        ).astype(int).tolist()
        for action in (Action.TERMINATE, Action.REDIRECT)
    }
    ends = (group.starts + group.lengths).tolist()
    for run, start, end, after_terminate, after_redirect in zip(
        group.runs, group.starts.tolist(), ends, after[Action.TERMINATE], after[Action.REDIRECT],
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
