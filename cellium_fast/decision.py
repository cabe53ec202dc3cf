"""`Decision` (one session) and `Decisions` (columns of a batch): what a step says."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import _records, _step
from cellium_fast.action import Action, actions_in
from cellium_fast.cause import (
    STOPS,
    Cause,
    Evidence,
    StopCause,
    all_rules,
    cause_of,
    detecting,
    evidence_of,
    kind_of,
    names_of,
    rules_in,
    ruling,
)
from cellium_fast.errors import MissingColumnError

if TYPE_CHECKING:
    from cellium_fast.names import Names
    from cellium_fast.policy import Policy


ACTIONS = tuple(Action)     # by code


@dataclass(frozen=True, slots=True)
class Setting:
    """What a decision needs besides its numbers to be put into words."""

    policy: Policy
    names: Names
    tools: Sequence[str] = ()
    used_tools: frozenset[str] = frozenset()


class Decision(_step.DecisionBase):
    """One decision. Nothing is worked out before it is read.

    Examples
    --------
    >>> from cellium_fast import Fleet, Round, ToolCall
    >>> session = Fleet(seed=7).session("ticket", context_limit=100_000)
    >>> decision = session.step(Round([ToolCall("search", {"q": "a"}, "found")]))
    >>> decision.action, decision.cause
    (<Action.CONTINUE: 0>, <Cause.NONE: 'none'>)
    """

    __slots__ = ()

    _record: _step.DecisionRecord
    _setting: Setting

    def __init__(self, record: _step.DecisionRecord, setting: Setting) -> None:
        self._record = record
        self._setting = setting

    @property
    def action(self) -> Action:
        """The chosen action."""
        return ACTIONS[self._record.action]

    @property
    def candidates(self) -> tuple[Action, ...]:
        """The actions the rules left to choose from, in the order of their codes."""
        return actions_in(self._record.candidates)

    @property
    def rules(self) -> tuple[str, ...]:
        """Ids of the rules that fired, in the order of their bits; the user's own come last."""
        return rules_in(self._mask, names_of(self._setting.policy))

    @property
    def tiebreak(self) -> bool:
        """Whether there were several candidates."""
        return self._record.tiebreak

    @property
    def reward(self) -> float | None:
        """Reward of this round in [0, 1], as the outcome of the previous decision.

        None at a session's opening, before its first round.
        """
        reward = self._record.reward
        return None if math.isnan(reward) else reward

    @property
    def features(self) -> _step.FeatureRecord:
        """Every feature by name, see `docs/semantics.md`."""
        return self._record.features

    @property
    def draws(self) -> dict[Action, float]:
        """What was drawn for each candidate (its posterior mean under "greedy"), if compared."""
        return _numbers(self._record.draws)

    @property
    def bias(self) -> dict[Action, float]:
        """What was added to each candidate's draw, if they were compared."""
        return _numbers(self._record.bias)

    @property
    def propensity(self) -> float | None:
        """The probability with which this action was chosen, in (0, 1].

        None unless the policy has ``propensities=True``.
        """
        propensity = self._record.propensity
        return None if math.isnan(propensity) else propensity

    @property
    def user_rules(self) -> int:
        """Mask of the policy's user rules that fired: bit k is the k-th of them."""
        return self._record.user_rules

    @property
    def scores(self) -> dict[Action, float]:
        """Draw plus bias of each candidate, if they were compared."""
        bias = self.bias
        return {action: draw + bias[action] for action, draw in self.draws.items()}

    @property
    def cause(self) -> Cause:
        """Why this action, for machines: the kind of the rule behind it."""
        return cause_of(
            self._record.action, self._mask, self._setting.policy, self._record.context_ratio
        )

    @property
    def stop_cause(self) -> StopCause | None:
        """What ended the session; None unless the action is terminate.

        It says nothing about success. Where redirects were ignored, it is what they were for.
        """
        if self.action != Action.TERMINATE:
            return None
        return STOPS[kind_of(self._detecting(self._ruling()))]

    @property
    def evidence(self) -> Evidence | None:
        """What the rule behind the action saw: tool, count, rounds, error. None for continue.

        `explain` says the same, and what every other rule saw, in words.

        >>> from cellium_fast import Fleet, Round, ToolCall
        >>> session = Fleet(seed=7).session("ticket")
        >>> for _ in range(4):
        ...     decision = session.step(Round([ToolCall("run", "make", "24 tests ran, all well")]))
        >>> decision.evidence.rule, decision.evidence.tool, decision.evidence.count
        ('repeated_round', 'run', 4)
        """
        rule = self._detecting(self._ruling())
        return None if rule is None else evidence_of(rule, self.features, self._setting.names)

    @property
    def _mask(self) -> int:
        mask: int = all_rules(self._record.rules, self._record.user_rules)
        return mask

    def _ruling(self) -> str | None:
        record = self._record
        return ruling(record.action, self._mask, self._setting.policy, record.context_ratio)

    def _detecting(self, rule: str | None) -> str | None:
        features = self.features
        return detecting(
            rule, self._mask, self._setting.policy, lambda name: getattr(features, name)
        )

    @property
    def advice_age(self) -> int:
        """For how many decisions in a row before this one it was the same advice, up to 255."""
        return self._record.advice_age

    @property
    def prompt(self) -> str:
        """The constraint for the system prompt; empty while all is well.

        Unchanged advice is given once in `repeat_interval` rounds, and is empty in between.
        """
        from cellium_fast.render import HardConstraintRenderer

        return HardConstraintRenderer().render(self)

    def explain(self) -> str:
        """What was seen, which rules fired on what evidence, what was drawn and what won."""
        from cellium_fast.explain import explain

        return explain(self)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        values = {name: getattr(self._record, name) for name in COLUMNS}
        return _decision_of, (values, self._setting)

    def __repr__(self) -> str:
        return (
            f"<Decision {self.action} round={self.features.round} cause={self.cause} "
            f"candidates={'/'.join(map(str, self.candidates))} rules={','.join(self.rules)}>"
        )


