"""How good the decisions of a policy are on recorded runs, and on what evidence they rest.

    python benchmarks/quality.py PATH... [--policy NAME|FILE] [--choose SOURCE]... [--missed N]

Prints what `cellium-fast replay --summary` prints, and the rules that fired first, the successful
runs disturbed, and failing runs missed. Thresholds want to be chosen on some sources and checked
on the others: --choose names the former.
"""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from cellium_fast.arguments import usable_cpus
from cellium_fast.cli.output import (
    NOTHING_READ,
    console,
    load_policy,
    plain_path,
    print_json,
    printable,
    refuse,
    say,
)
from cellium_fast.cli.quality import plain_quality, print_quality
from cellium_fast.cli.table import print_columns
from cellium_fast.decision import rules_in
from cellium_fast.quality import Detector, JudgedRuns, judge
from cellium_fast.replay import read_files
from cellium_fast.traces import find_files

# The detector that runs are listed for.
LISTED = Detector.POLICY


def main(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Files or directories of recordings.")
    ],
    policy: Annotated[str, typer.Option(metavar="NAME|FILE")] = "default",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    choose: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE", help="Chosen on this source, checked on the others; may be repeated."
        ),
    ] = None,
    missed: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="List N failing runs never flagged, longest first."),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Measure the quality of decisions on recorded runs."""
    judged = judge(
        read_files(find_files(paths), usable_cpus()), load_policy(policy), seed=seed,
        on_problem=lambda problem: say(str(problem)),
    )
    if not len(judged):
        refuse("no run could be read", NOTHING_READ)
    halves = _split(judged, choose or [])
    if as_json:
        print_json({
            "policy": policy, "seed": seed,
            "sources": {name: plain_quality(runs) for name, runs in judged.by_source().items()},
            "total": plain_quality(judged),
            **{name.replace(" ", "_"): plain_quality(runs) for name, runs in halves.items()},
            "evidence": evidence(judged),
            "disturbed": disturbed(judged),
            "missed": longest_missed(judged, missed),
        })
        return
    print_quality({**judged.by_source(), **halves, "all": judged})
    _print_evidence(judged)
    _print_runs("Successful runs disturbed", disturbed(judged))
    if missed:
        _print_runs("Failing runs never flagged, the longest", longest_missed(judged, missed))


def _split(judged: JudgedRuns, choose: list[str]) -> dict[str, JudgedRuns]:
    if not choose:
        return {}
    sources = np.array([name.source for name in judged.names])
    unknown = sorted(set(choose).difference(sources))
    if unknown:
        there = ", ".join(sorted(set(sources.tolist())))
        refuse(f"--choose: wanted one of {there}, got {unknown[0]!r}")
    chosen = np.isin(sources, choose)
    return {"chosen on": judged.part(chosen), "checked on": judged.part(~chosen)}


def evidence(judged: JudgedRuns) -> dict[str, dict[str, int]]:
    """By rule: failing and successful runs in whose first flagged round it fired."""
    failing = judged.first_rules(LISTED, success=False)
    successful = judged.first_rules(LISTED, success=True)
    return {
        rule: {"failing": failing[rule], "successful": successful[rule]}
        for rule, _ in (failing + successful).most_common()
    }


def disturbed(judged: JudgedRuns) -> list[dict[str, Any]]:
    """Successful runs that were flagged, in the order they were read."""
    hit = (judged.success == 1) & (judged.fired[LISTED]["first"] > 0)
    return [_plain_run(judged, place) for place in np.flatnonzero(hit).tolist()]


def longest_missed(judged: JudgedRuns, count: int) -> list[dict[str, Any]]:
    """The longest failing runs that were never flagged."""
    missed = np.flatnonzero((judged.success == 0) & (judged.fired[LISTED]["first"] == 0))
    longest = missed[np.argsort(-judged.rounds[missed], kind="stable")]
    return [_plain_run(judged, place) for place in longest[:count].tolist()]


def _plain_run(judged: JudgedRuns, place: int) -> dict[str, Any]:
    name, fired = judged.names[place], judged.fired[LISTED][place]
    return {
        "source": name.source, "path": plain_path(name.path), "run": name.run,
        "rounds": int(judged.rounds[place]), "first": int(fired["first"]),
        "rules": rules_in(int(fired["rules"])),
    }


def _print_evidence(judged: JudgedRuns) -> None:
    out = console()
    found = evidence(judged)
    out.print("\nRules that fired in the first flagged round, several a run:\n")
    print_columns(out, "rule", list(found), [
        (outcome, [str(runs[outcome]) for runs in found.values()])
        for outcome in ("failing", "successful")
    ])


def _print_runs(title: str, runs: list[dict[str, Any]]) -> None:
    out = console()
    out.print(f"\n{title}: {len(runs)}")
    for run in runs:
        flagged = f", round {run['first']}: {', '.join(run['rules'])}" if run["first"] else ""
        out.print(
            printable(f"  {run['source']} {run['path']}:{run['run']}, {run['rounds']} rounds"
                      f"{flagged}"),
            soft_wrap=True,
        )


if __name__ == "__main__":
    typer.run(main)
