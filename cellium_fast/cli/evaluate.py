"""`cellium-fast evaluate`: policies side by side on recorded runs that say how they ended."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellium_fast.cli.output import (
    NOT_SOUND,
    NOTHING_READ,
    AsJson,
    console,
    load_policy,
    print_json,
    printable,
    progress,
    refuse,
    say,
)
from cellium_fast.cli.quality import interval, percent
from cellium_fast.cli.recordings import Jobs, Paths, Strict, files_below, no_collector, read
from cellium_fast.cli.table import files_line, print_columns, rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cellium_fast.evaluate import Comparison, Estimate, Evaluation
    from cellium_fast.policy import Policy
    from cellium_fast.quality import JudgedRuns

    Compared = dict[str, Comparison]

PRESETS_COMPARED = ("default", "cellium")
FIGURES = {"caught": "caught", "disturbed": "dis-\nturbed", "saved": "saved", "lost": "lost"}
HEADERS = [
    header for figure in FIGURES.values() for header in (figure, f"{figure}\n%", f"{figure}\n95 %")
]
DIFFERENCE_HEADERS = [
    header for figure in FIGURES.values() for header in (f"{figure}\npoints", f"{figure}\n95 %")
]
LEGEND = (
    "A policy steps in where it chooses redirect or terminate.",
    "caught: failing runs in which it stepped in. disturbed: successful runs in which it did.",
    "saved: rounds of failing runs recorded after it first stepped in. lost: the same of "
    "successful runs.",
    "95 %: percentile interval of the bootstrap; runs are drawn anew for each source and outcome, "
    "for all policies the same ones. -: the runs cannot say, the figure is the same whichever "
    "of them are drawn.",
)
HELP = "\n\n".join((
    "Compare policies on recorded agent runs that say how they ended: failing runs caught, "
    "successful runs disturbed, rounds saved and lost, by source and over all, and by how much "
    "each policy differs from the first, with intervals.",
    "Reads files, and all .json, .jsonl, .ndjson and .traj files below directories, as replay "
    "does; what cannot be read is named on stderr, counted and skipped. Runs that do not say how "
    "they ended are counted and left out.",
    "Every run is a session of every policy, with the same random numbers; each policy has a pool "
    "of its own. Recorded rounds do not react to decisions: rounds saved are those a run went on "
    "for, not what it would have done.",
    *LEGEND,
    "With --json each figure has count, of, share, the interval low to high, and difference, "
    "difference_low and difference_high from the first policy; null: of nothing.",
    "Exit codes: 0 done; 1 no labelled run could be read, or memory ran out; 2 wrong usage, or a "
    "problem in the files with --strict; 130 interrupted.",
))


def evaluate_command(
    paths: Paths,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[LABEL=]NAME|FILE",
            help="A preset, or a .toml, .yaml or .json file; may be repeated. The label is the "
            "name of the preset or of the file if none is given. Differences are from the first.",
            show_default="default and cellium",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of control and of resampling, below 2**64.")
    ] = 0,
    resamples: Annotated[
        int, typer.Option(min=100, max=100_000, metavar="N", help="Resamples for the intervals.")
    ] = 2_000,
    jobs: Jobs = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    """Compare policies on recorded runs and print the result."""
    given = _labels(policy or PRESETS_COMPARED)
    policies = {label: load_policy(name) for label, name in given.items()}
    if seed >= 2**64:
        refuse(f"--seed: wanted a number below 2**64, got {seed}")
    files, passed_over = files_below(paths)

    from cellium_fast.arguments import usable_cpus

    result = _evaluate(files, jobs or usable_cpus(), policies, seed, resamples)
    if not len(result.runs):
        what = (
            f"none of the {result.unlabelled:,} runs says how it ended" if result.unlabelled
            else "no run could be read"
        )
        refuse(f"{what}. {files_line(len(files), passed_over)}", NOTHING_READ)
    if as_json:
        print_json({
            "policies": given, "seed": seed, "resamples": resamples, "files": len(files),
            "passed_over": passed_over, **_plain(result),
        })
    else:
        print_compared({**result.sources, "all": result.total})
        console().print(f"\n{files_line(len(files), passed_over)} {_counts_line(result)}")
    if strict and result.problems:
        refuse(f"--strict: {result.problems:,} problems in the files, named above", NOT_SOUND)


def _labels(given: Iterable[str]) -> dict[str, str]:
    """Return the preset or file of each label."""
    labels: dict[str, str] = {}
    for text in given:
        label, equals, name = text.partition("=")
        if not equals or os.path.exists(text):      # a file may be named like that
            label, name = Path(text).stem or text, text
        if not label or not name:
            refuse(f"--policy: wanted LABEL=NAME or LABEL=FILE, got {text!r}")
        if label in labels:
            refuse(
                f"--policy: {labels[label]!r} and {name!r} are both called {label!r}; wanted "
                "labels that differ, as in --policy other=FILE"
            )
        labels[label] = name
    return labels


def _evaluate(
    files: list[Path], jobs: int, policies: Mapping[str, Policy], seed: int, resamples: int
) -> Evaluation:
    from cellium_fast.evaluate import evaluate

    with (
        progress("runs") as bar, no_collector(), closing(read(files, jobs, bar)) as found,
    ):
        task = bar.add_task("Deciding", total=1, count=0)
        return evaluate(
            found, policies, seed=seed, resamples=resamples,
            on_problem=lambda problem: say(str(problem)),
            on_runs=lambda done, total: bar.update(task, completed=done, total=total, count=done),
        )


# --- JSON ----------------------------------------------------------------------------------------
def _plain(result: Evaluation) -> dict[str, Any]:
    return {
        "problems": result.problems,
        "unlabelled": result.unlabelled,
        "sources": {
            name: _plain_runs(runs, result.sources[name])
            for name, runs in result.runs.by_source().items()
        },
        "total": _plain_runs(result.runs, result.total),
        "loop_seconds": result.loop_seconds,
        "seconds": result.seconds,
        "loop_rounds_per_second": rate(result.decisions, result.loop_seconds),
    }


def _plain_runs(runs: JudgedRuns, compared: Compared) -> dict[str, Any]:
    outcomes = runs.outcomes()
    return {
        "runs": len(runs),
        "rounds": int(runs.rounds.sum()),
        "succeeded": outcomes[True],
        "failed": outcomes[False],
        "policies": {
            label: {figure: plain_estimate(getattr(one, figure)) for figure in FIGURES}
            for label, one in compared.items()
        },
    }


def plain_estimate(estimate: Estimate) -> dict[str, Any]:
    """Return a figure for JSON."""
    low, high = estimate.interval or (None, None)
    difference_low, difference_high = estimate.difference_interval or (None, None)
    share = estimate.share
    return {
        "count": share.count, "of": share.total, "share": share.share, "low": low, "high": high,
        "difference": estimate.difference, "difference_low": difference_low,
        "difference_high": difference_high,
    }


# --- tables --------------------------------------------------------------------------------------
def print_compared(sections: Mapping[str, Compared]) -> None:
    """Print the policies on each of these sets of runs, their differences, and a legend."""
    out = console()
    rows: list[tuple[str, list[str]]] = []
    differences: list[tuple[str, list[str]]] = []
    ends, difference_ends = [], []
    for name, compared in sections.items():
        first, *others = compared.items()
        rows.append((printable(name), _wholes(first[1])))
        rows += [(f" {printable(label)}", _cells(one)) for label, one in compared.items()]
        ends.append(len(rows) - 1)
        if others:
            differences.append((printable(name), [""] * len(DIFFERENCE_HEADERS)))
            differences += [(f" {printable(label)}", _differences(one)) for label, one in others]
            difference_ends.append(len(differences) - 1)
    _print_table("policy", HEADERS, rows, ends)
    if differences:
        first_label = printable(next(iter(next(iter(sections.values())))))
        out.print()
        _print_table(f"less {first_label}", DIFFERENCE_HEADERS, differences, difference_ends)
    out.print("", *LEGEND, sep="\n")


def _print_table(
    head: str, headers: list[str], rows: list[tuple[str, list[str]]], ends: list[int]
) -> None:
    columns = zip(*(cells for _, cells in rows), strict=True)
    print_columns(
        console(), head, [name for name, _ in rows],
        [(header, list(cells)) for header, cells in zip(headers, columns, strict=True)], ends,
    )


def _wholes(one: Comparison) -> list[str]:
    """Say of what the figures below are."""
    return [
        cell for estimate in _estimates(one) for cell in (f"of {estimate.share.total:,}", "", "")
    ]


def _cells(one: Comparison) -> list[str]:
    return [
        cell for estimate in _estimates(one) for cell in (
            f"{estimate.share.count:,}", percent(estimate.share.share, 1),
            interval(estimate.interval, 1),
        )
    ]


def _differences(one: Comparison) -> list[str]:
    return [
        cell for estimate in _estimates(one) for cell in (
            percent(estimate.difference, 1, signed=True),
            interval(estimate.difference_interval, 1, signed=True),
        )
    ]


def _estimates(one: Comparison) -> list[Estimate]:
    return [getattr(one, figure) for figure in FIGURES]


def _counts_line(result: Evaluation) -> str:
    speed = rate(result.decisions, result.loop_seconds)
    return (
        f"Labelled runs: {len(result.runs):,}, left out without a label: {result.unlabelled:,}. "
        f"Rounds: {int(result.runs.rounds.sum()):,}. Problems, named on stderr: "
        f"{result.problems:,}. {speed:,.0f} rounds x policies a second in the control loop."
    )
