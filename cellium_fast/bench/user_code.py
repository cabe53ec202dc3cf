"""Measures of functions of users: what a rule adds to a step."""

from __future__ import annotations

from typing import Any

from cellium_fast import Policy, rule
from cellium_fast.bench.measures import Result, Sizes
from cellium_fast.bench.populations import WANTED, Herd, Population
from cellium_fast.bench.timing import Contender, Spread, difference

TURNS = 3       # a difference of a few in a hundred needs more than a figure does


@rule(proposes="redirect")
def stuck_and_full(features: Any) -> bool:
    """Stuck for long, in a full context."""
    return bool(features.stuck_iterations > 1_000 and features.context_ratio > 0.5)


def rule_step(sizes: Sizes) -> Result:
    """What a rule adds to a step of a batch, with all columns of decisions."""
    usual = _added(sizes, WANTED).median * 1e9
    return Result(
        _added(sizes, None),
        note=f"{sizes.fleet:,} sessions, a rule of two comparisons, all columns wanted; "
             f"{usual:.0f} ns where features are not wanted, and made for the rule alone",
    )


def _added(sizes: Sizes, want: tuple[str, ...] | None) -> Spread:
    plain, ruled = (
        Herd(Population("usual", sizes.fleet), want=want, policy=policy)
        for policy in (Policy(), Policy(user_rules=(stuck_and_full,)))
    )
    return difference(
        Contender(ruled.step, ruled.prepare, sizes.fleet),
        Contender(plain.step, plain.prepare, sizes.fleet), TURNS * sizes.repeats,
        clock=sizes.clock,
    )
