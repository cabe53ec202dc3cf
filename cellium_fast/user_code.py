"""`rule`, `reward` and `bias`: functions of users that take part in a policy.

The decorators check what can be checked of a function by looking at it, and make a `UserRule`,
`UserReward` or `UserBias` of it. What they make is still the function when it is called. Numba
compiles it when a fleet first gets a policy that has it: see `cellium_fast.compiled_code`.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, overload

from pydantic import AfterValidator, PlainSerializer, PlainValidator

from cellium_fast import _rules
from cellium_fast.action import Action
from cellium_fast.errors import PolicyError, shown
from cellium_fast.parameters import refused, said

if TYPE_CHECKING:
    from cellium_fast.compiled_code import CompiledFunction
    from cellium_fast.policy import Policy

MAX_USER_RULES = 16     # of a policy
NAME_LENGTH = 40        # characters
REASON_LENGTH = 80      # characters
PATH_LENGTH = 500       # characters of an import path
IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
LONGEST_DECORATORS = 50     # lines

NOT_PLAIN = {
    inspect.CO_COROUTINE: "async", inspect.CO_ASYNC_GENERATOR: "async",
    inspect.CO_GENERATOR: "a generator",
}


class RoundOutcome(NamedTuple):
    """What a reward function gets beside the features: how the round went.

    In compiled code, numbers of the same names; see `cellium_fast.compiled_code`.
    """

    reward: float           # [0, 1]: what the policy's own formula gives
    success: int            # 1 or 0: as told, or else whether the last call had no error
    told: int               # 1 or 0: success as the round tells it; -1 = it does not
    calls: int              # in the round
    decision_stuck: int     # stuck iterations as the last decision saw them


# --- the objects ----------------------------------------------------------------------------------
class UserFunction:
    """A function of a user's that takes part in a policy; frozen, and equal to itself alone.

    Attributes
    ----------
    function
        The plain Python function.
    name
        What decisions, explanations and messages call it.
    """

    DECORATOR: ClassVar[str]
    PARAMETERS: ClassVar[tuple[str, ...]] = ("features",)

    function: FunctionType
    name: str
    _compiled: CompiledFunction | None

    def __init__(self, function: Callable[..., Any], name: str, **attributes: object) -> None:
        _check_function(function, self.DECORATOR, self.PARAMETERS)
        _check_name(name, function)
        vars(self).update(
            function=function, name=name, _compiled=None, __wrapped__=function,
            __module__=function.__module__, __qualname__=function.__qualname__,
            __doc__=function.__doc__, **attributes,
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{self!r} is frozen, {name} cannot be set; decorate it anew")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{self!r} is frozen, {name} cannot be deleted")

    def __call__(self, *arguments: Any) -> Any:
        """What the plain Python function gives."""
        return self.function(*arguments)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return found, (self.import_path, type(self))

    @property
    def import_path(self) -> str:
        """``"package.module:name"``, by which files name it, and by which it is found again.

        Raises
        ------
        PolicyError
            No import path leads to this very object.
        """
        path = f"{self.function.__module__}:{self.function.__qualname__}"
        what, fix = f"{self.DECORATOR} {self.name} ({where(self.function)})", ""
        if "<" in path:
            fix = "it is defined within a function; define it at the top of a module"
        else:
            try:
                if found(path, type(self)) is not self:
                    fix = f"{path} leads to another one; give each its own name in the module"
            except PolicyError as error:
                fix = f"{error}; keep it under the name it was defined with"
        if fix:
            raise PolicyError(f"{what}: wanted a function that can be imported again: {fix}")
        return path

    def compiled(self) -> CompiledFunction:
        """The function as machine code; compiled when first asked for.

        Raises
        ------
        UserCodeError
            It does not compile, or returns what it may not.
        """
        if self._compiled is None:
            from cellium_fast.compiled_code import compile_function

            vars(self)["_compiled"] = compile_function(self)
        return self._compiled       # type: ignore[return-value]


class UserRule(UserFunction):
    """A rule of a user's: what `rule` makes.

    Attributes
    ----------
    actions
        What it proposes when it fires, or the one action it forces.
    forces
        Whether it forces.
    reason
        In a few words, why: for prompts and explanations.
    """

    DECORATOR = "@rule"

    actions: tuple[Action, ...]
    forces: bool
    reason: str

    def __init__(
        self, function: Callable[..., Any], name: str, actions: tuple[Action, ...], forces: bool,
        reason: str,
    ) -> None:
        super().__init__(function, name, actions=actions, forces=forces, reason=reason)
        if name in _rules.RULES:
            wanted = "wanted a name that no built-in rule has"
            raise _refusal(function, f"name: {wanted}, got {shown(name)}")


class UserReward(UserFunction):
    """A reward of a user's: what `reward` makes."""

    DECORATOR = "@reward"
    PARAMETERS = ("features", "outcome")


