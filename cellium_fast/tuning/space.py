"""What `tune` searches: the parameters of a policy that decide when it steps in, and their ranges.

The space is read off the fields of the policy itself, so a new rule is part of it at once:

* the parameters of every rule that proposes or forces redirect or terminate, but its `actions` and
  `alone`, which decide what is done and not when;
* the parameters of the whole policy in `FEATURES`, which say what counts as a repeat, a failure or
  no work.

==========================  =======================================================================
a switch                    off, on
a choice of words           its words
a number of rounds, calls   from half of the base policy's, rounded up, to twice it, as far as
                            allowed
a share                     0 to 1 in steps of 0.05, at either end as far as allowed
a trend                     -1 to 1 in steps of 0.05
a saturation                0.3 to 1 in steps of 0.05
==========================  =======================================================================

So a search does not come to thresholds that make no sense of what they count, as a single failure
that is a chain of failures, because in the few runs it sees no successful one happens to have any.

A base policy's own saturation that lies outside widens the range; a value that lies between two
steps takes the steps away. A parameter that may also be None is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from cellium_fast.action import Action
from cellium_fast.errors import InputError
from cellium_fast.policy import Policy

if TYPE_CHECKING:
    import numpy as np
    from optuna.distributions import BaseDistribution
    from pydantic.fields import FieldInfo

    from cellium_fast.parameters import Parameters

__all__ = ["FEATURES", "Parameter", "Space", "Value", "nested", "value_of"]

Value = bool | int | float | str

FEATURES = (
    "ema_alpha", "empty_is_unproductive", "stale_is_unproductive", "match_results",
    "newest_run_only", "see_through_volatile", "count_failures", "count_cycles", "slight_result",
    "slight_error", "near_duplicate",
)
WHAT_IS_DONE = frozenset({"actions", "alone"})
STEPPING_IN = frozenset({Action.REDIRECT, Action.TERMINATE})

STEP = 0.05
DIGITS = 12             # that steps are read off to: 3 * 0.05 is 0.15
LOWEST_SATURATION = 0.3
HIGHEST_SATURATION = 1.0


@dataclass(slots=True, frozen=True)
class Parameter:
    """One parameter that is searched.

    Parameters
    ----------
    path
        Its name, with those of its sections: ``"rules.repeated_round.repeats"``.
    base
        Its value in the base policy.
    choices
        The values of a switch or a choice of words; empty for a number.
    low, high
        The range of a number, both ends in it.
    step
        Between the values of a float; None: any value of the range. 1 for an integer.
    """

    path: str
    base: Value
    choices: tuple[Value, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None

    def distribution(self) -> BaseDistribution:
        """The same for optuna."""
        from optuna.distributions import (
            CategoricalDistribution,
            FloatDistribution,
            IntDistribution,
        )

        if self.choices:
            return CategoricalDistribution(self.choices)
        if isinstance(self.base, int):
            return IntDistribution(int(self.low), int(self.high))
        return FloatDistribution(self.low, self.high, step=self.step)

    def value(self, drawn: Any) -> Value:
        """What optuna drew, as a policy takes it."""
        value: Value = drawn
        return round(value, DIGITS) if isinstance(value, float) else value

    def near(self, value: Any) -> Value:
        """Another policy's value, or the end of the range; the base for what has no range."""
        if self.choices:
            return value if value in self.choices else self.base
        return self.base if value is None else self.value(min(max(value, self.low), self.high))

    def neighbours(self) -> list[Value]:
        """The values near the base.

        The other ones of a switch or a choice; of a number one step down and up, which is a tenth
        of the range, and half the way to either end.
        """
        if self.choices:
            return [choice for choice in self.choices if choice != self.base]
        assert not isinstance(self.base, str)
        step = self._on_grid((self.high - self.low) / 10)
        ways = (
            -step, step, -self._on_grid((self.base - self.low) / 2),
            self._on_grid((self.high - self.base) / 2),
        )
        near = {self.base + way for way in ways if self.low <= self.base + way <= self.high}
        return [self.value(value) for value in sorted(near - {self.base})]

    def draw(self, random: np.random.Generator) -> Value:
        """Any of its values, each as likely as another."""
        if self.choices:
            return self.choices[int(random.integers(len(self.choices)))]
        if self.step is None:
            return float(random.uniform(self.low, self.high))
        places = round((self.high - self.low) / self.step)
        drawn = self.low + int(random.integers(places + 1)) * self.step
        return int(drawn) if isinstance(self.base, int) else self.value(drawn)

    def _on_grid(self, width: float) -> float:
        """A width in whole steps, at least one."""
        return width if self.step is None else max(round(width / self.step), 1) * self.step


