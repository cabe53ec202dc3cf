"""`rule`, `reward` and `bias`: functions of users that take part in a policy.

The decorators make a `UserRule`, `UserReward` or `UserBias` of a function. Numba compiles it when a
fleet first gets a policy that has it: see `cellium_fast.compiled_code`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, overload

from pydantic import AfterValidator, PlainSerializer, PlainValidator

from cellium_fast import _records
from cellium_fast.action import Action
from cellium_fast.errors import PolicyError, shown
from cellium_fast.parameters import refused, said
from cellium_fast.user_functions import (
    Features,
    Kind,
    RoundOutcome,
    UserBias,
    UserFunction,
    UserReward,
    UserRule,
    found,
    refusal,
)

if TYPE_CHECKING:
    from cellium_fast.compiled_code import CompiledFunction
    from cellium_fast.policy import Policy

REASON_LENGTH = 80      # characters


# --- the decorators -------------------------------------------------------------------------------
Actions = str | int | Iterable[str | int]
OfFeatures = Callable[[Features], Any]
OfOutcome = Callable[[Features, RoundOutcome], Any]


def rule(
    function: None = None, /, *, proposes: Actions | None = None, forces: str | int | None = None,
    name: str | None = None, reason: str | None = None,
) -> Callable[[OfFeatures], UserRule]:
    """Make a rule of a function that takes the features of a round and says whether it fires.

    Parameters
    ----------
    proposes
        The action that it proposes, or several.
    forces
        The action that it forces. Exactly one of `proposes` and `forces` is given.
    name
        What decisions call it, an identifier of at most 40 characters; the function's if left out.
    reason
        Why, in at most 80 characters; if left out, the first line of the function's docstring, or
        else its name.

    Raises
    ------
    PolicyError
        An action does not exist, or the function is none that can be a rule.

    Examples
    --------
    >>> from cellium_fast import Policy, rule
    >>> @rule(proposes="compress", reason="half full, and idle")
    ... def half_full(features):
    ...     return features.context_ratio > 0.5 and features.idle_rounds > 0
    >>> Policy(user_rules=(half_full,)).user_rules
    (<UserRule half_full>,)
    """
    if function is not None:
        raise refusal(function, "wanted @rule(proposes=...) or @rule(forces=...), got @rule alone")

    def made(function: OfFeatures) -> UserRule:
        called = _name_of(function, name)
        if (proposes is None) == (forces is None):
            got = "neither" if proposes is None else "both"
            raise refusal(function, f"@rule: wanted one of proposes and forces, got {got}")
        argument, given = ("forces", forces) if proposes is None else ("proposes", proposes)
        actions = _actions_of(function, argument, given)
        if argument == "forces" and len(actions) != 1:
            raise refusal(function, f"forces: wanted one action, got {shown(forces)}")
        reason_given = _reason_of(function, called, reason)
        return UserRule(function, called, actions, argument == "forces", reason_given)

    return made


@overload
def reward(function: OfOutcome, /) -> UserReward: ...


@overload
def reward(function: None = None, /, *, name: str | None = None) -> Callable[
    [OfOutcome], UserReward
]: ...


def reward(
    function: OfOutcome | None = None, /, *, name: str | None = None
) -> UserReward | Callable[[OfOutcome], UserReward]:
    """Make a reward of a function of a round's features and its outcome.

    The function gives a number in [0, 1], in place of the policy's own formula; a reward that a
    round itself tells stands. `name` is the function's if left out. What the
    outcome has is in `cellium_fast.user_functions.RoundOutcome`.

    Raises
    ------
    PolicyError
        The function is none that can be a reward.

    Examples
    --------
    >>> from cellium_fast import Policy, reward
    >>> @reward
    ... def thrifty(features, outcome):
    ...     return outcome.reward * (1.0 - 0.5 * features.context_saturation)
    >>> Policy(user_reward=thrifty).user_reward
    <UserReward thrifty>
    """
    def made(function: OfOutcome) -> UserReward:
        return UserReward(function, _name_of(function, name))

    return made if function is None else made(function)


def bias(action: str | int, /, *, name: str | None = None) -> Callable[[OfFeatures], UserBias]:
    """Make the bias of an action's arm of a function of features, which gives a number in [-1, 1].

    It is added to the arm's draw as it is, instead of the built-in bias. `name` is the function's
    if left out.

    Raises
    ------
    PolicyError
        The action does not exist, or the function is none that can be a bias.

    Examples
    --------
    >>> from cellium_fast import Policy, bias
    >>> @bias("redirect")
    ... def when_stuck(features):
    ...     return min(0.2, 0.04 * features.stuck_iterations)
    >>> Policy(user_bias=(when_stuck,)).user_bias
    (<UserBias when_stuck>,)
    """
    if callable(action):
        raise refusal(action, 'wanted @bias("redirect") or another action, got @bias alone')

    def made(function: OfFeatures) -> UserBias:
        try:
            arm = Action.parse(action)
        except (ValueError, TypeError) as error:
            raise refusal(function, f"@bias: action: {error}") from None
        return UserBias(function, _name_of(function, name), arm)

    return made


def _actions_of(function: OfFeatures, argument: str, given: Any) -> tuple[Action, ...]:
    several = [given] if isinstance(given, str | int) else given
    try:
        actions = {Action.parse(action) for action in several}
    except (ValueError, TypeError) as error:
        raise refusal(function, f"@rule: {argument}: {error}") from None
    if not actions:
        raise refusal(function, f"@rule: {argument}: wanted at least one action, got none")
    return tuple(sorted(actions))


def _name_of(function: Any, name: object) -> Any:
    return getattr(function, "__name__", None) if name is None else name


def _reason_of(function: OfFeatures, name: object, reason: object) -> str:
    from cellium_fast.explain import safe_text

    if reason is None:
        lines = (inspect.getdoc(function) or "").splitlines()
        reason = (lines[0].rstrip(". ") if lines else "") or str(name).replace("_", " ")
    elif not isinstance(reason, str) or not 1 <= len(reason.strip()) <= REASON_LENGTH:
        wanted = f"wanted text of 1 to {REASON_LENGTH} characters, got {shown(reason)}"
        raise refusal(function, f"reason: {wanted}")
    return safe_text(reason, REASON_LENGTH)


# --- in a policy ----------------------------------------------------------------------------------
def _as(kind: type[Kind]) -> Callable[[Any], Kind]:
    """A validator that takes an object, or the import path of one."""
    def checked(given: Any) -> Kind:
        if isinstance(given, kind):
            return given
        if not isinstance(given, str):
            wanted = f'wanted a function decorated with {kind.DECORATOR}, or "package.module:name"'
            raise refused(wanted, given)
        try:
            return found(given, kind)
        except PolicyError as error:
            raise said(str(error)) from error

    return checked


def _in_json(one: UserFunction) -> str:
    return one.import_path


def _distinct(rules: tuple[UserRule, ...]) -> tuple[UserRule, ...]:
    if len(rules) > _records.MAX_USER_RULES:
        raise refused(f"wanted at most {_records.MAX_USER_RULES} rules", len(rules))
    names = [one.name for one in rules]
    for name in names:
        if names.count(name) > 1:
            raise said(f"{name}: wanted rules of different names, there are several of this one")
    return rules


def _one_an_arm(biases: tuple[UserBias, ...]) -> tuple[UserBias, ...]:
    arms = [one.action for one in biases]
    for one in biases:
        if arms.count(one.action) > 1:
            raise said(f"{one.action}: wanted one bias of an action, there are several")
    return biases


IN_JSON = PlainSerializer(_in_json, return_type=str, when_used="json")
RULES_OF_USERS = Annotated[
    tuple[Annotated[UserRule, PlainValidator(_as(UserRule)), IN_JSON], ...],
    AfterValidator(_distinct),
]
REWARD_OF_USERS = Annotated[UserReward, PlainValidator(_as(UserReward)), IN_JSON]
BIASES_OF_USERS = Annotated[
    tuple[Annotated[UserBias, PlainValidator(_as(UserBias)), IN_JSON], ...],
    AfterValidator(_one_an_arm),
]


def functions_of(policy: Policy) -> tuple[UserFunction, ...]:
    """All functions of users in a policy."""
    rewards = () if policy.user_reward is None else (policy.user_reward,)
    return (*policy.user_rules, *rewards, *policy.user_bias)


class CompiledCode(NamedTuple):
    """The compiled functions of a policy; its record has which actions the rules have."""

    rules: tuple[CompiledFunction, ...]     # in the order of the policy
    reward: CompiledFunction | None
    bias: tuple[CompiledFunction | None, ...]   # one an action

    @property
    def cannot_fail(self) -> bool:
        """Whether no call of any of them can fail, whatever the features are."""
        return all(one.cannot_fail for one in (*self.rules, self.reward, *self.bias) if one)


def compiled(policy: Policy) -> CompiledCode:
    """A policy's functions as machine code; without any, Numba is not imported.

    Raises
    ------
    UserCodeError
        One of them does not compile.
    """
    bias_of = {one.action: one.compiled() for one in policy.user_bias}
    return CompiledCode(
        rules=tuple(one.compiled() for one in policy.user_rules),
        reward=policy.user_reward.compiled() if policy.user_reward else None,
        bias=tuple(bias_of.get(action) for action in Action),
    )