class UserBias(UserFunction):
    """A bias of a user's: what `bias` makes.

    Attributes
    ----------
    action
        The arm whose draw it is added to.
    """

    DECORATOR = "@bias"

    action: Action

    def __init__(self, function: Callable[..., Any], name: str, action: Action) -> None:
        super().__init__(function, name, action=action)


# --- the decorators -------------------------------------------------------------------------------
Actions = str | int | Iterable[str | int]
Function = Callable[..., Any]


def rule(
    function: None = None, /, *, proposes: Actions | None = None, forces: str | int | None = None,
    name: str | None = None, reason: str | None = None,
) -> Callable[[Function], UserRule]:
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
        raise _refusal(function, "wanted @rule(proposes=...) or @rule(forces=...), got @rule alone")

    def made(function: Function) -> UserRule:
        called = _name_of(function, name)
        if (proposes is None) == (forces is None):
            got = "neither" if proposes is None else "both"
            raise _refusal(function, f"@rule: wanted one of proposes and forces, got {got}")
        argument, given = ("forces", forces) if proposes is None else ("proposes", proposes)
        actions = _actions_of(function, argument, given)
        if argument == "forces" and len(actions) != 1:
            raise _refusal(function, f"forces: wanted one action, got {shown(forces)}")
        reason_given = _reason_of(function, called, reason)
        return UserRule(function, called, actions, argument == "forces", reason_given)

    return made


@overload
def reward(function: Function, /) -> UserReward: ...


@overload
def reward(function: None = None, /, *, name: str | None = None) -> Callable[
    [Function], UserReward
]: ...


def reward(
    function: Function | None = None, /, *, name: str | None = None
) -> UserReward | Callable[[Function], UserReward]:
    """Make a reward of a function of a round's features and its outcome.

    The function gives a number in [0, 1]. It stands in for the formula of the policy; a reward that a round itself tells stands. `name` is
    the function's if left out. `RoundOutcome` says what the outcome has.

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
    def made(function: Function) -> UserReward:
        return UserReward(function, _name_of(function, name))

    return made if function is None else made(function)


def bias(action: str | int, /, *, name: str | None = None) -> Callable[[Function], UserBias]:
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
        raise _refusal(action, 'wanted @bias("redirect") or another action, got @bias alone')

    def made(function: Function) -> UserBias:
        try:
            arm = Action.parse(action)
        except (ValueError, TypeError) as error:
            raise _refusal(function, f"@bias: action: {error}") from None
        return UserBias(function, _name_of(function, name), arm)

    return made


def _actions_of(function: Function, argument: str, given: Any) -> tuple[Action, ...]:
    several = [given] if isinstance(given, str | int) else given
    try:
        actions = {Action.parse(action) for action in several}
    except (ValueError, TypeError) as error:
        raise _refusal(function, f"@rule: {argument}: {error}") from None
    if not actions:
        raise _refusal(function, f"@rule: {argument}: wanted at least one action, got none")
    return tuple(sorted(actions))


def _name_of(function: Any, name: object) -> Any:
    return getattr(function, "__name__", None) if name is None else name


def _reason_of(function: Function, name: object, reason: object) -> str:
    from cellium_fast.explain import safe_text

    if reason is None:
        lines = (inspect.getdoc(function) or "").splitlines()
        reason = (lines[0].rstrip(". ") if lines else "") or str(name).replace("_", " ")
    elif not isinstance(reason, str) or not 1 <= len(reason.strip()) <= REASON_LENGTH:
        wanted = f"wanted text of 1 to {REASON_LENGTH} characters, got {shown(reason)}"
        raise _refusal(function, f"reason: {wanted}")
    return safe_text(reason, REASON_LENGTH)


# --- checks ---------------------------------------------------------------------------------------
def definition_of(function: Any) -> tuple[str, int]:
    """File and line where a function is defined: of its ``def``, not of a decorator."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return "unknown file", 0
    first: int = code.co_firstlineno
    for line in range(first, first + LONGEST_DECORATORS):
        if linecache.getline(code.co_filename, line).lstrip().startswith("def "):
            return code.co_filename, line
    return code.co_filename, first


