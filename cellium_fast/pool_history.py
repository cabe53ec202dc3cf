"""`PoolHistory`: what a pool started from, so that what it learned since can be told apart."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from cellium_fast.learned import LearnedPosterior


@dataclass(frozen=True, slots=True)
class PoolHistory:
    """Where the evidence in a pool came from.

    Attributes
    ----------
    source
        32 hexadecimal digits, of no other pool: what it learns from now on is told by them.
    start
        What was imported or loaded into it; None: its prior.
    """

    source: str
    start: LearnedPosterior | None = None

    @classmethod
    def begun(cls, start: LearnedPosterior | None = None) -> Self:
        """Return the history of a pool that begins with `start`."""
        return cls(os.urandom(16).hex(), start)

    def as_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return {"source": self.source, "start": self.start and self.start.as_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the history that `as_json` gave; LearnedStateError if it makes no sense."""
        from cellium_fast.learned import LearnedPosterior, checked_source

        start = value.get("start")
        return cls(
            checked_source(value.get("source")),
            None if start is None else LearnedPosterior.from_fields(start),
        )
