"""What went wrong in a function of a user's, with its line and in a few words."""

from __future__ import annotations

import re
import traceback
from typing import Any

import numpy as np

from cellium_fast import _records, _step
from cellium_fast.errors import UserCodeError, shown
from cellium_fast.user_functions import RoundOutcome, UserFunction, definition_of

WANTED = {"@rule": "True or False", "@reward": "a number in [0, 1]", "@bias": "a number in [-1, 1]"}
LOWEST = {"@reward": 0.0, "@bias": -1.0}
LENGTH = 200        # characters of what someone else's message may add


# --- what a function may return -------------------------------------------------------------------
class Nonsense(Exception):
    """A function returned what it may not."""


def checked(source: UserFunction, value: Any) -> int | float:
    """What a function returned, as a number of Python's own; `Nonsense` if it may not."""
    kind = source.DECORATOR
    if kind == "@rule":
        fine = isinstance(value, bool | int | np.bool_ | np.integer) and value in (0, 1)
    else:
        numbers = bool | int | float | np.bool_ | np.integer | np.floating
        fine = isinstance(value, numbers) and bool(LOWEST[kind] <= value <= 1.0)
    if not fine:
        raise Nonsense(f"wanted {WANTED[kind]}, it returned {shown(value)}")
    return int(value) if kind == "@rule" else float(value)


def read(features: bytes, outcome: bytes | None = None) -> tuple[Any, ...]:
    """Packed records as the Python function takes them."""
    given = (_step.feature_record(features),)
    if outcome is None:
        return given
    return (*given, RoundOutcome._make(np.frombuffer(outcome, _records.ROUND_OUTCOME)[0].item()))


# --- what went wrong ------------------------------------------------------------------------------
def raised_error(source: UserFunction, problem: Exception) -> UserCodeError:
    """What to raise where a call has raised: with the line of the user's file that did."""
    own = source.function.__code__.co_filename
    frames = [one for one in traceback.extract_tb(problem.__traceback__) if one.filename == own]
    file, line = (own, frames[-1].lineno or 0) if frames else definition_of(source)
    said = f"raised {type(problem).__name__}: {problem}"
    error = UserCodeError(source.name, file, line, said[:LENGTH])
    error.__cause__ = problem
    return error


COLOURS = re.compile(r"\x1b\[[0-9;]*m")
RECORD = re.compile(r"cellium_fast\.(\w+)\(\w+\)")
# Messages of Numba, and how they say it to someone who does not know it.
IN_WORDS = (
    (r"Untyped global name '(\w+)': .*'cellium_fast\.user_functions\.\w+'",
     r"one decorated function cannot call another, here \1; put what both need into a function "
     r"decorated with numba.njit alone"),
    (r"Untyped global name '(\w+)': .*'function'",
     r"a plain Python function cannot be called, here \1; decorate it with numba.njit"),
    (r"Untyped (?:global|freevar) name '(\w+)': .*<class '(.+)'>",
     r"a global of this kind cannot be read, here \1, a \2; numbers, text, tuples and arrays can"),
    (r"No definition for lowering (\w+)\.(\w+) = .*", r"\1.\2 cannot be set"),
    (r"Use of unsupported opcode \(IMPORT_NAME\).*", "import at the top of the module instead"),
    (r"No implementation of function .*\n.*\n? *>>> exception_match\(\w+, (.*)\)",
     r"a particular exception cannot be caught, here \1; `except Exception` can"),
    (r"No implementation of function .*\n.*\n? *>>> (?:python_)?(.*)", r"there is no \1"),
)


def not_compiled(source: UserFunction, error: Exception) -> UserCodeError:
    """What to raise where Numba does not compile a function: the essence of what it says."""
    text = RECORD.sub(r"\1", COLOURS.sub("", str(error)))
    text = re.sub(r"^Failed in \w+ mode pipeline \(step: .*\)\n", "", text)
    essence = re.sub(r"\.+ Raised from .*", "", text.strip().partition("\n")[0])
    for pattern, words in IN_WORDS:
        found = re.match(pattern, text)
        if found:
            essence = found.expand(words)
            break
    if len(essence) > LENGTH:
        essence = essence[: LENGTH - 1] + "…"
    return UserCodeError(source.name, *_place(source, error, text), f"does not compile: {essence}")


def _place(source: UserFunction, error: Exception, text: str) -> tuple[str, int]:
    where = getattr(error, "loc", None)
    if where is not None and where.filename:
        return where.filename, where.line
    own = source.function.__code__.co_filename
    named = re.search(re.escape(own) + r" \((\d+)\)", text)
    return (own, int(named[1])) if named else definition_of(source)
