"""Functions of users as objects: `UserRule`, `UserReward` and `UserBias`, and how they are found.

What can be checked of a function by looking at it is checked when one is made. They are still the
function when they are called.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sys
from collections.abc import Callable
from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from cellium_fast import _rules
from cellium_fast._step import FeatureRecord
from cellium_fast.action import Action
from cellium_fast.errors import PolicyError, shown

if TYPE_CHECKING:
    from cellium_fast.compiled_code import CompiledFunction

Features = FeatureRecord    # what functions take, as annotations of users name it

NAME_LENGTH = 40        # characters
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

    function: Any       # of the type FunctionType
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
            raise refusal(function, f"name: {wanted}, got {shown(name)}")


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


# --- checks ---------------------------------------------------------------------------------------
def definition_of(function: Any) -> tuple[str, int]:
    """File and line where a function is defined: of its ``def``, not of a decorator."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return "unknown file", 0
    first: int = code.co_firstlineno
    for line in range(first, first + LONGEST_DECORATORS):
        if linecache.getline(code.co_filename, line).lstrip().startswith(("def ", "async def ")):
            return code.co_filename, line
    return code.co_filename, first


def where(function: Any) -> str:
    """File and line of a function, as messages say it."""
    file, line = definition_of(function)
    return f"{file}:{line}"


def refusal(function: Any, problem: str) -> PolicyError:
    """What to raise about a function: with its file, its line and its name."""
    name = getattr(function, "__name__", None) or shown(function)
    return PolicyError(f"{where(function)}: {name}: {problem}")


def _check_function(function: Any, decorator: str, parameters: tuple[str, ...]) -> None:
    if isinstance(function, UserFunction):
        raise refusal(function.function, f"is decorated twice, {decorator} the second time")
    if not isinstance(function, FunctionType):
        hint = "; leave out @njit, it is compiled anyhow" if hasattr(function, "py_func") else ""
        raise refusal(
            function, f"{decorator}: wanted a plain function, got a {type(function).__name__}{hint}"
        )
    code = function.__code__
    for flag, kind in NOT_PLAIN.items():
        if code.co_flags & flag:
            raise refusal(function, f"{decorator}: wanted a plain function, it is {kind}")
    kinds = {one.kind for one in inspect.signature(function).parameters.values()}
    positional = {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
    if code.co_argcount != len(parameters) or function.__defaults__ or kinds - positional:
        wanted = f"wanted ({', '.join(parameters)}) and no other parameter"
        raise refusal(function, f"{decorator}: {wanted}, got {inspect.signature(function)}")


def _check_name(name: object, function: Any) -> None:
    good = isinstance(name, str) and name.isascii() and name.isidentifier()
    if not good or len(str(name)) > NAME_LENGTH:
        wanted = f"wanted an identifier of at most {NAME_LENGTH} characters"
        raise refusal(function, f"name: {wanted}, got {shown(name)}")


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
    except (Exception, SystemExit) as error:    # a module's own code may raise anything
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
