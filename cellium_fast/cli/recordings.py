"""What the commands that read recorded runs share: which files, and reading them with progress."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cellium_fast.cli.output import refuse

if TYPE_CHECKING:
    from rich.progress import Progress

    from cellium_fast.replay import PackedRuns
    from cellium_fast.traces import Problem, RecordedRun

RUNS_UNSHOWN = 100      # between two updates of the progress bar, in one file

Paths = Annotated[
    list[Path],
    # Whether a file can be read is found out by reading it: the others are read all the same.
    typer.Argument(metavar="PATH...", help="Files or directories of recordings.", readable=False),
]
Jobs = Annotated[
    int | None,
    typer.Option(
        min=1, max=10_000, metavar="N", show_default="the CPUs there are",
        help="Read by up to N processes where there is enough to read; the result is the same.",
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 2 if there was any problem in the files.")
]


def files_below(paths: Sequence[Path]) -> tuple[list[Path], int]:
    """Return the files to read, and how many others there are in the directories."""
    from cellium_fast.traces import find_files

    for path in paths:
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            refuse(f"{path}: there is no such file or directory")
        except OSError:     # reading it will name it and say why
            continue
    passed_over: set[Path] = set()
    files = find_files(paths, passed_over.add)
    return files, len(passed_over.difference(files))


@contextmanager
def no_collector() -> Iterator[None]:
    """Let nothing look for cycles: recordings have none, and it takes up to a fifth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def read(
    files: Sequence[Path],
    jobs: int,
    bar: Progress,
    *,
    limit: int | None = None,
    on_run: Callable[[RecordedRun], None] | None = None,
) -> Generator[RecordedRun | PackedRuns | Problem, None, None]:
    """Give what `read_files` yields, up to so many runs, and show how far it is.

    `on_run` is called with each run before it is packed; for a single job.
    """
    sizes = {file: os.path.getsize(file) if os.path.isfile(file) else 0 for file in files}
    task = bar.add_task("Reading", total=sum(sizes.values()), count=0)

    def show(runs: int, file: Path | None) -> None:
        bar.update(task, advance=sizes[file] if file else None, count=runs)

    return _read(files, jobs, show, limit, on_run)


def _read(
    files: Sequence[Path], jobs: int, show: Callable[[int, Path | None], None],
    limit: int | None, on_run: Callable[[RecordedRun], None] | None,
) -> Generator[RecordedRun | PackedRuns | Problem, None, None]:
    from cellium_fast.replay import read_files
    from cellium_fast.traces import Problem, RecordedRun

    runs = 0

    def after_file(file: Path) -> None:
        show(runs, file)

    for found in read_files(files, jobs, on_file=after_file):
        if not isinstance(found, Problem):
            runs += 1 if isinstance(found, RecordedRun) else len(found.runs)
            if runs % RUNS_UNSHOWN == 0:
                show(runs, None)
        if on_run is not None and isinstance(found, RecordedRun):
            on_run(found)
        yield found
        if runs == limit:
            return
