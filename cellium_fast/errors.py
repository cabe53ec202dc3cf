"""The exceptions of the package: `CelliumError` and what it branches into.

Each message names the argument, what came, what is wanted and, where it helps, what to do.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any


def shown(value: object) -> str:
    """A value for a message: its repr, cut to 80 characters, whatever the value is.

    >>> shown("abc"), shown(10 ** 5000)
    ("'abc'", 'an int too long to print')
    """
    text = ""
    try:
        for part in _parts(value):
            text += part
            if len(text) >= SHOWN:
                break
    except ValueError:
        return f"an {type(value).__name__} too long to print"
    except Exception:  # a value's own __repr__ may do anything
        return f"a {type(value).__name__}"
    return text[:SHOWN]


SHOWN = 80      # characters
BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"), tuple: ("(", ")"), dict: ("{", "}"), set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}  # fmt: skip


def _parts(value: Any) -> Iterator[str]:
    """A value's repr, piece by piece: all of it may be longer than memory, of lists in lists."""
    kind: type = type(value)
    if kind not in BRACKETS or not value:
        yield repr(value)
        return
    opening, closing = BRACKETS[kind]
    yield opening
    for place, item in enumerate(value):
        yield ", " if place else ""
        yield from _parts(item)
        if kind is dict:
            yield ": "
            yield from _parts(value[item])
    yield f",{closing}" if kind is tuple and len(value) == 1 else closing


class CelliumError(Exception):
    """Base of every exception this package raises on purpose.

    All of them can be copied and pickled, so they get out of other processes.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        # Message and attributes as they are: constructors are not called with `args`, since what
        # they take is not what they hand on.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class InputError(CelliumError, ValueError):
    """An argument has a wrong type, shape, length or value. Nothing was changed."""


class PolicyError(InputError):
    """A policy or a policy file does not make sense; the message names the field.

    Attributes
    ----------
    problems
        Field and what is wrong with it, for each field that is wrong.
    """

    def __init__(self, message: str, problems: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class UserCodeError(CelliumError):
    """A function of a user's does not compile, has raised, or returned what it may not.

    Nothing was changed.

    Attributes
    ----------
    function
        Its name in the policy.
    filename, line
        Where: the line that raised or does not compile, or else the one where it is defined.
    """

    def __init__(self, function: str, filename: str, line: int, problem: str) -> None:
        super().__init__(f"{filename}:{line}: {function}: {problem}")
        self.function = function
        self.filename = filename
        self.line = line


class SessionError(InputError):
    """A session id is unknown, closed, or stands twice in one batch."""


class ReentryError(CelliumError, RuntimeError):
    """A fleet was called from within a call of its own, by a finalizer or a signal handler.

    Or inside the ``with`` of one of its blocks, see `Fleet.block`.
    """


class BlockError(CelliumError, RuntimeError):
    """A block of sessions is used outside its ``with``, or while another thread steps it."""


class MissingColumnError(CelliumError, AttributeError):
    """A column of `Decisions` that the step was not asked for."""


class UnknownNameError(CelliumError, LookupError):
    """A policy, preset or pool that does not exist."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        choices = ", ".join(map(repr, known))
        super().__init__(f"{kind}: there is none called {shown(name)}; there is {choices}")


class SnapshotError(CelliumError, ValueError):
    """A snapshot cannot be read as a whole, or not be written; the message says which and why.

    Attributes
    ----------
    path
        The file.
    reason
        ``"missing"``, ``"unreadable"`` or ``"unwritable"`` (the system said so), ``"truncated"``,
        ``"altered"`` (its checksum differs), ``"foreign"`` (something else, or of another kind of
        machine), ``"newer"`` (of a later version of this package), ``"code"`` (a function of a
        policy cannot be imported) or ``"impossible"`` (it says what no fleet can be).
    """

    def __init__(self, path: str | PathLike[str], reason: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = Path(path)
        self.reason = reason


class JournalError(CelliumError, RuntimeError):
    """A journal cannot be written, or holds damage that is not the torn end a crash leaves.

    Attributes
    ----------
    path
        The file, or the directory.
    offset
        Byte from which the file is not good; None where that is not the matter.
    """

    def __init__(
        self, path: str | PathLike[str], message: str, offset: int | None = None
    ) -> None:
        where = "" if offset is None else f" at byte {offset:,}"
        super().__init__(f"{path}{where}: {message}")
        self.path = Path(path)
        self.offset = offset


class DirectoryInUseError(CelliumError, RuntimeError):
    """The directory of a durable fleet already has a writer; one at a time can write it."""


class ForkedError(CelliumError, RuntimeError):
    """A durable fleet was called in a forked process: its journal belongs to the parent."""


class LearnedStateError(InputError):
    """An exported posterior does not make sense, or cannot be merged with another."""
