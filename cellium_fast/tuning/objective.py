"""What `tune` makes as large as it can: rounds of failing runs that come after stepping in.

A policy steps into a run where it chooses redirect or terminate, as in `cellium_fast.evaluate`. The
rounds of a failing run recorded after the first time are *saved*; a successful run that it steps
into is *disturbed*. The objective of a policy is::

    sum over sources of weight * saved rounds / rounds of failing runs  /  sum of weights
        - change_cost * parameters that differ from the base policy's

with the weight n / (n + 20) of a source of n failing runs: sources count alike, however many runs
they have, but for those of a few runs, whose shares are mostly chance. A change has to be worth
its cost, so that the policy found is the base policy but for what matters.

The budget bounds the successful runs that may be disturbed: a share of all of them, or, without
one, in each source as many as the base policy disturbs there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast.quality import effects

__all__ = ["Objective", "Score"]

HALF_WEIGHT = 20        # failing runs of a source that has half the weight of an endless one


@dataclass(slots=True, frozen=True)
class Score:
    """What a policy is worth on the runs it is tuned on.

    Parameters
    ----------
    saved
        The weighted mean of the shares of saved rounds, in [0, 1].
    disturbed
        Successful runs disturbed.
    excess
        Of those, how many are beyond the budget: 0 if it is kept.
    value
        The objective: `saved` less the cost of the changes.
    """

    saved: float
    disturbed: int
    excess: int
    value: float

    def same_runs(self, other: Score) -> bool:
        """Whether as much was saved and as much disturbed."""
        return (self.saved, self.disturbed) == (other.saved, other.disturbed)

    @property
    def rank(self) -> tuple[int, float]:
        """Rises with how good it is; whoever keeps to the budget comes first."""
        return -self.excess, self.value


class Objective:
    """Scores policies by their reactions to some runs.

    Parameters
    ----------
    sources
        The source of each run.
    success, rounds
        (runs,) as of an `Experiment`.
    base
        The base policy's reactions, (runs,) `REACTION`.
    budget
        Share of the successful runs that may be disturbed, in [0, 1]; None: in each source as many
        as the base policy disturbs.
    change_cost
        What a parameter that differs from the base policy's costs.
    """

    def __init__(
        self, sources: Sequence[str], success: NDArray[np.int8], rounds: NDArray[np.int64],
        base: NDArray[Any], budget: float | None, change_cost: float,
    ) -> None:
        self._rounds = rounds
        self._change_cost = change_cost
        names, of = np.unique(np.array(sources, str), return_inverse=True)
        self._failed = _indicator(of, len(names), success == 0)
        self._succeeded = _indicator(of, len(names), success == 1)
        failing = self._failed.sum(axis=0)
        weights = failing / (failing + HALF_WEIGHT)
        lost = rounds @ self._failed
        self._weights = np.divide(weights / weights.sum(), lost, where=lost > 0,
                                  out=np.zeros(len(names)))
        if budget is None:
            self._allowed = self._parts(base, "runs") @ self._succeeded
        else:
            self._succeeded = self._succeeded.sum(axis=1, keepdims=True)
            # A budget of 0.05 of 60 runs is 3, however 0.05 * 60 is rounded.
            self._allowed = np.floor(budget * self._succeeded.sum(axis=0) + 1e-9).astype(np.int64)

    @property
    def allowed(self) -> int:
        """How many successful runs may be disturbed in all."""
        return int(self._allowed.sum())

    def scores(self, reactions: NDArray[Any], changes: Sequence[int]) -> list[Score]:
        """Score policies by their reactions, (policies, runs) `REACTION`, and changes of each."""
        saved = (self._parts(reactions, "rounds") @ self._failed) @ self._weights
        disturbed = self._parts(reactions, "runs") @ self._succeeded
        excess = np.maximum(disturbed - self._allowed, 0).sum(axis=1)
        return [
            Score(float(share), int(count), int(over), float(share) - self._change_cost * changed)
            for share, count, over, changed in zip(
                saved, disturbed.sum(axis=1), excess, changes, strict=True
            )
        ]

    def _parts(self, reactions: NDArray[Any], what: str) -> NDArray[np.int64]:
        """Runs stepped into, or rounds after that, for each run."""
        first: NDArray[np.int64] = reactions["chosen"]["first"]
        return effects(first, self._rounds)[what][0]


def _indicator(of: NDArray[Any], count: int, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(runs, sources): 1 where a chosen run is of a source."""
    is_of: NDArray[np.bool_] = of[:, np.newaxis] == np.arange(count)
    return (is_of & chosen[:, np.newaxis]).astype(np.int64)
