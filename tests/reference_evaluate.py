"""What `evaluate` counts and how it resamples, as plain loops over runs.

It shares no code with the package, but for the random numbers of NumPy's Philox that the
documentation promises: a stream for each source and outcome.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Run(NamedTuple):
    """A labelled run, and under each policy the first round, from 1, that stepped in (0: none)."""

    source: str
    success: bool
    rounds: int
    first: Sequence[int]


def of_run(figure: str, run: Run, policy: int) -> tuple[int, int]:
    """What a run adds to a figure's part and to its whole."""
    if run.success != (figure in ("disturbed", "lost")):
        return 0, 0
    first = run.first[policy]
    if figure in ("caught", "disturbed"):
        return int(first != 0), 1
    return (run.rounds - first if first else 0), run.rounds


def count(figure: str, runs: Sequence[Run], policy: int) -> tuple[int, int]:
    """The part and the whole of a figure."""
    parts = wholes = 0
    for run in runs:
        part, whole = of_run(figure, run, policy)
        parts += part
        wholes += whole
    return parts, wholes


def resampled_shares(
    figure: str, runs: Sequence[Run], seed: int, resamples: int
) -> list[list[float]]:
    """For each policy the shares of all resamples; NaN where there is nothing to share."""
    policies = range(len(runs[0].first))
    parts = [[0.0] * resamples for _ in policies]
    wholes = [[0.0] * resamples for _ in policies]
    for source in sorted({run.source for run in runs}):
        for outcome in (0, 1):
            some = [run for run in runs if (run.source, run.success) == (source, outcome)]
            random = np.random.Generator(np.random.Philox([seed, outcome, *source.encode()]))
            for number in range(resamples):
                drawn, weight = some, 1.0
                if len(some) > 1:
                    places = [int(random.integers(len(some))) for _ in range(len(some) - 1)]
                    drawn, weight = [some[place] for place in places], len(some) / len(places)
                for policy in policies:
                    part, whole = count(figure, drawn, policy)
                    parts[policy][number] += weight * part
                    wholes[policy][number] += weight * whole
    return [
        [part / whole if whole else math.nan
         for part, whole in zip(parts[policy], wholes[policy], strict=True)]
        for policy in policies
    ]


def percentile_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The middle 95 %, between order statistics by straight lines; None if all are equal."""
    known = sorted(value for value in values if not math.isnan(value))
    if not known or known[-1] - known[0] < 1e-9:
        return None
    ends = []
    for tail in (0.025, 0.975):
        place = tail * (len(known) - 1)
        below = int(place)
        above = min(below + 1, len(known) - 1)
        ends.append(known[below] + (place - below) * (known[above] - known[below]))
    return ends[0], ends[1]
