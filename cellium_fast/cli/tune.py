"""`cellium-fast tune`: a policy fitted to recorded runs, judged on runs it was not fitted to."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellium_fast.cli.evaluate import FIGURES, plain_estimate, print_compared
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
    whole_file,
)
from cellium_fast.cli.recordings import Jobs, Paths, Strict, files_below, no_collector, read
from cellium_fast.cli.table import files_line, print_columns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cellium_fast.policy import Policy
    from cellium_fast.tuning import Figures, Tuning, TuningResult
    from cellium_fast.tuning.search import Search

INTERRUPTED = 130

HELP = "\n\n".join((
    "Search for the policy that steps into failing runs early and disturbs few successful ones, "
    "judge it on runs that the search did not see, and write it to a file.",
    "Reads files, and all .json, .jsonl, .ndjson and .traj files below directories, as replay "
    "does; what cannot be read is named on stderr, counted and skipped. Runs that do not say how "
    "they ended are counted and left out.",
    "The objective is the share of rounds of failing runs that come after the first redirect or "
    "terminate, as a mean over sources, less the cost of each parameter that is changed. As many "
    "successful runs may be disturbed as --budget says.",
    "Sources are never split: those that --holdout names are judged on, and the search does not "
    "see them. Without it every source is held out once, a few at a time, from a search of its "
    "own (--folds); the policy comes from one more search that sees all runs.",
    "With --study what was tried is kept, and the same command goes on where it ended. Ctrl-C "
    "ends the search, and judges and writes the best policy so far.",
    "The same runs, options and versions give the same file. Needs the extra tune: "
    "pip install 'cellium-fast[tune]'.",
    "Exit codes: 0 done; 1 no run could be read, the policy could not be written, or memory ran "
    "out; 2 wrong usage, no failing run, or a problem in the files with --strict; "
    "130 interrupted.",
))


def tune_command(
    paths: Paths,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the policy to this .toml, .yaml or .json file, with its provenance.",
        ),
    ] = None,
    policy: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="The policy to begin with: a preset, or a file."),
    ] = "default",
    holdout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE",
            help="A source, or a pattern with *, to judge on and not to search on; may be "
            "repeated.",
            show_default="a rotation",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="source|folder|file",
            help="What one source is: a format, a folder, or a file of recordings.",
        ),
    ] = "source",
    folds: Annotated[
        int,
        typer.Option(min=0, max=20, metavar="N", help="Searches of the rotation; 0: none."),
    ] = 5,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Search this parameter or section, such as rules.repeated_round; may be repeated.",
            show_default="all that decides when to step in",
        ),
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, metavar="SHARE", help="Successful runs that may be disturbed.",
            show_default="in each source as many as before",
        ),
    ] = None,
    change_cost: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="COST",
            help="What a changed parameter costs of the objective.",
        ),
    ] = 0.002,
    trials: Annotated[
        int, typer.Option(min=1, max=1_000_000, metavar="N", help="Policies each search tries.")
    ] = 600,
    batch: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="Policies driven side by side.")
    ] = 32,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Seed of search, control and resampling.")
    ] = 0,
    study: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep what was tried here, and go on from it."),
    ] = None,
    note: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A text for the provenance, such as the date."),
    ] = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    """Tune a policy on recorded runs, judge it, write it and print the result."""
    base = policy if policy in ("default", "cellium") else load_policy(policy)
    files, passed_over = files_below(paths)
    if out is not None:
        _check_out(out, files, study)

    with whole_file("--out", out) as write:
        settings = {
            "by": by, "holdout": holdout or (), "folds": folds, "only": only or (),
            "budget": budget, "change_cost": change_cost, "seed": seed, "batch": batch,
            "study": study,
        }
        tuning = _read(files, jobs, base, settings, passed_over)
        result, interrupted = _search(tuning, trials)
        if write is not None and out is not None:
            from cellium_fast.tuning.provenance import contents, encoded

            write(encoded(contents(result, note), out))
    if as_json:
        print_json({
            "files": len(files), "passed_over": passed_over, "problems": tuning.problems,
            "unlabelled": tuning.left_out, **_plain(result),
        })
    else:
        _print_result(result)
        runs = sum(source.runs for source in result.sources.values())
        console().print(
            f"\n{files_line(len(files), passed_over)} Labelled runs: {runs:,}, left out without a "
            f"label: {tuning.left_out:,}. Problems, named on stderr: {tuning.problems:,}."
        )
    if interrupted:
        raise typer.Exit(INTERRUPTED)
    if strict and tuning.problems:
        refuse(f"--strict: {tuning.problems:,} problems in the files, named above", NOT_SOUND)


def _check_out(out: Path, files: list[Path], study: Path | None) -> None:
    from cellium_fast.errors import InputError
    from cellium_fast.tuning import MissingPackageError
    from cellium_fast.tuning.provenance import check_path

    try:
        check_path(out)
    except (InputError, MissingPackageError) as error:
        refuse(f"--out: {error}")
    others = {os.path.realpath(file): "among the files to read" for file in files}
    if study is not None:
        others[os.path.realpath(study)] = "the study"
    if what := others.get(os.path.realpath(out)):
        refuse(f"--out: {out} is {what}; wanted another place")


def _read(
    files: list[Path], jobs: int | None, base: Policy | str, settings: dict[str, Any],
    passed_over: int,
) -> Tuning:
    from cellium_fast.arguments import usable_cpus
    from cellium_fast.tuning import NoRunsError, Tuning

    with (
        progress("runs") as bar, no_collector(),
        closing(read(files, jobs or usable_cpus(), bar)) as found,
    ):
        try:
            return Tuning(found, base, **settings, on_problem=lambda problem: say(str(problem)))
        except NoRunsError as error:
            refuse(f"{error}. {files_line(len(files), passed_over)}", NOTHING_READ)


def _search(tuning: Tuning, trials: int) -> tuple[TuningResult, bool]:
    """Search, and judge what was found; whether Ctrl-C came between."""
    interrupted = False
    with progress("policies") as bar:
        tasks = [
            bar.add_task("Searching" if not place else f"Fold {place}", total=trials, count=0)
            for place in range(tuning.searches)
        ]

        def show(place: int, search: Search) -> None:
            base, best = search.candidates[0].score, search.best.score
            bar.update(
                tasks[place], completed=search.told, count=search.told,
                description=f"{'Fold ' + str(place) if place else 'Searching'}: best "
                f"{best.value:.4f}, at first {base.value:.4f}",
            )

        try:
            tuning.run(trials, show)
        except KeyboardInterrupt:
            if not tuning.tried:
                raise
            interrupted = True
            say("Interrupted: judging the best policy so far.")
    return tuning.result(), interrupted


# --- JSON ----------------------------------------------------------------------------------------
def _plain(result: TuningResult) -> dict[str, Any]:
    from cellium_fast.tuning.provenance import differences
    from cellium_fast.tuning.space import value_of

    return {
        "settings": result.settings,
        "complete": result.complete,
        "tried": result.trials,
        "changes": result.changes,
        "from": {path: value_of(result.base, path) for path in result.changes},
        "differs_from_default": differences(result.policy, type(result.policy)()),
        "score": asdict(result.score),
        "base_score": asdict(result.base_score),
        "disturbed_allowed": result.allowed,
        "sources": {
            name: {**asdict(source), "held_out": name in result.held_out}
            for name, source in result.sources.items()
        },
        "trained": _plain_figures(result.trained),
        "judged": None if result.judged is None else _plain_figures(result.judged),
        "folds": [
            {"held_out": sorted(fold.held_out), "changes": fold.changes, **asdict(fold.score)}
            for fold in result.folds
        ],
    }


def _plain_figures(figures: Figures) -> dict[str, Any]:
    return {
        name: {
            label: {figure: plain_estimate(getattr(one, figure)) for figure in FIGURES}
            for label, one in compared.items()
        }
        for name, compared in {**figures.sources, "all": figures.total}.items()
    }


# --- tables --------------------------------------------------------------------------------------
def _print_result(result: TuningResult) -> None:
    from cellium_fast.tuning.space import value_of

    out = console()
    sections = {"tuned on": result.trained.total}
    if result.judged is not None:
        sections |= {f"unseen: {name}": one for name, one in result.judged.sources.items()}
        sections["unseen: all"] = result.judged.total
    print_compared(sections)
    out.print()
    if result.changes:
        rows = list(result.changes)
        print_columns(out, "changed", rows, [
            ("before", [str(value_of(result.base, path)) for path in rows]),
            ("tuned", [str(value) for value in result.changes.values()]),
        ])
    out.print(*_lines(result), sep="\n")


def _lines(result: TuningResult) -> Iterator[str]:
    """Say what the tables do not."""
    if not result.changes:
        yield "No policy that was tried is better than the one it began with."
    if result.score.excess:
        yield "No policy that was tried keeps to the budget: this one is nearest to it."
    yield (
        f"Objective on the runs tuned on: {result.score.value:.4f}, at first "
        f"{result.base_score.value:.4f}. Successful runs disturbed: {result.score.disturbed:,} of "
        f"{result.allowed:,} allowed. Policies tried: {result.trials:,} a search."
    )
    disturbed = result.trained.total["tuned"].disturbed.share
    if disturbed.interval is not None:
        yield (
            f"So few of {disturbed.total:,} mean that up to {100 * disturbed.interval[1]:.1f} % of "
            "other successful runs of these kinds may be disturbed (95 %)."
        )
    if result.judged is None:
        yield (
            "Nothing is known of unseen runs: "
            + ("the searches of the rotation are not done."
               if not result.complete and not result.held_out else
               "wanted --holdout, or --folds and several sources (see --by).")
        )
    elif not result.held_out:
        for fold in result.folds:
            changes = ", ".join(f"{path} = {value}" for path, value in fold.changes.items())
            yield printable(f"Without {', '.join(sorted(fold.held_out))}: {changes or 'no change'}")
        yield "unseen: under the policy of the search that did not see the source."
