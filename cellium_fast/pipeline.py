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
    _choice,
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
    _user_code.reward,      # the user's reward of the round, in the place of that
    _learning.learn,        # the n-step return of the decision that is due
    _choice.note_rewards,   # the reward counts for the policy that was chosen at the opening
    _user_code.rules,       # the user's own rules
    _rules.evaluate,        # stage 2: the actions that the rules leave to choose from
    _user_code.bias,        # what the user adds to the draws of candidates
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
            batch.with_scratch(**scratch(batch, min(CHUNK, stop - start)), increments=into),
            start, stop, CHUNK,
        )
        for start, stop, into in zip(bounds[:-1], bounds[1:], learned, strict=True)
    ]


def span_count(size: int, threads: int) -> int:
    """Into how many spans a batch is cut; one too small is not worth starting a thread for."""
    return max(min(threads, size // (SPAN * CHUNK)), 1)


def scratch(batch: _records.Batch, rows: int) -> dict[str, NDArray[Any]]:
    """Memory for what a chunk of so many sessions hands on, as `Batch.with_scratch` takes it.

    There is a power of 2 of rows, but for the features as lanes. Where no policy has rules or
    biases of users, there are no rows for them.
    """
    power = 1 << max(rows - 1, 0).bit_length()
    memory: dict[str, NDArray[Any]] = {
        "features": np.empty(power, _records.FEATURES),
        "lanes": np.empty(-(-rows // _features.LANES), f"V{_features.LANES_BYTES}"),
        "rules": np.empty(power, np.uint32),
    }
    if batch.user_parts & _records.HAS_RULES:
        memory["user_rules"] = np.empty(power, np.uint32)
    if batch.user_parts & _records.HAS_BIAS:
        memory["user_bias"] = np.empty((power, len(_records.ACTIONS)), np.float64)
    return memory


def no_increments(pools: int) -> NDArray[Any]:
    """(pools, 5) increments of nothing."""
    return np.zeros((pools, len(_records.ACTIONS)), _records.INCREMENT)
