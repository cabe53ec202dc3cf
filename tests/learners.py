"""Fleets that learn, and how what they have learned is compared."""

from __future__ import annotations

import pytest

from cellium_fast import Fleet, LearnedPosterior, Policy, Posterior, Round

FAST = Posterior(decay=0.8, decay_every=2)
POSTERIORS = [
    FAST, Posterior(), Posterior(decay_every=0),
    Posterior(alpha=1.0, beta=3.0, decay=0.5, decay_every=1, decay_target=1.5),
    Posterior(alpha=0.001, beta=1e6, decay=0.9, decay_every=3, decay_target=1e6),
]


def learner(posterior: Posterior = FAST, pool: str = "a") -> Fleet:
    """A fleet in which every round teaches continue its reward."""
    off = {name: {"enabled": False} for name, _ in Policy().rules}
    policy = Policy(learn_from="all", tie_break="first", n_step=1, rules=off)
    return Fleet(policies={"own": policy}, pools={pool: posterior, "other": posterior})


def teach(fleet: Fleet, *rewards: float, close: bool = True) -> Fleet:
    """One session with these rewards."""
    session = fleet.session()
    for reward in rewards:
        session.step(Round(reward=reward))
    if close:
        session.close()
    return fleet


def numbers(learned: LearnedPosterior) -> list[float]:
    return [
        number for arm in learned.actions.values() for number in (arm.alpha, arm.beta, arm.updates)
    ]


def same(one: LearnedPosterior, other: LearnedPosterior) -> bool:
    """Equal but for the last bits of what was summed in another order."""
    return (
        (one.pool, one.settings, one.closed) == (other.pool, other.settings, other.closed)
        and (one.ancestor, one.sources) == (other.ancestor, other.sources)
        and numbers(one) == pytest.approx(numbers(other), rel=1e-9)
    )