def where(function: Any) -> str:
    """File and line of a function, as messages say it."""
    file, line = definition_of(function)
    return f"{file}:{line}"


def _refusal(function: Any, problem: str) -> PolicyError:
    name = getattr(function, "__name__", None) or shown(function)
    return PolicyError(f"{where(function)}: {name}: {problem}")


def _check_function(function: Any, decorator: str, parameters: tuple[str, ...]) -> None:
    if isinstance(function, UserFunction):
        raise _refusal(function.function, f"is decorated twice, {decorator} the second time")
    if not isinstance(function, FunctionType):
        hint = "; leave out @njit, it is compiled anyhow" if hasattr(function, "py_func") else ""
        raise _refusal(
            function, f"{decorator}: wanted a plain function, got a {type(function).__name__}{hint}"
        )
    code = function.__code__
    for flag, kind in NOT_PLAIN.items():
        if code.co_flags & flag:
            raise _refusal(function, f"{decorator}: wanted a plain function, it is {kind}")
    kinds = {one.kind for one in inspect.signature(function).parameters.values()}
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    if code.co_argcount != len(parameters) or function.__defaults__ or kinds - positional:
        wanted = f"wanted ({', '.join(parameters)}) and no other parameter"
        raise _refusal(function, f"{decorator}: {wanted}, got {inspect.signature(function)}")


def _check_name(name: object, function: FunctionType) -> None:
    good = isinstance(name, str) and name.isascii() and name.isidentifier()
    if not good or len(str(name)) > NAME_LENGTH:
        wanted = f"wanted an identifier of at most {NAME_LENGTH} characters"
        raise _refusal(function, f"name: {wanted}, got {shown(name)}")


# --- import paths ---------------------------------------------------------------------------------
Kind = TypeVar("Kind", bound=UserFunction)


def found(path: str, kind: type[Kind]) -> Kind:
    """What an import path leads to; its module is imported.

    Raises
    ------
    PolicyError
        It leads nowhere, or to something of another kind.
    """
    if len(path) > PATH_LENGTH or not IMPORT_PATH.fullmatch(path):
        raise PolicyError(f'wanted an import path such as "package.module:name", got {shown(path)}')
    module, _, names = path.partition(":")
    try:
        one: Any = sys.modules.get(module) or import_module(module)
    except Exception as error:      # a module's own code may raise anything
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = "; is it installed, or its directory in PYTHONPATH?"
        said_by_it = f"{type(error).__name__}: {error}"
        raise PolicyError(f"{path}: cannot import {module}: {said_by_it:.200}{hint}") from error
    for name in names.split("."):
        try:
            one = getattr(one, name)
        except AttributeError:
            raise PolicyError(f"{path}: there is no {name} in {module}") from None
    if not isinstance(one, kind):
        wanted = f"wanted a function decorated with {kind.DECORATOR}"
        raise PolicyError(f"{path}: {wanted}, got {shown(one)}")
    return one


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
    if len(rules) > MAX_USER_RULES:
        raise refused(f"wanted at most {MAX_USER_RULES} rules", len(rules))
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


def user_functions(policy: Policy) -> tuple[UserFunction, ...]:
    """All functions of users in a policy."""
    rewards = () if policy.user_reward is None else (policy.user_reward,)
    return (*policy.user_rules, *rewards, *policy.user_bias)


class CompiledCode(NamedTuple):
    """The compiled functions of a policy, as kernels are given them."""

    rules: tuple[CompiledFunction, ...]     # in the order of the policy
    reward: CompiledFunction | None
    bias: tuple[CompiledFunction | None, ...]   # one an action
    action_rules: tuple[int, ...]   # one an action: mask of the rules that have it, bit = place
    forcing: int                    # mask of the rules that force

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
    masks = tuple(
        sum(1 << place for place, one in enumerate(policy.user_rules) if action in one.actions)
        for action in Action
    )
    return CompiledCode(
        rules=tuple(one.compiled() for one in policy.user_rules),
        reward=policy.user_reward.compiled() if policy.user_reward else None,
        bias=tuple(bias_of.get(action) for action in Action),
        action_rules=masks,
        forcing=sum(1 << place for place, one in enumerate(policy.user_rules) if one.forces),
    )
