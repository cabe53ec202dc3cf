"""Recorded runs as columns, and many files read into them, by several processes if that pays.

Packing hashes texts: what is left of a run is small, and quick to hand from process to process.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cellium_fast import checks, traces
from cellium_fast.arguments import MAX_TOKENS
from cellium_fast.errors import InputError
from cellium_fast.rounds import CALL_COLUMNS, ROUND_COLUMNS, RoundBatch
from cellium_fast.traces.runs import COMPACTION, Problem, RecordedRun
from cellium_fast.traces.workers import in_order

# Runs are packed once they have this many rounds, each run counted as one more: fewer and longer
# arrays, and few rounds kept as objects.
CHUNK_SIZE = 1_024
# One more process pays from about so many bytes: it takes a while to start.
BYTES_A_PROCESS = 128 << 20
# Files are given out together up to this size: each hand-over takes a while as well.
BATCH_BYTES = 2 << 20
MAX_JOBS = 10_000


@dataclass(slots=True, frozen=True)
class RunName:
    """Where a run was recorded: format, file, and its name in the file."""

    source: str
    path: Path
    run: str

    def __str__(self) -> str:
        """Return "path:run"."""
        return f"{self.path}:{self.run}"


@dataclass(slots=True)
class RunFacts:
    """What is known of a recorded run beside its rounds.

    Parameters
    ----------
    success
        Whether the run reached its goal, if the recording says so.
    context_limit
        Tokens; 0: unknown.
    length
        The number of rounds.
    """

    name: RunName
    success: bool | None
    context_limit: int
    length: int


@dataclass(slots=True)
class PackedRuns:
    """Recorded runs as columns: `rounds` has those of all `runs`, run after run."""

    runs: list[RunFacts]
    rounds: RoundBatch

    def part(self, start: int, end: int) -> PackedRuns:
        """The runs [start, end)."""
        if (start, end) == (0, len(self.runs)):
            return self
        first = sum(run.length for run in self.runs[:start])
        rows = slice(first, first + sum(run.length for run in self.runs[start:end]))
        offsets = call_offsets(self.rounds)[rows.start : rows.stop + 1]
        calls = slice(offsets[0], offsets[-1])
        columns = {name: getattr(self.rounds, name)[calls] for name in CALL_COLUMNS}
        columns |= {name: getattr(self.rounds, name)[rows] for name in ROUND_COLUMNS}
        return PackedRuns(self.runs[start:end], RoundBatch(
            call_offsets=offsets - offsets[0], tools=self.rounds.tools,
            errors=self.rounds.errors, **columns,
        ))


def call_offsets(rounds: RoundBatch) -> NDArray[np.int64]:
    """The offsets of a batch that was made of rounds, and so has them."""
    assert rounds.call_offsets is not None
    return rounds.call_offsets


def packed(
    found: Iterable[RecordedRun | PackedRuns | Problem],
) -> Iterator[PackedRuns | Problem]:
    """Pack recorded runs, about `CHUNK_SIZE` rounds at a time, in order; pass on all else."""
    waiting: list[RecordedRun] = []
    size = 0
    for one in found:
        if isinstance(one, RecordedRun):
            waiting.append(one)
            size += 1 + len(one.rounds)
            if size < CHUNK_SIZE:
                continue
        elif isinstance(one, Problem):
            yield one
            continue
        yield from pack_together(waiting)
        waiting, size = [], 0
        if isinstance(one, PackedRuns):
            yield one
    yield from pack_together(waiting)


def pack_together(runs: list[RecordedRun]) -> Iterator[PackedRuns | Problem]:
    """Pack some runs. One that no session can take becomes a problem."""
    if not runs:
        return
    try:
        facts = [_facts(run) for run in runs]
        rounds = [round for run in runs for round in run.rounds]
        events = [event for run in runs for event in run.events]
        batch = RoundBatch.from_rounds(rounds)
        batch.event = _event_column(events)
        yield PackedRuns(facts, batch)
    except InputError as error:
        if len(runs) == 1:
            yield Problem(runs[0].path, None, f"run {runs[0].run!r}: {error}")
        else:
            for run in runs:
                yield from pack_together([run])


def _facts(run: RecordedRun) -> RunFacts:
    if type(run.events) is not list or len(run.events) != len(run.rounds):
        checks.array("events", run.events, np.uint8, (len(run.rounds),))
    limit = 0
    if run.context_limit:
        limit = checks.whole_number("context_limit", run.context_limit, -MAX_TOKENS, MAX_TOKENS)
    name = RunName(run.source, run.path, run.run)
    # A limit of zero or less: unknown.
    return RunFacts(name, run.success, max(limit, 0), len(run.rounds))


def _event_column(events: list[Any]) -> NDArray[np.uint8]:
    # Plain numbers, which readers give, need not be looked at one by one.
    if set(map(type, events)) == {int} and min(events) >= 0 and max(events) <= COMPACTION:
        return np.array(events, np.uint8)
    return checks.array("events", events, np.uint8, (len(events),))


def read_files(
    files: Iterable[str | os.PathLike[str]],
    jobs: int = 1,
    *,
    on_file: Callable[[Path], None] | None = None,
) -> Iterator[RecordedRun | PackedRuns | Problem]:
    """Read many files for `replay`, in their order; what is decided does not depend on `jobs`.

    Parameters
    ----------
    files
        As `cellium_fast.traces.find_files` gives them.
    jobs
        At most so many processes read and pack files side by side. They are fewer where there is
        little to read, and this process reads everything itself for 1, for less than 256 MiB or
        where something is no file on disk. A file is read by one process. A script that
        asks for several begins its work below ``if __name__ == "__main__":``, as
        `multiprocessing` demands. Of errors that differ only in what `mask_volatile` folds,
        explanations may quote another one.
    on_file
        Called after each file, once all that was found in it was taken.

    Raises
    ------
    InputError
        `jobs` is no number from 1.
    ChildProcessError
        A process ended before it was done; ``filename`` names what it read.

    Examples
    --------
    >>> from cellium_fast.replay import replay
    >>> from cellium_fast.traces import find_files
    >>> replay(read_files(find_files(["examples/runs"]), jobs=2)).rounds
    87
    """
    checks.whole_number("jobs", jobs, 1, MAX_JOBS)
    return _read_files([Path(file) for file in files], jobs, on_file or (lambda file: None))


def _read_files(
    files: list[Path], jobs: int, on_file: Callable[[Path], None]
) -> Iterator[RecordedRun | PackedRuns | Problem]:
    batches = _batches(files)
    jobs = min(jobs, len(batches), sum(batch.size for batch in batches) // BYTES_A_PROCESS)
    if jobs <= 1 or any(map(_is_of_this_process, files)):
        for file in files:
            yield from traces.read(file)
            on_file(file)
        return
    for batch, found in zip(batches, in_order(_read_batch, batches, jobs), strict=True):
        yield from found
        for file in batch.files:
            on_file(file)


@dataclass(slots=True)
class _Batch:
    """Files read by one process in one go, so that small ones are worth the way to it."""

    files: list[Path] = field(default_factory=list)
    size: int = 0

    def __str__(self) -> str:
        first, last = self.files[0], self.files[-1]
        return f"{first}" if first == last else f"{first} to {last}"


def _batches(files: list[Path]) -> list[_Batch]:
    batches: list[_Batch] = []
    for file in files:
        if not batches or batches[-1].size >= BATCH_BYTES:
            batches.append(_Batch())
        batches[-1].files.append(file)
        batches[-1].size += os.path.getsize(file) if os.path.isfile(file) else 0
    return batches


def _is_of_this_process(file: Path) -> bool:
    # Another process has another stdin, and not the pipes that this one was given.
    return file.is_fifo() or os.path.abspath(file).startswith(("/dev/", "/proc/"))


def _read_batch(batch: _Batch) -> list[PackedRuns | Problem]:
    gc.disable()    # recordings have no cycles, and the search takes up to a fifth of the time
    return list(packed(chain.from_iterable(map(traces.read, batch.files))))
