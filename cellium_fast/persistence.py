"""`Persistence`: what of a fleet outlives its process, see `docs/durability.md`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Literal, Self, cast

import numpy as np

from cellium_fast import _records, _step, arguments
from cellium_fast.changes import Changes
from cellium_fast.errors import LearnedStateError, shown
from cellium_fast.policy import Policy, Posterior
from cellium_fast.pool_history import PoolHistory
from cellium_fast.session import Session

if TYPE_CHECKING:
    from cellium_fast.durable import DurableFleet
    from cellium_fast.fleet import Fleet
    from cellium_fast.learned import LearnedPosterior
    from cellium_fast.state import FleetState


class Persistence(Changes):
    """Saving and loading a `Fleet`, opening one in a directory, what it learned on its own."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write all of the fleet into a file, a snapshot, from which `load` makes it again.

        The file is a safetensors file, see `docs/durability.md`. It takes the place of the one
        that is there, which stays beside it as ``<path>.bak``; whatever happens meanwhile, one of
        both is whole. When this returns, the file is on the disk. The state is copied between two
        calls of the fleet; while it is being written, other threads can go on.

        Raises
        ------
        SnapshotError
            The system refused to write; the message says whether the old file is still there, as
            it is unless the very last step failed.

        Examples
        --------
        >>> import tempfile
        >>> from pathlib import Path
        >>> from cellium_fast import Fleet, Round
        >>> fleet = Fleet(seed=7)
        >>> session = fleet.session("ticket")
        >>> decision = session.step(Round(text="Hello"))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     fleet.save(Path(directory) / "fleet.safetensors")
        ...     resumed = Fleet.load(Path(directory) / "fleet.safetensors")
        >>> resumed
        <Fleet of 1 sessions, policies default, pools default>
        """
        from cellium_fast import snapshot

        snapshot.write(path, self._lock.run(self._state))

    @classmethod
    def load(cls, path: str | PathLike[str], *, threads: int | None = None) -> Self:
        """The fleet that was saved: the same calls get the same decisions, bit for bit.

        What its pools learn from now on is told from what they learned before, so that what two
        fleets learned that were loaded from one file can be merged.

        Parameters
        ----------
        path
            A file written by `save`, of this version of the package or an older one.
        threads
            As for a new fleet.

        Raises
        ------
        SnapshotError
            There is no such file, or it is not whole, altered, of another kind, of a newer
            version, or says what no fleet can be: `reason` says which. It is left as it is. Where
            ``<path>.bak`` is good the message says so; nothing but `path` is ever loaded.
        InputError
            `threads` does not make sense.
        """
        from cellium_fast import snapshot

        fleet = cls._from_state(snapshot.read(path), threads=threads)
        fleet._begin_sources()      # another process may load the same file
        return fleet

    @classmethod
    def open_durable(
        cls,
        directory: str | PathLike[str],
        *,
        fsync: Literal["step", "interval", "never"] = "step",
        fsync_interval: float = 1.0,
        compact_bytes: int | None = 2**28,
        compact_seconds: float | None = None,
        seed: int | None = None,
        policies: Mapping[str, Policy | str] | None = None,
        pools: Sequence[str] | Mapping[str, Posterior] | None = None,
        max_sessions: int | None = None,
        threads: int | None = None,
    ) -> DurableFleet:
        """A fleet in a directory: whatever ends the process, each call that returned is kept.

        It goes on where the directory's fleet was, bit for bit; if there is none, it begins there.
        A call first appends what it is about to do to a journal, and each journal begins with a
        snapshot. `docs/durability.md` says more.

        Parameters
        ----------
        directory
            Made if it is not there; with files, but none of a fleet, it is refused. One process
            at a time can have it open.
        fsync
            What a crash of the machine, not only of the process, can take: ``"step"`` nothing, as
            each call waits for the disk; ``"interval"`` what was called within `fsync_interval`,
            or since the last call; ``"never"`` what the system had not yet written.
        fsync_interval
            Seconds, >= 0.
        compact_bytes, compact_seconds
            After a call that brings the journal to so many bytes, or comes so many seconds after
            the last time, that call writes a new snapshot, see `DurableFleet.compact`; None: size,
            or time, is no reason.
        seed, policies, pools, max_sessions
            Of a new fleet, as for `Fleet`. A stored fleet goes on with its own: another seed,
            number or name is refused, other parameters are logged and not taken.
        threads
            As for `Fleet`.

        Raises
        ------
        DirectoryInUseError
            Someone has it open; the message says which process.
        JournalError
            The directory cannot be written, or a journal is damaged, not only torn by a crash: the
            message names file and byte, ``cellium-fast recover`` says what is whole and mends it.
        SnapshotError
            A snapshot is of a newer version of this package, or the first one cannot be written.
        InputError, PolicyError, UnknownNameError
            An argument does not make sense, or not for the fleet that is stored.

        Examples
        --------
        >>> import tempfile
        >>> from cellium_fast import Fleet, Round
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with Fleet.open_durable(directory, seed=7) as fleet:
        ...         decision = fleet.session("ticket").step(Round(text="Hello"))
        ...     with Fleet.open_durable(directory) as again:
        ...         again.recovered.entries, len(again)
        (2, 1)
        """
        from cellium_fast.durable import JournalSettings, open_directory

        return open_directory(
            directory, JournalSettings(fsync, fsync_interval, compact_bytes, compact_seconds),
            seed=seed, policies=policies, pools=pools, max_sessions=max_sessions, threads=threads,
        )

    # --- what was learned, on its own ------------------------------------------------------------
    def export_posterior(self, pool: str | None = None) -> LearnedPosterior:
        """What a pool has learned, with its counts, to keep, to merge and to import elsewhere.

        Parameters
        ----------
        pool
            Its name; None: the fleet's first.

        Raises
        ------
        UnknownNameError
            There is no such pool.

        Examples
        --------
        >>> from cellium_fast import Fleet
        >>> fleet = Fleet(seed=7)
        >>> fleet.close(fleet.open(3), success=True)
        >>> learned = fleet.export_posterior()
        >>> learned.closed
        3
        >>> other = Fleet()
        >>> other.import_posterior(learned)
        >>> other.export_posterior() == learned
        True
        """
        from cellium_fast.learned import LearnedPosterior

        row = arguments.row_of("pool", pool, self._pools)
        name = list(self._pools)[row]
        record, history = self._lock.run(self._learned, row)
        return LearnedPosterior.of_pool(name, self._pools[name], record, history)

    def import_posterior(self, learned: LearnedPosterior, pool: str | None = None) -> None:
        """Replace what a pool has learned; the number of its closed sessions comes with it.

        Open sessions stay as they are, and what they have pending is still learned from.

        Parameters
        ----------
        learned
            From `export_posterior` or a file, with the prior and decay of the pool.
        pool
            Into which; None: the one of the name it was exported from.

        Raises
        ------
        LearnedStateError
            It is no `LearnedPosterior`, of another prior or decay, or of more than 1,000 sources,
            see `LearnedPosterior.as_ancestor`. Nothing was changed.
        UnknownNameError
            There is no such pool.
        """
        from cellium_fast.learned import LearnedPosterior, check_room

        if not isinstance(learned, LearnedPosterior):
            raise LearnedStateError(f"learned: wanted a LearnedPosterior, got {shown(learned)}")
        name = learned.pool if pool is None else pool
        row = arguments.place_of("pool", name, self._pools)
        if learned.settings != self._pools[name]:
            raise LearnedStateError(
                f"learned: its prior and decay are {learned.settings!r}, those of the pool "
                f"{name!r} {self._pools[name]!r}; wanted a fleet whose pool has the same: "
                f"Fleet(pools={{{name!r}: learned.settings}})"
            )
        check_room("import", len(learned.sources))
        record = np.zeros(1, _records.POOL)
        learned.fill(record[0])
        self._lock.run(self._set_pool, row, record, PoolHistory.begun(learned))

    def _begin_sources_for_good(self) -> None:
        """`_begin_sources`, with a journal: recovered from it, the fleet has the same ones."""
        for row, (name, settings) in enumerate(self._pools.items()):
            record = self._memory.pools[row : row + 1].copy()
            history = self._learned_from[name].continued(settings, record[0])
            self._set_pool(row, record, history)

    # --- the state of a fleet --------------------------------------------------------------------
    @classmethod
    @abstractmethod
    def _from_state(cls, state: FleetState, *, threads: int | None = None) -> Self:
        """A fleet in this state."""

    def _state(self) -> FleetState:
        from cellium_fast.state import FleetState

        sessions, free, posteriors = self._memory.state()
        choices, trials = self._memory.choices_made()
        return FleetState(
            seed=self._memory.seed,
            opened=self._memory.opened,
            sessions=sessions,
            free=free,
            policies=dict(self._policies),
            pools=dict(self._pools),
            posteriors=posteriors,
            tools=dict(self._names._tools),
            errors=dict(self._names._errors),
            forgotten=self._names.forgotten,
            handles=[handle._state() for handle in self._handles.values()],
            histories=dict(self._learned_from),
            max_sessions=self._max_sessions,
            calls=self._memory.calls,
            evicted=self._memory.evicted,
            last_use=self._memory.last_uses(),
            choices=choices,
            trials=trials,
        )

    def _restore(self, state: FleetState) -> None:
        """Be what another fleet was, of the same settings; this one is new."""
        self._memory.restore(state.opened, state.sessions, state.free, state.posteriors)
        self._memory.restore_uses(state.calls, state.evicted, state.last_use)
        self._memory.restore_choices(state.choices, state.trials)
        self._learned_from = dict(state.histories)
        self._names.restore(state.tools, state.errors, state.forgotten)
        self._memory.make_room_for_watched()
        for one in state.handles:
            slot = _step.slot_of(one.id)
            setting = self._settings[int(self._memory.sessions["policy"][slot])]
            handle = Session(cast("Fleet", self), one.id, one.name, one.tools, setting)
            handle._restore(one)
            self._memory.watched[slot] = True
            self._handles[one.id] = handle
