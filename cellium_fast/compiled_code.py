"""Functions of users as machine code, by Numba; and what went wrong in one, in words.

A compiled function is called as Numba calls its own:
``int f(void* returned, void** error, const void* features[, const void* outcome])``. It gives 0 if
all went well, and has then written what it returned. Before a call that can fail, `returned` should
hold what no function may return, such as 8 bytes of 255: where a function runs as Python, an
interrupt may come between the last line of it and the writing.
"""

from __future__ import annotations

import ctypes
import re
import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError

from cellium_fast import _step
from cellium_fast.errors import UserCodeError, shown
from cellium_fast.feature_types import FEATURES, OUTCOME, ROUND_OUTCOME
from cellium_fast.user_code import RoundOutcome, UserFunction, UserReward, UserRule, definition_of

if TYPE_CHECKING:
    from numba.core.compiler import CompileResult

# What compiled code returns: one byte that is 0 or 1, eight bytes of an integer, or of a float.
BOOLEAN, INTEGER, FLOAT = 0, 1, 2
KINDS = {types.boolean: BOOLEAN, types.int64: INTEGER, types.float64: FLOAT}

WANTED = {"@rule": "True or False", "@reward": "a number in [0, 1]", "@bias": "a number in [-1, 1]"}
LOWEST = {"@reward": 0.0, "@bias": -1.0}


@dataclass(frozen=True, eq=False)
class CompiledFunction:
    """Machine code of a function; it lasts as long as this does.

    Attributes
    ----------
    address
        Where it begins.
    kind
        What it returns: 0 a boolean, 1 an int64, 2 a float64.
    cannot_fail
        Whether it gives a right value for all features there can be.
    raised
        As Python: what its newest call raised, if that failed.
    """

    source: UserFunction
    address: int
    kind: int
    cannot_fail: bool
    kept: object = field(repr=False)
    raised: list[BaseException] = field(default_factory=list, repr=False)


def compile_function(source: UserFunction) -> CompiledFunction:
    """Machine code of a function, from Numba's cache where that has it.

    With ``NUMBA_DISABLE_JIT=1``, a call of the Python function.

    Raises
    ------
    UserCodeError
        It does not compile, or returns what it may not.
    """
    if numba.config.DISABLE_JIT:
        return _interpreted(source)
    code = _machine_code(source)
    kind = KINDS.get(code.signature.return_type)
    if kind is None or (kind == FLOAT and isinstance(source, UserRule)):
        wanted = f"wanted {WANTED[source.DECORATOR]} on every path"
        returned = code.signature.return_type
        raise UserCodeError(
            source.name, *definition_of(source), f"{wanted}, it returns {_in_words(returned)}"
        )
    name = code.fndesc.llvm_func_name
    return CompiledFunction(
        source, code.library.get_pointer_to_function(name), kind,
        kind == BOOLEAN and _always_fine(code), code,
    )


def _in_words(kind: types.Type) -> str:
    if kind == types.none:
        return "nothing"
    if isinstance(kind, types.Optional):
        return f"{_in_words(kind.type)}, or nothing on some path"
    return {types.float64: "a float"}.get(kind, f"{kind!s:.80}")


def _machine_code(source: UserFunction) -> CompileResult:
    arguments = (FEATURES, OUTCOME) if isinstance(source, UserReward) else (FEATURES,)
    for cache in (True, False):
        try:
            # Called by address only, so without the wrappers that Python or C would call.
            dispatcher = numba.njit(
                source.function, cache=cache, error_model="python", no_cpython_wrapper=True,
                no_cfunc_wrapper=True,
            )
            dispatcher.compile(arguments)
            return dispatcher.overloads[arguments]
        except NumbaError as error:
            raise _not_compiled(source, error) from None
        except Exception:       # no place for a cache, or one that cannot be read or written
            if not cache:
                raise
    raise AssertionError("not reached")


def _always_fine(code: CompileResult) -> bool:
    """Whether the optimised code has no way to return anything but the status 0."""
    name = code.fndesc.llvm_func_name
    for function in code.library._get_module_for_linking().functions:
        if function.name == name:
            statuses = re.findall(r"^\s+ret i32 (\S+)", str(function), re.MULTILINE)
            return bool(statuses) and set(statuses) == {"0"}
    return False


