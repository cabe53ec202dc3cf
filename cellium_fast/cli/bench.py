"""`cellium-fast bench`: the package against its targets and against others, in one run."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellium_fast.cli.output import AsJson, console, print_json, progress, refuse

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from cellium_fast.bench import Measure, Row, Sizes, Spread, Unit
    from cellium_fast.bench.machine import Machine

# A value from so much on is shown in this unit: what it is divided by, and how it is called.
SCALES = {
    "s": ((1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (1e-6, 1e-6, "µs"), (0.0, 1e-9, "ns")),
    "B/s": ((1e9, 1e9, "GB/s"), (0.0, 1e6, "MB/s")),
    "texts/s": ((1e6, 1e6, "M texts/s"), (0.0, 1e3, "k texts/s")),
    "rounds/s": ((0.0, 1e3, "k rounds/s"),),
    "bytes": ((0.0, 1.0, "bytes"),),
}
# Characters of a column that may be folded, tried in turn; None: as many as it takes.
MEASURED_WIDTHS = (None, 26)
HEADERS = ("", "measured", "figure", "baseline", "ratio", "target", "mark")

HELP = "\n\n".join((
    "Measure the package against its targets and against others, in one run.",
    "A figure is the median of runs that take turns with those of its baseline, with the quartiles "
    "in parentheses; a ratio is of two such medians. One core unless a row says otherwise. The "
    "whole takes some minutes and 1 GB of memory, with --quick less than one and less than half.",
    "What is missing (an extra, a second core, the checkout) is said in its row. A missed target "
    "is a result, not a failure: exit codes are 0 done; 1 the result could not be written, or "
    "memory ran out; 2 wrong usage; 130 interrupted.",
))


def bench_command(
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller sizes and fewer runs; rows say which.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure this row only; may be given several times."),
    ] = None,
    cpu_time: Annotated[
        bool,
        typer.Option(
            "--cpu-time",
            help="Count CPU time, on a machine that is busy with other things. The rows threads, "
            "import and first go by the clock all the same.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure and print."""
    from cellium_fast import bench

    sizes = replace(bench.QUICK if quick else bench.FULL, cpu_time=cpu_time)
    measures = _chosen(bench.MEASURES, only or [])
    machine = bench.this_machine()
    rows = []
    with progress("measured") as bar:
        task = bar.add_task("", total=len(measures), count=0)
        for done, measure in enumerate(measures, 1):
            bar.update(task, description=measure.name)
            rows.append(bench.take(measure, sizes))
            bar.update(task, completed=done, count=done)
    if as_json:
        print_json(_plain(machine, sizes, quick, rows))
    else:
        _print_rows(machine, sizes, quick, rows)


def _chosen(measures: dict[str, Measure], names: list[str]) -> list[Measure]:
    for name in names:
        if name not in measures:
            refuse(f"--only: wanted one of {', '.join(measures)}, got {name!r}")
    return [measure for name, measure in measures.items() if not names or name in names]


# --- for machines --------------------------------------------------------------------------------
def _plain(machine: Machine, sizes: Sizes, quick: bool, rows: list[Row]) -> dict[str, Any]:
    return {
        "machine": asdict(machine), "quick": quick, "sizes": asdict(sizes),
        "measures": [_plain_row(row) for row in rows],
    }


def _plain_row(row: Row) -> dict[str, Any]:
    measure, result = row.measure, row.result
    return {
        "name": measure.name, "what": measure.what, "unit": measure.unit,
        "figure": result and asdict(result.figure),
        "baseline": measure.baseline or None,
        "baseline_figure": asdict(result.baseline) if result and result.baseline else None,
        "ratio": row.ratio,
        "ratio_is": row.measure.compared if row.ratio is not None else None,
        "target": measure.target and asdict(measure.target),
        "mark": row.mark,
        "note": result.note if result else row.reason,
    }


# --- for people ----------------------------------------------------------------------------------
def _print_rows(machine: Machine, sizes: Sizes, quick: bool, rows: list[Row]) -> None:
    out = console()
    out.print(str(machine))
    if quick:
        out.print("Quick: smaller sizes and fewer runs than the full measurement.")
    if sizes.cpu_time:
        out.print("CPU time of this process, but for the rows threads, import and first.")
    out.print()
    anyhow = out.options.update_width(10_000)
    tables = (_table(rows, width) for width in MEASURED_WIDTHS)
    fitting = (
        table for table in tables if out.measure(table, options=anyhow).maximum <= out.width
    )
    table = next(fitting, None)
    if table is None:
        _print_blocks(out, rows)
    else:
        out.print(table)
    out.print()
    for row in rows:
        note = row.result.note if row.result else row.reason
        out.print(f"{row.measure.name}: {note}.")


def _table(rows: list[Row], measured_width: int | None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    for header in HEADERS:
        if header == "measured":
            table.add_column(header, max_width=measured_width)
        else:
            numbers = header in ("ratio", "target")
            table.add_column(header, no_wrap=True, justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _print_blocks(out: Console, rows: list[Row]) -> None:
    """Print a few lines for each row, for narrow terminals."""
    for row in rows:
        name, what, figure, baseline, ratio, target, mark = _cells(row)
        out.print(f"{name}: {what}")
        out.print(f"    {figure or '-'}, {'target ' + target + ', ' if target else ''}{mark}")
        if ratio:
            out.print(f"    ratio {ratio} ({' '.join(baseline.split(chr(10)))})")


def _cells(row: Row) -> tuple[str, ...]:
    measure, result = row.measure, row.result
    figure = shown_spread(result.figure, measure.unit) if result else ""
    baseline = measure.baseline
    if result and result.baseline:
        baseline += f"\n{shown_spread(result.baseline, measure.unit)}"
    ratio = "" if row.ratio is None else f"{shown_ratio(row.ratio)} {measure.compared}"
    return (measure.name, measure.what, figure, baseline, ratio, _shown_target(measure), row.mark)


def shown_spread(spread: Spread, unit: Unit) -> str:
    """Return median and quartiles in a unit that suits the median; a quoted figure is alone.

    >>> from cellium_fast.bench import Spread, Unit
    >>> shown_spread(Spread(61.25e-9, 58.9e-9, 166e-9), Unit.SECONDS)
    '61.2 ns (58.9 to 166)'
    """
    divisor, name = _scale(spread.median, unit)
    digits = "{:g}".format if unit == "bytes" else _digits
    low, median, high = (
        digits(value / divisor) for value in (spread.low, spread.median, spread.high)
    )
    alone = spread.low == spread.high
    return f"{median} {name}" if alone else f"{median} {name} ({low} to {high})"


def shown_ratio(ratio: float) -> str:
    """Return a ratio with what can be known of it.

    >>> shown_ratio(0.0512), shown_ratio(2.346), shown_ratio(3456.7)
    ('0.051 x', '2.35 x', '3,457 x')
    """
    return f"{ratio:.2g} x" if ratio < 0.1 else f"{_digits(ratio)} x"


def _shown_target(measure: Measure) -> str:
    target = measure.target
    if target is None:
        return ""
    sign = "≥" if target.at_least else "≤"
    if target.of_ratio:
        return f"{sign} {target.limit:,.3g} x" if target.limit < 1_000 else (
            f"{sign} {target.limit:,.0f} x"
        )
    divisor, name = _scale(target.limit, measure.unit)
    return f"{sign} {target.limit / divisor:,.3g} {name}"


def _scale(value: float, unit: Unit) -> tuple[float, str]:
    return next((divisor, name) for least, divisor, name in SCALES[unit] if value >= least)


def _digits(value: float) -> str:
    """Three digits, all of them where there are more before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
