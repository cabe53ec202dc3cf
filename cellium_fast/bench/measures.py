"""What a measure is, what it gives, and the sizes it is taken at."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from cellium_fast.bench.timing import Clock, Spread


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Parameters
    ----------
    fleet, large_fleet
        Sessions of the batch measures; of those that shall not fit into a cache.
    draws
        Beta draws at once.
    scalar_rounds
        Rounds of one session, timed together.
    age, old_fleet
        Rounds that an old session has behind it; old sessions.
    choices
        Decisions at once that are nothing but Thompson sampling.
    decisions
        Decisions turned into texts.
    conversations
        Recorded conversations replayed.
    plain_rounds
        Rounds that the plain Python reference takes, timed together.
    replayed_rounds, replays
        Rounds in a journal that is replayed, and how often it is.
    repeats, starts
        Times each contender runs; times Python is started.
    cpu_time
        Whether to count the CPU time of this process instead of the time on the clock.
    """

    fleet: int = 100_000
    large_fleet: int = 1_000_000
    draws: int = 200_000
    scalar_rounds: int = 1_000
    age: int = 100_000
    old_fleet: int = 1_000
    choices: int = 10_000
    decisions: int = 1_000_000
    conversations: int = 2_000
    plain_rounds: int = 200
    replayed_rounds: int = 300_000
    replays: int = 3
    repeats: int = 21
    starts: int = 15
    cpu_time: bool = False

    @property
    def clock(self) -> Clock:
        """What times are taken with, unless a row must go by the clock."""
        return time.process_time_ns if self.cpu_time else time.perf_counter_ns


FULL = Sizes()
QUICK = Sizes(
    large_fleet=200_000, age=5_000, decisions=200_000, conversations=400, plain_rounds=50,
    replayed_rounds=30_000, repeats=9, starts=7,
)


class Unit(StrEnum):
    """What a figure counts; times are in seconds."""

    SECONDS = "s"
    BYTES = "bytes"
    TEXTS_A_SECOND = "texts/s"
    BYTES_A_SECOND = "B/s"
    ROUNDS_A_SECOND = "rounds/s"


class Compared(StrEnum):
    """What a ratio says of the package: so many times ... its baseline."""

    AS_FAST = "as fast"
    AS_LONG = "as long"


class Mark(StrEnum):
    """How a measure did against its target."""

    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"
    NONE = "no target"


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure, or its ratio to the baseline, shall be."""

    limit: float
    of_ratio: bool = False
    at_least: bool = False

    def is_met(self, value: float) -> bool:
        """Whether this figure or ratio is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured.

    Parameters
    ----------
    figure, baseline
        Of the package; of what it is compared with, if there is such, in the same unit.
    note
        What one must know to read the figure.
    """

    figure: Spread
    baseline: Spread | None = None
    note: str = ""


class NotMeasured(Exception):
    """Raised by a measure that cannot be taken here; says why."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A row of the table.

    Parameters
    ----------
    name
        To ask for it.
    what
        What is measured, and of what one figure is.
    take
        Measures, at sizes.
    baseline
        What it is compared with; empty: nothing.
    compared
        What the ratio to it says.
    """

    name: str
    what: str
    take: Callable[[Sizes], Result]
    unit: Unit = Unit.SECONDS
    baseline: str = ""
    compared: Compared = Compared.AS_FAST
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A measure with its result, or why there is none."""

    measure: Measure
    result: Result | None
    reason: str = ""

    @property
    def ratio(self) -> float | None:
        """Of the medians; None without a baseline."""
        if self.result is None or self.result.baseline is None:
            return None
        ours, theirs = self.result.figure.median, self.result.baseline.median
        as_long = self.measure.compared == Compared.AS_LONG
        # The longer a time the slower, the higher a rate the faster.
        return theirs / ours if self.measure.unit == Unit.SECONDS and not as_long else ours / theirs

    @property
    def mark(self) -> Mark:
        """How it did against the target."""
        target = self.measure.target
        if self.result is None:
            return Mark.NOT_MEASURED
        if target is None:
            return Mark.NONE
        value = self.ratio if target.of_ratio else self.result.figure.median
        assert value is not None
        return Mark.MET if target.is_met(value) else Mark.MISSED


def take(measure: Measure, sizes: Sizes) -> Row:
    """Take a measure; one that cannot be taken gives a row that says why."""
    try:
        return Row(measure, measure.take(sizes))
    except NotMeasured as reason:
        return Row(measure, None, str(reason))
