"""The directory of a durable fleet: the names of its files, and who may write them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cellium_fast import checks
from cellium_fast.errors import DirectoryInUseError, JournalError

DIGITS = 12
SNAPSHOT = re.compile(r"snapshot-(\d{12,})\.safetensors")
JOURNAL = re.compile(r"journal-(\d{12,})\.log")
TEMPORARY = re.compile(r"(snapshot|journal)-\d{12,}\.(safetensors|log)\.tmp-.*")
LOCK, WRITER, SHUT = "lock", "writer", "shut"
LOST = "lost+found"     # in the root of a volume


class Directory:
    """Files of a durable fleet.

    ``snapshot-N`` is the state after the first N entries, ``journal-N`` has those from N + 1 on.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # Where it is now, whatever becomes the current directory; with `..` left to the system.
        self.path = checks.file_path("directory", path).absolute()

    def snapshot(self, number: int) -> Path:
        """Where the snapshot after so many entries is."""
        return self.path / f"snapshot-{number:0{DIGITS}}.safetensors"

    def journal(self, number: int) -> Path:
        """Where the entries after so many are."""
        return self.path / f"journal-{number:0{DIGITS}}.log"

    def snapshots(self) -> list[int]:
        """Numbers of the snapshots, rising."""
        return sorted(self._numbers(SNAPSHOT))

    def journals(self) -> list[int]:
        """Numbers of the journals, rising."""
        return sorted(self._numbers(JOURNAL))

    def temporary(self) -> list[Path]:
        """Files that were being written when a process ended."""
        return sorted(self.path / name for name in self._names() if TEMPORARY.fullmatch(name))

    def is_foreign(self) -> bool:
        """Whether there is something, and nothing of a fleet."""
        names = set(self._names()) - {LOCK, WRITER, SHUT, LOST}
        return bool(names) and not any(
            pattern.fullmatch(name) for name in names for pattern in (SNAPSHOT, JOURNAL, TEMPORARY)
        )

    def put_aside(self, path: Path, what: str) -> Path:
        """Rename a file to a name that no fleet reads, which is returned."""
        aside = free_name(path, what)
        os.rename(path, aside)
        self.sync()
        return aside

    def sync(self) -> None:
        """Have the names of the files on disk, where the system can."""
        if os.name == "nt":
            return
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _numbers(self, pattern: re.Pattern[str]) -> Iterator[int]:
        for name in self._names():
            found = pattern.fullmatch(name)
            if found and len(found[1]) == max(DIGITS, len(str(int(found[1])))):
                yield int(found[1])

    def _names(self) -> list[str]:
        return os.listdir(self.path)


def free_name(path: Path, what: str) -> Path:
    """``<path>.<what>-1``, or with the first number that is not taken."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.{what}-{number}")):
        number += 1
    return aside


class WriterLock:
    """Keeps a second writer out of a directory, in this process or another, while it is held.

    The system lets go of it when the process ends, however it ends; the file stays. A forked
    process does not hold it. `note`: whether to leave the number of this process in a file, for
    the error that others get.

    Raises
    ------
    DirectoryInUseError
        There is a writer.
    JournalError
        The directory cannot be written.
    """

    def __init__(self, directory: Directory, *, note: bool = True) -> None:
        from filelock import FileLock, Timeout

        self._writer = directory.path / WRITER
        self._noted = note
        self._process = os.getpid()
        self._lock = FileLock(directory.path / LOCK, timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise DirectoryInUseError(
                f"{directory.path}: {self._holder()} has this directory open; one at a time can "
                "write it. Shut the fleet there, or end that process"
            ) from None
        except OSError as error:
            raise JournalError(
                directory.path, f"it cannot be written: {error.strerror or error}"
            ) from error
        self._path = directory.path / LOCK
        self._opened = self._path.stat()
        if not note:
            return
        try:
            self._writer.write_text(f"{os.getpid()}\n")
        except OSError as error:
            self._lock.release()
            raise JournalError(
                self._writer, f"it cannot be written: {error.strerror or error}"
            ) from error

    def is_in_place(self) -> bool:
        """Whether the file of the lock is still that which was locked. Raises OSError."""
        return os.path.samestat(self._opened, self._path.stat())

    def release(self) -> None:
        """Let others write; nothing happens a second time, or in a forked process."""
        if os.getpid() != self._process or not self._lock.is_locked:
            return
        if self._noted:
            with suppress(OSError):     # the next writer replaces it
                self._writer.unlink()
        self._lock.release()

    def _holder(self) -> str:
        try:
            process = int(self._writer.read_text())
        except (OSError, ValueError):
            return "another process"
        return "this process" if process == os.getpid() else f"process {process}"
