"""`cellium-fast recover`: whether the directory of a durable fleet is whole, and mending it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellium_fast.cli.output import (
    NOTHING_READ,
    AsJson,
    console,
    plain_path,
    print_json,
    printable,
    progress,
    refuse,
)

if TYPE_CHECKING:
    from rich.console import Console

    from cellium_fast.inspection import FileFound, Inspection

DAMAGED = 1

HELP = "\n\n".join((
    "Check the directory of a durable fleet: which files are whole, and what state they add up to.",
    "Nothing is changed without --repair, and nothing is ever deleted but what was being written "
    "when a process ended. Nobody may have the directory open.",
    "A torn end, the entry that was being written in a crash, is no damage: opening the fleet cuts "
    "it off and keeps it beside the journal. Nor is a bad snapshot, as long as the one before it "
    "and the journals since are good: these add up to the same state.",
    "--repair does the same now. Where a journal is damaged in the middle, or missing, the fleet "
    "cannot be opened: --repair then goes on with the state just before the damage. All from "
    "there on is put aside, in files beside the journal.",
    "Exit codes: 0 all is whole; 1 something is torn, left over, damaged or missing (with "
    "--repair: it was, and is mended now, unless stderr says that it cannot be); 2 wrong usage, "
    "no durable fleet, or in use.",
))


def recover_command(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Directory of a durable fleet.", readable=False)
    ],
    repair: Annotated[
        bool, typer.Option("--repair", help="Mend it; what is bad is put aside.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check a directory and print what it holds."""
    from cellium_fast.directory import Directory, WriterLock
    from cellium_fast.inspection import reading

    if not directory.is_dir():
        refuse(f"{directory}: there is no such directory")
    if not repair:
        with reading(directory):
            inspection = _inspected(directory)
        aside: list[Path] = []
    else:
        files = Directory(directory)
        if not (files.snapshots() or files.journals()):
            refuse(f"{directory}: there is no durable fleet here")
        lock = WriterLock(files)
        try:
            inspection = _inspected(directory)
            aside = _repaired(inspection)
        finally:
            lock.release()
    if as_json:
        print_json(_plain(directory, inspection, repair, aside))
    else:
        _print(console(), inspection, repair, aside)
    if not inspection.is_whole:
        raise typer.Exit(DAMAGED)


def _inspected(directory: Path) -> Inspection:
    from cellium_fast.inspection import inspect

    with progress("entries' bytes") as bar:
        task = bar.add_task("Replaying", total=None, count=0)
        try:
            return inspect(
                directory,
                lambda done, total: bar.update(task, completed=done, total=total, count=done),
            )
        except OSError as error:
            refuse(f"{error.filename or directory}: {error.strerror or error}", NOTHING_READ)


def _repaired(inspection: Inspection) -> list[Path]:
    if inspection.recovery.fleet is None:
        refuse(
            f"{inspection.recovery.directory.path}: no snapshot is good, so there is nothing to go "
            "on with; nothing was changed", NOTHING_READ,
        )
    try:
        return inspection.repair()
    except OSError as error:
        path = error.filename or inspection.recovery.directory.path
        refuse(f"{path}: {error.strerror or error}", NOTHING_READ)


# --- for machines --------------------------------------------------------------------------------
def _plain(
    directory: Path, inspection: Inspection, repair: bool, aside: list[Path]
) -> dict[str, Any]:
    return {
        "directory": plain_path(directory),
        "whole": inspection.is_whole,
        "can_open": inspection.can_open or repair,
        "repaired": repair and not inspection.is_whole,
        "put_aside": [plain_path(path) for path in aside],
        "snapshots": [_plain_file(file) for file in inspection.snapshots],
        "journals": [_plain_file(file) for file in inspection.journals],
        "left_over": [plain_path(path) for path in inspection.temporary],
        "state": _state(inspection),
    }


def _plain_file(file: FileFound) -> dict[str, Any]:
    plain = {
        "path": plain_path(file.path), "bytes": file.size, "used": file.is_used,
        "problem": file.problem,
    }
    if file.entries is None:
        return plain
    return {**plain, "entries": file.entries, "offset": file.offset, "torn": file.is_torn}


def _state(inspection: Inspection) -> dict[str, Any] | None:
    fleet = inspection.recovery.fleet
    if fleet is None:
        return None
    sessions = fleet._memory.sessions
    return {
        "entries": inspection.recovery.number,
        "replayed": inspection.recovery.entries,
        "sessions_open": len(fleet),
        "sessions_closed": fleet._memory.opened - len(fleet),
        "rounds_of_open_sessions": int(sessions["round"][sessions["flags"] != 0].sum()),
        "policies": list(fleet.policies),
        "pools": list(fleet.pools),
    }


# --- for people ----------------------------------------------------------------------------------
def _print(out: Console, inspection: Inspection, repair: bool, aside: list[Path]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("file", no_wrap=True)
    for header in ("bytes", "entries"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("found")
    for file in (*inspection.snapshots, *inspection.journals):
        entries = "" if file.entries is None else f"{file.entries:,}"
        table.add_row(printable(file.path.name), f"{file.size:,}", entries, _found(file))
    for path in inspection.temporary:
        table.add_row(printable(path.name), "", "", "left over: a process ended while writing it")
    out.print(table)
    out.print()
    state = _state(inspection)
    if state is None:
        out.print("There is no good snapshot, so no state.")
        return
    before = "" if inspection.can_open else " just before the damage"
    out.print(
        f"State{before}: {state['entries']:,} entries, {state['replayed']:,} of them since the "
        f"snapshot. Sessions: {state['sessions_open']:,} open, with "
        f"{state['rounds_of_open_sessions']:,} rounds; {state['sessions_closed']:,} closed."
    )
    out.print(_verdict(inspection, repair, aside))
    for path in aside:
        out.print(f"    {printable(path.name)}")


def _found(file: FileFound) -> str:
    if file.problem is None:
        return "good" if file.is_used else "good, not needed"
    if file.offset is None:
        return printable(file.problem)
    kind = "torn" if file.is_torn else "damaged"
    return printable(f"{kind} from byte {file.offset:,} on: {file.problem}")


def _verdict(inspection: Inspection, repair: bool, aside: list[Path]) -> str:
    if inspection.is_whole:
        return "All is whole."
    if repair:
        return f"Repaired. {'What was put aside:' if aside else 'Nothing had to be put aside.'}"
    if inspection.can_open:
        return "Nothing of the state is lost. Opening the fleet, or --repair, puts this in order."
    return (
        "The fleet cannot be opened as it is: --repair puts what is damaged, and all that comes "
        "after it, aside and goes on with the state above. A copy of the missing file is better."
    )
