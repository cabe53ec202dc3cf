"""What sources have contributed to a learned posterior, and what that comes to.

Formulas: docs/durability.md, "Learned state".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from cellium_fast import _records
from cellium_fast.errors import InputError, LearnedStateError, shown
from cellium_fast.parameters import Parameters, refused, said
from cellium_fast.policy import Posterior

ROUNDING = 1e-6     # share of a number that sums in another order may differ by
MOST_SOURCES = 1_000    # that a merge or an import can have; each costs time and room for ever
MOST_READ = 4_096       # that a state can have at all

Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Counter = Annotated[int, Field(strict=True, ge=0, lt=2**64)]
SourceId = Annotated[str, Field(strict=True, pattern="^[0-9a-f]{32}$")]


def _of_every_action(given: object) -> object:
    if not isinstance(given, Mapping):
        raise refused("wanted a mapping of actions", given)
    for action in given:
        if action not in _records.ACTIONS:
            known = ", ".join(_records.ACTIONS)
            raise said(f"there is no action {shown(action)}; there is {known}")
    for action in _records.ACTIONS:
        if action not in given:
            raise said(f"the action {action!r} is missing")
    return {action: given[action] for action in _records.ACTIONS}


def _not_too_many(given: object) -> object:
    if isinstance(given, Mapping) and len(given) > MOST_READ:
        raise said(f"wanted at most {MOST_READ:,} sources, got {len(given):,}")
    return given


class Stated(Parameters):
    """A part of a learned state: frozen, and checked."""

    WHOLE: ClassVar[str] = "learned state"
    PART: ClassVar[str] = "field"

    @staticmethod
    def refusal(problems: Sequence[tuple[str, str]]) -> InputError:
        """Return the exception that says what is wrong with which field."""
        return LearnedStateError("; ".join(f"{field}: {what}" for field, what in problems))


class Arm(Stated):
    """The posterior of one action, Beta(`alpha`, `beta`), after so many updates."""

    alpha: Positive
    beta: Positive
    updates: Counter


class Gain(Stated):
    """What a source's updates have added to `alpha` and `beta`, less what it forgot of it."""

    alpha: NotNegative
    beta: NotNegative
    updates: Counter

    @model_validator(mode="after")
    def _at_most_one_each(self) -> Self:
        if self.alpha + self.beta > self.updates * (1 + ROUNDING):
            raise said(
                f"{self.updates} updates cannot have added {self.alpha:g} to alpha and "
                f"{self.beta:g} to beta; each adds 1 in all at most"
            )
        return self


Arms = Annotated[dict[str, Arm], BeforeValidator(_of_every_action)]
Gains = Annotated[dict[str, Gain], BeforeValidator(_of_every_action)]


class Ancestor(Stated):
    """A starting point that is not the prior.

    Attributes
    ----------
    id
        States with one of another id cannot be merged.
    closed
        Sessions closed up to there.
    actions
        The posterior of each action.
    """

    id: SourceId
    closed: Counter
    actions: Arms


class Contribution(Stated):
    """What one source has learned.

    Attributes
    ----------
    after
        The sources it built upon: those, and whatever they built upon in turn.
    closed
        Sessions closed in it.
    decays
        How often it decayed, and with it all that it was built upon.
    actions
        What it added to each action.
    """

    after: tuple[SourceId, ...] = ()
    closed: Counter
    decays: Counter
    actions: Gains

    @property
    def counts(self) -> tuple[int, ...]:
        """What only ever grows: sessions closed, and updates of each action."""
        return (self.closed, *(gain.updates for gain in self.actions.values()))


Sources = Annotated[dict[SourceId, Contribution], BeforeValidator(_not_too_many)]


def checked_source(given: object) -> str:
    """Return the id of a source; LearnedStateError if it is none."""
    try:
        return TypeAdapter(SourceId).validate_python(given)
    except ValidationError:
        raise LearnedStateError(
            f"source: wanted 32 hexadecimal digits, got {shown(given)}"
        ) from None


