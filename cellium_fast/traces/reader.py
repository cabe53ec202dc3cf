"""What a reader of a format is.

A reader is a module of this package with the three names below; add it to `READERS` in
`cellium_fast.traces` and it is in use. A file is given to the first reader that recognises one
of its first records, so `recognises` looks for what only its format has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cellium_fast.traces.runs import Problem, RecordedRun


class Record(NamedTuple):
    """One JSON value of a file: a line of JSON Lines, or the whole of a JSON file.

    Parameters
    ----------
    value
        The value. Anything that JSON can express: nothing is promised about its shape.
    line
        The line it stands on, from 1. ``None``: it is the whole file.
    partial
        The file is cut off and `value` holds only the complete part; a problem says so already.
    """

    value: Any
    line: int | None = None
    partial: bool = False


class Reader(Protocol):
    """The names a reader module has."""

    NAME: str
    """Name of the format, for people."""

    def recognises(self, value: Any, /) -> bool:
        """Whether a record is of this format. Must not raise, whatever the value."""

    def read(
        self, path: Path, records: Iterator[Record | Problem], /
    ) -> Iterator[RecordedRun | Problem]:
        """Yield the runs of a file.

        Problems among the records are passed on. A record that cannot be read becomes a
        problem and the next one is taken: nothing in a file may make a reader raise.
        """
