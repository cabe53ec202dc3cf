"""What a reader hands back: a recorded run, or a problem with the file it was looked for in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cellium_fast.rounds import Round

NO_EVENT = 0
USER_MESSAGE = 1
COMPACTION = 2

_NAME_KEYS = (
    "run_id",
    "instance_id",
    "task_id",
    "id",
    "session_id",
    "conversation_id",
    "thread_id",
)
_ATTEMPT_KEYS = ("trial", "attempt", "epoch")


@dataclass(slots=True)
class RecordedRun:
    """One run of an agent, as a file recorded it.

    Parameters
    ----------
    source
        Name of the format, as `detect` gives it ("tau-bench" for chat files of that benchmark).
    path
        The file.
    run
        Name of the run, unique inside the file and meant for people: "9/2" is trial 2 of task 9.
    rounds
        The rounds, oldest first. May be empty: the agent never got to speak.
    events
        As long as `rounds`: what came just before the round; `USER_MESSAGE` for a real message
        of a person after the agent had begun, `COMPACTION` where the context was compacted,
        otherwise `NO_EVENT`.
    success
        Whether the run reached its goal, if the file says so.
    round_limit
        The number of rounds the run was allowed, if the file says so. For information.
    context_limit
        Size of the context window in tokens, if the file says so.
    """

    source: str
    path: Path
    run: str
    rounds: list[Round]
    events: list[int]
    success: bool | None = None
    round_limit: int | None = None
    context_limit: int | None = None


@dataclass(slots=True, frozen=True)
class Problem:
    """A file, or a part of it, that could not be read as it stands.

    Parameters
    ----------
    path
        The file.
    line
        The line, from 1. ``None``: the file as a whole, or a place that `why` names by its run.
    why
        What is wrong, for people.
    """

    path: Path
    line: int | None
    why: str

    def __str__(self) -> str:
        """Return "file:line: why"."""
        place = f"{self.path}" if self.line is None else f"{self.path}:{self.line}"
        return f"{place}: {self.why}"


@dataclass(slots=True)
class RunNames:
    """Names for the runs of one file, each given once."""

    path: Path
    _taken: dict[str, int] = field(default_factory=dict)

    def name(
        self, fields: Mapping[str, Any], line: int | None = None, item: int | None = None
    ) -> str:
        """Return a name from the fields of a run, or else from its place in the file."""
        for key in _NAME_KEYS:
            value = fields.get(key)
            if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
                return self.unique(str(value) + _attempt(fields))
        places = [f"line {line}"] if line is not None else []
        if item is not None:
            places.append(f"item {item}")
        return self.unique(", ".join(places) or self.path.stem)

    def unique(self, wanted: str) -> str:
        """Return the name wanted, with a number behind it if it was given before."""
        while True:
            count = self._taken.get(wanted, 0) + 1
            self._taken[wanted] = count
            if count == 1:
                return wanted
            wanted = f"{wanted}#{count}"


def _attempt(fields: Mapping[str, Any]) -> str:
    for key in _ATTEMPT_KEYS:
        value = fields.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return f"/{value}"
    return ""


@dataclass(slots=True)
class Complaints:
    """The faults found inside one run.

    A kind of fault is told once a run with its number: a file that breaks the same rule in
    every message would otherwise bury everything else.
    """

    _found: dict[str, tuple[int, int | None]] = field(default_factory=dict)

    def add(self, why: str, index: int | None = None) -> None:
        """Note a fault and the index of the message or step that has it, if it is one's."""
        count, first = self._found.get(why, (0, index))
        self._found[why] = (count + 1, first)

    def problems(
        self, path: Path, run: str, line: int | None, place: Callable[[int], str]
    ) -> Iterator[Problem]:
        """Yield one problem for each kind of fault noted; `place` words an index for people."""
        for why, (count, first) in self._found.items():
            where = "" if first is None else f", {place(first)}"
            more = "" if count == 1 else f" (and {count - 1} more like it)"
            yield Problem(path, line, f"run {run!r}{where}: {why}{more}")
