"""`cellium-fast replay`: what the control loop would have decided in recorded runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cellium_fast.cli.output import (
    NOT_SOUND,
    NOTHING_READ,
    AsJson,
    console,
    load_policy,
    plain_decision,
    plain_path,
    print_json,
    printable,
    progress,
    refuse,
    say,
    to_json,
    whole_file,
)
from cellium_fast.cli.quality import LEGEND as QUALITY_LEGEND
from cellium_fast.cli.quality import plain_quality, print_quality
from cellium_fast.cli.recordings import Paths, Strict, files_below, no_collector, read
from cellium_fast.cli.table import (
    LEGEND,
    OUTCOMES,
    by_outcome,
    counts_line,
    files_line,
    print_result,
    rate,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cellium_fast.decision import Decisions
    from cellium_fast.quality import JudgedRuns
    from cellium_fast.replay import ReplayResult, RunName, Summary
    from cellium_fast.rounds import Round
    from cellium_fast.traces import RecordedRun

NAMES_LISTED = 5        # runs named to someone who asked for one that there is not
ROUNDS_SHOWN = 40       # in a longer run, rounds without an intervention share a line
CALLS_LENGTH = 40       # characters

HELP = "\n\n".join((
    "Replay recorded agent runs: what would the control loop have decided, and when?",
    "Reads files, and all .json, .jsonl, .ndjson and .traj files below directories; formats are "
    "told by content. What cannot be read is named on stderr (file, line, why), counted and "
    "skipped.",
    "Each run is a session of one fleet, and its recorded outcome teaches the pool. Recorded "
    "rounds do not react to decisions: a run goes on after a terminate, and the table counts "
    "the rounds after it. A run's own round limit is not applied.",
    "All runs share one pool: where the rules leave several actions, the choice depends on the "
    "runs read with it too. A policy with tie_break = \"first\" judges each run by itself.",
    "The table has a row for each format, for all runs, and for each recorded outcome:",
    *LEGEND,
    "With --summary it says instead how good the decisions are, for each format and for all runs, "
    "beside the preset cellium and detectors that are easy to state:",
    *QUALITY_LEGEND,
    "With --json the detectors are policy, policy_chosen (by the action chosen), cellium, "
    "cellium_chosen, equal_calls_3, equal_calls_5 and errors_5; each has caught, disturbed, saved, "
    "lost and flagged as count, of, share and the interval low to high; null: of nothing.",
    "Exit codes: 0 done; 1 no run could be read, the result could not be written, or memory ran "
    "out; 2 wrong usage, or a problem in the files with --strict; 130 interrupted.",
))


def replay_command(
    paths: Paths,
    policy: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Preset, or a .toml, .yaml or .json file.")
    ] = "default",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the control loop, below 2**64.")
    ] = 0,
    decisions: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.jsonl",
            help="Write every decision as one line of JSON, in the order they were taken: "
            "round 1 of all runs, then round 2. The file appears when all is done.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Stop reading after N runs.")
    ] = None,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Show the decisions of one run instead of the table: its name, or path:name "
            "(the end of the path is enough).",
        ),
    ] = None,
    summary: Annotated[
        bool,
        typer.Option(
            "--summary",
            help="Say how good the decisions are: failing runs caught, successful runs disturbed, "
            "rounds saved, beside other detectors.",
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, metavar="N", show_default="the CPUs there are",
            help="Read by up to N processes where there is enough to read; the result is the "
            "same. --decisions, --limit and --show read by one.",
        ),
    ] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> None:
    """Replay recorded runs and print the result."""
    chosen = load_policy(policy)
    if seed >= 2**64:
        refuse(f"--seed: wanted a number below 2**64, got {seed}")
    if summary and show is not None:
        refuse("--summary: wanted without --show, which is about one run")
    files, passed_over = files_below(paths)
    _check_output(decisions, files)
    shown = None if show is None else _ShownRun(show)

    from cellium_fast.arguments import usable_cpus
    from cellium_fast.quality import Judge
    from cellium_fast.replay import replay

    if decisions is not None or limit is not None or shown is not None:
        jobs = 1    # writing decisions takes far longer than reading, and quotes errors by packing
    judge = Judge(seed, chosen) if summary else None
    with (
        whole_file("--decisions", decisions) as write, progress("runs") as bar, no_collector(),
        closing(read(
            files, jobs or usable_cpus(), bar, limit=limit,
            on_run=None if shown is None else shown.look_at,
        )) as found,
    ):

        def take(names: Sequence[RunName], taken: Decisions) -> None:
            if write is not None:
                _write_decisions(write, names, taken)
            if shown is not None:
                shown.take(names, taken)

        result = replay(
            found, chosen, seed=seed,
            on_decisions=take if write or shown else None,
            on_group=judge,
            on_problem=lambda problem: say(str(problem)),
        )
        if not result.runs:
            refuse(f"no run could be read. {files_line(len(files), passed_over)}", NOTHING_READ)
        if shown is not None:
            shown.check()
    if shown is not None:
        shown.print(as_json)
    elif as_json:
        print_json({
            "policy": policy, "seed": seed, "files": len(files), "passed_over": passed_over,
            **(_plain_result(result) if judge is None else _plain_judged(result, judge.judged())),
        })
    elif judge is not None:
        judged = judge.judged()
        print_quality({**judged.by_source(), "all": judged})
        line = counts_line(result, len(files), passed_over)
        console().print(f"\nPolicy: {printable(policy)}. {line}")
    else:
        print_result(result, len(files), passed_over)
    if strict and result.problems:
        refuse(f"--strict: {result.problems:,} problems in the files, named above", NOT_SOUND)


def _check_output(output: Path | None, files: Sequence[Path]) -> None:
    if output is None:
        return
    if str(output) == "-":
        refuse("--decisions: wanted the path of a file, got '-'; stdout has the result")
    if any(os.path.realpath(output) == os.path.realpath(file) for file in files):
        refuse(f"--decisions: {output} is among the files to read; wanted another place")


# --- decisions as lines --------------------------------------------------------------------------
def _write_decisions(
    write: Callable[[bytes], None], names: Sequence[RunName], decisions: Decisions
) -> None:
    for name, decision in zip(names, decisions, strict=True):
        write(to_json(plain_decision(name, decision)))


# --- one run -------------------------------------------------------------------------------------
class _ShownRun:
    """The run someone asked for: found while reading, filled while replaying."""

    def __init__(self, wanted: str) -> None:
        self._wanted = wanted
        self._matches = 0
        self._examples: list[str] = []
        self._run: tuple[Path, str, bool | None] | None = None
        self._calls: list[str] = []
        self._decisions: list[dict[str, Any]] = []

    def look_at(self, run: RecordedRun) -> None:
        """Keep what is shown of a run, if it is the one; else its name, for a message."""
        name = f"{run.path}:{run.run}"
        if not self._is_wanted(run):
            if self._matches == 0 and len(self._examples) < NAMES_LISTED:
                self._examples.append(name)
            return
        self._matches += 1
        if self._matches == 1:
            self._run = (run.path, run.run, run.success)
            self._calls = [
                _calls(round, event) for round, event in zip(run.rounds, run.events, strict=True)
            ]
            self._examples = []
        if len(self._examples) < NAMES_LISTED:
            self._examples.append(name)

    def _is_wanted(self, run: RecordedRun) -> bool:
        if self._wanted == run.run:
            return True
        if not self._wanted.endswith(f":{run.run}"):
            return False
        path = self._wanted.removesuffix(f":{run.run}")
        return path == str(run.path) or str(run.path).endswith(f"{os.sep}{path}")

    def take(self, names: Sequence[RunName], decisions: Decisions) -> None:
        """Keep the decision on this run, if there is one among these."""
        if self._run is None:
            return
        path, run, _ = self._run
        for place, name in enumerate(names):
            if name.run == run and name.path == path:
                self._decisions.append(plain_decision(name, decisions[place]))
                return

    def check(self) -> None:
        """Leave with a message unless exactly one run was meant."""
        if self._matches == 1:
            if len(self._decisions) < len(self._calls):
                refuse(f"--show: {self._wanted!r} could not be replayed, see above", NOTHING_READ)
            return
        several = self._matches > 1
        problem = f"{self._matches} runs are called" if several else "there is no run called"
        advice = "name one as path:run" if several else "there are"
        more = "" if len(self._examples) < NAMES_LISTED else ", ..."
        refuse(f"--show: {problem} {self._wanted!r}; {advice}: {', '.join(self._examples)}{more}")

    def print(self, as_json: bool) -> None:
        """Show the run on stdout."""
        assert self._run is not None
        path, run, success = self._run
        if as_json:
            facts = {"path": plain_path(path), "run": run, "success": success}
            print_json({**facts, "decisions": self._decisions})
            return
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        table = Table(box=SIMPLE_HEAD)
        table.add_column("round", justify="right", no_wrap=True)
        for header in ("calls", "action", "cause", "evidence"):
            table.add_column(header, no_wrap=header == "action")
        for row in self._rows():
            table.add_row(*row)
        out = console()
        out.print(printable(f"{path}:{run}"), soft_wrap=True)
        out.print(table)
        out.print(f"{len(self._decisions)} rounds, {OUTCOMES[success]}")

    def _rows(self) -> Iterator[tuple[str, ...]]:
        fold = len(self._decisions) > ROUNDS_SHOWN
        lines = zip(self._calls, self._decisions, strict=True)
        for quiet, group in groupby(lines, lambda line: line[1]["action"] == "continue"):
            found = list(group)
            if fold and quiet and len(found) > 1:
                first, last = found[0][1]["round"], found[-1][1]["round"]
                yield f"{first}-{last}", "...", "continue", "", ""
            else:
                yield from (_row(calls, decision) for calls, decision in found)


def _row(calls: str, decision: dict[str, Any]) -> tuple[str, ...]:
    cause = "" if decision["action"] == "continue" else decision["cause"].replace("_", " ")
    # Several rules may rest on the same evidence.
    evidence = "; ".join(dict.fromkeys(decision["evidence"].values()))
    return str(decision["round"]), calls, decision["action"], cause, evidence


def _calls(round: Round, event: int) -> str:
    from cellium_fast.explain import NAME_LENGTH, safe_text

    before = ("", "(user message) ", "(compaction) ")[event]
    tools = [safe_text(call.tool, NAME_LENGTH) for call in round.calls]
    counts = [(tool, len(list(same))) for tool, same in groupby(tools)]
    names = ", ".join(tool if count == 1 else f"{tool} x{count}" for tool, count in counts)
    return safe_text(f"{before}{names or ('text' if round.text else 'nothing')}", CALLS_LENGTH)


# --- the summary ---------------------------------------------------------------------------------
def _plain_result(result: ReplayResult) -> dict[str, Any]:
    from cellium_fast.replay import summarise

    return {
        "problems": result.problems,
        "sources": {name: _plain(summary) for name, summary in result.by_source().items()},
        "outcomes": {name: _plain(summary) for name, summary in by_outcome(result).items()},
        "total": _plain(summarise(result.runs)),
        "loop_seconds": result.loop_seconds,
        "seconds": result.seconds,
        "loop_rounds_per_second": rate(result.rounds, result.loop_seconds),
        "rounds_per_second": rate(result.rounds, result.seconds),
    }


def _plain_judged(result: ReplayResult, judged: JudgedRuns) -> dict[str, Any]:
    return {
        "problems": result.problems,
        "sources": {name: plain_quality(runs) for name, runs in judged.by_source().items()},
        "total": plain_quality(judged),
        "seconds": result.seconds,
    }


def _plain(summary: Summary) -> dict[str, Any]:
    from cellium_fast.action import Action

    names = ("runs", "rounds", "succeeded", "failed", "unlabelled")
    return {
        **{name: getattr(summary, name) for name in names},
        "runs_with": {str(action): summary.runs_with[action] for action in Action},
        "decisions": {str(action): summary.decisions[action] for action in Action},
        "median_first_intervention": summary.median_first_intervention,
        "rounds_after_terminate": summary.rounds_after_terminate,
        "rounds_after_redirect": summary.rounds_after_redirect,
    }
