"""What is in the directory of a durable fleet, file by file, and what it adds up to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cellium_fast import snapshot
from cellium_fast.directory import LOCK, Directory, WriterLock
from cellium_fast.errors import JournalError, SnapshotError
from cellium_fast.fleet import Fleet
from cellium_fast.recovery import OnProgress, Recovery


@dataclass(frozen=True, slots=True)
class FileFound:
    """A snapshot or a journal.

    Attributes
    ----------
    path, size
        Where; its bytes.
    is_used
        Whether the state rests on it.
    entries
        Good entries from the beginning of a journal; None for a snapshot.
    problem
        What is wrong, in words; None: nothing is.
    offset
        Byte from which on a journal is not good.
    is_torn
        Whether that is no more than the torn end that a crash leaves.
    """

    path: Path
    size: int
    is_used: bool
    entries: int | None = None
    problem: str | None = None
    offset: int | None = None
    is_torn: bool = False


@dataclass(frozen=True, slots=True)
class Inspection:
    """A directory and its state.

    Attributes
    ----------
    snapshots, journals
        The files, the oldest first; journals that are missing among them.
    temporary
        Files that were being written when a process ended.
    recovery
        How the state came about; `recovery.fleet` has it.
    """

    snapshots: list[FileFound]
    journals: list[FileFound]
    temporary: list[Path]
    recovery: Recovery

    @property
    def is_whole(self) -> bool:
        """Whether nothing is wrong with any file that counts, and nothing was left behind."""
        return self.can_open and not any(
            file.problem for file in (*self.snapshots, *self.journals)
        ) and not self.temporary

    @property
    def can_open(self) -> bool:
        """Whether `Fleet.open_durable` can go on with it."""
        return self.recovery.fleet is not None and self.recovery.damage is None

    def repair(self) -> list[Path]:
        """`Recovery.repair`, and put aside what is bad and not needed; returns all put aside."""
        aside = self.recovery.repair()
        for file in (*self.snapshots, *self.journals):
            if file.problem is not None and not file.is_used and file.path.exists():
                aside.append(self.recovery.directory.put_aside(file.path, "bad"))
        return sorted(aside)


def inspect(
    path: str | os.PathLike[str], on_progress: OnProgress | None = None
) -> Inspection:
    """Read all of a directory; nothing is changed. Nobody may write it meanwhile, see `reading`.

    Raises
    ------
    JournalError
        There is no durable fleet, or a journal, or an entry, is of a newer version of this
        package, or of a machine of another byte order.
    SnapshotError
        A snapshot is of a newer version of this package.
    OSError
        A file cannot be read.
    """
    files = Directory(path)
    if not files.path.is_dir() or not (files.snapshots() or files.journals()):
        raise JournalError(files.path, "there is no durable fleet here")
    recovery = Recovery(files)
    recovery.run(lambda state: Fleet._from_state(state, threads=1), on_progress)
    return Inspection(
        [_snapshot(recovery, number) for number in files.snapshots()],
        list(_journals(recovery)), files.temporary(), recovery,
    )


def _snapshot(recovery: Recovery, number: int) -> FileFound:
    path = recovery.directory.snapshot(number)
    problem = recovery.skipped.get(number)
    is_used = number == recovery.snapshot
    if problem is None and not is_used:
        try:
            snapshot.read(path)
        except SnapshotError as error:
            if error.reason == "newer":
                raise
            problem = str(error)
    if problem is not None:
        problem = problem.removeprefix(f"{path}: ")
    return FileFound(path, path.stat().st_size, is_used, problem=problem)


def _journals(recovery: Recovery) -> Iterator[FileFound]:
    used = {journal.number: journal for journal in recovery.journals}
    for number in sorted({*recovery.directory.journals(), *used}):
        if number in used:
            found = used[number]
            yield FileFound(
                found.path, found.size, True, found.entries, found.problem,
                None if found.problem is None else found.end, found.is_torn,
            )
            continue
        if number in recovery.left_over:
            path = recovery.directory.journal(number)
            yield FileFound(
                path, path.stat().st_size, False, 0,
                "left over: a compaction began it, and came to nothing",
            )
            continue
        read = recovery.opened(number)
        for _ in read:
            pass
        problem, offset = read.problem, None if read.problem is None else read.end
        if problem is None and number in recovery.beyond:
            problem = "it comes after the damage, and cannot be replayed without what is missing"
        yield FileFound(
            Path(read.path), read.size, False, max(read.number - number, 0), problem, offset
        )


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Keep writers out without leaving a trace; DirectoryInUseError if there is one."""
    if not (Path(path) / LOCK).exists():        # nobody ever wrote here, or it was copied
        yield
        return
    try:
        lock = WriterLock(Directory(path), note=False)
    except JournalError:        # which cannot be written, by nobody
        yield
        return
    try:
        yield
    finally:
        lock.release()
