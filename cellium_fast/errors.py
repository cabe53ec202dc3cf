"""The exceptions of the package: `CelliumError` and what it branches into.

Each message names the argument, what came, what is wanted and, where it helps, what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def shown(value: object) -> str:
    """A value for a message: its repr, cut to 80 characters, whatever the value is.

    >>> shown("abc"), shown(10 ** 5000)
    ("'abc'", 'an int too long to print')
    """
    try:
        return f"{value!r:.80}"
    except ValueError:
        return f"an {type(value).__name__} too long to print"
    except Exception:  # a value's own __repr__ may do anything
        return f"a {type(value).__name__}"


class CelliumError(Exception):
    """Base of every exception this package raises on purpose."""


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


class SessionError(InputError):
    """A session id is unknown, closed, or stands twice in one batch."""


class ReentryError(CelliumError, RuntimeError):
    """A fleet was called from within a call of its own, by a finalizer or a signal handler."""


class MissingColumnError(CelliumError, AttributeError):
    """A column of `Decisions` that the step was not asked for."""


class UnknownNameError(CelliumError, LookupError):
    """A policy, preset or pool that does not exist."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        choices = ", ".join(map(repr, known))
        super().__init__(f"{kind}: there is none called {shown(name)}; there is {choices}")
