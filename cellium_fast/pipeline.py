"""The five stages of a batch step, over chunks of sessions and, if asked for, threads.

An agent executes between two steps. So a step begins with what the last decision led to (feedback,
learning) and ends with the next decision (features, rules, tie-break).
"""

from __future__ import annotations

from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _bandit, _features, _feedback, _learning, _records, _rules

# Sessions whose state stays in cache from the first stage of a chunk to the last.
CHUNK = 1024


def step_chunk(batch: int, start: int, stop: int, increments: int) -> None:
    """Take the sessions [start, stop) of a batch through the stages."""
    _feedback.evaluate(batch, start, stop)
    _learning.learn(batch, start, stop, increments)
    _features.extract(batch, start, stop)
    _rules.evaluate(batch, start, stop)
    _bandit.tie_break(batch, start, stop)
    _feedback.execute(batch, start, stop)


def step_span(batch: int, start: int, stop: int, increments: NDArray[np.void]) -> None:
    """Take the sessions [start, stop) of a batch through the stages, chunk by chunk."""
    address = increments.ctypes.data
    for first in range(start, stop, CHUNK):
        step_chunk(batch, first, min(first + CHUNK, stop), address)


def step(batch: int, size: int, pools: int, executor: Executor | None, threads: int) -> None:
    """Step a batch of `size` sessions; the answer does not depend on the threads.

    Each span learns into increments of its own. They are sums of integers, so neither the number
    of spans nor their order shows in the total.
    """
    spans = 1 if executor is None else min(threads, -(-size // CHUNK)) or 1
    increments = np.zeros((spans, pools, len(_records.ACTIONS)), _records.INCREMENT)
    bounds = [size * place // spans for place in range(spans + 1)]
    if executor is None or spans == 1:
        step_span(batch, 0, size, increments[0])
    else:
        running = [
            executor.submit(step_span, batch, bounds[place], bounds[place + 1], increments[place])
            for place in range(spans)
        ]
        for span in running:
            span.result()
    total = increments.view(np.int64).sum(axis=0)
    _learning.apply_increments(batch, total.ctypes.data, pools)
