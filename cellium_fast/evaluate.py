"""Policies against one another on recorded runs that say how they ended, with intervals.

A policy steps in where it chooses redirect or terminate; `caught`, `disturbed`, `saved` and `lost`
are those of `cellium_fast.quality.Quality`. All policies are driven over the same runs with the
same random numbers, see `cellium_fast.experiment`.

Intervals are percentile intervals of the bootstrap (Efron and Tibshirani, An Introduction to the
Bootstrap, 1993, sections 8.3 and 13.3): figures are worked out once more from runs drawn with
replacement, over and over, and an interval holds the middle 95 % of what comes out. Runs are drawn
for each source and outcome apart, since neither the mix of sources nor how many runs failed is
what a policy is judged by. Of n runs n - 1 are drawn: of n, variances would come out too small by
that factor, which shows where a source has few runs of an outcome (McCarthy and Snowden, Vital and
Health Statistics 2, 95, 1985; Rao and Wu, Journal of the American Statistical Association 83,
1988). A run is drawn under all policies at once, so a difference between two policies has an
interval of its own, mostly narrower than those of its sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cellium_fast import checks
from cellium_fast.errors import InputError, shown
from cellium_fast.experiment import Experiment
from cellium_fast.policy import Policy
from cellium_fast.quality import FIGURES, JudgedRuns, Share, effects
from cellium_fast.traces.packed import PackedRuns, RunFacts
from cellium_fast.traces.runs import Problem, RecordedRun

__all__ = ["Comparison", "Estimate", "Evaluation", "compare", "evaluate"]

RESAMPLES = 2_000
FEWEST_RESAMPLES, MOST_RESAMPLES = 100, 100_000
TAILS = (0.025, 0.975)      # of the 95 % intervals
SAME = 1e-12                # shares that differ by rounding alone

# Runs drawn at once: a part of the resamples, so that memory is bounded.
MOST_DRAWS = 1 << 20

Interval = tuple[float, float]


@dataclass(slots=True, frozen=True)
class Estimate:
    """A figure of a policy, and what it is above that of the first policy.

    Parameters
    ----------
    share
        The figure. (Its own `interval` is Wilson's, which needs no resampling.)
    interval
        95 % bootstrap interval of the share. None: it comes out the same whichever of the runs are
        drawn, so they cannot say how sure it is (or there are none).
    difference
        The share less that of the first policy; None for the first policy, and of nothing.
    difference_interval
        As `interval`, of the difference.
    """

    share: Share
    interval: Interval | None
    difference: float | None
    difference_interval: Interval | None


@dataclass(slots=True, frozen=True)
class Comparison:
    """What a policy is worth on some runs: the figures of `Quality` that go by outcome."""

    caught: Estimate
    disturbed: Estimate
    saved: Estimate
    lost: Estimate


@dataclass(slots=True, frozen=True)
class Evaluation:
    """Policies side by side.

    Parameters
    ----------
    runs
        The labelled runs, and by policy where it stepped in.
    total, sources
        By policy, in the order given: its figures over all runs, and by source.
    unlabelled
        Runs left out since their recordings do not say how they ended.
    problems
        How many problems there were.
    loop_seconds, seconds
        Time of opening, stepping and closing sessions; of everything, reading included.
    """

    runs: JudgedRuns
    total: dict[str, Comparison]
    sources: dict[str, dict[str, Comparison]]
    unlabelled: int
    problems: int
    loop_seconds: float
    seconds: float

    @property
    def decisions(self) -> int:
        """Rounds decided: rounds times policies."""
        return int(self.runs.rounds.sum()) * len(self.runs.fired)


def evaluate(
    found: Iterable[RecordedRun | PackedRuns | Problem],
    policies: Mapping[str, Policy],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    on_problem: Callable[[Problem], None] | None = None,
    on_runs: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Drive recorded runs under each policy, side by side, and compare what it would have done.

    Parameters
    ----------
    found
        What `read_files` yields, or `cellium_fast.traces.read` of one file. Runs that do not say
        how they ended are left out: no policy learns from them.
    policies
        By label. Differences are those from the first.
    seed
        Of the fleets and of the resampling, in [0, 2**64).
    resamples
        How often runs are drawn for the intervals, in [100, 100,000].
    on_problem
        Called with each problem.
    on_runs
        Called now and then with the runs driven so far and in all, each counted once a policy.

    Raises
    ------
    InputError
        An argument does not make sense.

    Examples
    --------
    >>> from cellium_fast import Policy
    >>> from cellium_fast.replay import read_files
    >>> from cellium_fast.traces import find_files
    >>> result = evaluate(
    ...     read_files(find_files(["examples/runs"])),
    ...     {"default": Policy(), "cellium": Policy.preset("cellium")},
    ... )
    >>> for policy, figures in result.total.items():
    ...     print(policy, figures.caught.share.count, figures.saved.share.count)
    default 3 14
    cellium 3 9
    """
    began = time.perf_counter()
    if not isinstance(policies, Mapping) or not policies:
        raise InputError(f"policies: wanted policies by label, got {shown(policies)}")
    _check(seed, resamples)
    experiment = Experiment(found, keep=_is_labelled, on_problem=on_problem)
    total = len(experiment) * len(policies)
    reactions = experiment.react(
        list(policies.values()), seed=seed,
        on_runs=None if on_runs is None else lambda done: on_runs(done, total),
    )
    runs = JudgedRuns(
        experiment.names, experiment.success, experiment.rounds,
        dict(zip(policies, reactions["chosen"], strict=True)),
    )
    over_all, sources = compare(runs, seed=seed, resamples=resamples)
    return Evaluation(
        runs=runs, total=over_all, sources=sources, unlabelled=experiment.left_out,
        problems=experiment.problems, loop_seconds=experiment.seconds,
        seconds=time.perf_counter() - began,
    )


def _is_labelled(run: RunFacts) -> bool:
    return run.success is not None


def compare(
    runs: JudgedRuns, *, seed: int = 0, resamples: int = RESAMPLES
) -> tuple[dict[str, Comparison], dict[str, dict[str, Comparison]]]:
    """Return by policy (or detector) the figures over all runs; and the same of each source.

    Runs that are not labelled count for nothing. Arguments and errors are those of `evaluate`.

    Examples
    --------
    Which of two detectors catches more of the failing runs?

    >>> from pathlib import Path
    >>> from cellium_fast.quality import FIRED
    >>> from cellium_fast.traces.packed import RunName
    >>> early, late = np.zeros((2, 60), FIRED)
    >>> early["first"][:40], late["first"][:20] = 3, 5
    >>> names = [RunName("made-up", Path("runs.json"), str(number)) for number in range(60)]
    >>> runs = JudgedRuns(
    ...     names, np.zeros(60, np.int8), np.full(60, 9), {"early": early, "late": late}
    ... )
    >>> caught = compare(runs)[0]["late"].caught
    >>> round(caught.difference, 3), [round(end, 3) for end in caught.difference_interval]
    (-0.333, [-0.458, -0.22])
    """
    _check(seed, resamples)
    by_source = runs.by_source()
    sums = {
        source: _resampled_sums(some, source, seed, resamples)
        for source, some in by_source.items()
    }
    policies = len(runs.fired)
    total = {
        name: sum((one[name] for one in sums.values()), np.zeros((resamples, policies + 1)))
        for name in FIGURES
    }
    return _comparisons(runs, total), {
        source: _comparisons(some, sums[source]) for source, some in by_source.items()
    }


def _check(seed: int, resamples: int) -> None:
    checks.whole_number("seed", seed, 0, 2**64 - 1)
    checks.whole_number("resamples", resamples, FEWEST_RESAMPLES, MOST_RESAMPLES)


def _resampled_sums(
    runs: JudgedRuns, source: str, seed: int, resamples: int
) -> dict[str, NDArray[np.float64]]:
    """Return for each figure (resamples, policies + 1) sums over runs drawn from one source.

    They are those of the part, for each policy, and that of the whole.
    """
    first = np.stack([fired["first"] for fired in runs.fired.values()])
    sums: dict[str, NDArray[np.float64]] = {}
    for outcome in (0, 1):
        chosen = runs.success == outcome
        parts = effects(first[:, chosen], runs.rounds[chosen])
        # A stream for each source and outcome: what is drawn of one does not depend on others.
        random = np.random.Generator(np.random.Philox([seed, outcome, *source.encode()]))
        both = _bootstrap_sums(np.vstack([*parts["runs"], *parts["rounds"]]).T, resamples, random)
        of_runs, of_rounds = np.split(both, 2, axis=1)
        counted = {"runs": of_runs, "rounds": of_rounds}
        sums |= {name: counted[what] for name, (of, what) in FIGURES.items() if of == outcome}
    return sums


def _bootstrap_sums(
    values: NDArray[np.int64], resamples: int, random: np.random.Generator
) -> NDArray[np.float64]:
    """Sums, (resamples, columns), of n - 1 of n rows drawn with replacement, brought up to n rows.

    Of fewer than two rows, which cannot say how rows vary: the sums there are.
    """
    count, columns = values.shape
    if count < 2:
        return np.tile(values.sum(axis=0, dtype=np.float64), (resamples, 1))
    scale = count / (count - 1)
    sums = np.empty((resamples, columns))
    size = max(MOST_DRAWS // count, 1)
    for start in range(0, resamples, size):
        some = min(size, resamples - start)
        drawn = random.integers(count, size=(some, count - 1))
        drawn += count * np.arange(some)[:, np.newaxis]
        times = np.bincount(drawn.ravel(), minlength=some * count).reshape(some, count)
        # Sums of whole numbers are the same in any order, so on any machine.
        sums[start : start + some] = scale * (times.astype(np.float64) @ values.astype(np.float64))
    return sums


def _comparisons(
    runs: JudgedRuns, sums: Mapping[str, NDArray[np.float64]]
) -> dict[str, Comparison]:
    """The figures of each policy on these runs, with the sums over their resamples."""
    qualities = {label: runs.quality(label) for label in runs.fired}
    estimates: dict[str, dict[str, Estimate]] = {label: {} for label in runs.fired}
    for name in FIGURES:
        whole = sums[name][:, -1:]
        drawn = np.divide(
            sums[name][:, :-1], whole, out=np.full(sums[name][:, :-1].shape, np.nan),
            where=whole > 0,
        )
        intervals = _intervals(drawn)
        difference_intervals = _intervals(drawn - drawn[:, :1])
        shares = [getattr(quality, name) for quality in qualities.values()]
        for place, label in enumerate(qualities):
            share, first = shares[place].share, shares[0].share
            estimates[label][name] = Estimate(
                shares[place], intervals[place],
                None if share is None or first is None or not place else share - first,
                difference_intervals[place] if place else None,
            )
    return {label: Comparison(**figures) for label, figures in estimates.items()}


def _intervals(drawn: NDArray[np.float64]) -> list[Interval | None]:
    """The percentile interval of each column; None where all that was drawn is the same."""
    intervals: list[Interval | None] = []
    for column in drawn.T:
        known = column[~np.isnan(column)]       # one may consist of runs without a round
        if not len(known) or np.ptp(known) <= SAME:
            intervals.append(None)
            continue
        low, high = np.quantile(known, TAILS)
        intervals.append((float(low), float(high)))
    return intervals
