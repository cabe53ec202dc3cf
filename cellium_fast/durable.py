"""`DurableFleet`: a fleet in a directory, which outlives its process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

from cellium_fast import __version__, _journal, _spans, checks, snapshot
from cellium_fast.directory import Directory, WriterLock
from cellium_fast.entries import FleetJournal
from cellium_fast.errors import InputError, JournalError, shown
from cellium_fast.fleet import Fleet
from cellium_fast.policy import Policy, Posterior
from cellium_fast.recovery import JournalFound, Recovered, Recovery
from cellium_fast.shutdown import goes_on, note_shut
from cellium_fast.state import FleetState

log = logging.getLogger(__name__)

COMPACT_BYTES = 2**28
MAX_SECONDS = 1e9
GENERATIONS = 2     # snapshots kept


class DurableFleet(Fleet):
    """A `Fleet` in a directory; made by `Fleet.open_durable`, which says what it promises.

    Attributes
    ----------
    directory
        Where it is.
    recovered
        How it came back.
    """

    directory: Path
    recovered: Recovered

    _files: Directory
    _writer: WriterLock
    _journal: FleetJournal
    _snapshots: list[int]       # numbers of those that are good, rising
    _compacting: _spans.Turn    # taken before the fleet's
    _is_compacting: bool

    def __init__(self, *arguments: object, **settings: object) -> None:
        raise TypeError(
            "a DurableFleet is in a directory: wanted Fleet.open_durable(directory, ...)"
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, threads: int | None = None) -> NoReturn:
        """Not there: what is loaded from a file is in no directory; use `Fleet.load`."""
        raise TypeError(
            "a DurableFleet is in a directory: wanted Fleet.open_durable(directory), or Fleet.load "
            "for a fleet that is in none"
        )

    @classmethod
    def _made(cls, **settings: Any) -> Self:
        """A fleet of these settings, which has no journal yet."""
        fleet = cls.__new__(cls)
        # A fork takes turns in the order of their making, and a compaction takes the fleet's.
        fleet._compacting, fleet._is_compacting = _spans.Turn(), False
        Fleet.__init__(fleet, **settings)
        return fleet

    @classmethod
    def _from_state(cls, state: FleetState, *, threads: int | None = None) -> Self:
        fleet = cls._made(
            seed=state.seed, policies=state.policies, pools=state.pools, threads=threads,
            max_sessions=state.max_sessions,
        )
        fleet._restore(state)
        return fleet

    def _begin(
        self, files: Directory, writer: WriterLock, settings: JournalSettings,
        recovered: Recovered, journal: JournalFound, snapshots: list[int],
    ) -> None:
        """Go on in this directory, with this journal."""
        self.directory, self.recovered = files.path, recovered
        self._files, self._writer, self._snapshots = files, writer, snapshots
        self._journal = self._stepper.journal = FleetJournal(
            journal.path, journal.number, journal.number + journal.entries, journal.end,
            settings.fsync, settings.fsync_interval,
        )
        if settings.fsync != "never" and journal.entries:
            self._journal.flush()       # what a process that was killed left to the system
        self._journal.set_bounds(
            self._lock, self._compact_when_due, settings.compact_bytes, settings.compact_seconds
        )

    # --- compacting ------------------------------------------------------------------------------
    def compact(self) -> None:
        """Write a snapshot and begin a new journal; files older than the snapshot before are gone.

        Other threads' calls wait while the state is copied, not while it is written. Does nothing
        if nothing changed since the last snapshot.

        Raises
        ------
        SnapshotError, JournalError
            The disk refused; nothing is lost, and the fleet goes on.
        ForkedError
            This process was forked from the one that opened the fleet.
        ReentryError
            A finalizer or signal handler called this within a call of the fleet.
        """
        # Not while waiting for another thread's compaction, which may wait for this very call.
        self._lock.run(self._journal.check)
        self._compacting.run(self._compact)

    def _compact(self) -> None:
        try:
            self._is_compacting = True
            self._write_snapshot()
        finally:
            self._is_compacting = False

    def _write_snapshot(self) -> None:
        self._journal.check()
        self._check_in_place()
        try:
            self._journal.flush()       # so that others need not wait for it
        except OSError as error:
            raise JournalError(
                self._journal.path, f"cannot be brought to the disk: {error.strerror}"
            ) from error
        rotated = self._lock.run(self._rotate)
        if rotated is None:
            return
        number, state = rotated
        try:
            snapshot.write(self._files.snapshot(number), state)
        finally:
            self._journal.renew_bounds()
        self._snapshots.append(number)
        self._drop_old()

    def _check_in_place(self) -> None:
        """JournalError if someone took the directory away, or let another writer into it."""
        try:
            in_place = self._writer.is_in_place() and self._journal.is_in_place()
        except OSError:
            in_place = False
        if not in_place:
            raise JournalError(
                self.directory, "its lock or journal was removed, renamed or replaced while this "
                "fleet had it open, so what is here may be of another fleet; nothing was written. "
                "Save this fleet elsewhere (Fleet.save), or put back what was here"
            )

    def _rotate(self) -> tuple[int, FleetState] | None:
        """In the fleet's turn: the state, and a new journal for what comes after it."""
        number = self._journal.number
        if number == self._snapshots[-1]:
            return None
        state = self._state()
        if number != self._journal.first:
            path = self._files.journal(number)
            try:
                self._rotate_to(path, number)
            except OSError as error:
                raise JournalError(path, f"cannot be written: {error.strerror}") from error
        return number, state

    def _rotate_to(self, path: Path, number: int) -> None:
        self._journal.sync()    # a new journal says that all before it is on the disk
        path.unlink(missing_ok=True)    # left by an attempt that failed
        try:
            _journal.create(path, number)
            self._files.sync()
            self._journal.rotate(path)
        except BaseException:
            if self._journal.first != number:   # an interrupt may come once it is in use
                with suppress(OSError):     # what stays, the next attempt removes
                    path.unlink()
            raise

    def _drop_old(self) -> None:
        """Remove what is older than the snapshot before the newest."""
        del self._snapshots[:-GENERATIONS]
        oldest = self._snapshots[0]
        try:
            for numbers, path_of in (
                (self._files.snapshots(), self._files.snapshot),
                (self._files.journals(), self._files.journal),
            ):
                for number in numbers:
                    if number < oldest:
                        path_of(number).unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s: an old file could not be removed: %s", self.directory, error)

    def _compact_when_due(self) -> None:
        """After a call that filled the journal: what that call did is done, whatever comes here."""
        if self._is_compacting:
            return      # another thread is at it, or this one, and a signal handler stepped
        try:
            self._compacting.run(self._compact_after, self._journal.first)
        except Exception:
            log.exception(
                "%s: the journal could not be compacted; it grows on, and will be tried again",
                self.directory,
            )
            self._journal.renew_bounds()

    def _compact_after(self, first: int) -> None:
        """Compact, unless another thread did so since the journal began after this entry."""
        if self._journal.first == first:
            self._compact()

    # --- the end ---------------------------------------------------------------------------------
    def shut(self) -> None:
        """End the fleet: its entries are on disk, the directory is free for another writer.

        Calls that change something raise JournalError from then on. Nothing needs it: whatever
        ends the process, the directory holds each call that returned. Shutting twice is fine.

        Raises
        ------
        JournalError
            The disk did not take all entries; the fleet is shut all the same.
        ReentryError
            A finalizer or signal handler called this within a call of the fleet, or while this
            thread compacts it; nothing changed.
        """
        self._lock.run(_nothing)    # as in `compact`
        self._compacting.run(self._shut)

    def _shut(self) -> None:
        try:
            if not self._journal.is_closed:
                self._lock.run(self._journal.close)
                note_shut(self._files, self._journal.path)
        finally:
            if self._journal.is_closed:
                self._writer.release()

    @property
    def is_shut(self) -> bool:
        """Whether `shut` was called, or this process was forked from the one that opened it."""
        return self._journal.is_closed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shut()

    def _go_on_in_child(self) -> None:
        super()._go_on_in_child()
        if self._journal is not None:       # else it is not open yet
            self._journal.detach()


