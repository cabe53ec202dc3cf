"""`PoolHistory`: what a pool started from, so that what it learned since can be told apart."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from cellium_fast.learned import LearnedPosterior
    from cellium_fast.policy import Posterior

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolHistory:
    """Where the evidence in a pool came from.

    Attributes
    ----------
    source
        32 hexadecimal digits, of no other pool: what it learns from now on is told by them.
    origin
        What was imported or loaded into it, or a function that works it out; None: its prior.
    """

    source: str
    origin: LearnedPosterior | Callable[[], LearnedPosterior] | None = None

    @classmethod
    def begun(
        cls, origin: LearnedPosterior | Callable[[], LearnedPosterior] | None = None
    ) -> Self:
        """Return the history of a pool that begins with `origin`."""
        return cls(os.urandom(16).hex(), origin)

    @property
    def start(self) -> LearnedPosterior | None:
        """What the pool began with; None: its prior."""
        return self.origin() if callable(self.origin) else self.origin

    def continued(self, settings: Posterior, record: np.void) -> PoolHistory:
        """Return the history of a pool that goes on where one with this history is now.

        It is quick, and imports nothing, for it is called in the child of a fork: what the pool
        began with is worked out once it is asked for.
        """
        return PoolHistory.begun(cache(partial(_learned_in, settings, record.copy(), self)))

    def as_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        start = self.start
        return {"source": self.source, "start": start and start.as_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the history that `as_json` gave; LearnedStateError if it makes no sense."""
        from cellium_fast.contributions import checked_source
        from cellium_fast.learned import LearnedPosterior

        start = value.get("start")
        return cls(
            checked_source(value.get("source")),
            None if start is None else LearnedPosterior.from_fields(start),
        )


def _learned_in(settings: Posterior, record: np.void, history: PoolHistory) -> LearnedPosterior:
    from cellium_fast.contributions import MOST_SOURCES
    from cellium_fast.learned import LearnedPosterior

    # The name of the pool is of no matter here, and may be one that JSON does not have.
    learned = LearnedPosterior.of_pool("", settings, record, history)
    if len(learned.sources) <= MOST_SOURCES:
        return learned
    log.warning(
        "a pool goes on from %d sources, more than the %d that are told apart: together they are "
        "its new starting point, which can be merged only with what begins there too",
        len(learned.sources), MOST_SOURCES,
    )
    return learned.as_ancestor()