# --- what it comes to ---------------------------------------------------------------------------
def summed(
    settings: Posterior, ancestor: Ancestor | None, sources: Mapping[str, Contribution]
) -> tuple[int, dict[str, Any]]:
    """Return sessions closed, and the posterior, of the ancestor and what was learned since."""
    begun, arms = 0, prior_arms(settings)
    if ancestor is not None:
        begun, arms = ancestor.closed, ancestor.actions
    closed = begun + sum(source.closed for source in sources.values())
    target = target_of(settings)
    kept = settings.decay ** decays_between(settings, begun, closed)
    total = target + (shapes_of(arms) - target) * kept
    later = _later_decays(settings, sources)
    for name in sorted(sources):        # so that the order of merges does not show in the sum
        total += shapes_of(sources[name].actions) * settings.decay ** later[name]
    updates = [
        arms[action].updates + sum(one.actions[action].updates for one in sources.values())
        for action in _records.ACTIONS
    ]
    return closed, actions_of(total, updates)


def _later_decays(settings: Posterior, sources: Mapping[str, Contribution]) -> dict[str, int]:
    """Return how often each source's evidence decayed in those that built upon it."""
    try:
        order = [*TopologicalSorter({name: one.after for name, one in sources.items()})
                 .static_order()]
    except CycleError:
        raise said("sources: they are said to have built upon each other") from None
    row_of = {name: row for row, name in enumerate(order)}
    built_upon = np.zeros((len(order), len(order)), np.bool_)
    later = np.zeros(len(order), np.uint64)     # all closed sessions fit in it, so decays do
    for row, name in enumerate(order):
        source, known = sources[name], built_upon[row]
        for one in source.after:
            known |= built_upon[row_of[one]]
            known[row_of[one]] = True
        if source.decays:
            later += np.uint64(source.decays) * known
        each = settings.decay_every
        if not (abs(source.decays * each - source.closed) < each if each else not source.decays):
            raise said(
                f"sources.{name}.decays: {source.closed} closed sessions are not "
                f"{source.decays} decays"
            )
    return dict(zip(order, later.tolist(), strict=True))


def newer_of(name: str, one: Contribution, other: Contribution) -> Contribution:
    """Return the later of two states of one source."""
    if one.after == other.after:
        if one.counts == other.counts and one == other:
            return one
        for early, late in ((one, other), (other, one)):
            if early.counts != late.counts and all(
                before <= after for before, after in zip(early.counts, late.counts, strict=True)
            ):
                return late
    raise LearnedStateError(
        f"sources.{name}: the two states of it are not an earlier and a later one; a fleet was "
        "copied, and both copies went on. In a copy, first begin a new source: "
        "fleet.import_posterior(fleet.export_posterior())"
    )


def newest_of(sources: Mapping[str, Contribution]) -> tuple[str, ...]:
    """Return the sources that none of the others built upon."""
    built_upon = {name for source in sources.values() for name in source.after}
    return tuple(sorted(sources.keys() - built_upon))


def decays_between(settings: Posterior, before: int, after: int) -> int:
    """Return how often a pool decays while its closed sessions grow from `before` to `after`."""
    each = settings.decay_every
    return after // each - before // each if each else 0


def target_of(settings: Posterior) -> NDArray[np.float64]:
    """Return what alpha and beta decay towards, (2,)."""
    record = np.zeros(1, _records.POOL)[0]["prior"]
    settings.fill(record)
    return np.array([record["target_alpha"], record["target_beta"]])


def shapes_of(actions: Mapping[str, Arm] | Mapping[str, Gain]) -> NDArray[np.float64]:
    """Return alpha and beta of each action, (5, 2)."""
    return np.array([(one.alpha, one.beta) for one in actions.values()])


def actions_of(shapes: NDArray[np.float64], updates: Sequence[int]) -> dict[str, Any]:
    """Return the fields of each action's `Arm` or `Gain`."""
    return {
        action: {"alpha": alpha, "beta": beta, "updates": count}
        for action, (alpha, beta), count in zip(
            _records.ACTIONS, shapes.tolist(), updates, strict=True
        )
    }


def possible_gains(gained: NDArray[np.float64], updates: Sequence[int]) -> NDArray[np.float64]:
    """Return what so many updates can have added: differences are off by their last bits."""
    gained = np.maximum(gained, 0.0)
    most = np.array(updates, np.float64)
    added = gained.sum(axis=1)
    gained *= (most / np.maximum(np.maximum(added, most), 1.0))[:, None]
    return gained


def prior_arms(settings: Posterior) -> dict[str, Arm]:
    """Return the posterior of each action before anything was learned."""
    arm = Arm(alpha=settings.alpha, beta=settings.beta, updates=0)
    return dict.fromkeys(_records.ACTIONS, arm)