def _not_compiled(source: UserFunction, error: NumbaError) -> UserCodeError:
    return UserCodeError(source.name, *definition_of(source), str(error))


# --- as Python ------------------------------------------------------------------------------------
def _interpreted(source: UserFunction) -> CompiledFunction:
    """The Python function in the place of compiled code; a call takes the GIL."""
    kind = INTEGER if isinstance(source, UserRule) else FLOAT
    number: Any = ctypes.c_int64 if kind == INTEGER else ctypes.c_double
    raised: list[BaseException] = []

    def call(returned: int, error: int, *addresses: int) -> int:
        try:
            value = source.function(*_arguments(*addresses))
            number.from_address(returned).value = _checked(source, value)
        except BaseException as problem:    # an interrupt too: nothing gets through C
            raised[:] = [problem]
            return 1
        return 0

    pointers = [ctypes.c_void_p] * (2 + len(source.PARAMETERS))
    callback = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers)(call)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    return CompiledFunction(source, address, kind, False, callback, raised)


def _arguments(features: int, outcome: int | None = None) -> tuple[Any, ...]:
    """What the Python function is called with, from the addresses of records."""
    return _read(
        ctypes.string_at(features, FEATURES.layout.itemsize),
        None if outcome is None else ctypes.string_at(outcome, ROUND_OUTCOME.itemsize),
    )


def _read(features: bytes, outcome: bytes | None) -> tuple[Any, ...]:
    given = (_step.feature_record(features),)
    if outcome is None:
        return given
    return (*given, RoundOutcome._make(np.frombuffer(outcome, ROUND_OUTCOME)[0].item()))


class _Nonsense(Exception):
    """A function returned what it may not."""


def _checked(source: UserFunction, value: Any) -> Any:
    """What a function returned, as Python's own number; `_Nonsense` if it may not."""
    kind = source.DECORATOR
    if kind == "@rule":
        fine = isinstance(value, bool | int | np.bool_ | np.integer) and value in (0, 1)
    else:
        numbers = bool | int | float | np.bool_ | np.integer | np.floating
        fine = isinstance(value, numbers) and bool(LOWEST[kind] <= value <= 1.0)
    if not fine:
        raise _Nonsense(f"wanted {WANTED[kind]}, it returned {shown(value)}")
    return int(value) if kind == "@rule" else float(value)


# --- what went wrong ------------------------------------------------------------------------------
def failure(
    function: CompiledFunction, features: bytes, outcome: bytes | None = None,
    returned: object = None,
) -> BaseException:
    """What to raise after a call failed, or returned what the function may not.

    The Python function is called again, with the same numbers, to find out what went wrong where.

    Parameters
    ----------
    function
        The one that was called.
    features, outcome
        The records it was called with; `outcome` for a reward.
    returned
        What it returned, if its status was 0.

    Returns
    -------
    BaseException
        A `UserCodeError`; or an interrupt, if that is what the call was ended by.
    """
    source = function.source
    interrupts = [one for one in function.raised if not isinstance(one, Exception)]
    if interrupts:
        return interrupts[0]
    place = definition_of(source)
    try:
        _checked(source, source.function(*_read(features, outcome)))
    except _Nonsense as problem:
        return UserCodeError(source.name, *place, str(problem))
    except Exception as problem:
        return _raised(source, problem)
    if function.raised:     # it does not always do the same
        return _raised(source, function.raised[0])
    if returned is not None:
        wanted = f"wanted {WANTED[source.DECORATOR]}, it returned {shown(returned)}"
        return UserCodeError(source.name, *place, f"{wanted} in compiled code, though not in Python")
    wanted = "failed in compiled code, though not in Python; whole numbers have 64 bits there"
    return UserCodeError(source.name, *place, wanted)


def _raised(source: UserFunction, problem: BaseException) -> UserCodeError:
    own = source.function.__code__.co_filename
    frames = [one for one in traceback.extract_tb(problem.__traceback__) if one.filename == own]
    file, line = (own, frames[-1].lineno or 0) if frames else definition_of(source)
    said = f"raised {type(problem).__name__}: {problem}"
    error = UserCodeError(source.name, file, line, f"{said:.200}")
    error.__cause__ = problem
    return error
