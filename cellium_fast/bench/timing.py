"""Taking figures: contenders run in turn (A B A B ...), medians and quartiles of their times."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

WARM_UPS = 2

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure as it was measured: median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Median and quartiles of some values, at least one.

        >>> Spread.of([1.0, 2.0, 3.0, 4.0, 9.0])
        Spread(median=3.0, low=2.0, high=4.0)
        """
        low, median, high = np.percentile(values, [25, 50, 75]).tolist()
        return cls(median, low, high)

    def divided_by(self, count: float) -> Spread:
        """The figure of one thing of `count`."""
        return Spread(self.median / count, self.low / count, self.high / count)

    def as_rate(self, count: float = 1.0) -> Spread:
        """Things a second, where `count` of them took the seconds of this spread."""
        return Spread(count / self.median, count / self.high, count / self.low)


def _nothing() -> None:
    """Prepare nothing."""


@dataclass(frozen=True, slots=True)
class Contender:
    """Something to time.

    Parameters
    ----------
    run
        What is timed.
    prepare
        Called before each run, not timed.
    things
        How many things one run does; the figure is of one.
    """

    run: Callable[[], object]
    prepare: Callable[[], object] = _nothing
    things: float = 1.0


def interleaved(
    contenders: Mapping[str, Contender], repeats: int, *, warm_ups: int = WARM_UPS,
    clock: Clock = time.perf_counter_ns,
) -> dict[str, Spread]:
    """Time the contenders in turn, `repeats` times each, and return seconds a thing by name.

    Taking turns lets a busy machine disturb them alike. The first `warm_ups` turns do not count;
    the garbage collector rests meanwhile. The `clock` says nanoseconds.
    """
    return {
        name: Spread.of(taken).divided_by(contenders[name].things)
        for name, taken in _times(contenders, repeats, warm_ups, clock).items()
    }


def difference(
    slower: Contender, faster: Contender, repeats: int, *, clock: Clock = time.perf_counter_ns
) -> Spread:
    """Seconds a thing that one contender takes longer than the mean of the other's runs around it.
    """
    contenders = {"first": faster, "slower": slower, "last": faster}
    times = _times(contenders, repeats, WARM_UPS, clock)
    return Spread.of([
        slow / slower.things - (before + after) / 2 / faster.things
        for before, slow, after in zip(*times.values(), strict=True)
    ])


def _times(
    contenders: Mapping[str, Contender], repeats: int, warm_ups: int, clock: Clock
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    with _without_garbage_collection():
        for turn in range(warm_ups + repeats):
            for name, contender in contenders.items():
                contender.prepare()
                began = clock()
                contender.run()
                took = clock() - began
                if turn >= warm_ups:
                    seconds[name].append(took / 1e9)
    return seconds


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