class Space:
    """The parameters of a search, by name.

    Parameters
    ----------
    base
        The policy the search starts from, and whose other parameters all its policies have.
    only
        Names of parameters or sections; nothing else is searched. Empty: everything.

    Raises
    ------
    InputError
        A name of `only` is that of no parameter of the space.

    Examples
    --------
    >>> space = Space(Policy(), only=["rules.repeated_round"])
    >>> [(one.path, one.low, one.high) for one in space.parameters if not one.choices]
    [('rules.repeated_round.repeats', 2, 6), ('rules.repeated_round.slight_repeats', 2, 8)]
    >>> space.policy({"rules.repeated_round.repeats": 2}).rules.repeated_round.repeats
    2
    """

    def __init__(self, base: Policy, only: Iterable[str] = ()) -> None:
        self.base = base
        found = [*_features(base), *_rules(base)]
        sections = tuple(only)
        for name in sections:
            if not any(_is_part(parameter.path, name) for parameter in found):
                raise InputError(
                    f"only: wanted parameters that decide when a policy steps in, or sections of "
                    f"them, as {found[-1].path!r} or {found[-1].path.rpartition('.')[0]!r}, got "
                    f"{name!r}"
                )
        self.parameters = tuple(
            parameter for parameter in found
            if not sections or any(_is_part(parameter.path, name) for name in sections)
        )

    def base_values(self) -> dict[str, Value]:
        """The values of the base policy, by name."""
        return {parameter.path: parameter.base for parameter in self.parameters}

    def alone(self) -> list[dict[str, Value]]:
        """The base policy with one parameter moved, for each parameter and each neighbour."""
        base = self.base_values()
        return [
            {**base, parameter.path: value}
            for parameter in self.parameters for value in parameter.neighbours()
        ]

    def near(self, policy: Policy) -> dict[str, Value]:
        """The values of another policy, by name, as far as they are in the space."""
        return {one.path: one.near(value_of(policy, one.path)) for one in self.parameters}

    def values(self, drawn: Mapping[str, Any]) -> dict[str, Value]:
        """What optuna drew, as policies take it; the base policy's values of what it did not."""
        return {
            one.path: one.value(drawn.get(one.path, one.base)) for one in self.parameters
        }

    def changes(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """Those of some values that are not the base policy's."""
        base = self.base_values()
        return {path: value for path, value in values.items() if value != base[path]}

    def policy(self, values: Mapping[str, Value]) -> Policy:
        """The base policy with some values in place of its own.

        Raises
        ------
        PolicyError
            They do not make sense together.
        """
        return self.base.replace(**nested(values))


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted names, as tables in tables.

    >>> nested({"a.b": 1, "a.c": 2, "d": 3})
    {'a': {'b': 1, 'c': 2}, 'd': 3}
    """
    tables: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        table = tables
        for section in sections:
            table = table.setdefault(section, {})
        table[name] = value
    return tables


def value_of(policy: Policy, path: str) -> Any:
    """A parameter's value, by its dotted name.

    >>> value_of(Policy(), "rules.output_loop.repeats")
    5
    """
    return reduce(getattr, path.split("."), policy)


def _is_part(path: str, section: str) -> bool:
    return path == section or path.startswith(f"{section}.")


def _features(base: Policy) -> Iterable[Parameter]:
    return _parameters(base, FEATURES, "")


def _rules(base: Policy) -> Iterable[Parameter]:
    for name, rule in base.rules:
        if not STEPPING_IN.isdisjoint(rule.actions):
            wanted = [field for field in type(rule).model_fields if field not in WHAT_IS_DONE]
            yield from _parameters(rule, wanted, f"rules.{name}.")


def _parameters(section: Parameters, names: Sequence[str], prefix: str) -> Iterable[Parameter]:
    for name in names:
        found = _parameter(
            prefix + name, getattr(section, name), type(section).model_fields[name]
        )
        if found is not None:
            yield found


def _parameter(path: str, base: Any, field: FieldInfo) -> Parameter | None:
    kind = field.annotation
    if kind is bool:
        return Parameter(path, base, choices=(False, True))
    if get_origin(kind) is Literal:
        return Parameter(path, base, choices=get_args(kind))
    low, high = _limits(field)
    if kind is int:
        return Parameter(
            path, base, low=max(low, (base + 1) // 2), high=min(high, max(2 * base, 1)), step=1
        )
    if kind is float:
        if math.isinf(high):
            low, high = min(LOWEST_SATURATION, base), max(HIGHEST_SATURATION, base)
        return Parameter(path, base, low=low, high=high, step=_step(low, high, base))
    return None


def _limits(field: FieldInfo) -> tuple[Any, Any]:
    """The smallest and the largest value in steps that a field may have."""
    low: Any = -math.inf
    high: Any = math.inf
    for limit in field.metadata:
        low = getattr(limit, "ge", getattr(limit, "gt", low - STEP) + STEP)
        high = getattr(limit, "le", getattr(limit, "lt", high + STEP) - STEP)
    return low, high


def _step(low: float, high: float, base: float) -> float | None:
    """The step, if the base and both ends lie on it."""
    places = [(value - low) / STEP for value in (base, high)]
    return STEP if all(abs(place - round(place)) < 1e-9 for place in places) else None
