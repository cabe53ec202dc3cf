"""Replacing a file as a whole: after a crash there is the old one or the new one, never a part.

The new one is written beside it, brought to the disk, and then given its name. Meanwhile it is
locked, where the system has locks: one that is not, a crash left behind.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path

try:
    import fcntl
except ImportError:     # Windows, which does not delete what is open
    fcntl = None  # type: ignore[assignment]

BACKUP = ".bak"
TEMPORARY = re.compile(r"(?P<writer>.+\.tmp-\d+-[0-9a-f]{16})(\.bak)?")


class DirectoryNotSynced(OSError):
    """The new file has its name, but the system did not say that the disk knows."""


def backup_of(path: Path) -> Path:
    """Where the file that was here before is kept."""
    return path.with_name(path.name + BACKUP)


def opened(path: Path) -> FileIO:
    """A file to read from, not buffered; OSError for what is none: that may wait, or never end."""
    nowait = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = FileIO(os.open(path, os.O_RDONLY | nowait))
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is no file, but a pipe or a device", str(path))


def replace(path: Path, write: Callable[[int], None]) -> None:
    """Make a new file of this name; the one that had it is kept as `backup_of` it.

    `write` is called once with the descriptor of the new file. When this returns, the new file is
    on the disk, with the permissions of the old one. If it raises, what it had begun is gone and
    the old file is as it was; but with DirectoryNotSynced, an OSError, the new one is there.
    """
    path = Path(os.path.realpath(path))
    _remove_left_behind(path)
    temporary, descriptor = _create(path, _mode_of(path))
    try:
        try:
            write(descriptor)
            os.fsync(descriptor)
            _keep(path, temporary)
            if fcntl:       # locked until it has its name
                os.replace(temporary, path)
        finally:
            os.close(descriptor)
        if not fcntl:
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    try:
        _sync_directory(path.parent)
    except OSError as error:
        raise DirectoryNotSynced(
            error.errno,
            f"{error.strerror or error}: the new file is in place, but if the machine dies now the "
            "old one may be there again",
        ) from error


def _mode_of(path: Path) -> int | None:
    """Permissions of a file; None if there is none yet."""
    try:
        return stat.S_IMODE(os.stat(path).st_mode)
    except FileNotFoundError:
        return None


def _create(path: Path, mode: int | None) -> tuple[Path, int]:
    """A new file beside `path`, of a name that no other has had, and its descriptor; locked."""
    while True:
        # Processes in containers can have the same number.
        temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{os.urandom(8).hex()}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(temporary, flags, 0o666 if mode is None else mode)
        try:
            if not fcntl:
                return temporary, descriptor
            if mode is not None:        # whatever the umask takes from a new file
                os.fchmod(descriptor, mode)
            with suppress(OSError):     # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return temporary, descriptor
        except BaseException:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        os.close(descriptor)        # taken for one left behind, before it was locked


def _remove_left_behind(path: Path) -> None:
    """Remove what writers that have died began."""
    for name in os.listdir(path.parent):
        found = TEMPORARY.fullmatch(name)
        if not (found and name.startswith(f"{path.name}.tmp-")):
            continue
        left, writers = path.with_name(name), path.with_name(found["writer"])
        with suppress(OSError):     # gone meanwhile, or in use, or a file system without locks
            if not fcntl:
                left.unlink()
            elif left != writers and not writers.exists():
                left.unlink()       # the link for the backup is there no longer than its writer's
            else:
                with open(writers, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    left.unlink()


def _keep(path: Path, temporary: Path) -> None:
    """Keep a file as its backup, which is replaced as a whole too."""
    kept = temporary.with_name(temporary.name + BACKUP)
    try:
        try:
            _link(path, kept)
        except FileNotFoundError:
            return      # there is none yet
        os.replace(kept, backup_of(path))
    finally:
        kept.unlink(missing_ok=True)


def _link(path: Path, kept: Path) -> None:
    """Another name of a file; where the system has none, a copy. FileNotFoundError without one."""
    try:
        os.link(path, kept)
    except FileNotFoundError:
        raise
    except OSError:     # a file system without hard links, which may say so before it looks
        mode = stat.S_IMODE(os.stat(path).st_mode)
        kept.touch(mode=0o600)
        shutil.copyfile(path, kept)
        _sync(kept)
        kept.chmod(mode)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    if not fcntl:       # Windows cannot
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
