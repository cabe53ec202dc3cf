"""The five stages of a batch step, over chunks of sessions and, if asked for, threads.

An agent executes between two steps. So a step begins with what the last decision led to (feedback,
learning) and ends with the next decision (features, rules, tie-break).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _bandit, _features, _feedback, _learning, _records, _rules, _spans

# Sessions whose state stays in cache from the first stage of a chunk to the last.
CHUNK = 512

# Chunks that are worth starting a thread.
SPAN = 8


def step_chunk(batch: int, start: int, stop: int, increments: int) -> None:
    """Take the sessions [start, stop) of a batch through the stages."""
    _feedback.evaluate(batch, start, stop)
    _learning.learn(batch, start, stop, increments)
    _features.extract(batch, start, stop)
    _rules.evaluate(batch, start, stop)
    _bandit.tie_break(batch, start, stop)
    _feedback.execute(batch, start, stop)


def step_span(
    batch: _records.Batch, start: int, stop: int, increments: NDArray[Any]
) -> None:
    """Take the sessions [start, stop) of a batch through the stages, chunk by chunk."""
    batch = batch.with_scratch(*scratch(min(CHUNK, stop - start)))
    address = _records.address_of(increments)
    for first in range(start, stop, CHUNK):
        step_chunk(batch.address, first, min(first + CHUNK, stop), address)


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


def close(
    batch: _records.Batch, outcomes: NDArray[np.int8], increments: NDArray[Any]
) -> None:
    """Let a batch's sessions learn from what is pending; then their pools count them and decay.

    `increments` are of nothing, before and after.
    """
    address = _records.address_of(increments)
    _learning.finish(batch.address, outcomes, address)
    _learning.apply_increments(batch.address, address, len(increments))
    _learning.close_sessions(batch.address, len(outcomes))


def step(
    batch: _records.Batch, size: int, increments: NDArray[Any], spans: int, helpers: set[int]
) -> None:
    """Step a batch of `size` sessions in spans, each in a thread of its own; the first one here.

    `helpers` holds the idents of the other threads while they run.

    Each span learns into increments of its own. They are sums of integers, so neither the number
    of spans nor their order shows in the total: the answer does not depend on it. `increments`
    are of nothing, before and after.
    """
    learned = [increments, *(no_increments(len(increments)) for _ in range(1, spans))]
    bounds = [size * place // spans for place in range(spans + 1)]
    try:
        _spans.run_spans([
            partial(step_span, batch, bounds[place], bounds[place + 1], learned[place])
            for place in range(spans)
        ], helpers)
    finally:
        # Whatever interrupts the step: what was learned so far is not lost.
        total = increments.view(np.int64)
        for of_span in learned[1:]:
            total += of_span.view(np.int64)
        _learning.apply_increments(
            batch.address, _records.address_of(increments), len(increments)
        )


def spans_of(size: int, threads: int) -> int:
    """Into how many spans a batch is cut; one too small is not worth starting a thread for."""
    return max(min(threads, size // (SPAN * CHUNK)), 1)
