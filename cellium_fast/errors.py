"""The exceptions of the package: `CelliumError` and what it branches into.

Each message names the argument, what came, what is wanted and, where it helps, what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


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


class UnknownNameError(CelliumError, LookupError):
    """A policy, preset or pool that does not exist."""

    def __init__(self, kind: str, name: object, known: object) -> None:
        choices = ", ".join(repr(choice) for choice in known)  # type: ignore[attr-defined]
        super().__init__(f"{kind}: there is none called {name!r}; there is {choices or 'none'}")