# What a batch step can write: dtype and, beside the sessions, shape.
COLUMNS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "action": (np.uint8, ()),
    "candidates": (np.uint8, ()),
    "rules": (np.uint32, ()),
    "tiebreak": (np.bool_, ()),
    "reward": (np.float32, ()),
    "features": (_records.FEATURES, ()),
    "draws": (np.float64, (len(Action),)),
    "bias": (np.float64, (len(Action),)),
    "advice_age": (np.uint8, ()),
    "user_rules": (np.uint32, ()),
    "propensity": (np.float64, ()),
}
ALWAYS = ("action", "candidates")


class Decisions:
    """Decisions of a batch as columns, row i for the i-th id of the step.

    A column that was not asked for (``want=`` of `Fleet.step`) raises MissingColumnError when it
    is read; ``action`` and ``candidates`` are always there.

    Attributes
    ----------
    action
        (N,) uint8, codes of `Action`.
    candidates
        (N,) uint8, masks of actions.
    rules
        (N,) uint32, masks of rules.
    tiebreak
        (N,) bool, several candidates.
    reward
        (N,) float32 in [0, 1], of this round as the outcome of the previous decision.
    advice_age
        (N,) uint8, for how many decisions in a row before this one it was the same advice.
    features
        (N,) structured, the fields of `docs/semantics.md`.
    setting_rows
        (N,) integers, equal for decisions that share policy and names; see `setting`.
    draws, bias
        (N, 5) float64 by action code, NaN for an action that was not compared.
    user_rules
        (N,) uint32, masks of the policy's user rules: bit k is the k-th of them.
    propensity
        (N,) float64, the probability with which the action was chosen; NaN unless the policy
        has ``propensities=True``.

    ``decisions[i]`` is a `Decision`, if no column is missing; ``len`` and iteration work.
    """

    __slots__ = ("_batch", "_columns", "_settings", "_size", "setting_rows")

    action: NDArray[np.uint8]
    candidates: NDArray[np.uint8]
    rules: NDArray[np.uint32]
    tiebreak: NDArray[np.bool_]
    reward: NDArray[np.float32]
    advice_age: NDArray[np.uint8]
    features: NDArray[Any]
    draws: NDArray[np.float64]
    bias: NDArray[np.float64]
    user_rules: NDArray[np.uint32]
    propensity: NDArray[np.float64]
    setting_rows: NDArray[np.uint16]

    def __init__(
        self, size: int, setting_rows: NDArray[np.uint16], settings: Sequence[Setting],
        want: Collection[str] = tuple(COLUMNS),
    ) -> None:
        # Kernels write to these places: nobody puts others in theirs.
        self._columns = {
            name: np.empty((size, *shape), dtype) for name, (dtype, shape) in COLUMNS.items()
            if name in ALWAYS or name in want
        }
        self._size = size
        self._batch = _records.Batch()
        self._batch.set_output(**self._columns)
        self.concern(setting_rows, settings)

    def concern(self, setting_rows: NDArray[np.uint16], settings: Sequence[Setting]) -> None:
        """Be of sessions with these settings from now on."""
        self.setting_rows = setting_rows
        self._settings = settings

    def copy_from(self, other: Decisions) -> None:
        """Take over the columns that are there from decisions of as many sessions."""
        for name, column in self._columns.items():
            column[...] = getattr(other, name)

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns that are there, by name."""
        return dict(self._columns)

    def __getattr__(self, name: str) -> Any:
        if name in COLUMNS:
            if name in self._columns:
                return self._columns[name]
            raise MissingColumnError(f"{name}: this step was not asked for it, see want=")
        return object.__getattribute__(self, name)  # what is missing for it, or that it is unknown

    @property
    def scores(self) -> NDArray[np.float64]:
        """(N, 5) draws plus bias."""
        return self.draws + self.bias

    @property
    def settings(self) -> Sequence[Setting]:
        """Policies and names that `setting_rows` points to."""
        return self._settings

    def setting(self, index: int) -> Setting:
        """Policy and names behind one decision."""
        return self._settings[int(self.setting_rows[index])]

    def record(self, index: int) -> _step.DecisionRecord:
        """One decision, packed; `index` in [0, N)."""
        if len(self._columns) < len(COLUMNS):
            for name in COLUMNS:
                getattr(self, name)     # of the first one missing, says so
        return _step.record_of(self._batch.address, index)

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Decision:
        index = operator.index(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"index: there are {len(self)} decisions, got {index}")
        index %= len(self)
        return Decision(self.record(index), self.setting(index))

    def __iter__(self) -> Iterator[Decision]:
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Copies: a copy is not written to by a later step with this one as its `out`.
        columns = {name: column.copy() for name, column in self._columns.items()}
        return _decisions_of, (columns, self.setting_rows.copy(), list(self._settings))

    def __repr__(self) -> str:
        counts = np.bincount(self.action, minlength=len(Action))
        mix = ", ".join(f"{action} {counts[action]}" for action in Action if counts[action])
        return f"<Decisions of {len(self)}: {mix}>"


def _decisions_of(
    columns: dict[str, NDArray[Any]], setting_rows: NDArray[np.uint16], settings: Sequence[Setting]
) -> Decisions:
    decisions = Decisions(len(setting_rows), setting_rows, settings, columns)
    for name, column in decisions.columns().items():
        column[...] = columns[name]
    return decisions


def _decision_of(values: dict[str, Any], setting: Setting) -> Decision:
    decisions = Decisions(1, np.zeros(1, np.uint16), [setting])
    for name, column in decisions.columns().items():
        column[0] = values[name]
    return decisions[0]


def _numbers(by_code: list[float]) -> dict[Action, float]:
    return {
        action: by_code[action] for action in Action if not math.isnan(by_code[action])
    }
