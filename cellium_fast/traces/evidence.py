"""What a recording says about outcomes: labels of runs, and errors in the text of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LABEL_KEYS = ("success", "resolved", "solved")

SHELL_ERRORS = (
    "bash: ",
    "/bin/bash: ",
    "/usr/bin/bash: ",
    "sh: ",
    "/bin/sh: ",
    "Traceback (most recent call last)",
    'File "',  # a Python syntax error, which comes without the word Traceback
    "Error:",
    "ERROR:",
    "error:",
    "fatal: ",
)
"""How the output of a command begins that a shell, an interpreter or git could not carry out."""

_FIRST_LINE_ENDS = (
    ": command not found",
    ": No such file or directory",
    ": Permission denied",
    ": Is a directory",
    ": Not a directory",
)


def success_label(fields: Mapping[str, Any]) -> bool | None:
    """Return whether a run succeeded by its own fields: a verdict, or a reward of 0 or 1."""
    for key in _LABEL_KEYS:
        verdict = _zero_or_one(fields.get(key))
        if verdict is not None:
            return verdict
    return _zero_or_one(fields.get("reward"))


def full_reward(reward: Any) -> bool | None:
    """Return whether a reward is the full 1, within rounding; unknown if it is no number."""
    if not isinstance(reward, int | float) or reward != reward:
        return None
    return abs(reward - 1) <= 1e-6


def _zero_or_one(value: Any) -> bool | None:
    return value == 1 if isinstance(value, int | float) and value in (0, 1) else None


def is_error_text(text: str, starts: tuple[str, ...]) -> bool:
    """Whether the output of a command says at its start that the command failed.

    Only the start is looked at: further down an output quotes files, logs and tests, in which
    the same words say nothing about the command.
    """
    text = text.lstrip() if text[:1].isspace() else text
    if text.startswith(starts):
        return True
    end = text.find("\n")
    end = len(text) if end < 0 else end
    # Windows line ends and terminals leave a carriage return before the line feed.
    return text.endswith(_FIRST_LINE_ENDS, 0, end - text.startswith("\r", end - 1))


def command_error(code: int, output: str) -> bool | str:
    """Whether the exit code of a command says that it failed; a text where it printed nothing.

    1 with nothing printed is none: so ends a search that finds nothing, or a test that is false.
    """
    if code == 0 or (code == 1 and not output.strip()):
        return False
    return True if output.strip() else f"exit code {code}"
