"""Recorded runs packed once, to be driven under many policies, again and again.

An `Experiment` drives all of its runs under each policy it is given, side by side in one fleet:
every run is a session of every policy, and each policy has a pool of its own. What comes out for a
policy is what would come out if it were alone, in the same order of runs and with the same seed
(tests compare the two), and what `cellium_fast.replay` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import checks
from cellium_fast.action import Action
from cellium_fast.errors import InputError, shown
from cellium_fast.lockstep import Driver, Group, groups, side_by_side
from cellium_fast.policy import Policy
from cellium_fast.quality import FIRED, fired_by_candidates, fired_by_choice
from cellium_fast.traces.packed import PackedRuns, RunFacts, RunName, packed
from cellium_fast.traces.runs import Problem, RecordedRun

__all__ = ["REACTION", "Experiment"]

# What is held at once for policies side by side: sessions (384 bytes each), and rounds of what
# was decided (12 bytes each).
MOST_SESSIONS = 1 << 18
MOST_ROUNDS = 1 << 22

REACTION = np.dtype([("candidates", FIRED), ("chosen", FIRED), ("terminated", np.int64)])
"""How a policy reacted to a run, 56 bytes: where redirect or terminate was among the candidates,
and where it was chosen; in which round, from 1, terminate was chosen first (0: never)."""


class Experiment:
    """Recorded runs, about 250 bytes a round, to be driven under any policies.

    Parameters
    ----------
    found
        What `read_files` yields, or `cellium_fast.traces.read` of one file.
    keep
        Called with what is known of each run (`success`, `name.source`, `length`, ...): whether to
        keep it. None: all runs.
    on_problem
        Called with each problem.

    Attributes
    ----------
    names
        Where the runs were recorded, in the order they were read.
    success
        (runs,) int8: 1, 0, or -1 if the recording does not say.
    rounds
        (runs,) int64: rounds recorded.
    left_out
        How many runs `keep` left out.
    problems
        How many problems there were.
    seconds
        Time spent opening, stepping and closing sessions so far.

    Examples
    --------
    >>> from cellium_fast import Policy
    >>> from cellium_fast.experiment import Experiment
    >>> from cellium_fast.replay import read_files
    >>> from cellium_fast.traces import find_files
    >>> experiment = Experiment(
    ...     read_files(find_files(["examples/runs"])), keep=lambda run: run.success is not None
    ... )
    >>> reactions = experiment.react([Policy(), Policy.preset("cellium")], seed=7)
    >>> reactions.shape
    (2, 8)
    >>> (reactions["chosen"]["first"] > 0).sum(axis=1)
    array([3, 3])
    """

    def __init__(
        self,
        found: Iterable[RecordedRun | PackedRuns | Problem],
        *,
        keep: Callable[[RunFacts], bool] | None = None,
        on_problem: Callable[[Problem], None] | None = None,
    ) -> None:
        self.left_out = self.problems = 0
        self.seconds = 0.0
        self._groups: list[Group] = []
        for one in groups(self._kept(packed(found), keep)):
            if isinstance(one, Group):
                self._groups.append(one)
                continue
            self.problems += 1
            if on_problem is not None:
                on_problem(one)
        runs = [run for group in self._groups for run in group.runs]
        self.names: list[RunName] = [run.name for run in runs]
        self.success: NDArray[np.int8] = np.array(
            [-1 if run.success is None else run.success for run in runs], np.int8
        )
        self.rounds: NDArray[np.int64] = np.array([run.length for run in runs], np.int64)

    def __len__(self) -> int:
        """How many runs there are."""
        return len(self.names)

    def _kept(
        self, found: Iterable[PackedRuns | Problem], keep: Callable[[RunFacts], bool] | None
    ) -> Iterator[PackedRuns | Problem]:
        for one in found:
            if keep is None or isinstance(one, Problem):
                yield one
                continue
            end = 0
            for kept, runs in groupby(one.runs, keep):
                start, end = end, end + len(list(runs))
                if kept:
                    yield one.part(start, end)
                else:
                    self.left_out += end - start

    def react(
        self,
        policies: Sequence[Policy],
        *,
        seed: int = 0,
        threads: int | None = None,
        on_runs: Callable[[int], None] | None = None,
    ) -> NDArray[Any]:
        """Drive all runs under each policy and return the reactions, (policies, runs) `REACTION`.

        Parameters
        ----------
        policies
            At least one. They are driven in blocks: memory grows by what is returned alone.
        seed
            Seed of the fleets, in [0, 2**64); every policy has the same random numbers.
        threads
            As of `Fleet`; what comes out does not depend on it.
        on_runs
            Called now and then with the runs driven so far, each counted once a policy.

        Raises
        ------
        InputError
            `policies` are none, or no policies; `seed` or `threads` is out of range.
        """
        seed = checks.whole_number("seed", seed, 0, 2**64 - 1)
        if not isinstance(policies, Sequence) or not policies:
            raise InputError(f"policies: wanted a list of policies, got {shown(policies)}")
        for place, policy in enumerate(policies):
            if not isinstance(policy, Policy):
                raise InputError(f"policies[{place}]: wanted a Policy, got {shown(policy)}")
        reactions = np.zeros((len(policies), len(self)), REACTION)
        done = 0
        size = self._block_size()
        for start in range(0, len(policies), size):
            block = policies[start : start + size]
            driver = Driver(side_by_side(block, seed, threads))
            end = 0
            for group in self._groups:
                first, end = end, end + len(group.runs)
                for side, decided in enumerate(driver.drive(group), start):
                    reaction = reactions[side, first:end]
                    reaction["candidates"] = fired_by_candidates(group, decided)
                    reaction["chosen"] = fired_by_choice(group, decided)
                    terminated = fired_by_choice(group, decided, Action.TERMINATE.mask)
                    reaction["terminated"] = terminated["first"]
                done += len(block) * len(group.runs)
                if on_runs is not None:
                    on_runs(done)
            self.seconds += driver.seconds
        return reactions

    def _block_size(self) -> int:
        sessions = max((len(group.runs) for group in self._groups), default=1)
        rounds = max((len(group.run) for group in self._groups), default=1)
        return max(min(MOST_SESSIONS // sessions, MOST_ROUNDS // max(rounds, 1)), 1)
