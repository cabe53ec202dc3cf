"""The numbers of the built-in population: rates of its troubles, and reactions to actions.

The shipped ones are in `population.toml` beside this file. A file of one's own, TOML, YAML or
JSON, holds what differs:

>>> tables = Tables.shipped().replace(
...     reactions={"looping_same": {"redirect": {"out": 0.9}}}
... )
>>> tables.reactions.looping_same.redirect
Reaction(out=0.9, worse=0.05, cost=1)
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from cellium_fast.action import Action
from cellium_fast.errors import InputError, shown
from cellium_fast.parameters import Fraction, Parameters, PositiveFraction, merged, said
from cellium_fast.policy import PARSERS

# Hidden states of agents, by their number in records.
STATES = (
    "working", "slow", "looping_same", "looping_changing", "failing_recovers", "failing_stays",
    "polling", "context_growth", "false_summit",
)
State = Literal[
    "working", "slow", "looping_same", "looping_changing", "failing_recovers", "failing_stays",
    "polling", "context_growth", "false_summit",
]
TOLD = (Action.CONTINUE, Action.RETRY, Action.REDIRECT, Action.COMPRESS)    # to running agents
GOALS = 10      # deciles of the productive rounds that a task takes

Rounds = Annotated[int, Field(strict=True, ge=0, le=1_000)]
Positive = Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)]


class Section(Parameters):
    """A part of the tables."""

    WHOLE: ClassVar[str] = "tables"
    PART: ClassVar[str] = "entry"

    @staticmethod
    def refusal(problems: Sequence[tuple[str, str]]) -> InputError:
        """Return the exception that says what is wrong with which field."""
        return InputError("; ".join(f"{field}: {what}" for field, what in problems))


class Reaction(Section):
    """What an action does in the round after it, to an agent in some hidden state.

    Parameters
    ----------
    out
        Chance to get out of the state, back to work.
    worse
        Chance to get into the state's `worse_into` instead; at most 1 - `out`.
    cost
        Productive rounds that it adds to the task.
    """

    out: Fraction
    worse: Fraction
    cost: Rounds

    @model_validator(mode="after")
    def _is_law(self) -> Self:
        if self.out + self.worse > 1 + 1e-12:
            raise said(f"wanted out + worse of at most 1, got {self.out} + {self.worse}")
        return self


class StateReactions(Section):
    """How agents in one hidden state react to what they are told. Told to terminate, any stops."""

    worse_into: State
    # In the names of the actions; `continue` is a word of Python.
    continue_: Reaction = Field(alias="continue")
    retry: Reaction
    redirect: Reaction
    compress: Reaction

    def of(self, action: Action) -> Reaction:
        """The reaction to one action."""
        return getattr(self, "continue_" if action == Action.CONTINUE else str(action))  # type: ignore[no-any-return]


class Reactions(Section):
    """The reaction table: how agents react to an action, by their hidden state."""

    working: StateReactions
    slow: StateReactions
    looping_same: StateReactions
    looping_changing: StateReactions
    failing_recovers: StateReactions
    failing_stays: StateReactions
    polling: StateReactions
    context_growth: StateReactions
    false_summit: StateReactions

    @model_validator(mode="after")
    def _keeps_workers(self) -> Self:
        if any(self.working.of(action).out for action in TOLD):
            raise said("wanted out = 0 of all actions in working: there is nothing to get out of")
        return self


class Entering(Section):
    """Chance a round that an agent at work gets into a trouble."""

    slow: Fraction
    looping_same: Fraction
    looping_changing: Fraction
    failing_recovers: Fraction
    failing_stays: Fraction
    polling: Fraction
    context_growth: Fraction

    @model_validator(mode="after")
    def _is_law(self) -> Self:
        if sum(chance for _, chance in self) > 1:
            raise said("wanted chances with a sum of at most 1")
        return self


class Profile(Section):
    """A kind of task, with the agents that are given it.

    Parameters
    ----------
    share
        Weight among the profiles.
    goals
        Productive rounds of a run that meets no trouble: the values below which 5, 15, ... 95 %
        of the tasks lie.
    right
        Chance that what the agent takes for its goal is the goal.
    error
        Chance that a round of an agent at work fails.
    talk
        Share of rounds without a tool call.
    tokens
        Tokens that a round adds to the context, on average.
    entering
        Chance a round at work to get into each trouble.
    """

    share: Positive
    goals: Annotated[tuple[Annotated[int, Field(strict=True, ge=1, le=10_000)], ...],
                     Field(min_length=GOALS, max_length=GOALS)]
    right: Fraction
    error: Fraction
    talk: Fraction
    tokens: Positive
    entering: Entering


class GivingUp(Section):
    """Chance a round that an agent in a trouble ends its run, which failed."""

    slow: Fraction
    looping_same: Fraction
    looping_changing: Fraction
    failing_recovers: Fraction
    failing_stays: Fraction
    polling: Fraction
    context_growth: Fraction
    false_summit: Fraction


class Rates(Section):
    """How often what happens to agents that nobody tells anything.

    Parameters
    ----------
    profiles
        Kinds of tasks by name.
    giving_up
        Chance a round to end the run, by trouble.
    slow_pace
        Share of rounds that are productive in the state slow.
    growth
        Tokens of a round in the state context_growth, as a multiple of those of other rounds.
    tokens_at_start
        In the context before the first round.
    crowded_from
        Share of the context window from which rounds get unproductive, all of them at its end.
    left_by_compression
        Share of the context that a compression leaves.
    rework
        Productive rounds that are left once an agent sees that it took a false summit for its goal.
    right_after_rework
        Chance that it reaches the goal next time.
    """

    profiles: Annotated[dict[str, Profile], Field(min_length=1, max_length=32)]
    giving_up: GivingUp
    slow_pace: Fraction
    growth: Positive
    tokens_at_start: Annotated[int, Field(strict=True, ge=0)]
    crowded_from: Annotated[float, Field(strict=True, ge=0, lt=1)]
    left_by_compression: PositiveFraction
    rework: Annotated[int, Field(strict=True, ge=1, le=1_000)]
    right_after_rework: Fraction


class Tables(Section):
    """All numbers of the built-in population."""

    reactions: Reactions
    rates: Rates

    @classmethod
    def shipped(cls) -> "Tables":
        """Those of the package."""
        return _shipped()

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> "Tables":
        """The shipped tables with what a file changes: TOML, YAML or JSON.

        Raises
        ------
        InputError
            The file cannot be read, or does not make sense; the message names file and entry.
        """
        file = Path(path)
        parse = PARSERS.get(file.suffix.lower())
        if parse is None:
            raise InputError(f"{file}: wanted a .toml, .yaml or .json file, got {file.suffix!r}")
        try:
            changes = parse(file.read_bytes())
        except OSError as error:
            raise InputError(f"{file}: {error.strerror or error}") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}: {error}") from None
        if not isinstance(changes, dict):
            raise InputError(f"{file}: wanted a table of entries, got {shown(changes)}")
        try:
            return cls.shipped().replace(**{str(key): value for key, value in changes.items()})
        except InputError as error:
            raise InputError(f"{file}: {error}") from None

    def replace(self, /, **changes: Any) -> "Tables":
        """These tables with some entries changed; sections merge.

        Raises InputError where the result makes no sense; the message names the entry.
        """
        return type(self)(**merged(self.model_dump(by_alias=True), changes))

    def to_toml(self) -> str:
        """All of it as TOML, which `from_file` reads."""
        return "".join(_toml("", self.model_dump(by_alias=True)))

    def record(self) -> NDArray[Any]:
        """(1,) of a structured dtype: the tables as `population` reads them."""
        rates, profiles = self.rates, [*self.rates.profiles.values()]
        record = np.zeros(1, table_dtype(len(profiles)))
        row = record[0]
        for name in ("slow_pace", "growth", "tokens_at_start", "crowded_from",
                     "left_by_compression", "rework", "right_after_rework"):
            row[name] = getattr(rates, name)
        for trouble, chance in rates.giving_up:
            row["giving_up"][STATES.index(trouble)] = chance
        for state, (_, reactions) in enumerate(self.reactions):
            row["worse_into"][state] = STATES.index(reactions.worse_into)
            for action in TOLD:
                reaction = reactions.of(action)
                row["out"][state, action] = reaction.out
                row["out_or_worse"][state, action] = reaction.out + reaction.worse
                row["cost"][state, action] = reaction.cost
        shares = np.array([profile.share for profile in profiles])
        row["share"] = np.cumsum(shares) / shares.sum()
        for place, profile in enumerate(profiles):
            for name in ("goals", "right", "error", "talk", "tokens"):
                row[name][place] = getattr(profile, name)
            chances = [0.0] * len(STATES)
            for trouble, chance in profile.entering:
                chances[STATES.index(trouble)] = chance
            row["entering"][place] = np.cumsum(chances)
        return record


def table_dtype(profiles: int) -> np.dtype[Any]:
    """The record of tables with so many profiles; chances by state and profile are summed up."""
    states, told = len(STATES), len(TOLD)
    return np.dtype([
        ("out", np.float64, (states, told)),
        ("out_or_worse", np.float64, (states, told)),
        ("cost", np.int64, (states, told)),
        ("worse_into", np.int64, (states,)),
        ("giving_up", np.float64, (states,)),
        ("share", np.float64, (profiles,)),
        ("goals", np.int64, (profiles, GOALS)),
        ("right", np.float64, (profiles,)),
        ("error", np.float64, (profiles,)),
        ("talk", np.float64, (profiles,)),
        ("tokens", np.float64, (profiles,)),
        ("entering", np.float64, (profiles, states)),
        ("slow_pace", np.float64), ("growth", np.float64), ("tokens_at_start", np.int64),
        ("crowded_from", np.float64), ("left_by_compression", np.float64), ("rework", np.int64),
        ("right_after_rework", np.float64),
    ])


def _toml(path: str, section: Mapping[str, Any]) -> Iterator[str]:
    """Lines of a section, and then of those in it; a reaction is one line."""
    inner = {
        name: value for name, value in section.items()
        if isinstance(value, dict) and value.keys() != Reaction.model_fields.keys()
    }
    if len(inner) < len(section):
        yield f"[{path}]\n"
        for name, value in section.items():
            if name not in inner:
                yield f"{name} = {_toml_value(value)}\n"
        yield "\n"
    for name, value in inner.items():
        yield from _toml(f"{path}.{name}" if path else name, value)


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {part!r}" for name, part in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else repr(list(value) if isinstance(value, tuple)
                                                            else value)


@cache
def _shipped() -> Tables:
    import tomllib

    path = Path(__file__).with_name("population.toml")
    return Tables(**tomllib.loads(path.read_text("utf-8")))