def _nothing() -> None:
    pass


# --- opening -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class JournalSettings:
    """How a durable fleet writes its journal; checked."""

    fsync: str
    fsync_interval: float
    compact_bytes: int | None
    compact_seconds: float | None

    def __post_init__(self) -> None:
        if self.fsync not in _journal.FSYNC:
            raise InputError(
                f"fsync: wanted {', '.join(map(repr, _journal.FSYNC))}, got {shown(self.fsync)}"
            )
        checks.number("fsync_interval", self.fsync_interval, 0, MAX_SECONDS)
        if self.compact_bytes is not None:
            checks.whole_number("compact_bytes", self.compact_bytes, 1, 2**62)
        if self.compact_seconds is not None:
            checks.number("compact_seconds", self.compact_seconds, 0, MAX_SECONDS)


def open_directory(
    path: str | os.PathLike[str], settings: JournalSettings, *, seed: int | None,
    policies: Mapping[str, Policy | str] | None,
    pools: Sequence[str] | Mapping[str, Posterior] | None, max_sessions: int | None,
    threads: int | None,
) -> DurableFleet:
    """`Fleet.open_durable`."""
    try:
        files = Directory(path)
        _make(files.path)
        foreign = files.is_foreign()
    except OSError as error:
        raise JournalError(
            path, f"there cannot be a fleet here: {error.strerror or error}"
        ) from error
    if foreign:
        raise JournalError(
            files.path, "there are files here, and none of a fleet; wanted a directory of a "
            "durable fleet, an empty one or none"
        )
    given = Fleet(
        seed=0 if seed is None else seed, policies=policies, pools=pools, threads=1,
        max_sessions=max_sessions,
    )
    for policy in given.policies.values():
        policy.as_json()        # raises where a function of a user's has no import path
    writer = WriterLock(files)
    try:
        found = Recovery(files)
        found.run(lambda state: DurableFleet._from_state(state, threads=threads))
        fleet = found.fleet
        if not isinstance(fleet, DurableFleet):
            fleet = _new(files, found, DurableFleet._made(
                seed=given.seed, policies=given.policies, pools=given.pools, threads=threads,
                max_sessions=max_sessions,
            ))
            recovered, journal = Recovered(None), JournalFound(
                0, files.journal(0), end=_journal.HEADER_SIZE
            )
            snapshots = [0]
        else:
            _check_given(files, fleet, given, seed, policies, pools)
            recovered, journal, snapshots = _tidied(files, found)
        shut_here = goes_on(files, journal.path)
        fleet._begin(files, writer, settings, recovered, journal, snapshots)
        if recovered.snapshot is not None and not shut_here:
            fleet._lock.run(fleet._begin_sources_for_good)
    except OSError as error:
        writer.release()
        raise JournalError(
            error.filename or files.path, f"cannot be written: {error.strerror or error}"
        ) from error
    except BaseException:
        writer.release()
        raise
    return fleet


