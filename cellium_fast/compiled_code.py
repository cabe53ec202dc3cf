"""Functions of users as machine code, by Numba; and what is wrong when a call of one fails.

A compiled function is called as Numba calls its own:
``int f(void* returned, void** error, const void* features[, const void* outcome])``. It gives 0 if
all went well, and has then written what it returned. Before a call that can fail, `returned` should
hold what no function may return, such as 8 bytes of 255: where a function runs as Python, an
interrupt may come between the last line of it and the writing.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.core.errors import NumbaError
from xxhash import xxh3_64_hexdigest

from cellium_fast.errors import UserCodeError, shown
from cellium_fast.feature_types import FEATURES, OUTCOME, RecordType
from cellium_fast.python_arithmetic import UserCompiler
from cellium_fast.user_failures import (
    WANTED,
    Nonsense,
    checked,
    not_compiled,
    raised_error,
    read,
)
from cellium_fast.user_functions import UserFunction, UserRule, definition_of

# What compiled code returns: one byte that is 0 or 1, eight bytes of an integer, or of a float.
BOOLEAN, INTEGER, FLOAT = 0, 1, 2
KINDS = {types.boolean: BOOLEAN, types.int64: INTEGER, types.float64: FLOAT}

CONSTANTS = (bool, int, float, complex, str, bytes, tuple, np.generic, type(None))


@dataclass(frozen=True, eq=False)
class CompiledFunction:
    """Machine code of a function; it lasts as long as this does.

    Attributes
    ----------
    source
        The function.
    address
        Where its code begins.
    kind
        What it returns: 0 a boolean, 1 an int64, 2 a float64.
    cannot_fail
        Whether it returns what it may, whatever the features are.
    kept
        What the code lives in.
    raised
        If it runs as Python: what its newest failed call raised.
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
    if numba.config.DISABLE_JIT:        # type: ignore[attr-defined]
        return _interpreted(source)
    dispatcher, code = _machine_code(source)
    returned = types.unliteral(code.signature.return_type)
    kind = KINDS.get(returned)
    if kind is None or (kind == FLOAT and isinstance(source, UserRule)):
        wanted = f"wanted {WANTED[source.DECORATOR]} on every path"
        raise UserCodeError(
            source.name, *definition_of(source), f"{wanted}, it returns {_in_words(returned)}"
        )
    address = code.library.get_pointer_to_function(code.fndesc.llvm_func_name)
    cannot_fail = kind == BOOLEAN and _always_fine(code)
    return CompiledFunction(source, address, kind, cannot_fail, dispatcher)


def _in_words(returned: types.Type) -> str:
    if returned == types.none:
        return "nothing"
    if isinstance(returned, types.Optional):
        return f"{_in_words(returned.type)}, or nothing on some path"
    return {"float64": "a float", "bool": "a bool"}.get(str(returned), f"{returned!s:.80}")


def _machine_code(source: UserFunction) -> tuple[Any, Any]:
    """Numba's dispatcher of a function, and what it compiled."""
    records = (FEATURES, OUTCOME)[: len(source.PARAMETERS)]
    depends = digest_of(source.function)
    arguments = tuple(RecordType(one.called, one.layout, depends) for one in records)
    options: dict[str, Any] = {
        # Called by address only, so without the wrappers that Python or C would call.
        "no_cpython_wrapper": True, "no_cfunc_wrapper": True,
        "error_model": "python", "pipeline_class": UserCompiler,
    }
    for cache in (True, False):
        try:
            dispatcher: Any = numba.njit(source.function, cache=cache, **options)
            dispatcher.compile(arguments)
            return dispatcher, dispatcher.overloads[arguments]
        except NumbaError as error:
            raise not_compiled(source, error) from error
        except Exception as error:      # no place for a cache, or one that cannot be used
            if not cache:
                raise not_compiled(source, error) from error
    raise AssertionError("not reached")


