"""The five stages of a batch step, over chunks of sessions and, if asked for, threads.

An agent executes between two steps. So a step begins with what the last decision led to (feedback,
features, learning) and ends with the next decision (rules, tie-break).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import (
    _bandit,
    _features,
    _feedback,
    _learning,
    _records,
    _rules,
    _spans,
    _user_code,
)

# What each chunk goes through: `stage(batch, start, stop)` works on the sessions [start, stop).
STAGES = (
    _feedback.evaluate,     # opens the round, rewards it as what the last decision led to
    _features.extract,      # stage 1: what the window of calls and the scores say
    _learning.learn,        # the n-step return of the decision that is due
    _user_code.rules,       # the user's own rules
    _rules.evaluate,        # stage 2: the actions that the rules leave to choose from
    _bandit.tie_break,      # stage 3: one of them
    _feedback.execute,      # what the decision leaves in the record
)

# Sessions whose state stays in cache from the first stage of a chunk to the last.
CHUNK = 512

# Chunks that are worth starting a thread.
SPAN = 8


def spans_of(
    batch: _records.Batch, size: int, threads: int, increments: NDArray[Any]
) -> list[_spans.Span]:
    """A batch of `size` sessions, cut for that many threads into spans; `_commit.step` runs them.

    Each learns into increments of its own, of nothing: the first one into those given.
    """
    count = span_count(size, threads)
    bounds = [size * place // count for place in range(count + 1)]
    learned = [increments, *(no_increments(len(increments)) for _ in range(1, count))]
    return [
        _spans.Span(
            STAGES,
            batch.with_scratch(*scratch(min(CHUNK, stop - start)), into),
            start, stop, CHUNK,
        )
        for start, stop, into in zip(bounds[:-1], bounds[1:], learned, strict=True)
    ]


def span_count(size: int, threads: int) -> int:
    """Into how many spans a batch is cut; one too small is not worth starting a thread for."""
    return max(min(threads, size // (SPAN * CHUNK)), 1)


def scratch(rows: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint32]]:
    """Memory for the features of as many sessions, as rows and as lanes, and for their rules.

    There is a power of 2 of rows, of features and of rules.
    """
    power = 1 << max(rows - 1, 0).bit_length()
    return (
        np.empty(power, _records.FEATURES),
        np.empty(-(-rows // _features.LANES), f"V{_features.LANES_BYTES}"),
        np.empty(power, np.uint32),
    )


def no_increments(pools: int) -> NDArray[Any]:
    """(pools, 5) increments of nothing."""
    return np.zeros((pools, len(_records.ACTIONS)), _records.INCREMENT)
