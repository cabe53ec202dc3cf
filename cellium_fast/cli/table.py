"""What `cellium-fast replay` prints when it is done: a table, and the runs to look at closer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellium_fast.cli.output import console, printable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console
    from rich.table import Table

    from cellium_fast.replay import ReplayedRun, ReplayResult, Summary

    Named = list[tuple[str, list[str]]]         # rows or columns: a name, and cells

RUNS_LISTED = 5         # below the table

OUTCOMES = {True: "succeeded", False: "failed", None: "unlabelled"}

HEADERS = (
    "runs", "rounds", "suc-\nceeded", "failed", "unla-\nbelled", "retry", "redi-\nrect",
    "com-\npress", "termi-\nnate", "first", "after\ntermi-\nnate", "after\nredi-\nrect",
)
LEGEND = (
    "retry .. terminate: runs in which it was decided at least once.",
    "first: median round of a run's first decision other than continue, over runs that had one.",
    "after terminate: rounds recorded after a round that decided terminate, up to the next user "
    "message. Under control they would not have been run.",
    "after redirect: the same for redirect. Under control they would have gone another way.",
)


def by_outcome(result: ReplayResult) -> dict[str, Summary]:
    """Return a summary for each recorded outcome."""
    from cellium_fast.replay import summarise

    return {
        name: summarise(run for run in result.runs if run.success is success)
        for success, name in OUTCOMES.items()
    }


def rate(rounds: int, seconds: float) -> float:
    """Return rounds a second."""
    return rounds / seconds if seconds else 0.0


def files_line(files: int, passed_over: int) -> str:
    """Say how many files were read, and which were not if there are such."""
    from cellium_fast.traces.files import SUFFIXES

    if files and not passed_over:
        return f"Files: {files:,}."
    return (
        f"Files: {files:,}, passed over: {passed_over:,} (in directories {', '.join(SUFFIXES)} "
        "files are looked at, unless hidden)."
    )


def print_result(result: ReplayResult, files: int, passed_over: int) -> None:
    """Print the table and what belongs to it on stdout."""
    out = console()
    _print_table(out, _sections(result))
    out.print("", *LEGEND, sep="\n")
    _print_examples(out, result)
    out.print(
        f"\n{counts_line(result, files, passed_over)}\n"
        f"{rate(result.rounds, result.loop_seconds):,.0f} rounds/s in the control loop, "
        f"{rate(result.rounds, result.seconds):,.0f} rounds/s with reading."
    )


def counts_line(result: ReplayResult, files: int, passed_over: int) -> str:
    """Say what was read."""
    return (
        f"{files_line(files, passed_over)} Runs: {len(result.runs):,}. "
        f"Rounds: {result.rounds:,}. Problems, named on stderr: {result.problems:,}."
    )


def _sections(result: ReplayResult) -> list[Named]:
    from cellium_fast.replay import summarise

    outcomes = by_outcome(result).items()
    return [
        [(name, _cells(summary)) for name, summary in result.by_source().items()],
        [("total", _cells(summarise(result.runs)))],
        [(name, _cells(summary)) for name, summary in outcomes if summary.runs],
    ]


def _print_table(out: Console, sections: list[Named]) -> None:
    """Print a row for each source; if that is too wide, a column, in as many tables as it takes.

    No number and no name is broken at a line's end: part of a number would be a wrong one.
    """
    whole = _new_table("source", HEADERS)
    for section in sections:
        for name, cells in section:
            whole.add_row(name, *cells)
        whole.add_section()
    if _width(out, whole) <= out.width:
        out.print(whole)
        return
    sources, total, outcomes = sections
    figures = [header.replace("-\n", "").replace("\n", " ") for header in HEADERS]
    print_columns(out, "", figures, sources + total)
    out.print()
    print_columns(out, "", figures, outcomes)


def print_columns(
    out: Console, head: str, rows: Sequence[str], columns: Named, ends: Collection[int] = ()
) -> None:
    """Print columns beside the names of their rows, in as many tables as the width takes.

    `ends`: the rows after which a section ends. Here, too, no number and no name is broken.
    """
    width = out.width
    count = len(columns)
    while count > 1 and _width(out, _beside(head, rows, columns[:count], ends)) > width:
        count -= 1
    table = _beside(head, rows, columns[:count], ends)
    # Where not even one column fits, the terminal may fold the lines as it likes.
    out.width = max(width, _width(out, table))
    out.print(table)
    out.width = width
    if count < len(columns):
        out.print()
        print_columns(out, head, rows, columns[count:], ends)


def _beside(head: str, rows: Sequence[str], columns: Named, ends: Collection[int]) -> Table:
    table = _new_table(head, [name for name, _ in columns])
    lines = zip(rows, *(cells for _, cells in columns), strict=True)
    for place, line in enumerate(lines):
        table.add_row(*line, end_section=place in ends)
    return table


def _new_table(first: str, others: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=0, pad_edge=False, show_edge=False)
    table.add_column(first, no_wrap=True)
    for header in others:
        table.add_column(header, justify="right", no_wrap=True)
    return table


def _width(out: Console, table: Table) -> int:
    """The width a table needs, however wide the console is."""
    return out.measure(table, options=out.options.update_width(10_000)).maximum


def _print_examples(out: Console, result: ReplayResult) -> None:
    """Name the runs of which control would have changed most, the first of equals first."""
    def changed(run: ReplayedRun) -> tuple[int, int]:
        return run.rounds_after_terminate, run.rounds_after_redirect

    examples = sorted((run for run in result.runs if any(changed(run))), key=changed, reverse=True)
    if not examples:
        return
    # All runs share a pool: read alone, a run may be decided otherwise.
    out.print(
        f"\nRuns that control would have changed most ({len(examples):,} in all; look closer with "
        "the same paths and --show RUN):"
    )
    for run in examples[:RUNS_LISTED]:
        out.print(
            f"  {printable(str(run.name))}: {run.rounds} rounds, {OUTCOMES[run.success]}, "
            f"first decision other than continue in round {run.first_intervention}",
            soft_wrap=True,
        )


def _cells(summary: Summary) -> list[str]:
    from cellium_fast.replay import INTERVENTIONS

    first = summary.median_first_intervention
    return [
        *(f"{number:,}" for number in (
            summary.runs, summary.rounds, summary.succeeded, summary.failed, summary.unlabelled,
            *(summary.runs_with[action] for action in INTERVENTIONS),
        )),
        "-" if first is None else f"{first:g}",
        f"{summary.rounds_after_terminate:,}",
        f"{summary.rounds_after_redirect:,}",
    ]