def _always_fine(code: Any) -> bool:
    """Whether the optimised code has no way to return anything but the status 0."""
    name = code.fndesc.llvm_func_name
    for function in code.library._get_module_for_linking().functions:
        if function.name == name:
            statuses = re.findall(r"^\s+ret i32 (\S+)", str(function), re.MULTILINE)
            return bool(statuses) and set(statuses) == {"0"}
    return False


# --- what the code of a function depends on -------------------------------------------------------
def digest_of(function: FunctionType) -> str:
    """A digest of the constants and helpers that a function reads, wherever they are defined.

    Numba's cache goes by the file and the bytecode of a function alone, and would give old code
    where a constant from another module is a different one now.
    """
    return xxh3_64_hexdigest("\n".join(_dependencies(function, set())).encode())


def _dependencies(function: FunctionType, seen: set[int]) -> Iterator[str]:
    if id(function) in seen:
        return
    seen.add(id(function))
    names = sorted(set(_names(function.__code__)))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    values = {name: function.__globals__[name] for name in names if name in function.__globals__}
    values |= {name: cell.cell_contents for name, cell in cells}
    for name, value in values.items():
        if isinstance(value, ModuleType):
            for attribute in names:
                yield from _dependency(
                    f"{name}.{attribute}", getattr(value, attribute, value), seen
                )
        yield from _dependency(name, value, seen)


def _dependency(name: str, value: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(value, CONSTANTS):
        yield f"{name} = {value!r}"
    elif isinstance(value, np.ndarray):
        yield f"{name} = {value.dtype} {value.shape} {xxh3_64_hexdigest(value.tobytes())}"
    elif isinstance(getattr(value, "py_func", None), FunctionType):     # compiled by Numba
        code = value.py_func.__code__
        yield f"{name} = {code.co_code!r} {code.co_consts!r}"
        yield from _dependencies(value.py_func, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


# --- as Python ------------------------------------------------------------------------------------
def _interpreted(source: UserFunction) -> CompiledFunction:
    """The Python function in the place of compiled code; a call takes the GIL."""
    kind = INTEGER if isinstance(source, UserRule) else FLOAT
    number: Any = ctypes.c_int64 if kind == INTEGER else ctypes.c_double
    raised: list[BaseException] = []

    def call(returned: int, error: int, *addresses: int) -> int:
        try:
            records = zip(addresses, (FEATURES, OUTCOME), strict=False)
            packed = [ctypes.string_at(one, record.layout.itemsize) for one, record in records]
            number.from_address(returned).value = checked(source, source.function(*read(*packed)))
        except BaseException as problem:    # an interrupt too: nothing gets through C
            raised[:] = [problem]
            return 1
        return 0

    pointers = [ctypes.c_void_p] * (2 + len(source.PARAMETERS))
    callback = ctypes.CFUNCTYPE(ctypes.c_int32, *pointers)(call)
    address = ctypes.cast(callback, ctypes.c_void_p).value or 0
    return CompiledFunction(source, address, kind, False, callback, raised)


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
        A `UserCodeError`; or an interrupt, if that is what ended the call.
    """
    source = function.source
    raised = function.raised.pop() if function.raised else None
    if raised is not None and not isinstance(raised, Exception):
        return raised
    problem: Exception | None = None
    try:
        checked(source, source.function(*read(features, outcome)))
    except Exception as error:
        problem = error
    if problem is None and raised is not None:      # it does not always do the same
        problem = raised
    if isinstance(problem, Nonsense):
        return UserCodeError(source.name, *definition_of(source), str(problem))
    if problem is not None:
        return raised_error(source, problem)
    what = "failed" if returned is None else f"returned {shown(returned)}"
    wanted = f"{what} in compiled code, though not in Python; wanted {WANTED[source.DECORATOR]}"
    hint = "whole numbers have 64 bits there"
    return UserCodeError(source.name, *definition_of(source), f"{wanted}: {hint}")
