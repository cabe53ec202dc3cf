"""Recorded runs of agents, whatever recorded them: `read` a file, get its runs.

>>> from cellium_fast import traces
>>> for path in traces.find_files(["examples/runs"]):
...     for found in traces.read(path):
...         if isinstance(found, traces.Problem):
...             print(found)
...         else:
...             print(found.run, len(found.rounds), found.success)
address-change 9 False
two-books 5 True
hive-scale 11 None
kiln_curve.traj 12 None
sluice-7 8 None
sluice-8 5 True
rain_gauge 9 None
0 3 True
1 8 False
2 5 True
1/1 8 False
2/1 4 True

Formats are told by content, never by the name of the file. One more format is one more module:
see `cellium_fast.traces.reader`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cellium_fast.traces import (
    inspect_ai,
    intercode,
    mini_swe_agent,
    openai_chat,
    openhands,
    pi_mono,
    swe_agent,
)
from cellium_fast.traces.files import find_files, read_records
from cellium_fast.traces.reader import Reader, Record
from cellium_fast.traces.runs import COMPACTION, NO_EVENT, USER_MESSAGE, Problem, RecordedRun
from cellium_fast.traces.unsupported import unsupported_format

__all__ = [
    "COMPACTION",
    "NO_EVENT",
    "READERS",
    "USER_MESSAGE",
    "Detection",
    "Problem",
    "RecordedRun",
    "detect",
    "find_files",
    "read",
]

READERS: tuple[Reader, ...] = (
    swe_agent,
    intercode,
    inspect_ai,
    pi_mono,
    openhands,
    mini_swe_agent,
)
"""The readers of formats with marks of their own, in the order they are asked."""

LAST_READERS: tuple[Reader, ...] = (openai_chat,)
"""Asked after the known unsupported formats, since some of these pass for plain chat messages."""

_HEAD = 8  # records looked at for the format: the first may be a header, or broken


@dataclass(slots=True, frozen=True)
class Detection:
    """The format of a file.

    Parameters
    ----------
    name
        Name of the format; "unknown" if it is none of those known.
    reader
        The reader of it. ``None``: not supported.
    reason
        Why there is no reader; empty if there is one.
    """

    name: str
    reader: Reader | None
    reason: str = ""


def detect(path: str | os.PathLike[str]) -> Detection:
    """Tell the format of a file from its first records. An unreadable file is unknown."""
    detection, head, _ = _detect(read_records(Path(path)))
    if detection is not None:
        return detection
    problems = [found.why for found in head if isinstance(found, Problem)]
    return Detection("unknown", None, problems[0] if problems else "no records in it")


def read(path: str | os.PathLike[str]) -> Iterator[RecordedRun | Problem]:
    """Yield the runs of a file, in its order, and a problem for each thing wrong with it.

    Broken lines, records and messages are problems; all else in the file is read. A file of
    an unsupported format yields one problem that names it. Nothing in a file makes this raise.
    """
    path = Path(path)
    records = _Records(read_records(path))
    try:
        yield from _read(path, records)
    except Exception as error:  # a fault of ours; the file is named so that it can be reported
        fault = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        why = f"it could not be read from here on ({fault})"
        yield Problem(path, records.line, why)


class _Records:
    """The records of a file, and the line of the newest one."""

    def __init__(self, records: Iterable[Record | Problem]) -> None:
        self._records = iter(records)
        self.line: int | None = None

    def __iter__(self) -> Iterator[Record | Problem]:
        return self

    def __next__(self) -> Record | Problem:
        record = next(self._records)
        self.line = record.line
        return record


def _read(path: Path, records: Iterator[Record | Problem]) -> Iterator[RecordedRun | Problem]:
    detection, head, rest = _detect(records)
    if detection is None:
        yield from (found for found in head if isinstance(found, Problem))
    elif detection.reader is None:
        yield from (found for found in head if isinstance(found, Problem))
        yield Problem(path, None, f"unsupported format ({detection.name}): {detection.reason}")
    else:
        yield from detection.reader.read(path, chain(head, rest))


def _detect(
    records: Iterator[Record | Problem],
) -> tuple[Detection | None, list[Record | Problem], Iterator[Record | Problem]]:
    """Return the detection, the records used up for it, and the others.

    There is none if nothing in the file could be read: the problems say why.
    """
    head: list[Record | Problem] = []
    seen: list[Record] = []
    for record in records:
        head.append(record)
        if isinstance(record, Record):
            seen.append(record)
            detection = _detect_value(record.value)
            if detection is not None:
                return detection, head, records
            if len(seen) == _HEAD:
                break
    if not seen or all(record.partial for record in seen):
        return None, head, records
    return Detection("unknown", None, _describe(seen[0].value)), head, records


def _detect_value(value: Any) -> Detection | None:
    for reader in READERS:
        if reader.recognises(value):
            return Detection(reader.NAME, reader)
    unsupported = unsupported_format(value)
    if unsupported is not None:
        name, reason = unsupported
        return Detection(name, None, reason)
    for reader in LAST_READERS:
        if reader.recognises(value):
            return Detection(reader.NAME, reader)
    return None


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        keys = ", ".join(key[:40] for key in list(value)[:6])
        return f"no known kind of agent run: an object with the keys {keys or '(none)'}"
    if isinstance(value, list):
        return "no known kind of agent run: a list" if value else "an empty list: no runs in it"
    return "no known kind of agent run: a single value"