def _make(path: Path) -> None:
    """Make a directory that is not there, and those it is in; they are on disk."""
    missing = [one for one in (path, *path.parents) if not one.is_dir()]
    if missing:
        path.mkdir(parents=True)
    for made in reversed(missing):
        Directory(made.parent).sync()


def _new(files: Directory, found: Recovery, fleet: DurableFleet) -> DurableFleet:
    """Begin a directory: a journal, then the snapshot before it, so that none is without one."""
    if found.skipped:
        why = "; ".join(found.skipped.values())
        raise JournalError(files.path, f"no snapshot is good, and nothing was changed: {why}")
    journals = files.journals()
    # A crash before the first snapshot leaves no more than an empty journal.
    if journals and (
        journals != [0] or files.journal(0).stat().st_size > _journal.HEADER_SIZE
    ):
        raise JournalError(
            files.path, "there are journals here, but no snapshot that they begin with; put the "
            "snapshot back, or begin in another directory"
        )
    for path in (*files.temporary(), *map(files.journal, journals)):
        path.unlink()
    _journal.create(files.journal(0), 0)
    snapshot.write(files.snapshot(0), fleet._state())
    return fleet


def _tidied(files: Directory, found: Recovery) -> tuple[Recovered, JournalFound, list[int]]:
    """How the fleet came back, the journal to go on in, and the good snapshots."""
    damage = found.damage
    if damage is not None:
        raise JournalError(
            damage.path, f"{damage.problem}. Nothing was changed; `cellium-fast recover "
            f"{files.path}` says what is whole, and with --repair goes on with that", damage.end,
        )
    assert found.snapshot is not None
    _warn_of_another_version(files.snapshot(found.snapshot), found.entries)
    skipped = tuple((files.snapshot(number), why) for number, why in found.skipped.items())
    cut = found.tidy()
    good = [number for number in files.snapshots() if number <= found.snapshot]
    return (
        Recovered(files.snapshot(found.snapshot), found.entries, cut, skipped),
        found.journals[-1], good[-1:],
    )


def _warn_of_another_version(path: Path, entries: int) -> None:
    """Log if entries were replayed that another version of the package may have written."""
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        written_by = file.metadata().get("package_version")
    if entries and written_by != __version__:
        log.warning(
            "%s: cellium-fast %s wrote this, and %s replayed the %d entries since: where their "
            "formulas differ, so may what came out. Before an upgrade, compact and shut the fleet",
            path, written_by, __version__, entries,
        )


def _check_given(
    files: Directory, fleet: Fleet, given: Fleet, seed: int | None,
    policies: object | None, pools: object | None,
) -> None:
    """InputError if what was given cannot be meant for the fleet that is stored.

    What sessions may have learned under stands as it is stored, `Fleet.set_policy` changes it.
    """
    for name, asked, stored in (
        ("seed", seed, fleet.seed), ("max_sessions", given.max_sessions, fleet.max_sessions),
    ):
        if asked is not None and asked != stored:
            raise InputError(
                f"{name}: the fleet in {files.path} has {stored}, got {asked}; leave it out"
            )
    for kind, was_given, of_given, of_stored in (
        ("policies", policies is not None, given.policies, fleet.policies),
        ("pools", pools is not None, given.pools, fleet.pools),
    ):
        if not was_given or of_given == of_stored:
            continue
        if list(of_given) != list(of_stored):
            raise InputError(
                f"{kind}: the fleet in {files.path} has {', '.join(map(repr, of_stored))}, got "
                f"{', '.join(map(repr, of_given))}; leave them out"
            )
        differing = ", ".join(name for name in of_stored if of_given[name] != of_stored[name])
        log.warning(
            "%s: %s of other parameters were given than are stored, which stand: %s",
            files.path, kind, differing,
        )
