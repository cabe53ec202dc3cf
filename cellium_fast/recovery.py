"""What the files of a durable fleet add up to: the newest good snapshot, and the entries after it.

`Recovery` only reads; what it found out of order, `tidy` and `repair` put aside.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cellium_fast import _journal, _journal_reader, entries, snapshot
from cellium_fast.directory import Directory, free_name
from cellium_fast.errors import JournalError, SnapshotError
from cellium_fast.fleet import Fleet
from cellium_fast.state import FleetState

log = logging.getLogger(__name__)

MakeFleet = Callable[[FleetState], Fleet]
OnProgress = Callable[[int, int], None]     # bytes of journals read, and of all to be read


@dataclass(frozen=True, slots=True)
class Recovered:
    """How a durable fleet came back.

    Attributes
    ----------
    snapshot
        The file it was loaded from; None: the fleet is new.
    entries
        Entries of journals that were replayed since.
    bytes_cut
        Bytes of an entry that a crash had cut off, as they were cut off the journal; they are kept
        in a file beside it.
    skipped
        Newer snapshots that were not good, and why. They are kept under another name.
    """

    snapshot: Path | None
    entries: int = 0
    bytes_cut: int = 0
    skipped: tuple[tuple[Path, str], ...] = ()


@dataclass(slots=True)
class JournalFound:
    """A journal as it was found.

    Attributes
    ----------
    number, path, size
        Of the entry before its first; the file; its bytes, 0 if it is not there.
    entries
        Good ones from its beginning.
    end
        Byte where these end.
    problem
        What is wrong from there on, in words; None: nothing is.
    is_torn
        Whether that is no more than the torn end that a crash leaves.
    """

    number: int
    path: Path
    size: int = 0
    entries: int = 0
    end: int = 0
    problem: str | None = None
    is_torn: bool = False


class Recovery:
    """The state that a directory holds.

    Attributes
    ----------
    fleet
        In that state; without a journal. None: there is no good snapshot.
    number
        Of the newest entry in it.
    snapshot
        Number of the snapshot that it was loaded from.
    skipped
        Newer snapshots that are not good, by their number, and why.
    journals
        The journals it was replayed from, in this order; the last one may have a problem.
    beyond
        Journals that come after such a problem, and so cannot be replayed.
    left_over
        Journals that were begun in vain, by a compaction that came to nothing: they have no
        entries, and the one before went on.
    """

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.fleet: Fleet | None = None
        self.number = 0
        self.snapshot: int | None = None
        self.skipped: dict[int, str] = {}
        self.journals: list[JournalFound] = []
        self.beyond: list[int] = []
        self.left_over: list[int] = []

    @property
    def damage(self) -> JournalFound | None:
        """The journal with damage that is more than a torn end."""
        last = self.journals[-1] if self.journals else None
        return last if last is not None and last.problem and not last.is_torn else None

    @property
    def torn(self) -> JournalFound | None:
        """The journal with a torn end."""
        last = self.journals[-1] if self.journals else None
        return last if last is not None and last.is_torn else None

    @property
    def entries(self) -> int:
        """Entries replayed."""
        return sum(journal.entries for journal in self.journals)

    # --- reading ---------------------------------------------------------------------------------
    def run(self, make_fleet: MakeFleet, on_progress: OnProgress | None = None) -> None:
        """Load and replay.

        Raises
        ------
        SnapshotError
            A snapshot is of a newer version of this package, or a function cannot be imported.
        JournalError
            A journal, or an entry, is of a newer version, or of a machine of another byte order;
            or a function of a policy is not there, or not what it was.
        UserCodeError
            A function of a policy does not compile.
        """
        state = self._newest_good()
        if state is None or self.snapshot is None:
            return
        self.fleet = make_fleet(state)
        self.number = self.snapshot
        waiting = [number for number in self.directory.journals() if number >= self.number]
        progress = _Progress(
            sum(self.directory.journal(number).stat().st_size for number in waiting), on_progress
        )
        while not self.journals or (waiting and self.journals[-1].problem is None):
            found = self._replay(self.fleet, waiting, progress)
            self.journals.append(found)
            progress.done += found.end
            after = self._after(found, waiting)
            self.left_over += [
                number for number in waiting if number > found.number and number not in after
            ]
            waiting = after
        self.beyond = waiting
        for number in self.beyond:
            self.opened(number)

    def _newest_good(self) -> FleetState | None:
        for number in reversed(self.directory.snapshots()):
            try:
                state = snapshot.read(self.directory.snapshot(number))
            except SnapshotError as error:
                if error.reason in ("newer", "code"):   # the file may well be good
                    raise
                self.skipped[number] = str(error)
            else:
                self.snapshot = number
                return state
        return None

    def opened(self, number: int) -> _journal_reader.Entries:
        """A journal; JournalError if it is one that this package cannot read, but another can."""
        read = _journal_reader.Entries(self.directory.journal(number))
        if read.is_foreign:
            raise JournalError(read.path, f"{read.problem}. Nothing was changed")
        return read

    def _after(self, found: JournalFound, waiting: Sequence[int]) -> list[int]:
        """Those to be replayed after this one, which was: without those that are left over."""
        # The last number that one without entries can have, since its predecessor went on.
        passed = self.number - (found.problem is None)
        return [
            number for number in waiting if number > found.number and (
                number > passed
                or self.directory.journal(number).stat().st_size > _journal.HEADER_SIZE
            )
        ]

    def _replay(
        self, fleet: Fleet, waiting: Sequence[int], on_progress: Callable[[int], None]
    ) -> JournalFound:
        found = JournalFound(self.number, self.directory.journal(self.number))
        if self.number not in waiting:
            later = f", and there are later ones, from {waiting[0]} on" if waiting else ""
            found.problem = f"there is no such file{later}"
            return found
        read = self.opened(self.number)
        found.size, found.problem = read.size, read.problem
        if found.problem is not None:
            found.is_torn = read.is_blank and len(waiting) == 1
            return found
        if read.first != self.number:
            found.problem = f"it begins after entry {read.first}, which its name does not say"
            return found
        impossible = entries.replay(fleet, read, on_progress)
        if impossible is None:
            self.number, found.end, found.problem = read.number, read.end, read.problem
        else:
            self.number, found.end, found.problem = read.number - 1, read.start, impossible
        found.entries = self.number - found.number
        found.is_torn = read.problem is not None and not read.later and (
            not self._after(found, waiting)
        )
        return found

    # --- putting aside ---------------------------------------------------------------------------
    def tidy(self) -> int:
        """Leave what a crash left: cut off a torn end, remove temporary files and journals begun
        in vain, rename snapshots that are not good; returns the bytes cut off. Raises OSError.
        """
        for path in (*self.directory.temporary(), *map(self.directory.journal, self.left_over)):
            path.unlink()
        for number, why in self.skipped.items():
            aside = self.directory.put_aside(self.directory.snapshot(number), "bad")
            log.warning("%s; it is kept as %s, and the one before it was taken", why, aside.name)
        if self.torn is None:
            return 0
        torn = self.torn
        size, end = torn.size - torn.end, torn.end
        aside = self._cut(torn, "torn")
        log.warning(
            "%s: a crash cut off its last entry: %s. The %d bytes from %d on are kept as %s",
            torn.path, torn.problem, size, end, aside.name,
        )
        return size

    def repair(self) -> list[Path]:
        """`tidy`, and go on with what is whole: from damage on, all is put aside.

        Returns the files that hold what was put aside. Raises OSError.
        """
        before = set(os.listdir(self.directory.path))
        self.tidy()
        if self.damage is not None:
            self._cut(self.damage, "damaged")
        for number in self.beyond:
            self.directory.put_aside(self.directory.journal(number), "unreachable")
        self.beyond = []
        made = set(os.listdir(self.directory.path)) - before
        return sorted(
            self.directory.path / name for name in made if not name.endswith(".log")
        )

    def _cut(self, found: JournalFound, what: str) -> Path:
        """Keep a journal's good entries; returns the file that has the rest."""
        if found.end == 0:      # not even a header
            aside = free_name(found.path, what)
            if found.path.exists():
                os.rename(found.path, aside)
            _journal.create(found.path, found.number)
            found.end = _journal.HEADER_SIZE
        else:
            aside = free_name(found.path, what)
            with found.path.open("r+b") as file, aside.open("xb") as rest:
                file.seek(found.end)
                rest.write(file.read())
                rest.flush()
                os.fsync(rest.fileno())
                file.truncate(found.end)
                os.fsync(file.fileno())
        self.directory.sync()
        return aside


class _Progress:
    """Tells how much of several journals was read, by the place in one of them."""

    def __init__(self, total: int, told: OnProgress | None) -> None:
        self.done = 0
        self._total = total
        self._told = told

    def __call__(self, end: int) -> None:
        if self._told is not None:
            self._told(self.done + end, self._total)
