"""`LearnedPosterior`: what a pool has learned, on its own: to keep, to move and to merge.

It is a starting point, the *ancestor*, and what each *source* has learned since. A source is one
pool of one fleet, from its start or from its last import on. To merge is to take of each source the
newest that is known, so nothing is counted twice, in whatever order and however often one merges.
Formulas: docs/durability.md, "Learned state".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import orjson
import xxhash
from pydantic import field_validator, model_validator

from cellium_fast import _records, checks, whole_file
from cellium_fast.contributions import (
    MOST_SOURCES,
    ROUNDING,
    Ancestor,
    Arms,
    Contribution,
    Counter,
    Sources,
    Stated,
    actions_of,
    decays_between,
    newer_of,
    newest_of,
    possible_gains,
    prior_arms,
    shapes_of,
    summed,
    target_of,
)
from cellium_fast.errors import LearnedStateError, shown
from cellium_fast.parameters import refused, said
from cellium_fast.policy import Posterior
from cellium_fast.pool_history import PoolHistory

VERSION: Literal[2] = 2
WAIT = 60.0         # seconds for the lock on a file
MOST_BYTES = 10**8  # of a file: some times as many as with all the sources there can be
POLL = 0.005        # seconds between two looks at it; to merge takes about as long

class LearnedPosterior(Stated):
    """What a pool has learned; `Fleet.export_posterior` makes it.

    Attributes
    ----------
    version
        Of the format: 2.
    pool
        Name of the pool.
    settings
        Its prior and decay.
    closed
        Sessions closed so far; each `settings.decay_every` of them are one decay.
    actions
        The posterior of each action, by the action's name.
    ancestor
        What all the evidence was added to; None: the prior.
    sources
        What each source has added since. None of them: this is the ancestor itself.

    Raises
    ------
    LearnedStateError
        A value does not make sense, or does not fit the others; the message names the field.

    Examples
    --------
    >>> from cellium_fast import Fleet, LearnedPosterior, Policy, Round
    >>> def learned(reward):
    ...     fleet = Fleet(policies={"own": Policy(learn_from="all", n_step=1)})
    ...     fleet.session().step(Round(reward=reward))
    ...     return fleet.export_posterior()
    >>> one, two = learned(1.0), learned(0.25)
    >>> both = one.merge(two, one)
    >>> both.actions["continue"]
    Arm(alpha=3.25, beta=2.75, updates=2)
    >>> LearnedPosterior.from_json(both.to_json()) == both
    True
    """

    version: Literal[2] = VERSION
    pool: str
    settings: Posterior
    closed: Counter
    actions: Arms
    ancestor: Ancestor | None = None
    sources: Sources = {}  # noqa: RUF012 pydantic copies it

    # --- merging -------------------------------------------------------------------------------
    def merge(self, *others: LearnedPosterior) -> LearnedPosterior:
        """Return all that is known in this and the others, each source's evidence once.

        Raises LearnedStateError if they are of different pools, settings or ancestors, if a source
        stands in two of them with what cannot be an earlier and a later state of it, or if that
        makes more than 1,000 sources; see `as_ancestor`.
        """
        for other in others:
            if not isinstance(other, LearnedPosterior):
                raise LearnedStateError(f"others: wanted LearnedPosterior, got {shown(other)}")
            self._check_kinship(other)
        sources = dict(self.sources)
        for other in others:
            for name, found in other.sources.items():
                sources[name] = newer_of(name, sources.get(name, found), found)
        for known in (self, *others):
            if known.sources == sources:
                return known
        check_room("merge", len(sources))
        closed, actions = summed(self.settings, self.ancestor, sources)
        return LearnedPosterior(
            pool=self.pool, settings=self.settings, closed=closed, actions=actions,
            ancestor=self.ancestor, sources=sources,
        )

    def as_ancestor(self) -> LearnedPosterior:
        """Return the same posterior as a starting point, without its sources.

        For a file that many short-lived fleets merge into: it grows with each of them. States
        exported before, and those of fleets that go on from before, can then no longer be merged.
        """
        ancestor = Ancestor(
            id=xxhash.xxh3_128_hexdigest(self.to_json()), closed=self.closed, actions=self.actions
        )
        return LearnedPosterior(
            pool=self.pool, settings=self.settings, closed=self.closed, actions=self.actions,
            ancestor=ancestor,
        )

    def _merged_with(self, path: Path, held: LearnedPosterior) -> LearnedPosterior:
        try:
            return held.merge(self)
        except LearnedStateError as error:
            raise LearnedStateError(f"{path}: {error}") from None

    def _check_kinship(self, other: LearnedPosterior) -> None:
        if other.pool != self.pool:
            raise LearnedStateError(
                f"pool: cannot merge {shown(other.pool)} with {shown(self.pool)}; if they learned "
                "the same thing, rename one: model_copy(update={'pool': ...})"
            )
        if other.settings != self.settings:
            raise LearnedStateError(
                f"settings: cannot merge {other.settings!r} with {self.settings!r}; wanted fleets "
                "whose pools have the same prior and decay"
            )
        if other.ancestor != self.ancestor:
            raise LearnedStateError(
                "ancestor: cannot merge what began from different states, since what they have in "
                "common would count twice; wanted fleets that imported the same one"
            )

    # --- JSON and files --------------------------------------------------------------------------
    def as_json(self) -> dict[str, Any]:
        """Return this as numbers, texts, lists and dictionaries."""
        return self.model_dump(mode="json")

    def to_json(self) -> bytes:
        """Return this as JSON; numbers keep every bit."""
        return orjson.dumps(self.as_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Read what `to_json` gave, of this version or an earlier one.

        Version 1 is what `Fleet.posterior` gives, as can be written by hand: ``pool``,
        ``settings`` and ``actions``. Its ``closed`` and the ``updates`` of an action are 0 if they
        are left out. It is an ancestor, without sources.

        Raises
        ------
        LearnedStateError
            It is no JSON, of a later version, or does not make sense.

        Examples
        --------
        >>> arm = {"alpha": 9, "beta": 3}
        >>> actions = {name: arm for name in "continue retry redirect compress terminate".split()}
        >>> first = {"version": 1, "pool": "default", "settings": {}, "actions": actions}
        >>> LearnedPosterior.from_json(orjson.dumps(first)).actions["retry"]
        Arm(alpha=9.0, beta=3.0, updates=0)
        """
        try:
            fields = orjson.loads(text)
        except (orjson.JSONDecodeError, TypeError) as error:
            raise LearnedStateError(f"learned state: wanted JSON: {error}") from None
        return cls.from_fields(fields)

    @classmethod
    def from_fields(cls, fields: object) -> Self:
        """Read what `as_json` gave, as `from_json` does."""
        if not isinstance(fields, dict):
            raise LearnedStateError(f"learned state: wanted a JSON object, got {shown(fields)}")
        version = fields.get("version")
        if isinstance(version, bool) or not isinstance(version, int) or version < 1:
            raise LearnedStateError(f"version: wanted a number from 1 to {VERSION}, "
                                    f"got {shown(version)}")
        if version > VERSION:
            raise LearnedStateError(
                f"version: {version} is newer than {VERSION}, the latest that this version of "
                "cellium-fast reads; update it"
            )
        return cls(**(_from_version_1(fields) if version == 1 else fields))

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to a file, which at every moment holds all of the old or all of the new.

        It takes the place of what is in the file, which is kept as ``<path>.bak``; `merge_into`
        puts the two together. Raises LearnedStateError.
        """
        path = checks.file_path("path", path)
        text = self.to_json()
        try:
            whole_file.replace(path, lambda file: _write(file, text))
        except OSError as error:
            raise LearnedStateError(f"{path}: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Self:
        """Read a file of `save`, `merge_into` or `from_json`; never changes it.

        Raises LearnedStateError, which names the file and the field.
        """
        path = checks.file_path("path", path)
        try:
            with whole_file.opened(path) as file:
                size = os.fstat(file.fileno()).st_size
                if size > MOST_BYTES:
                    raise LearnedStateError(f"wanted at most {MOST_BYTES:,} bytes, got {size:,}")
                return cls.from_json(file.readall())
        except OSError as error:
            raise LearnedStateError(f"{path}: {error.strerror or error}") from None
        except LearnedStateError as error:
            raise LearnedStateError(f"{path}: {error}") from None

    def merge_into(self, path: str | PathLike[str], *, wait: float = WAIT) -> LearnedPosterior:
        """Merge it into what a file holds, and return what the file holds then.

        Any number of threads and processes may do so with one file at once: nothing is lost, and
        a process that was killed is in nobody's way. A file that is not there is written. The lock
        is the file ``<path>.lock``, which stays.

        Parameters
        ----------
        path
            The file.
        wait
            Seconds to wait for others that are at it, in [0, 1e9].

        Raises
        ------
        LearnedStateError
            The file does not make sense, cannot be merged with this, written, or waited for. It is
            as it was, unless the message says that the new one is in place.
        """
        import filelock

        wait = checks.number("wait", wait, 0, 1e9)
        path = checks.file_path("path", path).resolve()     # one lock, whatever leads to the file
        try:
            path.parent.stat()      # a lock would make the directories that are missing
            with filelock.FileLock(f"{path}.lock", timeout=wait, poll_interval=POLL):
                held = self.load(path) if path.exists() else None
                merged = self if held is None else self._merged_with(path, held)
                if merged is not held:
                    merged.save(path)
                return merged
        except filelock.Timeout:
            raise LearnedStateError(
                f"{path}: another process has held its lock, {path}.lock, for {wait:g} s"
            ) from None
        except OSError as error:
            raise LearnedStateError(f"{path}: {error.strerror or error}") from None

    # --- pools -----------------------------------------------------------------------------------
    @classmethod
    def of_pool(
        cls, name: str, settings: Posterior, record: np.void, history: PoolHistory
    ) -> LearnedPosterior:
        """Return what a pool has learned; `record` is one of ``_records.POOL``."""
        start = history.start or _prior(name, settings)
        closed = int(record["closed"])
        arms: dict[str, Any] = {
            action: {"alpha": alpha, "beta": beta, "updates": updates}
            for action, alpha, beta, updates in zip(
                _records.ACTIONS, record["alpha"].tolist(), record["beta"].tolist(),
                record["updates"].tolist(), strict=True,
            )
        }
        sources = dict(start.sources)
        updates = [arm["updates"] - start.actions[name].updates for name, arm in arms.items()]
        if closed > start.closed or any(updates):
            decays = decays_between(settings, start.closed, closed)
            target = target_of(settings)
            kept = (shapes_of(start.actions) - target) * settings.decay**decays
            gained = np.stack([record["alpha"], record["beta"]], axis=1) - target - kept
            sources[history.source] = Contribution(
                after=newest_of(start.sources), closed=closed - start.closed, decays=decays,
                actions=actions_of(possible_gains(gained, updates), updates),
            )
        return cls(
            pool=name, settings=settings, closed=closed, actions=arms, ancestor=start.ancestor,
            sources=sources,
        )

    def fill(self, record: np.void) -> None:
        """Write it into a pool's record."""
        self.settings.fill(record["prior"])
        record["closed"] = self.closed
        for place, arm in enumerate(self.actions.values()):
            record["alpha"][place] = arm.alpha
            record["beta"][place] = arm.beta
            record["updates"][place] = arm.updates

    @field_validator("pool")
    @classmethod
    def _is_text(cls, pool: str) -> str:
        if any("\ud800" <= letter <= "\udfff" for letter in pool):     # half a pair of UTF-16
            raise refused("wanted a text that JSON can hold, without surrogates", pool)
        return pool

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        """What is said twice must be the same."""
        for name, source in self.sources.items():
            if unknown := [one for one in source.after if one not in self.sources]:
                raise said(f"sources.{name}.after: there is no source {unknown[0]}")
        closed, actions = summed(self.settings, self.ancestor, self.sources)
        if closed != self.closed:
            raise said(f"closed: wanted {closed}, as ancestor and sources say, got {self.closed}")
        for name, arm in self.actions.items():
            for field, wanted in actions[name].items():
                found = getattr(arm, field)
                if abs(found - wanted) > (field != "updates") * ROUNDING * (1 + abs(wanted)):
                    raise said(
                        f"actions.{name}.{field}: wanted {wanted}, as ancestor and sources say, "
                        f"got {found}"
                    )
        return self


def check_room(what: str, count: int) -> None:
    """LearnedStateError for more sources than a merge or an import can have."""
    if count > MOST_SOURCES:
        raise LearnedStateError(
            f"sources: cannot {what} {count:,} sources; wanted at most {MOST_SOURCES:,}. Make of "
            "what is merged so far a new starting point: LearnedPosterior.load(path)"
            ".as_ancestor().save(path), and have every fleet import that"
        )


def _write(file: int, text: bytes) -> None:
    with open(file, "wb", closefd=False) as stream:
        stream.write(text)


def _prior(name: str, settings: Posterior) -> LearnedPosterior:
    return LearnedPosterior(
        pool=name, settings=settings, closed=0, actions=prior_arms(settings)
    )


def _from_version_1(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of version 2."""
    found = {"closed": 0, **fields, "version": VERSION}
    if isinstance(actions := found.get("actions"), Mapping):
        found["actions"] = {
            name: {"updates": 0, **arm} if isinstance(arm, Mapping) else arm
            for name, arm in actions.items()
        }
    content = orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)
    if "actions" in found:
        found["ancestor"] = {
            "id": xxhash.xxh3_128_hexdigest(content), "closed": found["closed"],
            "actions": found["actions"],
        }
    found["sources"] = {}
    return found
